#include <cstdio>

namespace first_unit {
bool without_device();
bool on_device();
}  // namespace first_unit
namespace second_unit {
bool without_device();
bool on_device();
}  // namespace second_unit

int main() {
  if (!first_unit::without_device() || !second_unit::without_device()) return 1;
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("skipped: no CUDA device");
    return 0;
  }
  return first_unit::on_device() && second_unit::on_device() ? 0 : 1;
}
