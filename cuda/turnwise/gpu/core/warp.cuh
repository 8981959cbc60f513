/// @file
/// The lanes of a warp, and the loops of kernels that give each warp one trajectory or one group.
#pragma once

#include <turnwise/gpu/core/launch.cuh>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::detail {

inline constexpr int lanes = 32;
inline constexpr unsigned all_lanes = 0xffffffffu;

inline namespace TURNWISE_GPU_SHAPE_NAMESPACE {

/// Threads of a block whose warps work on their own.
inline constexpr unsigned warp_block_threads = TURNWISE_GPU_BLOCK_WARPS * lanes;

/// Blocks for `count` items of a warp each. More items than these warps: each warp takes several.
[[nodiscard]] constexpr unsigned warp_blocks(std::size_t count) noexcept {
  constexpr unsigned most = 1u << 16;
  unsigned const blocks = grid_blocks(count, warp_block_threads / lanes);
  return blocks < most ? blocks : most;
}

}  // namespace TURNWISE_GPU_SHAPE_NAMESPACE

__device__ inline int lane_id() { return static_cast<int>(threadIdx.x % lanes); }

/// Lowest lane of a set that is not empty, and the highest.
__device__ inline int lowest_lane(unsigned set) { return __ffs(static_cast<int>(set)) - 1; }
__device__ inline int highest_lane(unsigned set) { return lanes - 1 - __clz(static_cast<int>(set)); }

/// Calls body(i) for i in [0, count), whole warps sharing the indices.
template <typename Body>
__device__ void for_each_by_warp(std::int64_t count, Body body) {
  auto const first = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / lanes;
  auto const stride = std::int64_t{gridDim.x} * blockDim.x / lanes;
  for (std::int64_t i = first; i < count; i += stride) body(i);
}

/// Calls body(i) for i in [0, count), threads sharing the indices.
template <typename Body>
__device__ void for_each_by_thread(std::int64_t count, Body body) {
  auto const stride = std::int64_t{gridDim.x} * blockDim.x;
  for (auto i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) body(i);
}

}  // namespace turnwise::gpu::detail
