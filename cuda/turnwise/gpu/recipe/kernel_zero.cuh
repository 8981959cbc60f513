/// @file
/// The coder's training step of KernelZero on the device: four launches after the grouping.
#pragma once

#include <turnwise/gpu/advantage/group_relative.cuh>
#include <turnwise/gpu/recipe/detail/step.cuh>
#include <turnwise/gpu/recipe/step.cuh>
#include <turnwise/gpu/reward/group_gate.cuh>
#include <turnwise/recipe/kernel_zero.hpp>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::recipe {

using turnwise::recipe::kernel_zero_options;

namespace detail {

/// Rewards of the groups, a warp each. Writes `validity`, which the gate reads, on the way: the lane that begins a turn
/// is the one that judges it.
template <real E>
TURNWISE_KERNEL void __launch_bounds__(gpu::detail::warp_block_threads)
    gate_kernel(rollout_view batch, reward::detail::gate_call<E, double> call, device_span<reason_flags> validity) {
  if (call.groups.counts->broken != 0) return;  // no turn is in a group, and no later launch reads rewards
  gpu::detail::for_each_by_warp(call.groups.counts->groups, [&](std::int64_t g) {
    std::int64_t const last = call.groups.offsets[static_cast<std::size_t>(g) + 1];
    for (std::int64_t k = call.groups.offsets[static_cast<std::size_t>(g)] + gpu::detail::lane_id(); k < last;
         k += gpu::detail::lanes) {
      std::int64_t const turn = call.groups.members[static_cast<std::size_t>(k)];
      validity[static_cast<std::size_t>(turn)] = gpu::detail::first_reasons(batch, turn);
    }
    reward::detail::gate_of_group(call, g);
  });
}

}  // namespace detail

/// Scratch for kernel_zero, an upper bound: that of a call that wants no turn output.
[[nodiscard]] inline std::size_t kernel_zero_workspace_bytes(std::size_t turns, std::size_t tokens) {
  workspace count;
  detail::step_blocks{turns, tokens, {}, count};
  return count.used();
}

/// The whole step: the device version of turnwise::recipe::kernel_zero, with the same bits (of a NaN reward it is not
/// told which NaN).
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. Four launches: the gate
/// (not launched with a given reward); tokens and trajectories; filters and baselines; token outputs (not launched if
/// none is wanted). With members = kept a fifth.
/// @param[in]  groups  of the batch, built by `options.groups`, which is not used here.
/// @param[in]  plan    of the batch, over N tokens.
/// @param[in]  key     seed and step of the profiling draws.
/// @param[in]  status  may be null; gains what is wrong with the content. The turns concerned get advantage 0 and a
///                     reason.
/// @param      scratch at least kernel_zero_workspace_bytes; must stay alive until the stream has passed this work.
/// @throws precondition_error  sizes that differ, bad options, a workspace too small; nothing is enqueued.
/// @throws cuda_error          a launch was refused.
/// @note  Metrics are not computed here.
/// @par Complexity  as dr_kernel.
/// @see turnwise::recipe::kernel_zero
template <logprob_value Old, logprob_value Rollout, real E>
void kernel_zero(rollout_view const& batch, grouping const& groups, token_plan const& plan,
                 step_inputs<Old, Rollout, E> const& inputs, kernel_zero_options const& options, draw_key key,
                 step_outputs const& out, status_record* status, workspace scratch, ::cuda::stream_ref stream) {
  detail::step_call<Old, Rollout, E> const call{batch, groups, plan, inputs, options.filters, key, out, status, stream};
  detail::check_step(call, false, "kernel_zero");
  turnwise::recipe::kernel_zero<Old, Rollout, E>({}, {}, options, key, {});  // of no turns: checks the options
  detail::step_blocks const blocks{batch.turns, plan.tokens, out, scratch};
  if (batch.turns == 0 && plan.tokens == 0) return;
  bool const given = !inputs.given_reward.empty();
  if (!given)
    launch("kernel_zero: gate", detail::gate_kernel<E>, gpu::detail::warp_blocks(batch.turns),
           gpu::detail::warp_block_threads, 0, stream, batch,
           reward::detail::gate_call<E, double>{groups, inputs.evaluation, options.reward, blocks.validity,
                                                blocks.out.reward, status},
           blocks.validity);
  detail::enqueue_judgement(call, blocks, given ? inputs.given_reward : device_span<double const>{blocks.out.reward},
                            turnwise::reward::kernel_reward_options{},
                            turnwise::advantage::discounted_return_options{0, options.unscored});
  detail::enqueue_decisions(call, blocks, turnwise::advantage::detail::group_relative_policy{options.advantage},
                            options.advantage.members, "kernel_zero: decide");
}

}  // namespace turnwise::gpu::recipe
