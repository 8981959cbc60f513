/// @file
/// Masks single tokens whose importance ratio, or an estimate of divergence from it, leaves its bounds.
#pragma once

#include <turnwise/core/parallel_for.hpp>
#include <turnwise/core/rollout.hpp>
#include <turnwise/importance/divergence_sums.hpp>
#include <turnwise/rejection/usable_tokens.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace turnwise::rejection {

/// What of a token is bounded, d = old - rollout.
enum class token_measure : std::uint8_t {
  ratio,  ///< e^d; the bounds are ratios
  k1,     ///< -d; the bounds are nats, as for the next two
  k2,     ///< d^2 / 2
  k3      ///< e^d - 1 - d
};

/// The defaults are IcePop's.
struct token_mask_options {
  token_measure measure = token_measure::ratio;  ///< what is bounded
  double low = 0.5;                              ///< inclusive
  double high = 5.0;                             ///< inclusive
  int threads = 0;                               ///< 0 = the runtime's default
};

/// Bounds as they are compared: of a ratio the logs, taken once, on the host.
struct token_bounds {
  token_measure measure;  ///< what is bounded
  double low;             ///< nats
  double high;            ///< nats
};

/// Whether a token with log ratio d stays: d is finite and its measure within the bounds, both inclusive.
///
/// ratio and k1 are compared without rounding; k2 and k3 on their grid, as divergence_limit compares their maxima.
template <real T>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr bool keeps_token(T d, token_bounds const& bounds) noexcept {
  if (!importance::is_finite(d)) return false;
  double value = static_cast<double>(d);
  if (bounds.measure == token_measure::k1) value = -value;
  if (bounds.measure == token_measure::k2 || bounds.measure == token_measure::k3) {
    auto const divergence = importance::token_divergence(importance::log_ratio_index(d));
    value = static_cast<double>(bounds.measure == token_measure::k2 ? divergence.k2 : divergence.k3) *
            importance::divergence_unit;
  }
  return value >= bounds.low && value <= bounds.high;
}

/// Checks the bounds and takes the logs of ratios.
[[nodiscard]] inline token_bounds make_token_bounds(token_mask_options const& options, std::string_view function) {
  expects(options.low <= options.high, function, ": low = ", options.low, " and high = ", options.high,
          ", expected low <= high");
  if (options.measure != token_measure::ratio) return {options.measure, options.low, options.high};
  expects(options.low >= 0 && !std::isinf(options.low) && options.high > 0, function, ": low = ", options.low,
          " and high = ", options.high, ", expected ratios, at least 0");
  return {options.measure, log_of_option(options.low), log_of_option(options.high)};
}

/// Clears the tokens whose ratio old / rollout (or k1, k2, k3) is outside [low, high], and those without a finite one.
///
///     keep[i] stays iff low <= measure(old[i] - rollout[i]) <= high
///
/// Also called: IcePop (ratio, [0.5, 5]); token band, token-level rejection, token_k1 to token_k3 (verl).
/// @param[in]     tokens  log-probs in nats, [N] each. Tokens that tokens.mask (may be empty) has off are cleared.
/// @param[in,out] keep    [N] of begin_token_mask, or of the rule before; bytes of 0 are not looked at. May be the same
///                        memory as tokens.mask.
/// @throws precondition_error  sizes that differ; low above high, NaN, or a negative ratio; nothing is written.
/// @note  Code bases disagree on direction: bounds [a, b] of verl's token_k1 act on the inverse ratio; they are low =
///        log(a), high = log(b) of k1 here.
/// @note  Masks tokens only: statistics of turns are of the mask that they were taken under. Whether the normaliser of
///        the loss counts masked tokens is the loss's choice.
/// @note  Exact, except that the two logs of ratio bounds are the platform's.
/// @par Complexity  O(N), no allocation.
/// @par Reference   IcePop: Ling Team 2025, arXiv:2510.18855.
/// @see divergence_limit for whole turns
template <logprob_value Old, logprob_value Rollout>
void token_mask(token_logprobs<Old, Rollout> const& tokens, token_mask_options const& options,
                std::span<std::uint8_t> keep) {
  expects_size("token_mask", "old_logprob", tokens.old_logprob.size(), keep.size(), "token, as keep");
  expects_size("token_mask", "rollout_logprob", tokens.rollout_logprob.size(), keep.size(), "token, as keep");
  if (!tokens.mask.empty()) expects_size("token_mask", "mask", tokens.mask.size(), keep.size(), "token, as keep");
  token_bounds const bounds = make_token_bounds(options, "token_mask");
  parallel_for(keep.size(), std::size_t{1} << 18, options.threads, [&](std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) {
      if (keep[i] == 0) continue;
      bool const on = tokens.mask.empty() || tokens.mask[i] != 0;
      if (!on || !keeps_token(importance::log_ratio(tokens.old_logprob[i], tokens.rollout_logprob[i]), bounds))
        keep[i] = 0;
    }
  });
}

}  // namespace turnwise::rejection
