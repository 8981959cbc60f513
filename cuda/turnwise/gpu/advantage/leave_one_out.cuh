/// @file
/// Advantage over the mean of the others, on the device.
#pragma once

#include <turnwise/advantage/leave_one_out.hpp>
#include <turnwise/gpu/advantage/detail/group_driver.cuh>

#include <cstddef>

namespace turnwise::gpu::advantage {

inline constexpr std::size_t leave_one_out_workspace_bytes = 0;  ///< takes no workspace

/// Advantage of each valid turn over the mean return of the others of its group: the device version, with the same
/// bits.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch, no workspace.
/// @param[in]  groups       of make_grouping.
/// @param[in]  turn_return  [S].
/// @param[in]  reasons      [S], or empty: all valid and kept.
/// @param[in]  options      as the host's; `threads` is not used.
/// @param[out] advantage    [S]; not the same span as turn_return. 0 where the turn is invalid or in no group.
/// @param[in]  status       may be null; gains turn_return: a valid turn's return that is not finite or beyond
///                          magnitude_limit. That turn gets 0 and is in no baseline; its reasons stay as they are.
/// @throws precondition_error  sizes that differ, options as on the host; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @note  Deterministic: the same bits for any launch shape and order of trajectories.
/// @par Complexity  O(S) work, a warp a group; a lone member under `others` costs the turns of its pool, each turn
///                  under `scale` two passes over its group.
/// @see turnwise::advantage::leave_one_out
template <real T>
void leave_one_out(grouping const& groups, no_deduce<device_span<T const>> turn_return,
                   no_deduce<device_span<reason_flags const>> reasons,
                   turnwise::advantage::leave_one_out_options const& options, device_span<T> advantage,
                   status_record* status, ::cuda::stream_ref stream) {
  turnwise::advantage::leave_one_out<T>(turnwise::grouping{}, {}, {}, options, {});  // of no turns: checks the options
  detail::group_call<T> const call{groups, turn_return, reasons, options.members, advantage, status};
  auto const enqueue = [&](auto policy) { detail::for_each_group(call, policy, "leave_one_out", stream); };
  if (options.scale)
    enqueue(turnwise::advantage::detail::leave_one_out_rule<true>{options});
  else
    enqueue(turnwise::advantage::detail::leave_one_out_rule<false>{options});
}

}  // namespace turnwise::gpu::advantage
