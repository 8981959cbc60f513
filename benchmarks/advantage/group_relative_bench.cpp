#include "baseline.hpp"

#include <turnwise/advantage/group_relative.hpp>

namespace {

void group_relative(benchmark::State& state) {
  turnwise::benchmarks::baseline(state, [](auto const& groups, auto const& turn_return, auto const& reasons, auto out) {
    turnwise::advantage::group_relative(groups, turn_return, reasons, {.threads = 1}, out);
  });
}
BENCHMARK(group_relative)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(20);

}  // namespace

BENCHMARK_MAIN();
