/// @file
/// Rejects turns whose importance ratio leaves a band around 1.
#pragma once

#include <turnwise/rejection/usable_tokens.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace turnwise::rejection {

/// geometric: exp of the mean log ratio; product: exp of the sum.
enum class ratio_kind : std::uint8_t { geometric, product };

/// Options of `ratio_band`.
struct ratio_band_options {
  scope level = scope::trajectory;          ///< whose ratio is judged
  ratio_kind kind = ratio_kind::geometric;  ///< geometric mean, or product
  double low = 0.999;                       ///< ratio, inclusive; 0 = no lower edge
  double high = 1.001;                      ///< ratio, inclusive; infinity = no upper edge
};

/// A band in log space: the logs are taken once, on the host.
struct log_band {
  double low;       ///< nats; -infinity: no lower edge
  double high;      ///< nats; infinity: no upper edge
  ratio_kind kind;  ///< what the edges bound: the mean or the sum
};

/// Where a ratio lies: 0 in the band, else ratio_low or ratio_high.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr reason_flags band_reason(importance::turn_statistics const& statistics,
                                                                      log_band const& band) noexcept {
  if (statistics.count == 0) return 0;
  double const n = band.kind == ratio_kind::geometric ? static_cast<double>(statistics.count) : 1.0;
  double const sum = statistics.log_sum();
  return sum < n * band.low ? reason::ratio_low : sum > n * band.high ? reason::ratio_high : 0;
}

/// Checks a band and takes its logs.
[[nodiscard]] inline log_band make_log_band(ratio_band_options const& options, std::string_view function) {
  expects(options.low >= 0 && !std::isinf(options.low), function, ": low = ", options.low,
          ", expected a finite ratio, at least 0");
  expects(options.high >= options.low && options.high > 0, function, ": high = ", options.high,
          ", expected a ratio, at least low = ", options.low);
  return {log_of_option(options.low), log_of_option(options.high), options.kind};
}

/// Rejects each turn whose ratio, or whose trajectory's ratio, is outside [low, high]: reason ratio_low or ratio_high.
///
///     geometric: n log(low) <= sum of log ratios <= n log(high);   product: without n
///
/// A trajectory's ratio is token-weighted over its valid turns, those rejected by other rules included.
/// Also called: Geo-RS, geometric rejection sampling (Dr. Kernel MRS), sequence masking.
/// @param[in]     statistics  [S] from log_ratio_statistics.
/// @param[in,out] reasons     [S] after usable_tokens.
/// @throws precondition_error  sizes that differ; low negative, high below low, NaN; nothing is written.
/// @note  Both edges are inclusive. Turns without a ratio (has_ratio) are passed over.
/// @note  A filter, not an importance correction; for long trajectories the geometric band is a knife-edge.
/// @note  Exact: integer sums, one product and one comparison of doubles.
/// @par Complexity  O(S), no allocation.
/// @par Reference   Dr. Kernel, arXiv:2602.05885.
inline void ratio_band(rollout_view const& batch, std::span<importance::turn_statistics const> statistics,
                       ratio_band_options const& options, std::span<reason_flags> reasons) {
  check_rollout(batch, "ratio_band");
  expects_size("ratio_band", "statistics", statistics.size(), batch.turns(), "turn");
  expects_size("ratio_band", "reasons", reasons.size(), batch.turns(), "turn");
  log_band const band = make_log_band(options, "ratio_band");
  detail::apply_ratio_rule(
      batch, options.level, reasons, [&](std::size_t s) { return statistics[s]; },
      [&](importance::turn_statistics const& total, std::size_t) { return band_reason(total, band); });
}

/// exp of the mean log ratio at a level, for each turn.
///
/// @param[out] ratio  [S]; at trajectory level each turn shows its trajectory's. 1 where nothing enters the mean; at turn
///                    level also where the turn is invalid or `non_finite`.
/// @throws precondition_error  sizes that differ; nothing is written.
/// @par Complexity  O(S), no allocation.
inline void geometric_ratio(rollout_view const& batch, std::span<importance::turn_statistics const> statistics,
                            std::span<reason_flags const> reasons, scope level, std::span<double> ratio) {
  check_rollout(batch, "geometric_ratio");
  expects_size("geometric_ratio", "statistics", statistics.size(), batch.turns(), "turn");
  expects_size("geometric_ratio", "reasons", reasons.size(), batch.turns(), "turn");
  expects_size("geometric_ratio", "ratio", ratio.size(), batch.turns(), "turn");
  for (std::size_t j = 0; j < batch.trajectories(); ++j) {
    double const of_trajectory = std::exp(detail::trajectory_statistics(batch, statistics, reasons, j).log_mean());
    for (std::size_t s = batch.first_turn(j); s < batch.first_turn(j + 1); ++s)
      ratio[s] = level == scope::trajectory ? of_trajectory
                 : has_ratio(reasons[s])    ? std::exp(statistics[s].log_mean())
                                            : 1.0;
  }
}

}  // namespace turnwise::rejection
