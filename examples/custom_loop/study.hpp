/// @file
/// Runs over seeds, and what is read off them.
#pragma once

#include "training.hpp"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace custom_loop {

/// One way to train, over seeds options.seed, options.seed + 1, ...
struct series {
  std::string name;
  char mark;  ///< in plots
  run_options options;
  std::vector<curve> curves;
};

/// Training runs that differ in one thing and share all random numbers.
struct study {
  std::string name;
  run_options common;
  std::vector<series> ways;
};

/// Leave-one-out, the group mean, and under sgd the group mean at K/(K - 1) times the rate.
[[nodiscard]] study compare_baselines(run_options const& common, std::size_t seeds);
/// The four remedies against lazy plans.
[[nodiscard]] study compare_remedies(run_options const& common, std::size_t seeds);

/// The value a share q of the way from the least to the greatest, NaN left out; NaN of no values.
[[nodiscard]] double quantile(std::vector<double> values, double q);
[[nodiscard]] inline double median(std::vector<double> const& values) { return quantile(values, 0.5); }

/// First step with `of(point) >= level`; infinite if there is none.
template <typename Of>
[[nodiscard]] double steps_until(curve const& run, double level, Of of) {
  for (std::size_t step = 0; step < run.size(); ++step)
    if (of(run[step]) >= level) return static_cast<double>(step);
  return std::numeric_limits<double>::infinity();
}

/// `of(curve)` of each seed.
template <typename Of>
[[nodiscard]] std::vector<double> of_seeds(series const& way, Of of) {
  std::vector<double> values;
  for (curve const& run : way.curves) values.push_back(of(run));
  return values;
}

/// The median over seeds of `of(point)` at a step.
template <typename Of>
[[nodiscard]] double median_at(series const& way, std::size_t step, Of of) {
  return median(of_seeds(way, [&](curve const& run) { return of(run[step]); }));
}

/// Steps until the real plan has half the probability, over all turns and at one.
[[nodiscard]] double steps_to_half(curve const& run);
[[nodiscard]] double steps_to_half(curve const& run, std::size_t turn);
/// Steps until the lazy plan has 90% of the probability.
[[nodiscard]] double steps_to_takeover(curve const& run);
/// The greatest probability of the lazy plan.
[[nodiscard]] double lazy_peak(curve const& run);

/// steps(way) / steps(base) of each seed in which both got there.
template <typename Steps>
[[nodiscard]] std::vector<double> slower_by(series const& way, series const& base, Steps steps) {
  std::vector<double> ratios;
  for (std::size_t seed = 0; seed < way.curves.size(); ++seed) {
    double const ratio = steps(way.curves[seed]) / steps(base.curves[seed]);
    if (ratio > 0 && std::isfinite(ratio)) ratios.push_back(ratio);
  }
  return ratios;
}

}  // namespace custom_loop
