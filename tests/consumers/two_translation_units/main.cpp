#include <cstddef>

std::size_t serial_unit();
std::size_t openmp_unit();

int main() { return serial_unit() == 499500 && openmp_unit() == 499500 ? 0 : 1; }
