/// @file
/// What a policy loss is to the driver: a function of one token.
#pragma once

#include <turnwise/core/error.hpp>
#include <turnwise/core/exp.hpp>

#include <cmath>
#include <string_view>

namespace turnwise::loss {

/// F is float or double, or on the host a register of them; `number` is one of its lanes, `flag` one truth a lane.
template <typename F>
using number = typename turnwise::detail::lane_types<F>::number;
/// One truth for each lane of F.
template <typename F>
using flag = decltype(F{} < F{});

/// a where `on`, else b: how policies branch, so that they work on registers as on numbers. Both are computed.
template <typename F>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr F select(flag<F> on, F a, F b) noexcept {
  return on ? a : b;
}

/// A constant as F.
template <typename F>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr F constant(double value) noexcept {
  return F{} + static_cast<number<F>>(value);
}

/// One token as a policy sees it. What stands in tokens that are masked, or not finite, is dropped afterwards.
template <typename F>
struct loss_token {
  F log_ratio;        ///< current - old, clamped to +-log_ratio_limit
  F ratio;            ///< its exp; for a turn-level loss the exp of the turn's mean, see policy_loss
  F ratio_slope;      ///< d ratio / d current_logprob: the ratio, or 0 where the clamp is active
  F advantage;        ///< of the turn or of the token
  F current_logprob;  ///< nats
  F old_logprob;      ///< nats
  flag<F> selected;   ///< from loss_inputs::selected, for policies that say `uses_selection`
};

/// What a policy says of it, before weight and scale. The flags say that the ratio passed a limit of the policy and the
/// gradient is cut for it or, for cispo and reinforce, its weight is clipped.
template <typename F>
struct loss_terms {
  F value;               ///< the token's loss
  F slope;               ///< d value / d current_logprob
  flag<F> clipped_low;   ///< because the ratio is too small
  flag<F> clipped_high;  ///< because the ratio is too large
};

/// A policy whose ratio is the turn's: exp of the mean over the turn of turn_log_ratio(log_ratio, advantage).
template <typename Policy>
inline constexpr bool is_turn_level = requires(Policy const& policy) {
  policy.turn_log_ratio(1.0, 1.0);
};

/// A policy that treats some tokens, chosen beforehand, in another way.
template <typename Policy>
inline constexpr bool uses_selection = requires {
  requires Policy::uses_selection;
};

/// Throws unless a ratio is cut at 1 - low and 1 + high.
inline void check_clip(double low, double high, std::string_view function) {
  expects(low >= 0 && low <= 1, function, ": clip_low = ", low, ", expected a number within [0, 1]");
  expects(high >= 0 && !std::isinf(high), function, ": clip_high = ", high, ", expected a finite number, at least 0");
}

}  // namespace turnwise::loss
