#include "step.hpp"

#include "backend.hpp"

#include <turnwise/rejection/ratio_band.hpp>

#include <chrono>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

namespace rollout_step {
namespace {

using turnwise::reason_flags;

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

/// The proposals and the attempts at them in the order of the library, with what proposal_results points to.
class sorted_proposals {
 public:
  sorted_proposals(proposal_rows const& rows, turnwise::rollout const& order)
      : group_(gathered(order, rows.group)),
        attempts_(sort_rows(rows.attempts)),
        groups_(turnwise::make_grouping(attempts_.view(), turnwise::group_by::group)),
        compiled_(gathered(attempts_, rows.compiled)),
        correct_(gathered(attempts_, rows.correct)),
        decoy_(gathered(attempts_, rows.decoy)) {
    if (!rows.invalid_module.empty()) invalid_module_ = gathered(order, rows.invalid_module);
  }
  sorted_proposals(sorted_proposals const&) = delete;
  sorted_proposals& operator=(sorted_proposals const&) = delete;
  [[nodiscard]] turnwise::recipe::proposal_results<double> view() const {
    return {.attempts = {.batch = attempts_.view(),
                         .groups = &groups_,
                         .evaluation = {.compiled = compiled_, .correct = correct_, .decoy = decoy_}},
            .group = group_,
            .invalid_module = invalid_module_};
  }

 private:
  std::vector<std::int64_t> group_;
  turnwise::rollout attempts_;
  turnwise::grouping groups_;
  std::vector<std::uint8_t> invalid_module_, compiled_, correct_, decoy_;
};

/// Calls the recipe; its time is that of the call alone.
template <typename Old, typename Rollout>
turn_results run_on_cpu(recipe_inputs const& inputs, step_options const& options, std::vector<Old> const& old_logprob,
                        std::vector<Rollout> const& rollout_logprob) {
  turn_results turns(inputs.batch.turns(), inputs.tokens());
  turnwise::recipe::step_inputs<Old, Rollout, double> const recipe_inputs{
      .tokens = {.old_logprob = old_logprob, .rollout_logprob = rollout_logprob, .mask = inputs.token_mask},
      .evaluation = inputs.evaluation,
      .given_reward = inputs.given_reward};
  turnwise::recipe::step_outputs const out{.reward = turns.reward,
                                           .turn_return = turns.turn_return,
                                           .advantage = turns.advantage,
                                           .reasons = turns.reasons,
                                           .statistics = turns.statistics,
                                           .token_advantage = turns.token_advantage,
                                           .metrics = &turns.metrics};
  auto const start = std::chrono::steady_clock::now();
  switch (options.recipe) {
    case recipe_name::dr_kernel:
      turnwise::recipe::dr_kernel(inputs.batch, recipe_inputs, options.dr_kernel, options.key, out);
      break;
    case recipe_name::kernel_zero:
      turnwise::recipe::kernel_zero(inputs.batch, recipe_inputs, options.kernel_zero, options.key, out);
      break;
    case recipe_name::kernel_zero_proposer:
      turnwise::recipe::kernel_zero_proposer(inputs.batch, recipe_inputs, inputs.proposals,
                                             options.kernel_zero_proposer, options.key, out);
      break;
    case recipe_name::kevin:
      turnwise::recipe::kevin(inputs.batch, recipe_inputs, options.kevin, options.key, out);
      break;
  }
  turns.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return turns;
}

turn_results run_recipe(recipe_inputs const& inputs, step_options const& options) {
#ifdef TURNWISE_STEP_CUDA
  if (options.backend == backend_name::cuda) return run_on_cuda(inputs, options);
#endif
  return std::visit(
      [&](auto const& old_logprob, auto const& rollout_logprob) {
        return run_on_cpu(inputs, options, old_logprob, rollout_logprob);
      },
      inputs.old_logprob, inputs.rollout_logprob);
}

}  // namespace

step_result run_step(input_rows const& rows, turnwise::rollout const& order, step_options const& options) {
  evaluation_rows const evaluation = rows.evaluation ? gathered(order, *rows.evaluation) : evaluation_rows{};
  std::vector<double> const reward = rows.reward ? gathered(order, *rows.reward) : std::vector<double>{};
  std::optional<sorted_proposals> proposals;
  if (rows.proposals) proposals.emplace(*rows.proposals, order);
  turnwise::rollout_view const batch = order.view();
  turn_results turns =
      run_recipe({.batch = batch,
                  .old_logprob = rows.old_logprob,
                  .rollout_logprob = rows.rollout_logprob,
                  .token_mask = rows.token_mask,
                  .evaluation = evaluation.view(),
                  .given_reward = reward,
                  .proposals = proposals ? proposals->view() : turnwise::recipe::proposal_results<double>{}},
                 options);
  std::vector<double> ratio(rows.turns());
  turnwise::rejection::geometric_ratio(batch, turns.statistics, turns.reasons, options.band().level, ratio);
  step_result result;
  result.reward = scattered(order, turns.reward);
  result.turn_return = scattered(order, turns.turn_return);
  result.advantage = scattered(order, turns.advantage);
  result.reason = scattered(order, turns.reasons);
  result.geometric_ratio = scattered(order, ratio);
  result.keep.reserve(result.reason.size());
  for (reason_flags const reasons : result.reason) result.keep.push_back(turnwise::is_kept(reasons));
  result.token_advantage = std::move(turns.token_advantage);
  result.metrics = turns.metrics;
  result.seconds = turns.seconds;
  return result;
}

}  // namespace rollout_step
