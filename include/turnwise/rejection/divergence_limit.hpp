/// @file
/// Rejects turns whose estimated divergence between sampler and trainer leaves its bounds.
#pragma once

#include <turnwise/importance/divergence_sums.hpp>
#include <turnwise/rejection/usable_tokens.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

namespace turnwise::rejection {

/// Estimates of KL(rollout || old) from one token, d = old - rollout, in nats.
enum class divergence_estimate : std::uint8_t {
  k1,  ///< -d
  k2,  ///< d^2 / 2
  k3   ///< e^d - 1 - d
};

/// How the tokens of a turn, or of a trajectory, become one number.
enum class token_aggregate : std::uint8_t { sum, mean, max };

/// Options of `divergence_limit`.
struct divergence_limit_options {
  divergence_estimate estimate = divergence_estimate::k3;  ///< of one token
  token_aggregate aggregate = token_aggregate::mean;       ///< how tokens become one number
  scope level = scope::turn;                               ///< over whose tokens
  double low = -std::numeric_limits<double>::infinity();   ///< nats, inclusive; k2 and k3 are never below 0
  double high = 0.001;                                     ///< nats, inclusive
};

/// What the rule looks at; records of parts merge to the record of the whole.
struct divergence_record {
  importance::turn_statistics statistics;  ///< for k1 and extremes
  importance::turn_divergence sums;        ///< for sums and means of k2 and k3

  TURNWISE_HOST_DEVICE constexpr divergence_record& operator+=(divergence_record const& other) noexcept {
    statistics += other.statistics;
    sums += other.sums;
    return *this;
  }
};

/// The largest estimate of tokens, which one of the extreme log ratios has.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr double largest_divergence(importance::turn_statistics const& statistics,
                                                                       divergence_estimate estimate) noexcept {
  if (estimate == divergence_estimate::k1)
    return -static_cast<double>(importance::log_ratio_index(statistics.min)) * importance::log_ratio_unit;
  bool const k2 = estimate == divergence_estimate::k2;
  auto const of_min = importance::token_divergence(importance::log_ratio_index(statistics.min));
  auto const of_max = importance::token_divergence(importance::log_ratio_index(statistics.max));
  std::int64_t const low = k2 ? of_min.k2 : of_min.k3;
  std::int64_t const high = k2 ? of_max.k2 : of_max.k3;
  return static_cast<double>(low > high ? low : high) * importance::divergence_unit;
}

/// `divergence` if the estimate is outside its bounds: n low <= sum <= n high for the mean, else low <= value <= high.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr reason_flags divergence_reason(
    divergence_record const& record, divergence_limit_options const& options) noexcept {
  if (record.statistics.count == 0) return 0;
  double value = 0;
  if (options.aggregate == token_aggregate::max)
    value = largest_divergence(record.statistics, options.estimate);
  else if (options.estimate == divergence_estimate::k1)
    value = -record.statistics.log_sum();
  else
    value = static_cast<double>(options.estimate == divergence_estimate::k2 ? record.sums.k2 : record.sums.k3) *
            importance::divergence_unit;
  double const n = options.aggregate == token_aggregate::mean ? static_cast<double>(record.statistics.count) : 1.0;
  return value < n * options.low || value > n * options.high ? reason::divergence : 0;
}

namespace detail {

[[nodiscard]] constexpr bool needs_divergence_sums(divergence_limit_options const& options) noexcept {
  return options.estimate != divergence_estimate::k1 && options.aggregate != token_aggregate::max;
}

inline void check_divergence_options(divergence_limit_options const& options, std::string_view function) {
  expects(options.low <= options.high, function, ": low = ", options.low, " and high = ", options.high,
          ", expected low <= high");
}

}  // namespace detail

/// Rejects each turn whose divergence estimate, or whose trajectory's, is outside [low, high]: reason `divergence`.
///
///     k1 = -d,  k2 = d^2 / 2,  k3 = e^d - 1 - d  of each token; their sum, mean or max;  low <= it <= high
///
/// The largest k1 is that of the smallest log ratio: with it `high` bounds every token, and `low` at least one.
///
/// A trajectory's estimate is over the tokens of its valid turns, those rejected by other rules included.
/// Also called: seq_sum_k*, seq_mean_k*, seq_max_k* (verl; a sequence is a turn there); KL rejection sampling.
/// @param[in]     statistics  [S] from log_ratio_statistics.
/// @param[in]     sums        [S] from divergence_sums; may be empty for k1 and for max.
/// @param[in,out] reasons     [S] after usable_tokens; gains `divergence`.
/// @throws precondition_error  sizes that differ; low above high or NaN; nothing is written.
/// @note  Code bases disagree on direction: a bound [a, b] of verl's k1 acts on the inverse ratio rollout / old; it is
///        low = log(a), high = log(b) here. A bound on the ratio old / rollout is ratio_band, or low = -log(b), high =
///        -log(a). AReaL's k3 is of the inverse ratio: call divergence_sums with the two arrays swapped.
/// @note  Turns without a ratio (has_ratio) are passed over.
/// @note  Exact: integer sums, one product and two comparisons of doubles.
/// @par Complexity  O(S), no allocation.
/// @par Reference   Schulman 2020, "Approximating KL divergence".
/// @see token_mask for the same estimates of single tokens
inline void divergence_limit(rollout_view const& batch, std::span<importance::turn_statistics const> statistics,
                             std::span<importance::turn_divergence const> sums, divergence_limit_options const& options,
                             std::span<reason_flags> reasons) {
  check_rollout(batch, "divergence_limit");
  expects_size("divergence_limit", "statistics", statistics.size(), batch.turns(), "turn");
  if (!sums.empty() || detail::needs_divergence_sums(options))
    expects_size("divergence_limit", "sums", sums.size(), batch.turns(), "turn");
  expects_size("divergence_limit", "reasons", reasons.size(), batch.turns(), "turn");
  detail::check_divergence_options(options, "divergence_limit");
  detail::apply_ratio_rule(
      batch, options.level, reasons,
      [&](std::size_t s) {
        return divergence_record{statistics[s], sums.empty() ? importance::turn_divergence{} : sums[s]};
      },
      [&](divergence_record const& total, std::size_t) { return divergence_reason(total, options); });
}

}  // namespace turnwise::rejection
