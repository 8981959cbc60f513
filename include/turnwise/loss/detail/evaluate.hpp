/// @file
/// One token of a policy loss, with all that the driver adds around the policy: the same on host and device.
#pragma once

#include <turnwise/loss/inputs.hpp>
#include <turnwise/loss/policy.hpp>

#include <cstddef>
#include <type_traits>

namespace turnwise::loss::detail {

template <typename F>
inline constexpr std::size_t lanes_of = sizeof(F) / sizeof(number<F>);

/// Terms beyond this count as overflow: their squares, and sums of them over a batch, stay finite.
template <real T>
inline constexpr double term_limit = std::is_same_v<T, float> ? 0x1p60 : 0x1p480;

/// False for NaN.
template <typename F>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr flag<F> is_bounded(F x) noexcept {
  F const limit = constant<F>(term_limit<number<F>>);
  return (x <= limit) & (x >= -limit);
}

/// What the driver adds around a policy, for one token or a register of them.
template <typename F>
struct token_values {
  F current, old, advantage;
  F weight, reference, entropy;  ///< read with Extras
  F turn_ratio;                  ///< read if the policy is turn-level
  F scale;
  flag<F> on, selected;
};

template <typename F>
struct token_result {
  F policy_loss, gradient;
  F log_ratio, ratio;
  F kl, kl_loss, entropy, entropy_loss;  ///< set with Extras
  flag<F> in_loss, saturated, clipped_low, clipped_high;
};

/// current - old, or 0 where it is not finite.
template <typename F>
struct clamped_log_ratio {
  F value;
  flag<F> finite, inside;

  TURNWISE_HOST_DEVICE constexpr clamped_log_ratio(F current, F old, F limit)
      : value(current - old), finite(is_bounded(value)), inside((value <= limit) & (value >= -limit)) {
    value = select<F>(finite, value, F{});
    value = select<F>(value > limit, limit, select<F>(value < -limit, -limit, value));
  }
};

/// False for NaN and infinities.
template <typename F>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr flag<F> is_number(F x) noexcept {
  F const most = F{} + largest<number<F>>;
  return (x <= most) & (x >= -most);
}

/// Whether all numbers of a token can be used, whatever the policy makes of them. Both passes of a turn-level policy
/// ask this, so that a token that is not in the loss is not in its turn's ratio.
template <bool Extras, typename F>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr flag<F> is_usable(token_values<F> const& in,
                                                               clamped_log_ratio<F> const& d) noexcept {
  flag<F> usable = in.on & d.finite;
  usable &= is_number(in.advantage);
  if constexpr (Extras) {
    usable &= is_number(in.weight);
    usable &= is_bounded(in.reference - in.current);
    usable &= is_bounded(in.entropy);
  }
  return usable;
}

/// d loss / d entropy of a token in the loss.
template <typename F>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr F entropy_slope(loss_options const& options, F scale) noexcept {
  return constant<F>(-options.entropy_coefficient) * scale;
}

/// Everything about a token: the one place where policy, weight, KL, entropy and scale meet, on host and device.
template <bool Extras, typename Policy, typename F>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr token_result<F> evaluate(Policy const& policy, loss_options const& options,
                                                                      token_values<F> const& in) {
  F const zero{};
  clamped_log_ratio<F> const d{in.current, in.old, constant<F>(options.log_ratio_limit)};
  F ratio = in.turn_ratio;
  if constexpr (!is_turn_level<Policy>) ratio = ieee_exp<true>(d.value);
  auto const terms = policy(
      loss_token<F>{d.value, ratio, select<F>(d.inside, ratio, zero), in.advantage, in.current, in.old, in.selected});
  token_result<F> out{};
  F value = terms.value;
  F slope = terms.slope;
  flag<F> in_loss = is_usable<Extras>(in, d);
  if constexpr (Extras) {
    auto const kl = divergence::kl_estimate(in.reference - in.current, options.kl);
    F const coefficient = constant<F>(options.kl_coefficient);
    value = value * in.weight;
    slope = slope * in.weight + coefficient * kl.slope;
    out.kl_loss = coefficient * kl.value * in.scale;
    out.entropy_loss = constant<F>(-options.entropy_coefficient) * in.entropy * in.scale;
    in_loss &= is_bounded(out.kl_loss);
    in_loss &= is_bounded(out.entropy_loss);
    in_loss &= is_bounded(entropy_slope(options, in.scale));
    out.kl = kl.value;
    out.entropy = in.entropy;
  }
  value = value * in.scale;
  slope = slope * in.scale;
  in_loss &= is_bounded(value);
  in_loss &= is_bounded(slope);
  out.in_loss = in_loss;
  out.policy_loss = select<F>(in_loss, value, zero);
  out.gradient = select<F>(in_loss, slope, zero);
  out.log_ratio = select<F>(in_loss, d.value, zero);
  out.ratio = select<F>(in_loss, ratio, zero);
  if constexpr (Extras) {
    out.kl = select<F>(in_loss, out.kl, zero);
    out.kl_loss = select<F>(in_loss, out.kl_loss, zero);
    out.entropy = select<F>(in_loss, out.entropy, zero);
    out.entropy_loss = select<F>(in_loss, out.entropy_loss, zero);
  }
  out.saturated = in_loss & (d.inside == (zero < zero));
  out.clipped_low = in_loss & terms.clipped_low;
  out.clipped_high = in_loss & terms.clipped_high;
  return out;
}

/// What a token without weight, KL and entropy gives that is unmasked and has its log ratio within the limit.
template <typename F>
struct plain_result {
  F value, slope, log_ratio, ratio;
  F squares;  ///< of value and slope: beyond term_limit^2, or NaN, the token is not in the loss after all
  flag<F> clipped_low, clipped_high;
};

/// evaluate for such tokens, as almost all are: the same results in less time.
template <typename Policy, typename F>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr plain_result<F> evaluate_plain(Policy const& policy,
                                                                            token_values<F> const& in) {
  F const d = in.current - in.old;
  F ratio = in.turn_ratio;
  if constexpr (!is_turn_level<Policy>) ratio = ieee_exp<true>(d);
  auto const terms = policy(loss_token<F>{d, ratio, ratio, in.advantage, in.current, in.old, in.selected});
  F const value = terms.value * in.scale;
  F const slope = terms.slope * in.scale;
  return {value, slope, d, ratio, value * value + slope * slope, terms.clipped_low, terms.clipped_high};
}

/// A result as a gradient's type.
template <gradient_value Gradient, real T>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr Gradient gradient_as(T value) noexcept {
  if constexpr (std::is_same_v<Gradient, double>)
    return static_cast<double>(value);
  else if constexpr (std::is_same_v<T, double>)
    return static_cast<Gradient>(narrowed<float>(value));
  else
    return static_cast<Gradient>(value);
}

}  // namespace turnwise::loss::detail
