/// @file
/// Rejects a turn for a single token that the trainer finds far less likely, or far likelier, than the sampler did.
#pragma once

#include <turnwise/rejection/usable_tokens.hpp>

#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <string_view>

namespace turnwise::rejection {

/// Options of `token_veto`.
struct token_veto_options {
  double threshold = 1e-4;               ///< ratio; a token strictly below it vetoes; 0: none
  scope veto_scope = scope::trajectory;  ///< what one such token rejects
  /// Ratio; a token strictly above it vetoes too. SkyRL takes 100.
  double outlier = std::numeric_limits<double>::infinity();
};

/// The thresholds of a veto in log space: the logs are taken once, on the host.
struct log_veto {
  double threshold;                                          ///< nats; -infinity: none
  double outlier = std::numeric_limits<double>::infinity();  ///< nats
};

/// Whether the smallest log ratio lies strictly below the one threshold, or the largest strictly above the other.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr reason_flags veto_reason(importance::turn_statistics const& statistics,
                                                                      log_veto const& veto) noexcept {
  if (statistics.count == 0) return 0;
  return (statistics.min < veto.threshold ? reason::token_veto : 0) |
         (statistics.max > veto.outlier ? reason::token_outlier : 0);
}

/// Checks the thresholds and takes their logs.
[[nodiscard]] inline log_veto make_log_veto(token_veto_options const& options, std::string_view function) {
  expects(options.threshold >= 0 && !std::isinf(options.threshold), function, ": threshold = ", options.threshold,
          ", expected a finite ratio, at least 0");
  expects(options.outlier >= options.threshold && options.outlier > 0, function, ": outlier = ", options.outlier,
          ", expected a ratio, at least threshold = ", options.threshold);
  return {log_of_option(options.threshold), log_of_option(options.outlier)};
}

/// Rejects each turn, or each trajectory, in which some token's ratio old / rollout is below the threshold, or above
/// the outlier threshold.
///
///     token_veto    iff min over tokens of (old - rollout) < log(threshold)
///     token_outlier iff max over tokens of (old - rollout) > log(outlier)
///
/// Also called: token veto, catastrophic-token mask; outlier-token mask (SkyRL).
/// @param[in]     statistics  [S] from log_ratio_statistics; their extremes are of the unclamped log ratio.
/// @param[in,out] reasons     [S] after usable_tokens; gains `token_veto` and `token_outlier`.
/// @throws precondition_error  sizes that differ; threshold negative, infinite or NaN; outlier below threshold, 0 or
///         NaN; nothing is written.
/// @note  Threshold 0 and outlier infinity (the default) veto nothing. Turns without a ratio (has_ratio) neither veto
///        nor are vetoed.
/// @note  Exact: two comparisons of doubles.
/// @par Complexity  O(S), no allocation.
/// @par Reference   Dr. Kernel, arXiv:2602.05885 (the paper rejects the trajectory, the published trainer the turn).
inline void token_veto(rollout_view const& batch, std::span<importance::turn_statistics const> statistics,
                       token_veto_options const& options, std::span<reason_flags> reasons) {
  check_rollout(batch, "token_veto");
  expects_size("token_veto", "statistics", statistics.size(), batch.turns(), "turn");
  expects_size("token_veto", "reasons", reasons.size(), batch.turns(), "turn");
  log_veto const veto = make_log_veto(options, "token_veto");
  detail::apply_ratio_rule(
      batch, options.veto_scope, reasons, [&](std::size_t s) { return statistics[s]; },
      [&](importance::turn_statistics const& total, std::size_t) { return veto_reason(total, veto); });
}

}  // namespace turnwise::rejection
