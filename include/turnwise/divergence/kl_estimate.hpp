/// @file
/// Estimates of KL(current || reference) from the log-probs of sampled tokens, with their slopes.
#pragma once

#include <turnwise/advantage/per_token.hpp>
#include <turnwise/core/exp.hpp>
#include <turnwise/core/lane_fold.hpp>
#include <turnwise/core/rollout.hpp>
#include <turnwise/importance/log_ratio.hpp>
#include <turnwise/importance/log_ratio_statistics.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace turnwise::divergence {

/// What a token contributes, d = reference - current, tokens sampled from `current`.
enum class kl_kind : std::uint8_t {
  k1,       ///< -d: unbiased, of either sign; its slope is 1, which has mean 0: not for a loss
  k2,       ///< d^2 / 2: biased; the mean of its slope is the gradient of the KL
  k3,       ///< e^d - 1 - d: unbiased, at least 0; its slope is biased
  absolute  ///< |d|
};

/// Which slope a value is given.
enum class kl_gradient : std::uint8_t {
  own,  ///< that of the value
  k2    ///< that of k2, whatever the value: straight-through (verl's "+")
};

/// Limits are applied in this order: d to +-clamp, before any exp; the value to +-cap.
struct kl_options {
  kl_kind kind = kl_kind::k3;               ///< the estimate
  double clamp = 20;                        ///< nats, above 0; infinity = none
  double cap = 10;                          ///< nats, above 0; infinity = none
  kl_gradient gradient = kl_gradient::own;  ///< the slope it is given
};

/// An estimate of one token and its derivative with respect to current_logprob.
template <typename F>
struct kl_terms {
  F value;  ///< nats
  F slope;  ///< d value / d current_logprob
};

/// Checks the options.
inline void check_kl_options(kl_options const& options, std::string_view function) {
  expects(options.clamp > 0, function, ": clamp = ", options.clamp, ", expected a number above 0 (or infinity)");
  expects(options.cap > 0, function, ": cap = ", options.cap, ", expected a number above 0 (or infinity)");
}

namespace detail {

/// e^x - 1 - x near 0, where the difference would cancel: x^2 / 2 (1 + x/3 (1 + x/4 (1 + ...))), relative error below
/// 1e-14 for |x| <= 1/4, and never negative.
template <typename F>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr F small_k3(F x) noexcept {
  using number = typename turnwise::detail::lane_types<F>::number;
  constexpr number one{1};
  F q = x * number(1.0 / 12) + one;
  q = x * number(1.0 / 11) * q + one;
  q = x * number(1.0 / 10) * q + one;
  q = x * number(1.0 / 9) * q + one;
  q = x * number(1.0 / 8) * q + one;
  q = x * number(1.0 / 7) * q + one;
  q = x * number(1.0 / 6) * q + one;
  q = x * number(1.0 / 5) * q + one;
  q = x * number(1.0 / 4) * q + one;
  q = x * number(1.0 / 3) * q + one;
  return x * x * number(0.5) * q;
}

/// Value and slope of a kind at a finite x, before the cap.
template <typename F>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr kl_terms<F> kl_terms_at(F x, kl_kind kind) noexcept {
  using number = typename turnwise::detail::lane_types<F>::number;
  constexpr F zero{};
  F const one = zero + number{1};
  F const minus = zero - x;
  if (kind == kl_kind::k1) return {minus, one};
  if (kind == kl_kind::k2) return {x * x * number(0.5), minus};
  if (kind == kl_kind::absolute) return {x < zero ? minus : x, x < zero ? one : x > zero ? zero - one : zero};
  F const near_0 = small_k3(x);
  F const excess = ieee_exp(x) - number{1};
  F const edge = zero + number(0.25);
  auto const near_zero = (x >= zero - edge) & (x <= edge);
  return {near_zero ? near_0 : excess - x, near_zero ? minus - near_0 : zero - excess};
}

}  // namespace detail

/// The estimate of one token.
///
///     d = reference_logprob - current_logprob, to +-clamp;  value as kl_kind says, to +-cap;  slope = d value / d
///     current
///
/// The slope is 0 where the clamp or the cap is active (with kl_gradient::k2: -d, and 0 where the clamp is active; the
/// cap is of the value alone).
/// @tparam F  float, double, or on the host a register of either: no branch depends on d.
/// @param reference_minus_current  d, nats.
/// @param options  as check_kl_options accepts them; not checked here.
/// @note  NaN or infinite d: value 0 and slope 0; the caller counts them (importance::is_finite(d) is false).
/// @note  Always finite, and so are sums: without clamp and cap, a float value beyond its range becomes the largest
///        number, a double beyond magnitude_limit that limit, with slope 0.
/// @note  k3 is never negative. Relative error of k3 below 1e-5 (float) and 1e-13 (double): the device within this of
///        the host; the other kinds have the same bits.
template <typename F>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr kl_terms<F> kl_estimate(F reference_minus_current,
                                                                     kl_options const& options) noexcept {
  using number = typename turnwise::detail::lane_types<F>::number;
  F const d = reference_minus_current;
  constexpr F zero{};
  F const top = zero + largest<number>;
  F const clamp = zero + narrowed<number>(options.clamp);  // of infinity: the largest number
  F const cap = zero + narrowed<number>(options.cap < magnitude_limit<double> ? options.cap : magnitude_limit<double>);
  F x = ((d <= top) & (d >= zero - top)) ? d : zero;
  x = x < zero - clamp ? zero - clamp : x;
  x = x > clamp ? clamp : x;
  kl_terms<F> const raw = detail::kl_terms_at(x, options.kind);
  auto const low = raw.value < zero - cap;
  auto const high = raw.value > cap;
  F const slope = options.gradient == kl_gradient::k2 ? zero - x : (low | high) ? zero : raw.slope;
  return {low ? zero - cap : high ? cap : raw.value, d == x ? slope : zero};
}

/// The log-probs of a divergence, N tokens each.
template <logprob_value Current, logprob_value Reference>
struct kl_logprobs {
  std::span<Current const> current_logprob{};      ///< [N] of the policy that sampled or is updated, nats
  std::span<Reference const> reference_logprob{};  ///< [N] of what it is compared with, nats
  std::span<std::uint8_t const> mask{};            ///< [N] 0 = not a generated token; empty: all on
};

/// What an estimate gives over some tokens. Records of parts add up to that of the whole.
struct kl_sums {
  double value = 0;             ///< sum of the values, nats
  std::int64_t count = 0;       ///< unmasked tokens with a finite d
  std::int64_t clamped = 0;     ///< of these, those whose d was clamped
  std::int64_t non_finite = 0;  ///< unmasked tokens whose d is NaN or infinite

  /// Mean value; 0 without tokens.
  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr double mean() const noexcept {
    return count == 0 ? 0.0 : value / static_cast<double>(count);
  }
  TURNWISE_HOST_DEVICE constexpr kl_sums& operator+=(kl_sums const& other) noexcept {
    value += other.value;
    count += other.count;
    clamped += other.clamped;
    non_finite += other.non_finite;
    return *this;
  }
  friend constexpr bool operator==(kl_sums const&, kl_sums const&) = default;
};

/// The record of one unmasked token.
template <real F>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr kl_sums kl_of_token(F d, F value, kl_options const& options) noexcept {
  if (!importance::is_finite(d)) return {.non_finite = 1};
  double const wide = static_cast<double>(d);
  return {static_cast<double>(value), 1, wide > options.clamp || wide < -options.clamp, 0};
}

/// Where kl_estimate writes each token's value and slope; both may be empty: not wanted.
template <real T>
struct kl_outputs {
  std::span<T> value{};  ///< [N]
  std::span<T> slope{};  ///< [N]
};

/// Estimates of KL(current || reference) of each token, and their sums over each turn.
///
///     sums[s].value = sum of value(i) over the unmasked tokens i of turn s;   mean() is the mean over tokens
///
/// Only tokens that the policy wrote belong in it: mask the others.
/// Also called: Schulman's k1, k2, k3; kl, mse, low_var_kl, abs (verl); KL penalty.
/// @param[in]  batch   S turns in any order; token ranges may overlap unless of_token is given.
/// @param[in]  tokens  [N] each. Masked tokens are not read as numbers.
/// @param[out] sums    [S].
/// @param[out] of_token  value and slope: 0 at masked tokens and where d is not finite; tokens in no turn are not
///                     written.
/// @param[in]  threads 0 = the runtime's default.
/// @throws precondition_error  sizes that differ, a token range outside the arrays, turns that overlap while of_token
///         is given, clamp or cap not above 0; nothing is written.
/// @note  d is one subtraction in float, or in double when either array is double; the value has that type too. Sums
///        are double, in the order of lane_fold: the same bits for any threads and any split of turns; on the device
///        within the error of the values.
/// @note  Disagreements: the limits here are those of k3 in verl, and of every kind in NeMo-RL and OpenRLHF; for verl's
///        other kinds set clamp = cap = infinity. Some trainers leave k3 without limits, or limit the value alone,
///        which makes its gradient NaN.
/// @par Complexity  one read of the tokens; with of_token O(S) memory.
/// @par Reference   Schulman 2020, "Approximating KL divergence"; k2's gradient: Tang and Munos 2025, arXiv:2506.09477.
/// @see turnwise::importance::divergence_sums for exact sums of k2 and k3 that decisions rest on
template <logprob_value Current, logprob_value Reference, real T = float>
void kl_estimate(rollout_view const& batch, kl_logprobs<Current, Reference> const& tokens, kl_options const& options,
                 std::span<kl_sums> sums, kl_outputs<T> const& of_token = {}, int threads = 0) {
  std::string_view const name = "kl_estimate";
  std::size_t const count = tokens.current_logprob.size();
  check_rollout(batch, name);
  expects_size(name, "reference_logprob", tokens.reference_logprob.size(), count, "token, as current_logprob");
  if (!tokens.mask.empty()) expects_size(name, "mask", tokens.mask.size(), count, "token, as current_logprob");
  check_token_ranges(batch, count, name);
  expects_size(name, "sums", sums.size(), batch.turns(), "turn");
  if (!of_token.value.empty()) expects_size(name, "value", of_token.value.size(), count, "token, as current_logprob");
  if (!of_token.slope.empty()) expects_size(name, "slope", of_token.slope.size(), count, "token, as current_logprob");
  check_kl_options(options, name);
  if (!of_token.value.empty() || !of_token.slope.empty())
    static_cast<void>(advantage::detail::token_order(batch, name));  // each token has one writer

  auto const token = [&](std::size_t i) {
    bool const on = tokens.mask.empty() || tokens.mask[i] != 0;
    auto const d = importance::log_ratio(tokens.reference_logprob[i], tokens.current_logprob[i]);
    auto const terms = on ? kl_estimate(d, options) : decltype(kl_estimate(d, options)){};
    if (!of_token.value.empty()) of_token.value[i] = narrowed<T>(static_cast<double>(terms.value));
    if (!of_token.slope.empty()) of_token.slope[i] = narrowed<T>(static_cast<double>(terms.slope));
    return on ? kl_of_token(d, terms.value, options) : kl_sums{};
  };
  parallel_for(batch.turns(), importance::detail::turn_grain(batch.turns(), count), threads,
               [&](std::size_t first, std::size_t last) {
                 for (std::size_t s = first; s < last; ++s) {
                   auto const begin = static_cast<std::size_t>(batch.turn_begin[s]);
                   auto const size = static_cast<std::size_t>(batch.turn_end[s]) - begin;
                   sums[s] = lane_fold<kl_sums>(size, [&](std::size_t i) { return token(begin + i); });
                 }
               });
}

/// The sums of the kept turns of a batch: mean() is the batch's mean over tokens.
///
/// @throws precondition_error  sizes that differ.
/// @note  Everything rejected: all 0. Sums of ranks and micro-batches add up (rounding alone depends on the split).
/// @par Complexity  O(S), no allocation.
[[nodiscard]] inline kl_sums total_kl(std::span<kl_sums const> sums, std::span<reason_flags const> reasons) {
  expects_size("total_kl", "reasons", reasons.size(), sums.size(), "turn, as sums");
  return lane_fold<kl_sums>(sums.size(), [&](std::size_t s) { return is_kept(reasons[s]) ? sums[s] : kl_sums{}; });
}

}  // namespace turnwise::divergence
