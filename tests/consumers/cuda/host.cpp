// A C++ unit that uses the device half's types.
#include <turnwise/gpu/core/device_span.cuh>
#include <turnwise/gpu/core/launch.cuh>

int main() { return turnwise::gpu::device_span<float>{}.empty() ? 0 : 1; }
