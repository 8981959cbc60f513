// Every group-wise advantage over 2^20 turns in groups of 16 on one thread: turns a second, and `of_read`, the time of
// a plain pass that reads returns, reasons and members and writes advantages over our time.
#include "../common.hpp"

#include <turnwise/advantage/gpg.hpp>
#include <turnwise/advantage/group_relative.hpp>
#include <turnwise/advantage/leave_one_out.hpp>
#include <turnwise/advantage/max_rl.hpp>
#include <turnwise/advantage/median_mad.hpp>
#include <turnwise/advantage/opo.hpp>
#include <turnwise/advantage/pass_at_k.hpp>
#include <turnwise/advantage/remax.hpp>

#include <span>
#include <string>
#include <vector>

namespace {

using namespace turnwise;

struct inputs {
  static constexpr std::size_t turns = std::size_t{1} << 20;
  std::vector<double> turn_return, weight, advantage;
  std::vector<reason_flags> reasons;
  grouping groups;

  inputs() : turn_return(turns), weight(turns), advantage(turns), reasons(turns) {
    std::vector<std::int64_t> group(turns);
    for (std::size_t s = 0; s < turns; ++s) {
      group[s] = static_cast<std::int64_t>(s / 16);
      turn_return[s] = static_cast<double>(s * 2654435761u % 1000) * 0.01;
      weight[s] = static_cast<double>(s * 40503u % 4000);
    }
    groups = make_grouping(std::span<std::int64_t const>{group});
  }
};

inputs& batch() {
  static inputs all;
  return all;
}

/// method(inputs, advantage).
template <typename Method>
void add(std::string const& name, Method method) {
  auto const run = [method](benchmark::State& state) {
    inputs const& in = batch();
    std::span const out{batch().advantage};
    double read = 1e9;
    double best = 1e9;
    for (auto _ : state) {
      read = std::min(read, benchmarks::seconds([&] {
                        for (std::size_t i = 0; i < inputs::turns; ++i) {
                          auto const s = static_cast<std::size_t>(in.groups.order()[i]);
                          out[s] = in.reasons[s] == 0 ? in.turn_return[s] : 0.0;
                        }
                        benchmark::ClobberMemory();
                      }));
      double const time = benchmarks::seconds([&] {
        method(in, out);
        benchmark::ClobberMemory();
      });
      best = std::min(best, time);
      state.SetIterationTime(time);
    }
    state.counters["Mturns/s"] = static_cast<double>(inputs::turns) * 1e-6 / best;
    state.counters["of_read"] = read / best;
  };
  benchmark::RegisterBenchmark(name.c_str(), run)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(20);
}

bool const registered = [] {
  using namespace advantage;
  add("leave_one_out",
      [](auto& in, auto out) { leave_one_out(in.groups, in.turn_return, in.reasons, {.threads = 1}, out); });
  add("leave_one_out/scale", [](auto& in, auto out) {
    leave_one_out(in.groups, in.turn_return, in.reasons, {.threads = 1, .scale = true}, out);
  });
  add("group_relative",
      [](auto& in, auto out) { group_relative(in.groups, in.turn_return, in.reasons, {.threads = 1}, out); });
  add("opo", [](auto& in, auto out) { opo(in.groups, in.turn_return, in.weight, in.reasons, {.threads = 1}, out); });
  add("max_rl", [](auto& in, auto out) { max_rl(in.groups, in.turn_return, in.reasons, {.threads = 1}, out); });
  add("median_mad", [](auto& in, auto out) { median_mad(in.groups, in.turn_return, in.reasons, {.threads = 1}, out); });
  for (std::int64_t const k : {0, 4})
    add("pass_at_k/" + std::to_string(k),
        [k](auto& in, auto out) { pass_at_k(in.groups, in.turn_return, in.reasons, {.k = k, .threads = 1}, out); });
  add("gpg", [](auto& in, auto out) { gpg(in.groups, in.turn_return, in.reasons, {.threads = 1}, out); });
  add("remax", [](auto& in, auto out) { remax(in.turn_return, in.weight, in.reasons, out); });
  return true;
}();

}  // namespace

BENCHMARK_MAIN();
