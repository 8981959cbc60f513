#include "step.hpp"

#include <turnwise/rejection/ratio_band.hpp>

#include <chrono>
#include <variant>
#include <vector>

namespace rollout_step {
namespace {

using turnwise::reason_flags;
using turnwise::importance::turn_statistics;

template <typename T>
std::vector<T> gathered(turnwise::rollout const& order, std::vector<T> const& rows) {
  std::vector<T> turns(rows.size());
  order.gather(rows, std::span<T>{turns});
  return turns;
}

template <typename T>
std::vector<T> scattered(turnwise::rollout const& order, std::vector<T> const& turns) {
  std::vector<T> rows(turns.size());
  order.scatter(turns, std::span<T>{rows});
  return rows;
}

evaluation_rows gathered(turnwise::rollout const& order, evaluation_rows const& rows) {
  return {.compiled = gathered(order, rows.compiled),
          .correct = gathered(order, rows.correct),
          .decoy = gathered(order, rows.decoy),
          .speedup = gathered(order, rows.speedup),
          .generated_us = gathered(order, rows.generated_us),
          .total_us = gathered(order, rows.total_us)};
}

/// What the recipe writes, in the order of the turns.
struct turn_results {
  std::vector<double> reward, turn_return, advantage;
  std::vector<reason_flags> reasons;
  std::vector<turn_statistics> statistics;

  explicit turn_results(std::size_t turns)
      : reward(turns), turn_return(turns), advantage(turns), reasons(turns), statistics(turns) {}
};

/// Calls the recipe and returns the seconds it took.
template <typename Old, typename Rollout>
double call_recipe(turnwise::rollout_view const& batch,
                   turnwise::recipe::step_inputs<Old, Rollout, double> const& inputs, step_options const& options,
                   turnwise::recipe::step_outputs const& out) {
  auto const start = std::chrono::steady_clock::now();
  if (options.is_dr_kernel())
    turnwise::recipe::dr_kernel(batch, inputs, options.dr_kernel, options.key, out);
  else
    turnwise::recipe::kernel_zero(batch, inputs, options.kernel_zero, options.key, out);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

template <typename Old, typename Rollout>
step_result run_on_cpu(input_rows const& rows, turnwise::rollout const& order, step_options const& options,
                       std::vector<Old> const& old_logprob, std::vector<Rollout> const& rollout_logprob) {
  evaluation_rows const evaluation = rows.evaluation ? gathered(order, *rows.evaluation) : evaluation_rows{};
  std::vector<double> const reward = rows.reward ? gathered(order, *rows.reward) : std::vector<double>{};
  turnwise::rollout_view const batch = order.view();
  turn_results turns(rows.turns());
  step_result result;
  result.token_advantage.resize(rows.tokens());
  result.seconds = call_recipe<Old, Rollout>(
      batch,
      {.tokens = {.old_logprob = old_logprob, .rollout_logprob = rollout_logprob, .mask = rows.token_mask},
       .evaluation = evaluation.view(),
       .given_reward = reward},
      options,
      {.reward = turns.reward,
       .turn_return = turns.turn_return,
       .advantage = turns.advantage,
       .reasons = turns.reasons,
       .statistics = turns.statistics,
       .token_advantage = result.token_advantage,
       .metrics = &result.metrics});

  std::vector<double> ratio(rows.turns());
  turnwise::rejection::geometric_ratio(batch, turns.statistics, turns.reasons, options.band().level, ratio);
  result.reward = scattered(order, turns.reward);
  result.turn_return = scattered(order, turns.turn_return);
  result.advantage = scattered(order, turns.advantage);
  result.reason = scattered(order, turns.reasons);
  result.geometric_ratio = scattered(order, ratio);
  result.keep.reserve(result.reason.size());
  for (reason_flags const reasons : result.reason) result.keep.push_back(turnwise::is_kept(reasons));
  return result;
}

}  // namespace

step_result run_step(input_rows const& rows, turnwise::rollout const& order, step_options const& options) {
  switch (options.backend) {
    case backend_name::cpu:
      break;
  }
  return std::visit(
      [&](auto const& old_logprob, auto const& rollout_logprob) {
        return run_on_cpu(rows, order, options, old_logprob, rollout_logprob);
      },
      rows.old_logprob, rows.rollout_logprob);
}

}  // namespace rollout_step
