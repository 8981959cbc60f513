// What the benchmarks of baselines share: turn groups of 16, one thread. Turns a second, and the time of one pass over the
// returns, reasons and members that writes the advantages, over our time.
#pragma once

#include "../common.hpp"

#include <turnwise/core/grouping.hpp>

#include <span>
#include <vector>

namespace turnwise::benchmarks {

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
    once = std::min(once, seconds([&] {
                      for (std::size_t i = 0; i < turns; ++i) {
                        auto const s = static_cast<std::size_t>(groups.order()[i]);
                        out[s] = reasons[s] == 0 ? turn_return[s] : 0.0;
                      }
                      benchmark::ClobberMemory();
                    }));
    double const time = seconds([&] {
      method(groups, turn_return, reasons, std::span{out});
      benchmark::ClobberMemory();
    });
    best = std::min(best, time);
    state.SetIterationTime(time);
  }
  state.counters["Mturns/s"] = static_cast<double>(turns) * 1e-6 / best;
  state.counters["of_one_pass"] = once / best;
}

}  // namespace turnwise::benchmarks
