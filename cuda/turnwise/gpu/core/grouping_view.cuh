/// @file
/// Which turns are compared with each other, in device memory: what baselines read. make_grouping builds it.
#pragma once

#include <turnwise/gpu/core/device_span.cuh>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu {

/// How many there are: known on the device only.
struct grouping_counts {
  std::int64_t groups;   ///< number of groups
  std::int64_t prompts;  ///< pools: the prompts, trajectories without turns included; with group_by::batch one
  std::int64_t broken;   ///< not 0: trajectory_offsets are wrong and no turn is in a group
};

/// turnwise::grouping in device memory: groups in the order of (group id, turn index), members in the order of
/// (trajectory id, turn). Views of the workspace it was built in, and of the batch's trajectory_offsets.
///
/// A kernel over groups runs a fixed grid that strides over `counts->groups`.
struct grouping {
  std::size_t turns = 0;                                 ///< S
  std::size_t trajectories = 0;                          ///< J
  grouping_counts const* counts = nullptr;               ///< in device memory
  device_span<std::int64_t const> offsets{};             ///< [groups + 1] of [S + 1]
  device_span<std::int64_t const> members{};             ///< [S] turns, group after group
  device_span<std::int64_t const> turn_trajectory{};     ///< [S] -1: in none (broken)
  device_span<std::int64_t const> trajectory_order{};    ///< [J] in the order of (group id, trajectory id)
  device_span<std::int64_t const> prompt{};              ///< [J] pool of each trajectory
  device_span<std::int64_t const> prompt_offsets{};      ///< [prompts + 1] of [J + 1], into trajectory_order
  device_span<std::int64_t const> trajectory_offsets{};  ///< [J + 1] of the batch
};

}  // namespace turnwise::gpu
