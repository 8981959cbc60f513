/// @file
/// Advantage over the weighted mean of the group, on the device.
#pragma once

#include <turnwise/advantage/opo.hpp>
#include <turnwise/gpu/advantage/detail/group_driver.cuh>

#include <cstddef>

namespace turnwise::gpu::advantage {

inline constexpr std::size_t opo_workspace_bytes = 0;  ///< takes no workspace

/// Advantage of each valid turn over the weighted mean return of its group: the device version, with the same bits.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch, no workspace.
/// @param[in]  groups       of make_grouping.
/// @param[in]  turn_return  [S].
/// @param[in]  weight       [S], at least 0.
/// @param[in]  reasons      [S], or empty: all valid and kept.
/// @param[in]  options      as the host's; `threads` is not used.
/// @param[out] advantage    [S]; not the same span as turn_return or weight. 0 where invalid or in no group.
/// @param[in]  status       may be null; gains turn_return (a valid turn's return that is not finite or beyond
///                          magnitude_limit) and weight (its weight negative, not finite or beyond the limit). That
///                          turn gets 0 and is in no baseline; its reasons stay as they are.
/// @throws precondition_error  sizes that differ, options as on the host; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @note  Deterministic: the same bits for any launch shape and order of trajectories.
/// @par Complexity  O(S) work, a warp a group.
/// @see turnwise::advantage::opo
template <real T>
void opo(grouping const& groups, no_deduce<device_span<T const>> turn_return, device_span<double const> weight,
         no_deduce<device_span<reason_flags const>> reasons, turnwise::advantage::opo_options const& options,
         device_span<T> advantage, status_record* status, ::cuda::stream_ref stream) {
  expects_size("opo", "weight", weight.size(), groups.turns, "turn");
  detail::for_each_group(
      detail::group_call<T>{groups, turn_return, reasons, options.members, advantage, status, weight},
      turnwise::advantage::detail::opo_policy{}, "opo", stream);
}

}  // namespace turnwise::gpu::advantage
