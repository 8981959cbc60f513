/// @file
/// A training run.
#pragma once

#include "policy.hpp"

#include <array>
#include <vector>

namespace custom_loop {

enum class baseline_kind : std::uint8_t { leave_one_out, group_mean };

/// What is done about lazy plans.
enum class remedy : std::uint8_t {
  none,              ///< reward C (1 + speedup)
  profiling_reward,  ///< reward C (1 + speedup + profiling ratio)
  filter_valid,      ///< that and the profiling filter; rejected turns stay in baselines
  filter_kept        ///< that and the profiling filter; rejected turns are in no baseline
};

struct run_options {
  task of{};
  std::size_t prompts = 4;
  std::size_t k = 4;  ///< trajectories a prompt
  std::size_t steps = 400;
  optimiser_kind optimiser = optimiser_kind::sgd;
  double rate = 0.05;
  baseline_kind baseline = baseline_kind::leave_one_out;
  remedy against_lazy = remedy::profiling_reward;
  std::uint32_t seed = 0;
};

/// Exact probabilities under the policy: means over the turns, and of the real plan at each.
struct curve_point {
  double lazy, real;
  std::array<double, turns> real_at;
};

/// The policy after each step; before the first: element 0.
using curve = std::vector<curve_point>;

[[nodiscard]] curve train(run_options const& options);

}  // namespace custom_loop
