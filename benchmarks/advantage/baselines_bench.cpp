// Baselines over turn groups of 16, one thread: turns a second, and the time against reading the returns, reasons and
// members and writing the advantages once.
#include "../common.hpp"

#include <turnwise/advantage/group_relative.hpp>
#include <turnwise/advantage/leave_one_out.hpp>

namespace {

using namespace turnwise;

template <typename Method>
void baseline(benchmark::State& state, Method method) {
  std::size_t const turns = std::size_t{1} << 20;
  std::vector<std::int64_t> group(turns);
  std::vector<double> turn_return(turns), out(turns);
  std::vector<reason_flags> const reasons(turns);
  for (std::size_t s = 0; s < turns; ++s) {
    group[s] = static_cast<std::int64_t>(s / 16);
    turn_return[s] = static_cast<double>(s * 2654435761u % 1000) * 0.01;
  }
  grouping const groups = make_grouping(std::span<std::int64_t const>{group});
  double once = 1e9;
  double best = 1e9;
  for (auto _ : state) {
    once = std::min(once, benchmarks::seconds([&] {
                      for (std::size_t i = 0; i < turns; ++i) {
                        auto const s = static_cast<std::size_t>(groups.order()[i]);
                        out[s] = reasons[s] == 0 ? turn_return[s] : 0.0;
                      }
                      benchmark::ClobberMemory();
                    }));
    double const time = benchmarks::seconds([&] {
      method(groups, turn_return, reasons, std::span{out});
      benchmark::ClobberMemory();
    });
    best = std::min(best, time);
    state.SetIterationTime(time);
  }
  state.counters["Mturns/s"] = static_cast<double>(turns) * 1e-6 / best;
  state.counters["of_one_pass"] = once / best;
}

BENCHMARK_CAPTURE(baseline, leave_one_out,
                  [](auto const& groups, auto const& turn_return, auto const& reasons, auto out) {
                    advantage::leave_one_out(groups, turn_return, reasons, {.threads = 1}, out);
                  }) -> UseManualTime() -> Unit(benchmark::kMillisecond) -> Iterations(20);
BENCHMARK_CAPTURE(baseline, group_relative,
                  [](auto const& groups, auto const& turn_return, auto const& reasons, auto out) {
                    advantage::group_relative(groups, turn_return, reasons, {.threads = 1}, out);
                  }) -> UseManualTime() -> Unit(benchmark::kMillisecond) -> Iterations(20);

}  // namespace

BENCHMARK_MAIN();
