/// @file
/// Finds the trajectory of a turn.
#pragma once

#include <turnwise/gpu/core/rollout.cuh>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::detail {

/// The trajectory that has turn s; -1 if none has, which only wrong offsets allow.
__device__ inline std::int64_t trajectory_of_turn(rollout_view const& batch, std::int64_t s) {
  std::int64_t low = 0;  // of the offsets, those before `low` are at most s
  std::int64_t high = static_cast<std::int64_t>(batch.trajectories());
  while (low < high) {
    std::int64_t const middle = low + (high - low) / 2;
    if (batch.trajectory_offsets[static_cast<std::size_t>(middle)] <= s)
      low = middle + 1;
    else
      high = middle;
  }
  if (low == 0) return -1;
  auto const j = static_cast<std::size_t>(low - 1);
  return batch.first_turn(j) <= s && s < batch.first_turn(j + 1) ? low - 1 : -1;
}

}  // namespace turnwise::gpu::detail
