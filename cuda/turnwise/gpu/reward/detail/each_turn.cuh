/// @file
/// The launch of rewards that look at one turn at a time.
#pragma once

#include <turnwise/gpu/core/device_span.cuh>
#include <turnwise/gpu/core/rollout.cuh>
#include <turnwise/gpu/core/status.cuh>
#include <turnwise/gpu/core/warp.cuh>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace turnwise::gpu::reward::detail {

/// The reward of a turn whose own cannot be told: NaN.
__device__ inline double unscored_value() { return __longlong_as_double(0x7ff8000000000000ll); }

__device__ inline bool is_flagged_off(device_span<reason_flags const> reasons, std::int64_t turn) {
  return !reasons.empty() && (reasons[static_cast<std::size_t>(turn)] & reason::invalid) != 0;
}

template <typename OfTurn>
TURNWISE_KERNEL void each_turn_kernel(std::int64_t turns, OfTurn of_turn) {
  gpu::detail::for_each_by_thread(turns, [&](std::int64_t turn) { of_turn(turn); });
}

/// Enqueues of_turn(s) for every turn, a thread each; `of_turn` is copied to the device.
template <typename OfTurn>
void enqueue_each_turn(std::string_view call, std::size_t turns, OfTurn const& of_turn, ::cuda::stream_ref stream) {
  launch(call, each_turn_kernel<OfTurn>, grid_blocks(turns, 256), 256, 0, stream, static_cast<std::int64_t>(turns),
         of_turn);
}

}  // namespace turnwise::gpu::reward::detail
