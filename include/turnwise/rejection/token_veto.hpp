/// @file
/// Rejects a turn for a single token that the trainer finds far less likely than the sampler did.
#pragma once

#include <turnwise/rejection/usable_tokens.hpp>

#include <cmath>
#include <cstddef>
#include <span>

namespace turnwise::rejection {

struct token_veto_options {
  double threshold = 1e-4;               ///< ratio; a token strictly below it vetoes
  scope veto_scope = scope::trajectory;  ///< what one such token rejects
};

/// Whether the smallest log ratio lies strictly below the log of the threshold.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr reason_flags veto_reason(importance::turn_statistics const& statistics,
                                                                      double log_threshold) noexcept {
  return statistics.count > 0 && statistics.min < log_threshold ? reason::token_veto : 0;
}

/// Rejects each turn, or each trajectory, in which some token's ratio old / rollout is below the threshold.
///
///     veto iff min over tokens of (old - rollout) < log(threshold)
///
/// Also called: token veto, catastrophic-token mask.
/// @param[in]     statistics  [S] from log_ratio_statistics; their minimum is of the unclamped log ratio.
/// @param[in,out] reasons     [S] after usable_tokens; gains `token_veto`.
/// @throws precondition_error  sizes that differ; threshold negative, infinite or NaN; nothing is written.
/// @note  Threshold 0 vetoes nothing. Turns without a ratio (has_ratio) neither veto nor are vetoed.
/// @note  Exact: one comparison of doubles.
/// @par Complexity  O(S), no allocation.
/// @par Reference   Dr. Kernel, arXiv:2602.05885 (the paper rejects the trajectory, the published trainer the turn).
inline void token_veto(rollout_view const& batch, std::span<importance::turn_statistics const> statistics,
                       token_veto_options const& options, std::span<reason_flags> reasons) {
  check_rollout(batch, "token_veto");
  expects_size("token_veto", "statistics", statistics.size(), batch.turns(), "turn");
  expects_size("token_veto", "reasons", reasons.size(), batch.turns(), "turn");
  expects(options.threshold >= 0 && !std::isinf(options.threshold), "token_veto: threshold = ", options.threshold,
          ", expected a finite ratio, at least 0");
  double const log_threshold = log_of_option(options.threshold);
  detail::apply_ratio_rule(
      batch, statistics, options.veto_scope, reasons,
      [&](importance::turn_statistics const& of_turns) { return veto_reason(of_turns, log_threshold); });
}

}  // namespace turnwise::rejection
