/// @file
/// The proposer's training step of KernelZero on the device: four launches after the groupings.
#pragma once

#include <turnwise/gpu/advantage/group_relative.cuh>
#include <turnwise/gpu/recipe/detail/step.cuh>
#include <turnwise/gpu/recipe/step.cuh>
#include <turnwise/gpu/reward/frontier_reward.cuh>
#include <turnwise/recipe/kernel_zero_proposer.hpp>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::recipe {

using turnwise::recipe::kernel_zero_proposer_options;

/// turnwise::recipe::proposal_results on the device.
template <real E>
struct proposal_results {
  reward::attempts<E> attempts{};                    ///< the coder's batch, by group
  device_span<std::int64_t const> group{};           ///< [S] group of the attempts at each proposal
  device_span<std::uint8_t const> invalid_module{};  ///< [S] or empty
};

/// Scratch for kernel_zero_proposer, an upper bound: that of a call that wants no turn output.
[[nodiscard]] inline std::size_t kernel_zero_proposer_workspace_bytes(std::size_t turns, std::size_t tokens) {
  workspace count;
  detail::step_blocks{turns, tokens, {}, count};
  return count.used();
}

/// The whole step: the device version of turnwise::recipe::kernel_zero_proposer, with the same bits (of a NaN reward it
/// is not told which NaN).
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. Four launches: the
/// frontier (not launched with a given reward); tokens and trajectories; filters and baselines; token outputs (not
/// launched if none is wanted). With members = kept a fifth.
/// @param[in]  groups  of the proposer's batch, built by `options.groups`, which is not used here.
/// @param[in]  plan    of the proposer's batch, over N tokens.
/// @param[in]  results the attempts at the proposals; not read with a given reward.
/// @param[in]  key     seed and step of the profiling draws.
/// @param[in]  status  may be null; gains what is wrong with the content. The turns concerned get advantage 0 and a
///                     reason.
/// @param      scratch at least kernel_zero_proposer_workspace_bytes; must stay alive until the stream has passed this
///                     work.
/// @throws precondition_error  sizes that differ, bad options, a workspace too small; nothing is enqueued.
/// @throws cuda_error          a launch was refused.
/// @note  Metrics are not computed here.
/// @par Complexity  as dr_kernel, and one read of the attempts' evaluation.
/// @see turnwise::recipe::kernel_zero_proposer
template <logprob_value Old, logprob_value Rollout, real E>
void kernel_zero_proposer(rollout_view const& batch, grouping const& groups, token_plan const& plan,
                          step_inputs<Old, Rollout, E> const& inputs, proposal_results<E> const& results,
                          kernel_zero_proposer_options const& options, draw_key key, step_outputs const& out,
                          status_record* status, workspace scratch, ::cuda::stream_ref stream) {
  bool const given = !inputs.given_reward.empty();
  detail::check_outputs(out, batch.turns, plan.tokens, "kernel_zero_proposer");
  detail::step_blocks const blocks{batch.turns, plan.tokens, out, scratch};
  auto with_reward = inputs;
  if (!given) with_reward.given_reward = blocks.out.reward;
  detail::step_call<Old, Rollout, E> const call{batch, groups, plan,   with_reward, options.filters,
                                                key,   out,    status, stream};
  detail::check_step(call, false, "kernel_zero_proposer");
  if (!given) reward::detail::check_attempts(results.attempts, results.group, results.invalid_module, batch.turns);
  // Of no turns: checks the options.
  turnwise::recipe::kernel_zero_proposer<Old, Rollout, E>({}, {}, {}, options, key, {});
  if (batch.turns == 0 && plan.tokens == 0) return;
  if (!given)
    reward::frontier_reward(results.attempts, results.group, results.invalid_module, options.reward, blocks.out.reward,
                            stream);
  detail::enqueue_judgement(call, blocks, with_reward.given_reward, turnwise::reward::kernel_reward_options{},
                            turnwise::advantage::discounted_return_options{0, options.unscored});
  detail::enqueue_decisions(call, blocks, turnwise::advantage::detail::group_relative_policy{options.advantage},
                            options.advantage.members, "kernel_zero_proposer: decide");
}

}  // namespace turnwise::gpu::recipe
