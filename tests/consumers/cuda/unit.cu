// Two units that hold the same kernels, each with a launch shape of its own; every device function may be shared
// (-rdc=true).
#include <turnwise/gpu/advantage/per_token.cuh>
#include <turnwise/gpu/core/reasons.cuh>
#include <turnwise/gpu/rejection/ratio_band.cuh>

#include <cstddef>
#include <cstdint>

namespace UNIT {

namespace gpu = turnwise::gpu;

/// Sizes are checked on the host, and an empty batch launches nothing: neither needs a device.
bool without_device() {
  gpu::advantage::per_token<double, float>({}, {}, {}, {}, {}, {}, cudaStream_t{});
  std::size_t volatile const items = 8;  // so that the call stays one
  return gpu::grid_blocks(items, 4) == (TURNWISE_GPU_MAX_BLOCKS < 2 ? TURNWISE_GPU_MAX_BLOCKS : 2) &&
         gpu::detail::warp_blocks(items) == (TURNWISE_GPU_MAX_BLOCKS < 2 ? 1 : 8 / TURNWISE_GPU_BLOCK_WARPS);
}

/// A batch of one turn, which the caller flagged off.
bool on_device() {
  struct turn {
    std::int64_t offsets[2];
    std::int64_t id;
    std::uint8_t valid;
    turnwise::reason_flags reasons;
  };
  turn* one = nullptr;
  gpu::check(cudaMallocManaged(&one, sizeof *one), "cudaMallocManaged");
  *one = {{0, 1}, 0, 0, 0};
  gpu::rollout_view const batch{.turns = 1,
                                .trajectory_offsets = {one->offsets, 2},
                                .group_id = {&one->id, 1},
                                .trajectory_id = {&one->id, 1},
                                .turn_valid = {&one->valid, 1}};
  gpu::begin_reasons(batch, {&one->reasons, 1}, cudaStream_t{});
  gpu::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  bool const good = one->reasons == turnwise::reason::invalid;
  gpu::check(cudaFree(one), "cudaFree");
  return good;
}

}  // namespace UNIT
