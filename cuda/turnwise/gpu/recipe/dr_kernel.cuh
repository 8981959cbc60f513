/// @file
/// The training step of Dr. Kernel on the device: three launches after the grouping.
#pragma once

#include <turnwise/gpu/advantage/leave_one_out.cuh>
#include <turnwise/gpu/recipe/detail/step.cuh>
#include <turnwise/gpu/recipe/step.cuh>
#include <turnwise/recipe/dr_kernel.hpp>

#include <cstddef>

namespace turnwise::gpu::recipe {

using turnwise::recipe::dr_kernel_options;

/// Scratch for dr_kernel, an upper bound: that of a call that wants no turn output.
[[nodiscard]] inline std::size_t dr_kernel_workspace_bytes(std::size_t turns, std::size_t tokens) {
  workspace count;
  detail::step_blocks{turns, tokens, {}, count};
  return count.used();
}

/// The whole step: the device version of turnwise::recipe::dr_kernel, with the same bits.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. Three launches: tokens and
/// trajectories; filters and baselines; token outputs (not launched if none is wanted). With members = kept a fourth.
/// @param[in]  groups  of the batch, by turn.
/// @param[in]  plan    of the batch, over N tokens.
/// @param[in]  key     seed and step of the profiling draws.
/// @param[in]  status  may be null; gains what is wrong with the content. The turns concerned get advantage 0 and a reason.
/// @param      scratch at least dr_kernel_workspace_bytes; must stay alive until the stream has passed this work.
/// @throws precondition_error  sizes that differ, bad options, a workspace too small; nothing is enqueued.
/// @throws cuda_error          a launch was refused.
/// @note  Metrics are not computed here.
/// @par Complexity  one read of the tokens and one write of the token outputs; O(S) else.
/// @see turnwise::recipe::dr_kernel
template <logprob_value Old, logprob_value Rollout, real E>
void dr_kernel(rollout_view const& batch, grouping const& groups, token_plan const& plan,
               step_inputs<Old, Rollout, E> const& inputs, dr_kernel_options const& options, draw_key key,
               step_outputs const& out, status_record* status, workspace scratch, ::cuda::stream_ref stream) {
  detail::step_call<Old, Rollout, E> const call{batch, groups, plan, inputs, options.filters, key, out, status, stream};
  detail::check_step(call, true, "dr_kernel");
  turnwise::recipe::dr_kernel<Old, Rollout, E>({}, {}, options, key, {});  // of no turns: checks the options
  detail::step_blocks const blocks{batch.turns, plan.tokens, out, scratch};
  if (batch.turns == 0 && plan.tokens == 0) return;
  detail::enqueue_judgement(call, blocks, inputs.given_reward, options.reward, options.turn_return);
  auto const decide = [&]<bool Scale>() {
    detail::enqueue_decisions(call, blocks, turnwise::advantage::detail::leave_one_out_rule<Scale>{options.advantage},
                              options.advantage.members, "dr_kernel: decide");
  };
  options.advantage.scale ? decide.template operator()<true>() : decide.template operator()<false>();
}

}  // namespace turnwise::gpu::recipe
