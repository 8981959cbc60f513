/// @file
/// The claims of the README, as numbers with bounds.

#include "defaults.hpp"
#include "report.hpp"

#include <cstdio>

namespace custom_loop {
namespace {

class checker {
 public:
  void expect(char const* what, double value, double low, double high) {
    bool const holds = value >= low && value <= high;  // false for NaN
    std::printf("  %-6s %-88s %8.3f in [%g, %g]\n", holds ? "holds" : "FAILS", what, value, low, high);
    all_hold_ = all_hold_ && holds;
  }
  [[nodiscard]] bool all_hold() const { return all_hold_; }

 private:
  bool all_hold_ = true;
};

double all_turns(series const& way, series const& base) {
  return median(slower_by(way, base, [](curve const& run) { return steps_to_half(run); }));
}

double at_turn(series const& way, series const& base, std::size_t turn) {
  return median(slower_by(way, base, [turn](curve const& run) { return steps_to_half(run, turn); }));
}

}  // namespace

bool check_claims(std::size_t seeds) {
  checker check;
  double const never = std::numeric_limits<double>::infinity();

  study const small = compare_baselines(baselines_defaults(4, optimiser_kind::sgd), seeds);
  report_baselines(small);
  study const large = compare_baselines(baselines_defaults(16, optimiser_kind::sgd), seeds);
  report_baselines(large);
  run_options with_small_groups = baselines_defaults(4, optimiser_kind::sgd);
  with_small_groups.of.context_full = 0.25;
  with_small_groups.steps = 500;
  study const small_groups = compare_baselines(with_small_groups, seeds);
  report_baselines(small_groups);
  study const remedies = compare_remedies(remedies_defaults(), seeds);
  report_remedies(remedies);

  std::printf("\nCLAIMS, sgd, medians over %zu seeds unless said otherwise\n", seeds);
  check.expect("K 4: the group mean takes about 1.4 times the steps (K/(K-1) is 1.333)",
               all_turns(small.ways[1], small.ways[0]), 1.28, 1.55);
  check.expect("K 16: about 1.1 times (K/(K-1) is 1.067)", all_turns(large.ways[1], large.ways[0]), 1.04, 1.15);
  check.expect("K 4, context full 25%: turn groups are smaller, and it takes 1.5 times",
               all_turns(small_groups.ways[1], small_groups.ways[0]), 1.4, 1.7);
  check.expect("the same at turn 1, where all K are there", at_turn(small_groups.ways[1], small_groups.ways[0], 0),
               1.15, 1.45);
  check.expect("the same at turn 3, where the fewest are", at_turn(small_groups.ways[1], small_groups.ways[0], 2), 1.4,
               1.85);
  check.expect("K 4: at K/(K-1) times the rate, at most 10% more steps", all_turns(small.ways[2], small.ways[0]), 0.95,
               1.10);
  check.expect("K 16: the same", all_turns(large.ways[2], large.ways[0]), 0.97, 1.10);

  auto const peaks = of_seeds(remedies.ways[3], lazy_peak);
  auto const takeover = [&](std::size_t way) { return median(of_seeds(remedies.ways[way], steps_to_takeover)); };
  auto const lazy = [](curve_point const& at) { return at.lazy; };
  auto const real = [](curve_point const& at) { return at.real; };
  std::size_t const end = remedies.common.steps;
  check.expect("no filter: lazy has nearly everything at the end", median_at(remedies.ways[0], end, lazy), 0.95, 1);
  check.expect("profiling reward: the same", median_at(remedies.ways[1], end, lazy), 0.95, 1);
  check.expect("filter, members valid: lazy takes over too, in every seed (its least peak)",
               quantile(of_seeds(remedies.ways[2], lazy_peak), 0), 0.9, 1);
  check.expect("filter, members valid: but later (steps to 90% over the profiling reward's)", takeover(2) / takeover(1),
               1.5, never);
  check.expect("filter, members kept: lazy takes over in no seed (its greatest peak)", quantile(peaks, 1), 0.1, 0.55);
  check.expect("filter, members kept: lazy at the end", median_at(remedies.ways[3], end, lazy), 0, 0.25);
  check.expect("filter, members kept: real at the end", median_at(remedies.ways[3], end, real), 0.7, 1);
  return check.all_hold();
}

}  // namespace custom_loop
