/// @file
/// Why a turn is not kept: one bit a reason. The numbers are frozen; new reasons take the next free bit.
#pragma once

#include <turnwise/core/config.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace turnwise {

/// A set of reasons; 0 = the turn is kept.
using reason_flags = std::uint32_t;

namespace reason {
inline constexpr reason_flags invalid = 1u << 0;          ///< flagged off by the caller
inline constexpr reason_flags unscored = 1u << 1;         ///< its reward is missing (NaN)
inline constexpr reason_flags unscored_future = 1u << 2;  ///< its return needs a missing reward
inline constexpr reason_flags no_token = 1u << 3;         ///< no unmasked token
inline constexpr reason_flags non_finite = 1u << 4;       ///< a log ratio is NaN or infinite
inline constexpr reason_flags ratio_low = 1u << 5;        ///< importance ratio below the band
inline constexpr reason_flags ratio_high = 1u << 6;       ///< importance ratio above the band
inline constexpr reason_flags token_veto = 1u << 7;       ///< a single token ratio below the veto threshold
inline constexpr reason_flags profiling = 1u << 8;        ///< lost the draw on its profiling ratio
inline constexpr reason_flags invalid_profile = 1u << 9;  ///< its profile has no meaning
inline constexpr reason_flags stale = 1u << 10;           ///< sampled by a policy version that is too old
inline constexpr reason_flags token_outlier = 1u << 11;   ///< a single token ratio above the outlier threshold
inline constexpr reason_flags divergence = 1u << 12;      ///< a k1, k2 or k3 estimate outside its bounds
inline constexpr reason_flags off_policy = 1u << 13;      ///< negative advantage, sampled far from the policy
inline constexpr reason_flags group_spread = 1u << 14;    ///< the outcomes or returns of its group hardly differ
inline constexpr reason_flags group_accuracy = 1u << 15;  ///< its group is solved too often or too rarely
inline constexpr reason_flags not_drawn = 1u << 16;       ///< left out by down-sampling

/// The reasons that make a turn invalid: advantage 0, in no baseline, no other reason.
inline constexpr reason_flags any_invalid = invalid | unscored | unscored_future;

/// Name of each bit, in bit order.
inline constexpr std::array<std::string_view, 17> names{
    "invalid",    "unscored",   "unscored_future", "no_token",        "non_finite", "ratio_low",
    "ratio_high", "token_veto", "profiling",       "invalid_profile", "stale",      "token_outlier",
    "divergence", "off_policy", "group_spread",    "group_accuracy",  "not_drawn"};
}  // namespace reason

/// Takes part in baselines.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr bool is_valid(reason_flags reasons) noexcept {
  return (reasons & reason::any_invalid) == 0;
}

/// Takes part in the loss.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr bool is_kept(reason_flags reasons) noexcept { return reasons == 0; }

/// Takes part in ratio rules: valid, with tokens, all log ratios usable.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr bool has_ratio(reason_flags reasons) noexcept {
  return (reasons & (reason::any_invalid | reason::no_token | reason::non_finite)) == 0;
}

}  // namespace turnwise
