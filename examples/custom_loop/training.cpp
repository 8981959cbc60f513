#include "training.hpp"

#include <turnwise/advantage/discounted_return.hpp>
#include <turnwise/advantage/group_relative.hpp>
#include <turnwise/advantage/leave_one_out.hpp>
#include <turnwise/rejection/profiling_filter.hpp>
#include <turnwise/reward/kernel_reward.hpp>

#include <span>

namespace custom_loop {
namespace {

/// The conversations of one step, turn after turn.
struct rollouts {
  std::vector<std::int64_t> offsets{0}, prompt, trajectory;
  std::vector<std::uint8_t> correct;
  std::vector<double> speedup, generated_us, total_us;
  std::vector<feature_vector> seen;
  std::vector<probabilities> probability;
  std::vector<plan> chosen;

  [[nodiscard]] turnwise::rollout_view view() const {
    return {.trajectory_offsets = offsets, .group_id = prompt, .trajectory_id = trajectory};
  }
  [[nodiscard]] turnwise::reward::evaluation<double> evaluation() const {
    return {.correct = correct, .speedup = speedup, .generated_us = generated_us, .total_us = total_us};
  }
};

void converse(weights const& w, task const& of, turnwise::draw_key key, std::size_t prompt, std::size_t trajectory,
              rollouts& batch) {
  plan before = plan::wrong;  // not seen at the first turn
  for (std::size_t turn = 0; turn < turns; ++turn) {
    turn_draws const u = draw(key, prompt, trajectory, turn);
    if (turn > 0 && u.context < of.context_full) break;
    batch.seen.push_back(features_of(turn, before));
    batch.probability.push_back(policy(w, batch.seen.back()));
    before = sample(batch.probability.back(), u.action);
    batch.chosen.push_back(before);
    outcome const result = try_out(before, u.profile);
    batch.correct.push_back(result.correct ? 1 : 0);
    batch.speedup.push_back(result.speedup);
    batch.generated_us.push_back(100 * result.profiling_ratio);
    batch.total_us.push_back(100);
  }
  batch.offsets.push_back(static_cast<std::int64_t>(batch.chosen.size()));
  batch.prompt.push_back(static_cast<std::int64_t>(prompt));
  batch.trajectory.push_back(static_cast<std::int64_t>(trajectory));
}

struct judgement {
  std::vector<turnwise::reason_flags> reasons;
  std::vector<double> advantage;
};

/// What the library is here for: rewards, returns, filter, baseline.
judgement judge(rollouts const& batch, run_options const& options, turnwise::draw_key key) {
  using namespace turnwise;
  bool const pays_profile = options.against_lazy != remedy::none;
  bool const kept = options.against_lazy == remedy::filter_kept;
  bool const filters = kept || options.against_lazy == remedy::filter_valid;
  rollout_view const view = batch.view();
  reward::evaluation<double> const evaluation = batch.evaluation();
  judgement result{std::vector<reason_flags>(view.turns()), std::vector<double>(view.turns())};
  std::vector<double> reward(view.turns()), turn_return(view.turns());

  begin_reasons(view, result.reasons);
  reward::kernel_reward(evaluation, {.profiling_weight = pays_profile ? 1.0 : 0.0}, result.reasons, std::span{reward});
  advantage::discounted_return(view, reward, {.gamma = 1}, result.reasons, std::span{turn_return});
  if (filters) rejection::profiling_filter(view, evaluation, {}, key, result.reasons);

  grouping const groups = make_grouping(view, group_by::turn);
  auto const members = kept ? advantage::baseline_members::kept : advantage::baseline_members::valid;
  if (options.baseline == baseline_kind::leave_one_out) {
    // A lone survivor of the filter must not earn its whole return.
    auto const singleton = kept ? advantage::singleton_policy::zero : advantage::singleton_policy::keep;
    advantage::leave_one_out(groups, turn_return, result.reasons,
                             {.singleton = singleton, .members = members, .threads = 1}, std::span{result.advantage});
  } else {
    advantage::group_relative(groups, turn_return, result.reasons, {.scale = false, .members = members, .threads = 1},
                              std::span{result.advantage});
  }
  return result;
}

/// The policy gradient over the kept turns. Its divisor, the number of trajectories, does not depend on what was done.
weights gradient_of(rollouts const& batch, judgement const& judged) {
  weights gradient = weights::Zero();
  for (std::size_t s = 0; s < batch.chosen.size(); ++s) {
    if (!turnwise::is_kept(judged.reasons[s])) continue;
    probabilities slope = -batch.probability[s];
    slope[static_cast<int>(batch.chosen[s])] += 1;
    gradient += judged.advantage[s] * slope * batch.seen[s].transpose();
  }
  return gradient / static_cast<double>(batch.prompt.size());
}

curve_point point_of(weights const& w) {
  turn_probabilities const p = plan_probabilities(w);
  return {p.row(1).mean(), p.row(2).mean(), {p(2, 0), p(2, 1), p(2, 2)}};
}

}  // namespace

curve train(run_options const& options) {
  weights w = untrained(options.of);
  optimiser ascent{options.optimiser, options.rate};
  curve result{point_of(w)};
  for (std::uint32_t step = 0; step < options.steps; ++step) {
    turnwise::draw_key const key{.seed = options.seed, .step = step};
    rollouts batch;
    for (std::size_t prompt = 0; prompt < options.prompts; ++prompt)
      for (std::size_t trajectory = 0; trajectory < options.k; ++trajectory)
        converse(w, options.of, key, prompt, trajectory, batch);
    ascent.step(w, gradient_of(batch, judge(batch, options, key)));
    result.push_back(point_of(w));
  }
  return result;
}

}  // namespace custom_loop
