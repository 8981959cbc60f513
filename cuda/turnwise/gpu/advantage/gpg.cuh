/// @file
/// Advantage over the group's mean, scaled up for the groups of the batch that teach nothing, on the device.
#pragma once

#include <turnwise/advantage/gpg.hpp>
#include <turnwise/gpu/advantage/detail/group_driver.cuh>
#include <turnwise/gpu/core/workspace.cuh>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::advantage {

using turnwise::advantage::gpg_counts;
using turnwise::advantage::gpg_signal;

/// Bytes that gpg needs, whatever the batch: the counts behind alpha.
inline constexpr std::size_t gpg_workspace_bytes = workspace_alignment;

namespace detail {

/// Enough to fill a device; each warp adds its counts once.
inline constexpr unsigned gpg_count_blocks = 1024;

template <real T>
TURNWISE_KERNEL void __launch_bounds__(gpu::detail::warp_block_threads)
    gpg_count_kernel(group_call<T> call, gpg_signal signal, gpg_counts* batch) {
  gpg_counts mine;
  gpu::detail::for_each_by_warp(call.groups.counts->groups, [&](std::int64_t g) {
    gpg_counts const one = turnwise::advantage::detail::gpg_policy::counts(warp_group<T>{call, g}, signal);
    mine.samples += one.samples;
    mine.signal += one.signal;
  });
  if (lane_id() != 0 || mine.samples == 0) return;
  atomicAdd(&batch->samples, mine.samples);
  atomicAdd(&batch->signal, mine.signal);
}

}  // namespace detail

/// Advantage of each valid turn over the mean return of its group, times one factor for the batch: the device version,
/// with the same bits.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. Two launches and a memset.
/// @param[in]  groups       of make_grouping.
/// @param[in]  turn_return  [S].
/// @param[in]  reasons      [S], or empty: all valid and kept.
/// @param[in]  options      as the host's; `threads` is not used.
/// @param[out] advantage    [S]; not the same span as turn_return. 0 where the turn is invalid or in no group.
/// @param[in]  status       may be null; gains turn_return: a valid turn's return that is not finite or beyond
///                          magnitude_limit. That turn gets 0 and is in no baseline; its reasons stay as they are.
/// @throws precondition_error  sizes that differ, options as on the host, a workspace too small; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @note  Deterministic: the same bits for any launch shape and order of trajectories.
/// @par Complexity  O(S) work, a warp a group.
/// @see turnwise::advantage::gpg
template <real T>
void gpg(grouping const& groups, no_deduce<device_span<T const>> turn_return,
         no_deduce<device_span<reason_flags const>> reasons, turnwise::advantage::gpg_options const& options,
         device_span<T> advantage, status_record* status, workspace scratch, ::cuda::stream_ref stream) {
  detail::group_call<T> const call{groups, turn_return, reasons, options.members, advantage, status};
  detail::check_group_call(call, "gpg");
  auto const batch = scratch.take<gpg_counts>(1, "counts");
  if (groups.turns == 0) return;
  check(cudaMemsetAsync(batch.data(), 0, sizeof(gpg_counts), stream.get()), "gpg: counts");
  launch("gpg: count", detail::gpg_count_kernel<T>,
         std::min(gpu::detail::warp_blocks(groups.turns), detail::gpg_count_blocks), gpu::detail::warp_block_threads, 0,
         stream, call, options.signal, batch.data());
  detail::for_each_group(call, turnwise::advantage::detail::gpg_policy{batch.data()}, "gpg", stream);
}

}  // namespace turnwise::gpu::advantage
