// Two units that hold the same kernels; every device function may be shared (-rdc=true).
#include <turnwise/gpu/advantage/per_token.cuh>
#include <turnwise/gpu/rejection/ratio_band.cuh>

#include <cstdint>

/// Sizes are checked on the host, and an empty batch launches nothing: neither needs a device.
bool UNIT() {
  turnwise::gpu::advantage::per_token<double, float>({}, {}, {}, {}, {}, {}, cudaStream_t{});
  return turnwise::gpu::grid_blocks(8, 4) == 2;
}
