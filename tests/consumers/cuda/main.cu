#include <turnwise/gpu/recipe/dr_kernel.cuh>
#include <turnwise/turnwise.hpp>

// Sizes and checks need no device.
int main() {
  turnwise::gpu::check(turnwise::gpu::status_record{});
  return turnwise::gpu::recipe::dr_kernel_workspace_bytes(1, 1) > 0 ? 0 : 1;
}
