#include <turnwise/gpu/recipe/dr_kernel.cuh>
#include <turnwise/turnwise.hpp>

#include <vector>

namespace {

// The host half in a CUDA unit: its vectors are not for the device, also where constexpr functions are.
double host_step() {
  using namespace turnwise;
  rollout_view const batch{};
  recipe::dr_kernel(batch, recipe::step_inputs<float, double, double>{}, {}, {.seed = 1, .step = 0}, {});
  std::vector<float> gradient;
  std::vector<double> scale;
  loss::loss_outputs<float> const out{gradient};
  return loss::policy_loss(batch, loss::loss_inputs<float>{}, loss::ppo_clip{}, {}, scale, out).loss() +
         loss::policy_loss(batch, loss::loss_inputs<float>{}, loss::gspo{}, {}, scale, out).loss();
}

}  // namespace

// Sizes and checks need no device.
int main() {
  turnwise::gpu::check(turnwise::gpu::status_record{});
  return turnwise::gpu::recipe::dr_kernel_workspace_bytes(1, 1) > 0 && host_step() == 0 ? 0 : 1;
}
