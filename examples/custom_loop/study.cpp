#include "study.hpp"

#include <turnwise/core/parallel_for.hpp>

#include <algorithm>

namespace custom_loop {
namespace {

series run(std::string name, char mark, run_options options, std::size_t seeds) {
  series way{std::move(name), mark, options, std::vector<curve>(seeds)};
  turnwise::parallel_for(seeds, 1, 0, [&](std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) {
      run_options one = options;
      one.seed += static_cast<std::uint32_t>(i);
      way.curves[i] = train(one);
    }
  });
  return way;
}

}  // namespace

study compare_baselines(run_options const& common, std::size_t seeds) {
  study result{"baselines", common, {}};
  run_options options = common;
  result.ways.push_back(run("leave-one-out", 'L', options, seeds));
  options.baseline = baseline_kind::group_mean;
  result.ways.push_back(run("group mean", 'M', options, seeds));
  if (common.optimiser == optimiser_kind::sgd) {
    options.rate *= static_cast<double>(common.k) / static_cast<double>(common.k - 1);
    result.ways.push_back(run("group mean, rate K/(K-1)", 'm', options, seeds));
  }
  return result;
}

study compare_remedies(run_options const& common, std::size_t seeds) {
  study result{"remedies", common, {}};
  auto const add = [&](std::string name, char mark, remedy against_lazy) {
    run_options options = common;
    options.against_lazy = against_lazy;
    result.ways.push_back(run(std::move(name), mark, options, seeds));
  };
  add("no filter", 'n', remedy::none);
  add("profiling reward", 'r', remedy::profiling_reward);
  add("filter, members valid", 'v', remedy::filter_valid);
  add("filter, members kept", 'k', remedy::filter_kept);
  return result;
}

double quantile(std::vector<double> values, double q) {
  std::erase_if(values, [](double value) { return std::isnan(value); });
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(std::lround(q * static_cast<double>(values.size() - 1)))];
}

double steps_to_half(curve const& run) {
  return steps_until(run, 0.5, [](curve_point const& at) { return at.real; });
}

double steps_to_half(curve const& run, std::size_t turn) {
  return steps_until(run, 0.5, [turn](curve_point const& at) { return at.real_at[turn]; });
}

double steps_to_takeover(curve const& run) {
  return steps_until(run, 0.9, [](curve_point const& at) { return at.lazy; });
}

double lazy_peak(curve const& run) { return std::ranges::max(run, {}, &curve_point::lazy).lazy; }

}  // namespace custom_loop
