/// @file
/// Options and results of the metrics "at k".
#pragma once

#include <cstdint>

namespace turnwise::metrics {

/// What becomes of a group with fewer than k samples.
enum class too_few_policy : std::uint8_t {
  exclude,  ///< it has no estimate and is in no mean
  all,      ///< all its samples are drawn: k = n; a group without any is excluded
  error     ///< throws
};

/// Options of pass_at_k and best_at_k.
struct at_k_options {
  std::int64_t k = 1;                                ///< samples drawn, at least 1
  too_few_policy too_few = too_few_policy::exclude;  ///< groups with fewer than k samples
};

/// One group's estimate.
struct group_estimate {
  double value = 0;          ///< 0 unless counted
  std::int64_t samples = 0;  ///< n: those that count
  bool counted = false;      ///< takes part in the mean

  friend constexpr bool operator==(group_estimate const&, group_estimate const&) = default;
};

/// Mean of the estimates over groups, each group with equal weight; 0 without groups.
struct group_mean {
  double mean = 0;            ///< of the counted estimates
  std::int64_t groups = 0;    ///< that the mean is over
  std::int64_t left_out = 0;  ///< without an estimate

  friend constexpr bool operator==(group_mean const&, group_mean const&) = default;
};

}  // namespace turnwise::metrics
