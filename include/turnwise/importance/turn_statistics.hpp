/// @file
/// The small records that a pass over the tokens leaves of each turn.
#pragma once

#include <turnwise/importance/log_ratio.hpp>

#include <cstdint>
#include <limits>

namespace turnwise::importance {

/// What decisions need of a turn's log ratios, exactly. Records of parts merge to the record of the whole.
struct turn_statistics {
  std::int64_t count = 0;  ///< unmasked tokens with a finite log ratio
  std::int64_t sum = 0;    ///< of their log ratios, in units of 2^-24, each clamped to +-64
  double min = std::numeric_limits<double>::infinity();   ///< smallest log ratio, unclamped; -0 counts as +0
  double max = -std::numeric_limits<double>::infinity();  ///< largest log ratio, unclamped; -0 counts as +0
  std::int64_t non_finite = 0;                            ///< unmasked tokens whose log ratio is NaN or infinite
  std::int64_t saturated = 0;                             ///< tokens in count that were clamped

  /// Sum of the log ratios, nats.
  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr double log_sum() const noexcept {
    return static_cast<double>(sum) * log_ratio_unit;
  }
  /// Mean log ratio, nats; 0 without tokens.
  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr double log_mean() const noexcept {
    return count == 0 ? 0.0 : log_sum() / static_cast<double>(count);
  }
  TURNWISE_HOST_DEVICE constexpr turn_statistics& operator+=(turn_statistics const& other) noexcept {
    count += other.count;
    sum += other.sum;
    min = other.min < min ? other.min : min;
    max = other.max > max ? other.max : max;
    non_finite += other.non_finite;
    saturated += other.saturated;
    return *this;
  }
  friend constexpr bool operator==(turn_statistics const&, turn_statistics const&) = default;
};

/// Further sums over the same tokens, for metrics. With n = count and the log sum they give
///
///     sum of ratios = n + log_sum + k3,   sum of squared ratios = n + 2 (log_sum + k3) + excess_squared,
///     sum of old log-probs = rollout_logprob + log_sum.
struct ratio_moments {
  double k3 = 0;               ///< sum of e^d - 1 - d, each d clamped and on the grid
  double excess_squared = 0;   ///< sum of (e^d - 1)^2
  double rollout_logprob = 0;  ///< sum of rollout log-probs, nats

  TURNWISE_HOST_DEVICE constexpr ratio_moments& operator+=(ratio_moments const& other) noexcept {
    k3 += other.k3;
    excess_squared += other.excess_squared;
    rollout_logprob += other.rollout_logprob;
    return *this;
  }
  friend constexpr bool operator==(ratio_moments const&, ratio_moments const&) = default;
};

}  // namespace turnwise::importance
