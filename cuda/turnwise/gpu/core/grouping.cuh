/// @file
/// Builds a grouping on the device, once a batch, for every baseline.
#pragma once

#include <turnwise/gpu/core/detail/grouping_build.cuh>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu {

/// Bytes that make_grouping needs; they hold the grouping, so they must live as long as it is used. Depends on the
/// current device.
[[nodiscard]] inline std::size_t grouping_workspace_bytes(std::size_t turns, std::size_t trajectories, group_by by) {
  workspace count;
  detail::grouping_blocks{turns, trajectories, by, count};
  return count.used();
}

/// Builds a grouping of all turns of the batch, valid or not.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph.
/// @param[in] status  may be null; gains trajectory_offsets (then no turn is in a group), trajectory_id (the later of
///                    two trajectories with one id) and turn_index.
/// @throws precondition_error  sizes that differ, a workspace too small; nothing is enqueued.
/// @throws cuda_error          a launch was refused.
/// @note  The same members and groups as the host's, whatever the order of trajectories in memory.
/// @par Complexity  radix sorts: two of J pairs, for group_by::turn two of S pairs; O(S log J) searches.
/// @see turnwise::make_grouping
[[nodiscard]] inline grouping make_grouping(rollout_view const& batch, group_by by, status_record* status,
                                            workspace scratch, ::cuda::stream_ref stream) {
  check_sizes(batch, "make_grouping");
  detail::grouping_blocks const blocks{batch.turns, batch.trajectories(), by, scratch};
  check(cudaMemsetAsync(blocks.counts.data(), 0, sizeof(grouping_counts), stream.get()), "make_grouping: counts");
  launch("make_grouping: begin", detail::grouping_begin_kernel,
         grid_blocks(batch.trajectories() + 1, detail::grouping_threads), detail::grouping_threads, 0, stream, batch,
         blocks, status);
  detail::enqueue_trajectories(batch, by, blocks, status, stream);
  detail::enqueue_turns(batch, by, blocks, status, stream);
  return {batch.turns,           batch.trajectories(),    blocks.counts.data(),    blocks.offsets,
          blocks.members,        blocks.turn_trajectory,  blocks.trajectory_order, blocks.prompt,
          blocks.prompt_offsets, batch.trajectory_offsets};
}

}  // namespace turnwise::gpu
