// Units that were compiled with different options, in one program: each has its own functions.
#include "unit.hpp"

unit_result serial_unit();
unit_result openmp_unit();
unit_result wide_unit();

int main() {
  unit_result const serial = serial_unit();
  unit_result const openmp = openmp_unit();
  bool good = serial.sum == 499500 && openmp.sum == 499500;
  good = good && serial.ranges == 1 && openmp.ranges == OPENMP_RANGES && serial.token_loop == openmp.token_loop;
#ifdef HAS_WIDE_UNIT
  if (__builtin_cpu_supports("avx2")) good = good && wide_unit().token_loop != serial.token_loop;
#endif
  return good ? 0 : 1;
}
