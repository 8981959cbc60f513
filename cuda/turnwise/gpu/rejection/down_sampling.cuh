/// @file
/// Keeps a fixed number of turns or trajectories of each group, by a seeded draw, on the device.
#pragma once

#include <turnwise/gpu/core/grouping_view.cuh>
#include <turnwise/gpu/core/ordered_sum.cuh>
#include <turnwise/gpu/core/rollout.cuh>
#include <turnwise/gpu/core/status.cuh>
#include <turnwise/gpu/core/workspace.cuh>
#include <turnwise/rejection/down_sampling.hpp>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::rejection {

using turnwise::rejection::down_sampling_options;
using turnwise::rejection::scope;

namespace detail {

using turnwise::rejection::detail::draw_place;

/// Above the 32 bits of a word: the turn goes with the trajectory's first kept turn, cannot be drawn, or is not kept.
inline constexpr std::uint64_t goes_along = std::uint64_t{1} << 32;
inline constexpr std::uint64_t no_draw = std::uint64_t{1} << 33;
inline constexpr std::uint64_t not_kept = std::uint64_t{1} << 34;

/// One group by one warp. Each lane only reads the words that it wrote.
struct warp_draw {
  rollout_view const& batch;
  grouping const& groups;
  down_sampling_options const& options;
  draw_key key;
  device_span<std::uint64_t> words;  ///< [S] by place in the grouping
  device_span<reason_flags> reasons;
  status_record* status;
  std::int64_t first, last;  ///< places of the group

  [[nodiscard]] __device__ std::int64_t turn(std::int64_t place) const {
    return groups.members[static_cast<std::size_t>(place)];
  }
  [[nodiscard]] __device__ std::size_t trajectory(std::int64_t place) const {
    return static_cast<std::size_t>(groups.turn_trajectory[static_cast<std::size_t>(turn(place))]);
  }
  template <typename Body>
  __device__ void for_each_place(Body body) const {
    for (std::int64_t place = first + gpu::detail::lane_id(); place < last; place += gpu::detail::lanes)
      body(place, words[static_cast<std::size_t>(place)]);
  }

  [[nodiscard]] __device__ bool has_draw(std::int64_t place) const {
    constexpr std::int64_t limit = std::int64_t{1} << 32;
    std::int64_t const id = batch.trajectory_id[trajectory(place)];
    std::int64_t const index = batch.index_of(trajectory(place), turn(place));
    return id >= 0 && id < limit && index >= 0 && index < limit;
  }
  [[nodiscard]] __device__ bool kept(std::int64_t place) const {
    return is_kept(reasons[static_cast<std::size_t>(turn(place))]);
  }
  [[nodiscard]] __device__ std::uint64_t word_of(std::int64_t place) const {
    if (!has_draw(place)) {
      report(status, status_code::draw_id, turn(place));
      return kept(place) ? no_draw : not_kept;
    }
    if (!kept(place)) return not_kept;
    std::size_t const j = trajectory(place);
    std::uint64_t const word = turnwise::rejection::detail::draw_word(key, batch.group_id[j], batch.trajectory_id[j],
                                                                      batch.index_of(j, turn(place)), options.level);
    if (options.level == scope::trajectory)
      for (std::int64_t before = place - 1; before >= first && trajectory(before) == j; --before)
        if (kept(before) && has_draw(before)) return word | goes_along;
    return word;
  }

  [[nodiscard]] __device__ std::int64_t count_below(std::uint64_t limit) const {
    std::int64_t count = 0;
    for_each_place([&](std::int64_t, std::uint64_t& word) { count += word < limit; });
    return gpu::detail::warp_sum(count);
  }

  /// The first that goes: number `target` of the words, of equal ones in the order of places.
  [[nodiscard]] __device__ draw_place first_to_go() const {
    std::uint64_t word = 0;
    for (int bit = 31; bit >= 0; --bit) {
      std::uint64_t const trial = word | std::uint64_t{1} << bit;
      if (count_below(trial) <= options.target) word = trial;
    }
    std::int64_t left = options.target - count_below(word);
    for (std::int64_t tile = first; tile < last; tile += gpu::detail::lanes) {
      std::int64_t const place = tile + gpu::detail::lane_id();
      bool const equal = place < last && words[static_cast<std::size_t>(place)] == word;
      for (unsigned set = __ballot_sync(gpu::detail::all_lanes, equal); set != 0; set &= set - 1)
        if (left-- == 0) return {word, tile + gpu::detail::lowest_lane(set)};
    }
    return {word, last};
  }

  __device__ void draw() const {
    for_each_place([&](std::int64_t place, std::uint64_t& word) { word = word_of(place); });
    bool const chooses = count_below(goes_along) > options.target;
    draw_place const cut = chooses ? first_to_go() : draw_place{goes_along, last};
    for_each_place([&](std::int64_t place, std::uint64_t& word) {
      if (word >= not_kept) return;
      draw_place const mine{word >= no_draw ? word : word & ~goes_along, place};
      if (!(mine < cut)) reasons[static_cast<std::size_t>(turn(place))] |= reason::not_drawn;
    });
  }
};

TURNWISE_KERNEL void __launch_bounds__(gpu::detail::warp_block_threads)
    down_sampling_kernel(rollout_view batch, grouping groups, down_sampling_options options, draw_key key,
                         device_span<std::uint64_t> words, device_span<reason_flags> reasons, status_record* status) {
  gpu::detail::for_each_by_warp(groups.counts->groups, [&](std::int64_t g) {
    warp_draw const group{batch,
                          groups,
                          options,
                          key,
                          words,
                          reasons,
                          status,
                          groups.offsets[static_cast<std::size_t>(g)],
                          groups.offsets[static_cast<std::size_t>(g) + 1]};
    group.draw();
  });
}

}  // namespace detail

/// Bytes that down_sampling needs for a batch of `turns` turns.
[[nodiscard]] inline std::size_t down_sampling_workspace_bytes(std::size_t turns) {
  workspace count;
  static_cast<void>(count.take<std::uint64_t>(turns, "down_sampling: words"));
  return count.used();
}

/// Keeps min(target, kept) kept turns, or trajectories with kept turns, of each group and rejects the others' kept
/// turns: the device version, with the same flags.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph: a replay draws under the
/// key of the capture. One launch.
/// @param[in]     groups   of make_grouping over this batch; turns in no group are passed over.
/// @param[in]     key      seed and step of the draws.
/// @param[in,out] reasons  [S] after all other rules: only kept turns are drawn, and gain `not_drawn`.
/// @param[in]     status   may be null; gains draw_id (a turn whose trajectory id or index is outside [0, 2^32): where
///                         it is kept it goes, and takes no place).
/// @throws precondition_error  sizes that differ, options as on the host, a workspace too small; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @par Complexity  34 reads of a word a turn, a warp a group.
/// @see turnwise::rejection::down_sampling
inline void down_sampling(rollout_view const& batch, grouping const& groups, down_sampling_options const& options,
                          draw_key key, device_span<reason_flags> reasons, status_record* status, workspace scratch,
                          ::cuda::stream_ref stream) {
  check_sizes(batch, "down_sampling");
  expects_size("down_sampling", "groups", groups.turns, batch.turns, "turn");
  expects_size("down_sampling", "groups", groups.trajectory_order.size(), batch.trajectories(), "trajectory");
  expects_size("down_sampling", "reasons", reasons.size(), batch.turns, "turn");
  turnwise::rejection::detail::check_down_sampling_options(options, "down_sampling");
  auto const words = scratch.take<std::uint64_t>(batch.turns, "down_sampling: words");
  launch("down_sampling", detail::down_sampling_kernel, gpu::detail::warp_blocks(batch.turns),
         gpu::detail::warp_block_threads, 0, stream, batch, groups, options, key, words, reasons, status);
}

}  // namespace turnwise::gpu::rejection
