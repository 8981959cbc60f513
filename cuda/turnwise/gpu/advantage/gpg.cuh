/// @file
/// Advantage over the group's mean, scaled up for the groups of the batch that teach nothing, on the device.
#pragma once

#include <turnwise/advantage/gpg.hpp>
#include <turnwise/gpu/advantage/detail/group_driver.cuh>
#include <turnwise/gpu/core/workspace.cuh>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

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
    mine += turnwise::advantage::detail::gpg_policy::counts(warp_group<T>{call, g}, signal);
  });
  if (lane_id() != 0 || mine.samples == 0) return;
  atomicAdd(&batch->samples, mine.samples);
  atomicAdd(&batch->signal, mine.signal);
}

template <real T>
void enqueue_gpg_count(std::string_view name, group_call<T> const& call, gpg_signal signal, gpg_counts* batch,
                       ::cuda::stream_ref stream) {
  gpu::check(cudaMemsetAsync(batch, 0, sizeof(gpg_counts), stream.get()), name);
  launch(name, gpg_count_kernel<T>, std::min(gpu::detail::warp_blocks(call.groups.turns), gpg_count_blocks),
         gpu::detail::warp_block_threads, 0, stream, call, signal, batch);
}

}  // namespace detail

inline constexpr std::size_t gpg_count_workspace_bytes = 0;  ///< takes no workspace
inline constexpr std::size_t gpg_apply_workspace_bytes = 0;  ///< takes no workspace

/// First phase of gpg over a batch in shards of whole groups: the counts of this shard, in device memory. Join those of
/// all shards by an all-reduce (sum) of two 64-bit integers.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One memset, one launch.
/// @param[out] counts  [1], overwritten.
/// @param[in]  status  as for gpg.
/// @throws precondition_error  as gpg; nothing is enqueued.
/// @throws cuda_error          a launch was refused.
/// @see turnwise::advantage::gpg_count
template <real T>
void gpg_count(grouping const& groups, device_span<T const> turn_return, device_span<reason_flags const> reasons,
               turnwise::advantage::gpg_options const& options, device_span<gpg_counts> counts, status_record* status,
               ::cuda::stream_ref stream) {
  expects_size("gpg_count", "turn_return", turn_return.size(), groups.turns, "turn");
  if (!reasons.empty()) expects_size("gpg_count", "reasons", reasons.size(), groups.turns, "turn");
  expects_size("gpg_count", "counts", counts.size(), 1, "batch");
  detail::group_call<T> const call{groups, turn_return, reasons, options.members, {}, status};
  detail::enqueue_gpg_count("gpg_count", call, options.signal, counts.data(), stream);
}

/// Second phase: the advantages of this shard.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch.
/// @param[in]  batch      [1] the joined counts of all shards.
/// @param[out] advantage  [S]; not the same span as turn_return. 0 where the turn is invalid or in no group.
/// @param[in]  status     as for gpg.
/// @throws precondition_error  as gpg; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @see turnwise::advantage::gpg_apply
template <real T>
void gpg_apply(grouping const& groups, no_deduce<device_span<T const>> turn_return,
               no_deduce<device_span<reason_flags const>> reasons, device_span<gpg_counts const> batch,
               turnwise::advantage::gpg_options const& options, device_span<T> advantage, status_record* status,
               ::cuda::stream_ref stream) {
  expects_size("gpg_apply", "batch", batch.size(), 1, "batch");
  detail::group_call<T> const call{groups, turn_return, reasons, options.members, advantage, status};
  detail::for_each_group(call, turnwise::advantage::detail::gpg_policy{batch.data()}, "gpg_apply", stream);
}

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
/// @see gpg_count, gpg_apply: the same over a batch in shards
template <real T>
void gpg(grouping const& groups, no_deduce<device_span<T const>> turn_return,
         no_deduce<device_span<reason_flags const>> reasons, turnwise::advantage::gpg_options const& options,
         device_span<T> advantage, status_record* status, workspace scratch, ::cuda::stream_ref stream) {
  detail::group_call<T> const call{groups, turn_return, reasons, options.members, advantage, status};
  detail::check_group_call(call, "gpg");
  auto const batch = scratch.take<gpg_counts>(1, "counts");
  if (groups.turns == 0) return;
  detail::enqueue_gpg_count("gpg: count", call, options.signal, batch.data(), stream);
  detail::for_each_group(call, turnwise::advantage::detail::gpg_policy{batch.data()}, "gpg", stream);
}

}  // namespace turnwise::gpu::advantage
