// A C++ unit that uses the device half's types.
#include <turnwise/gpu/core/device_span.cuh>
#include <turnwise/gpu/core/launch.cuh>
#include <turnwise/gpu/core/status.cuh>

int main() {
  turnwise::gpu::check(turnwise::gpu::status_record{});
  return turnwise::gpu::device_span<float>{}.empty() ? 0 : 1;
}
