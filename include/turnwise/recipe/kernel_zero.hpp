/// @file
/// The coder's training step of KernelZero as one call.
#pragma once

#include <turnwise/advantage/group_relative.hpp>
#include <turnwise/recipe/detail/turn_step.hpp>
#include <turnwise/recipe/step.hpp>
#include <turnwise/reward/group_gate.hpp>

namespace turnwise::recipe {

/// Options of `kernel_zero`.
struct kernel_zero_options {
  group_by groups = group_by::group;              ///< the prompt; group_by::turn for multi-turn data
  reward::group_gate_options reward{};            ///< of group_gate
  advantage::group_relative_options advantage{};  ///< of group_relative
  advantage::unscored_policy unscored = advantage::unscored_policy::exclude;  ///< exclude = zero: gamma is 0
  filter_options filters{};                                                   ///< the paper has none
  metrics::mismatch_options metrics{};                                        ///< of mismatch
  int threads = 0;                                                            ///< 0 = the runtime's default
};

/// Gated rewards, group-relative advantages and keep decisions of a batch; optionally token outputs and metrics.
///
/// A turn's return is its own reward. Order: statistics of the tokens; group_gate; filters, where asked for;
/// group_relative over the same groups; per_token; mismatch.
/// Also called: CA-GRPO.
/// @param[in]  batch, inputs, key, out  as for dr_kernel; the key serves the profiling filter.
/// @throws precondition_error  as the parts throw; nothing is written then.
/// @note  Deterministic as the parts.
/// @par Complexity  as dr_kernel.
/// @par Reference   KernelZero, arXiv:2609.33074.
template <logprob_value Old, logprob_value Rollout, real E>
void kernel_zero(rollout_view const& batch, step_inputs<Old, Rollout, E> const& inputs,
                 kernel_zero_options const& options, draw_key key, step_outputs const& out) {
  importance::detail::check_tokens(batch, inputs.tokens, "kernel_zero");
  grouping const groups = make_grouping(batch, options.groups);
  auto reward_options = options.reward;
  reward_options.threads = options.threads;
  auto advantage_options = options.advantage;
  advantage_options.threads = options.threads;
  detail::run_step(
      batch, groups, inputs, advantage::discounted_return_options{0, options.unscored}, options.filters,
      options.metrics, key, options.threads, out, "kernel_zero",
      [&](std::span<reason_flags const> reasons, std::span<double> reward) {
        reward::group_gate(groups, inputs.evaluation, reward_options, reasons, reward);
      },
      [&](std::span<double const> turn_return, std::span<reason_flags const> reasons, std::span<double> advantage) {
        advantage::group_relative(groups, turn_return, reasons, advantage_options, advantage);
      });
}

}  // namespace turnwise::recipe
