#include "baseline.hpp"

#include <turnwise/advantage/leave_one_out.hpp>

namespace {

void leave_one_out(benchmark::State& state) {
  turnwise::benchmarks::baseline(state, [](auto const& groups, auto const& turn_return, auto const& reasons, auto out) {
    turnwise::advantage::leave_one_out(groups, turn_return, reasons, {.threads = 1}, out);
  });
}
BENCHMARK(leave_one_out)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(20);

}  // namespace

BENCHMARK_MAIN();
