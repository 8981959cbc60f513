/// @file
/// The training step of Dr. Kernel as one call.
#pragma once

#include <turnwise/advantage/leave_one_out.hpp>
#include <turnwise/recipe/detail/turn_step.hpp>
#include <turnwise/recipe/step.hpp>
#include <turnwise/reward/kernel_reward.hpp>

namespace turnwise::recipe {

/// Options of `dr_kernel`.
struct dr_kernel_options {
  reward::kernel_reward_options reward{};              ///< of kernel_reward
  advantage::discounted_return_options turn_return{};  ///< of discounted_return
  advantage::leave_one_out_options advantage{};        ///< of leave_one_out over turn groups
  filter_options filters{};                            ///< which filters run
  metrics::mismatch_options metrics{};                 ///< its band follows filters.ratio_band where that is on
  int threads = 0;                                     ///< 0 = the runtime's default

  /// As the paper states: C (1 + speedup + PR); geometric ratio of the trajectory in [0.999, 1.001]; any token ratio
  /// below 1e-4 rejects the trajectory; profiling filter at 0.3 with softness 0.1. Ours where it is silent: gamma 1,
  /// lone members keep their return.
  [[nodiscard]] static dr_kernel_options paper() {
    dr_kernel_options options;
    options.filters.ratio_band.emplace();
    options.filters.token_veto.emplace();
    options.filters.profiling_filter.emplace();
    return options;
  }

  /// As the published scripts run it: 0.5 C (1 + min(speedup, 3) + PR); the veto rejects the turn alone.
  [[nodiscard]] static dr_kernel_options released() {
    dr_kernel_options options = paper();
    options.reward = {.correct_weight = 0.5, .speedup_weight = 0.5, .profiling_weight = 0.5, .speedup_cap = 3.0};
    options.filters.token_veto->veto_scope = rejection::scope::turn;
    return options;
  }
};

/// Rewards, returns, turn-level leave-one-out advantages and keep decisions of a batch; optionally token outputs and
/// metrics.
///
/// Order: statistics of the tokens; kernel_reward; discounted_return; usable_tokens, ratio_band, token_veto,
/// profiling_filter; leave_one_out over (group, turn index); per_token; mismatch.
/// @param[in]  batch   S turns, N tokens.
/// @param[in]  inputs  log-probs, evaluation, optionally a given reward.
/// @param[in]  key     seed and step of the profiling draws.
/// @param[out] out     what is wanted; inputs and outputs must not overlap.
/// @throws precondition_error  as the parts throw; nothing is written then.
/// @note  Deterministic as the parts: same bits for any order of trajectories, thread count and compiler.
/// @par Complexity  one read of the tokens and one write of the token outputs; O(S log S) else; O(S) memory.
/// @par Reference   Dr. Kernel, arXiv:2602.05885, and its published trainer.
template <logprob_value Old, logprob_value Rollout, real E>
void dr_kernel(rollout_view const& batch, step_inputs<Old, Rollout, E> const& inputs, dr_kernel_options const& options,
               draw_key key, step_outputs const& out) {
  importance::detail::check_tokens(batch, inputs.tokens, "dr_kernel");
  grouping const groups = make_grouping(batch, group_by::turn);
  auto advantage_options = options.advantage;
  advantage_options.threads = options.threads;
  auto metrics_options = options.metrics;
  metrics_options.speedup_cap = options.reward.speedup_cap;
  detail::run_step(
      batch, groups, inputs, options.turn_return, options.filters, metrics_options, key, options.threads, out,
      "dr_kernel",
      [&](std::span<reason_flags const> reasons, std::span<double> reward) {
        expects_size("dr_kernel", "correct", inputs.evaluation.correct.size(), batch.turns(), "turn");
        reward::kernel_reward(inputs.evaluation, options.reward, reasons, reward);
      },
      [&](std::span<double const> turn_return, std::span<reason_flags const> reasons, std::span<double> advantage) {
        advantage::leave_one_out(groups, turn_return, reasons, advantage_options, advantage);
      });
}

}  // namespace turnwise::recipe
