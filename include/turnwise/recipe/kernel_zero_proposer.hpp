/// @file
/// The proposer's training step of KernelZero as one call.
#pragma once

#include <turnwise/advantage/group_relative.hpp>
#include <turnwise/recipe/detail/turn_step.hpp>
#include <turnwise/recipe/step.hpp>
#include <turnwise/reward/frontier_reward.hpp>

namespace turnwise::recipe {

/// Options of `kernel_zero_proposer`.
struct kernel_zero_proposer_options {
  group_by groups = group_by::group;              ///< what proposals are compared with: those of their prompt
  reward::frontier_reward_options reward{};       ///< of frontier_reward
  advantage::group_relative_options advantage{};  ///< of group_relative
  advantage::unscored_policy unscored = advantage::unscored_policy::exclude;  ///< exclude = zero: gamma is 0
  filter_options filters{};                                                   ///< the paper has none
  metrics::mismatch_options metrics{};                                        ///< of mismatch
  int threads = 0;                                                            ///< 0 = the runtime's default
};

/// What became of the proposals, S of them: the turns of the proposer's batch.
template <real E>
struct proposal_results {
  reward::attempts<E> attempts{};                  ///< the coder's batch, by group
  std::span<std::int64_t const> group{};           ///< [S] group of the attempts at each proposal
  std::span<std::uint8_t const> invalid_module{};  ///< [S] or empty; not 0: no valid problem
};

/// Frontier rewards, group-relative advantages and keep decisions of the proposals; optionally token outputs and
/// metrics.
///
/// A turn is a proposal, and its return its own reward. Order: statistics of the tokens; frontier_reward; filters,
/// where asked for; group_relative; per_token; mismatch.
/// @param[in]  batch, inputs  of the proposer; the evaluation serves the profiling filter and the metrics, and may be
///                            empty. A given reward replaces frontier_reward.
/// @param[in]  results  the attempts at the proposals.
/// @param[in]  key, out as for dr_kernel.
/// @throws precondition_error  as the parts throw; nothing is written then.
/// @note  A proposal without attempts whose module is valid is unscored.
/// @note  Deterministic as the parts.
/// @par Complexity  as dr_kernel, and one read of the attempts' evaluation.
/// @par Reference   KernelZero, arXiv:2609.33074.
template <logprob_value Old, logprob_value Rollout, real E>
void kernel_zero_proposer(rollout_view const& batch, step_inputs<Old, Rollout, E> const& inputs,
                          proposal_results<E> const& results, kernel_zero_proposer_options const& options, draw_key key,
                          step_outputs const& out) {
  importance::detail::check_tokens(batch, inputs.tokens, "kernel_zero_proposer");
  grouping const groups = make_grouping(batch, options.groups);
  auto advantage_options = options.advantage;
  advantage_options.threads = options.threads;
  detail::run_step(
      batch, groups, inputs, advantage::discounted_return_options{0, options.unscored}, options.filters,
      options.metrics, key, options.threads, out, "kernel_zero_proposer",
      [&](std::span<reason_flags const>, std::span<double> reward) {
        reward::frontier_reward(results.attempts, results.group, results.invalid_module, options.reward, reward);
      },
      [&](std::span<double const> turn_return, std::span<reason_flags const> reasons, std::span<double> advantage) {
        advantage::group_relative(groups, turn_return, reasons, advantage_options, advantage);
      });
}

}  // namespace turnwise::recipe
