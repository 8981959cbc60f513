/// @file
/// How a grouping is built: stable radix sorts from the least to the most significant key, and scans.
#pragma once

#include <turnwise/core/grouping.hpp>
#include <turnwise/gpu/core/detail/trajectory_of_turn.cuh>
#include <turnwise/gpu/core/grouping_view.cuh>
#include <turnwise/gpu/core/rollout.cuh>
#include <turnwise/gpu/core/status.cuh>
#include <turnwise/gpu/core/warp.cuh>
#include <turnwise/gpu/core/workspace.cuh>

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace turnwise::gpu {

namespace detail {

inline constexpr unsigned grouping_threads = 256;

/// Prompts and turns of the trajectories up to one.
struct trajectory_sums {
  std::int64_t prompts, turns;
};

struct add_trajectory_sums {
  TURNWISE_HOST_DEVICE constexpr trajectory_sums operator()(trajectory_sums a, trajectory_sums b) const noexcept {
    return {a.prompts + b.prompts, a.turns + b.turns};
  }
};

inline void sort_pairs(device_span<std::byte> scratch, std::int64_t const* keys, std::int64_t* sorted_keys,
                       std::int64_t const* values, std::int64_t* sorted_values, std::size_t count, int bits,
                       cudaStream_t stream) {
  std::size_t bytes = scratch.size();
  check(cub::DeviceRadixSort::SortPairs(scratch.data(), bytes, keys, sorted_keys, values, sorted_values, count, 0, bits,
                                        stream),
        "make_grouping: sort");
}

/// Scratch for the sorts and scans over `count` elements.
inline std::size_t grouping_scan_bytes(std::size_t count) {
  if (count == 0) return 0;
#if CUB_VERSION < 200700  // there, scans count in int
  expects(count <= std::numeric_limits<int>::max(), "make_grouping: ", count, " elements need a newer CUB");
#endif
  std::int64_t* const none = nullptr;
  trajectory_sums* const no_sums = nullptr;
  std::size_t sort = 0, scan = 0, scan_sums = 0;
  check(cub::DeviceRadixSort::SortPairs(nullptr, sort, static_cast<std::int64_t const*>(none), none,
                                        static_cast<std::int64_t const*>(none), none, count),
        "make_grouping: workspace query");
  check(cub::DeviceScan::InclusiveSum(nullptr, scan, none, none, count), "make_grouping: workspace query");
  check(cub::DeviceScan::InclusiveScan(nullptr, scan_sums, no_sums, no_sums, add_trajectory_sums{}, count),
        "make_grouping: workspace query");
  return std::max({sort, scan, scan_sums});
}

/// The blocks of a grouping, for counting and for building alike; kernels write through it.
struct grouping_blocks {
  device_span<grouping_counts> counts;
  device_span<std::int64_t> offsets, members, turn_trajectory, trajectory_order, prompt, prompt_offsets;
  // Only while building.
  device_span<std::int64_t> trajectory_keys, sorted_trajectory_keys, order_by_id, first_place;
  device_span<trajectory_sums> sums;
  device_span<std::int64_t> keys, sorted_keys, unsorted_members;  ///< `keys` also numbers the groups
  device_span<std::byte> scan;

  grouping_blocks(std::size_t turns, std::size_t trajectories, group_by by, workspace& scratch)
      : counts(scratch.take<grouping_counts>(1, "grouping: counts")),
        offsets(scratch.take<std::int64_t>(turns + 1, "grouping: offsets")),
        members(scratch.take<std::int64_t>(turns, "grouping: members")),
        turn_trajectory(scratch.take<std::int64_t>(turns, "grouping: turn trajectory")),
        trajectory_order(scratch.take<std::int64_t>(trajectories, "grouping: trajectory order")),
        prompt(scratch.take<std::int64_t>(trajectories, "grouping: prompt")),
        prompt_offsets(scratch.take<std::int64_t>(trajectories + 1, "grouping: prompt offsets")),
        trajectory_keys(scratch.take<std::int64_t>(trajectories, "grouping: trajectory keys")),
        sorted_trajectory_keys(scratch.take<std::int64_t>(trajectories, "grouping: sorted trajectory keys")),
        order_by_id(scratch.take<std::int64_t>(trajectories, "grouping: order by id")),
        first_place(scratch.take<std::int64_t>(trajectories, "grouping: first place")),
        sums(scratch.take<trajectory_sums>(trajectories, "grouping: sums")),
        keys(scratch.take<std::int64_t>(turns, "grouping: turn keys")) {
    if (by == group_by::turn) {
      sorted_keys = scratch.take<std::int64_t>(turns, "grouping: sorted turn keys");
      unsorted_members = scratch.take<std::int64_t>(turns, "grouping: unsorted members");
    }
    scan = scratch.take<std::byte>(grouping_scan_bytes(turns < trajectories ? trajectories : turns), "grouping: scan");
  }

  /// Prompt of a turn; 0 where it has no trajectory.
  [[nodiscard]] __device__ std::int64_t prompt_of(std::int64_t s) const {
    std::int64_t const j = turn_trajectory[static_cast<std::size_t>(s)];
    return j < 0 ? 0 : prompt[static_cast<std::size_t>(j)];
  }
  [[nodiscard]] __device__ bool broken() const { return counts.data()->broken != 0; }
};

/// Checks the offsets; trajectories in memory order are what is sorted.
TURNWISE_KERNEL void grouping_begin_kernel(rollout_view batch, grouping_blocks out, status_record* status) {
  auto const trajectories = static_cast<std::int64_t>(batch.trajectories());
  auto const turns = static_cast<std::int64_t>(batch.turns);
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    out.offsets[0] = 0;
    out.prompt_offsets[0] = 0;
  }
  for_each_by_thread(static_cast<std::int64_t>(batch.trajectory_offsets.size()), [&](std::int64_t j) {
    std::int64_t const offset = batch.trajectory_offsets[j];
    bool const fits = (j == 0 ? offset == 0 : offset >= batch.trajectory_offsets[j - 1]) &&
                      (j == trajectories ? offset == turns : offset <= turns);
    if (!fits) {
      report(status, status_code::trajectory_offsets, j);
      out.counts.data()->broken = 1;
    }
    if (j < trajectories) out.trajectory_order[j] = j;
  });
}

TURNWISE_KERNEL void grouping_group_keys_kernel(rollout_view batch, grouping_blocks out) {
  for_each_by_thread(static_cast<std::int64_t>(batch.trajectories()),
                     [&](std::int64_t i) { out.trajectory_keys[i] = batch.group_id[out.order_by_id[i]]; });
}

/// What each trajectory in order adds: one where a prompt begins, and its turns.
TURNWISE_KERNEL void grouping_sums_kernel(rollout_view batch, bool one_prompt, grouping_blocks out,
                                          status_record* status) {
  auto const& order = out.trajectory_order;
  auto const& group = out.sorted_trajectory_keys;
  for_each_by_thread(static_cast<std::int64_t>(batch.trajectories()), [&](std::int64_t i) {
    auto const j = static_cast<std::size_t>(order[i]);
    bool const same_group = i > 0 && group[i] == group[i - 1];
    if (same_group && batch.trajectory_id[j] == batch.trajectory_id[order[i - 1]])
      report(status, status_code::trajectory_id, order[i]);
    out.sums[i] = {i == 0 || !(one_prompt || same_group),
                   out.broken() ? 0 : batch.first_turn(j + 1) - batch.first_turn(j)};
  });
}

TURNWISE_KERNEL void grouping_prompts_kernel(rollout_view batch, grouping_blocks out) {
  auto const trajectories = static_cast<std::int64_t>(batch.trajectories());
  for_each_by_thread(trajectories, [&](std::int64_t i) {
    trajectory_sums const before = i == 0 ? trajectory_sums{0, 0} : out.sums[i - 1];
    trajectory_sums const here = out.sums[i];
    std::int64_t const j = out.trajectory_order[i];
    out.prompt[j] = here.prompts - 1;
    out.first_place[j] = before.turns;
    if (here.prompts != before.prompts) out.prompt_offsets[before.prompts] = i;
    if (i + 1 == trajectories) {
      out.prompt_offsets[here.prompts] = trajectories;
      out.counts.data()->prompts = here.prompts;
    }
  });
}

/// Puts turns in the order of (group id, trajectory id, turn), with their turn index as key.
TURNWISE_KERNEL void grouping_places_kernel(rollout_view batch, grouping_blocks out, status_record* status) {
  bool const broken = out.broken();
  for_each_by_thread(static_cast<std::int64_t>(batch.turns), [&](std::int64_t s) {
    std::int64_t const j = broken ? -1 : trajectory_of_turn(batch, s);
    out.turn_trajectory[s] = j;
    std::int64_t const first = j < 0 ? 0 : batch.first_turn(static_cast<std::size_t>(j));
    std::int64_t const place = j < 0 ? s : out.first_place[j] + s - first;
    out.members[place] = s;
    out.keys[place] = j < 0 ? 0 : batch.index_of(static_cast<std::size_t>(j), s);
    if (j >= 0 && s > first && !batch.turn_index.empty() && batch.turn_index[s] <= batch.turn_index[s - 1])
      report(status, status_code::turn_index, s);
  });
}

TURNWISE_KERNEL void grouping_prompt_keys_kernel(std::int64_t turns, grouping_blocks out) {
  for_each_by_thread(turns, [&](std::int64_t place) { out.keys[place] = out.prompt_of(out.unsorted_members[place]); });
}

/// 1 where a group begins.
TURNWISE_KERNEL void grouping_heads_kernel(rollout_view batch, group_by by, grouping_blocks out) {
  auto const index = [&](std::int64_t s) {
    std::int64_t const j = out.turn_trajectory[s];
    return j < 0 ? 0 : batch.index_of(static_cast<std::size_t>(j), s);
  };
  for_each_by_thread(static_cast<std::int64_t>(batch.turns), [&](std::int64_t place) {
    bool begins = place == 0;
    if (place > 0 && by != group_by::batch) {
      std::int64_t const one = out.members[place];
      std::int64_t const other = out.members[place - 1];
      begins = out.prompt_of(one) != out.prompt_of(other) || (by == group_by::turn && index(one) != index(other));
    }
    out.keys[place] = begins;
  });
}

TURNWISE_KERNEL void grouping_offsets_kernel(std::int64_t turns, grouping_blocks out) {
  if (out.broken()) return;
  for_each_by_thread(turns, [&](std::int64_t place) {
    std::int64_t const number = out.keys[place];
    if (place == 0 || number != out.keys[place - 1]) out.offsets[number - 1] = place;
    if (place + 1 < turns) return;
    out.offsets[number] = turns;
    out.counts.data()->groups = number;
  });
}

/// Orders trajectories by (group id, trajectory id), numbers their prompts, gives each the place of its first turn.
inline void enqueue_trajectories(rollout_view const& batch, group_by by, grouping_blocks const& blocks,
                                 status_record* status, ::cuda::stream_ref stream) {
  std::size_t const count = batch.trajectories();
  if (count == 0) return;
  unsigned const grid = grid_blocks(count, grouping_threads);
  sort_pairs(blocks.scan, batch.trajectory_id.data(), blocks.sorted_trajectory_keys.data(),
             blocks.trajectory_order.data(), blocks.order_by_id.data(), count, 64, stream.get());
  launch("make_grouping: group keys", grouping_group_keys_kernel, grid, grouping_threads, 0, stream, batch, blocks);
  sort_pairs(blocks.scan, blocks.trajectory_keys.data(), blocks.sorted_trajectory_keys.data(),
             blocks.order_by_id.data(), blocks.trajectory_order.data(), count, 64, stream.get());
  launch("make_grouping: sums", grouping_sums_kernel, grid, grouping_threads, 0, stream, batch, by == group_by::batch,
         blocks, status);
  std::size_t bytes = blocks.scan.size();
  check(cub::DeviceScan::InclusiveScan(blocks.scan.data(), bytes, blocks.sums.data(), blocks.sums.data(),
                                       add_trajectory_sums{}, count, stream.get()),
        "make_grouping: scan of trajectories");
  launch("make_grouping: prompts", grouping_prompts_kernel, grid, grouping_threads, 0, stream, batch, blocks);
}

/// Orders turns by (prompt, turn index if asked, trajectory id, turn) and cuts them into groups.
inline void enqueue_turns(rollout_view const& batch, group_by by, grouping_blocks const& blocks, status_record* status,
                          ::cuda::stream_ref stream) {
  if (batch.turns == 0) return;
  auto const turns = static_cast<std::int64_t>(batch.turns);
  unsigned const grid = grid_blocks(batch.turns, grouping_threads);
  launch("make_grouping: places", grouping_places_kernel, grid, grouping_threads, 0, stream, batch, blocks, status);
  if (by == group_by::turn) {
    // Positions and prompt numbers are never negative: their high bits need no sorting.
    int const index_bits = batch.turn_index.empty() ? std::bit_width(batch.turns) : 64;
    sort_pairs(blocks.scan, blocks.keys.data(), blocks.sorted_keys.data(), blocks.members.data(),
               blocks.unsorted_members.data(), batch.turns, index_bits, stream.get());
    launch("make_grouping: prompt keys", grouping_prompt_keys_kernel, grid, grouping_threads, 0, stream, turns, blocks);
    sort_pairs(blocks.scan, blocks.keys.data(), blocks.sorted_keys.data(), blocks.unsorted_members.data(),
               blocks.members.data(), batch.turns, std::bit_width(batch.trajectories() + 1), stream.get());
  }
  launch("make_grouping: heads", grouping_heads_kernel, grid, grouping_threads, 0, stream, batch, by, blocks);
  std::size_t bytes = blocks.scan.size();
  check(cub::DeviceScan::InclusiveSum(blocks.scan.data(), bytes, blocks.keys.data(), blocks.keys.data(), batch.turns,
                                      stream.get()),
        "make_grouping: scan of turns");
  launch("make_grouping: offsets", grouping_offsets_kernel, grid, grouping_threads, 0, stream, turns, blocks);
}

}  // namespace detail
}  // namespace turnwise::gpu
