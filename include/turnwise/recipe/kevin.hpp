/// @file
/// The training step of Kevin as one call.
#pragma once

#include <turnwise/advantage/group_relative.hpp>
#include <turnwise/recipe/detail/turn_step.hpp>
#include <turnwise/recipe/step.hpp>
#include <turnwise/reward/kevin_score.hpp>

namespace turnwise::recipe {

/// The defaults are those of the paper; where it is silent (ddof, epsilon, unscored turns) ours.
struct kevin_options {
  reward::kevin_score_options reward{};  ///< of kevin_score
  /// The discounted sum, which the paper prefers to the maximum. The kinds current and best_so_far take gamma = 1.
  advantage::turn_return_options turn_return{.kind = advantage::return_kind::discounted_sum, .gamma = 0.4};
  advantage::group_relative_options advantage{};  ///< of group_relative
  filter_options filters{};                       ///< the paper has none
  metrics::mismatch_options metrics{};            ///< of mismatch
  int threads = 0;                                ///< 0 = the runtime's default
};

/// Scores, returns, group-relative advantages and keep decisions of a batch; optionally token outputs and metrics.
///
/// Order: statistics of the tokens; kevin_score; turn_return; filters, where asked for; group_relative over all turns
/// of the prompt; per_token; mismatch.
/// Also called: multi-turn GRPO with discounted returns.
/// @param[in]  batch, inputs, key, out  as for dr_kernel; the key serves the profiling filter, and without that filter
///             the profile may be empty.
/// @throws precondition_error  as the parts throw; nothing is written then.
/// @note  A lone turn of a prompt gets 0. Published code keeps its return there.
/// @note  Deterministic as the parts.
/// @par Complexity  as dr_kernel.
/// @par Reference   Kevin, arXiv:2507.11948.
template <logprob_value Old, logprob_value Rollout, real E>
void kevin(rollout_view const& batch, step_inputs<Old, Rollout, E> const& inputs, kevin_options const& options,
           draw_key key, step_outputs const& out) {
  importance::detail::check_tokens(batch, inputs.tokens, "kevin");
  grouping const groups = make_grouping(batch, group_by::group);
  auto advantage_options = options.advantage;
  advantage_options.threads = options.threads;
  auto metrics_options = options.metrics;
  metrics_options.speedup_cap = options.reward.speedup_cap;
  detail::run_step(
      batch, groups, inputs, options.turn_return, options.filters, metrics_options, key, options.threads, out, "kevin",
      [&](std::span<reason_flags const> reasons, std::span<double> reward) {
        reward::kevin_score(inputs.evaluation, options.reward, reasons, reward);
      },
      [&](std::span<double const> turn_return, std::span<reason_flags const> reasons, std::span<double> advantage) {
        advantage::group_relative(groups, turn_return, reasons, advantage_options, advantage);
      });
}

}  // namespace turnwise::recipe
