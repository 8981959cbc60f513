/// @file
/// Rejects turns that did badly and were sampled far from the policy.
#pragma once

#include <turnwise/core/concepts.hpp>
#include <turnwise/rejection/usable_tokens.hpp>

#include <cstddef>
#include <span>
#include <string_view>

namespace turnwise::rejection {

/// Options of `off_policy_mask`.
struct off_policy_mask_options {
  double delta = 1e-4;        ///< nats a token, at least 0; slime's default, the paper gives none
  scope level = scope::turn;  ///< over whose tokens the mean is taken
};

/// `off_policy` for a negative advantage when the mean of rollout - old is above delta: -sum > n delta.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr reason_flags off_policy_reason(
    importance::turn_statistics const& statistics, double advantage, double delta) noexcept {
  bool const too_far = -statistics.log_sum() > static_cast<double>(statistics.count) * delta;
  return advantage < 0 && too_far ? reason::off_policy : 0;
}

namespace detail {

inline void check_off_policy_options(off_policy_mask_options const& options, std::string_view function) {
  expects(options.delta >= 0 && within_limit(options.delta), function, ": delta = ", options.delta,
          ", expected a number from 0 to 2^500");
}

}  // namespace detail

/// Rejects each turn of negative advantage whose tokens, or whose trajectory's, the policy has come to find less likely
/// than the sampler did: reason `off_policy`.
///
///     off_policy iff advantage < 0 and mean over tokens of (rollout - old) > delta; both strict
///
/// Also called: OPSM, off-policy sequence masking (DeepSeek-V3.2; slime; get_off_policy_mask of TRL).
/// @param[in]     statistics  [S] from log_ratio_statistics; for the paper's mask inside an update, of the current
///                            log-probs as `old` and the sampler's as `rollout`.
/// @param[in]     advantage   [S]; a NaN is not negative. At trajectory level still each turn's own.
/// @param[in,out] reasons     [S] after usable_tokens; gains `off_policy`.
/// @throws precondition_error  sizes that differ; delta negative or not finite; nothing is written.
/// @note  One-sided, as published: a policy that has come to find the tokens likelier is never masked.
/// @note  Runs after advantages are known, so it cannot take part in baseline_members::kept.
/// @note  Turns without a ratio (has_ratio) are passed over and enter no trajectory mean.
/// @note  Exact: integer sums, one product and comparisons of doubles.
/// @par Complexity  O(S), no allocation.
/// @par Reference   DeepSeek-V3.2, arXiv:2512.02556.
template <real T>
void off_policy_mask(rollout_view const& batch, std::span<importance::turn_statistics const> statistics,
                     std::span<T const> advantage, off_policy_mask_options const& options,
                     std::span<reason_flags> reasons) {
  check_rollout(batch, "off_policy_mask");
  expects_size("off_policy_mask", "statistics", statistics.size(), batch.turns(), "turn");
  expects_size("off_policy_mask", "advantage", advantage.size(), batch.turns(), "turn");
  expects_size("off_policy_mask", "reasons", reasons.size(), batch.turns(), "turn");
  detail::check_off_policy_options(options, "off_policy_mask");
  detail::apply_ratio_rule(
      batch, options.level, reasons, [&](std::size_t s) { return statistics[s]; },
      [&](importance::turn_statistics const& total, std::size_t s) {
        return off_policy_reason(total, static_cast<double>(advantage[s]), options.delta);
      });
}

}  // namespace turnwise::rejection
