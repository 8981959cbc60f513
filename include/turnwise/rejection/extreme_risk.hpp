/// @file
/// Masks improbable tokens of turns that did badly, whose gradients explode.
#pragma once

#include <turnwise/core/concepts.hpp>
#include <turnwise/core/rollout.hpp>
#include <turnwise/importance/log_ratio.hpp>
#include <turnwise/rejection/usable_tokens.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace turnwise::rejection {

/// Options of `extreme_risk`.
struct extreme_risk_options {
  double threshold = 1e-4;  ///< probability, in [0, 1]; 0 masks nothing. Ours: the published scripts leave the rule off
};

/// Whether a token is cleared: advantage < 0 and its log-prob < log(threshold), both strictly.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr bool is_extreme_risk(double logprob_of_token, double advantage,
                                                                  double log_threshold) noexcept {
  return advantage < 0 && logprob_of_token < log_threshold;
}

namespace detail {

/// Checks the options and takes the threshold's log.
inline double log_risk_threshold(extreme_risk_options const& options, std::string_view function) {
  expects(options.threshold >= 0 && options.threshold <= 1, function, ": threshold = ", options.threshold,
          ", expected a probability");
  return log_of_option(options.threshold);
}

}  // namespace detail

/// Clears the tokens of turns of negative advantage that the policy finds too improbable: there the gradient of the
/// loss, advantage / probability, grows without bound.
///
///     keep[i] is cleared iff advantage < 0 and logprob[i] < log(threshold); both strict
///
/// Also called: extreme-risk token mask (Dr. Kernel trainer).
/// @param[in]     batch      turns with tokens.
/// @param[in]     advantage  [S]; a NaN is not negative.
/// @param[in]     logprob    [N] nats, under the weights being updated (the trainer's choice) or before the update.
/// @param[in,out] keep       [N] of begin_token_mask, or of the rule before.
/// @throws precondition_error  sizes that differ, a token range outside the arrays, threshold outside [0, 1]; nothing
///         is written.
/// @note  A log-prob of -infinity is cleared under a negative advantage, a NaN one is not: non-finite tokens are
///        token_mask's.
/// @note  Exact: comparisons alone; the log of the threshold is the platform's.
/// @par Complexity  O(N), no allocation.
/// @par Reference   Dr. Kernel, arXiv:2602.05885 (its published trainer).
template <real T, logprob_value P>
void extreme_risk(rollout_view const& batch, std::span<T const> advantage, std::span<P const> logprob,
                  extreme_risk_options const& options, std::span<std::uint8_t> keep) {
  check_rollout(batch, "extreme_risk");
  expects_size("extreme_risk", "advantage", advantage.size(), batch.turns(), "turn");
  expects_size("extreme_risk", "logprob", logprob.size(), keep.size(), "token, as keep");
  check_token_ranges(batch, keep.size(), "extreme_risk");
  double const log_threshold = detail::log_risk_threshold(options, "extreme_risk");
  for (std::size_t s = 0; s < batch.turns(); ++s) {
    if (!(advantage[s] < 0)) continue;
    for (auto i = static_cast<std::size_t>(batch.turn_begin[s]); i < static_cast<std::size_t>(batch.turn_end[s]); ++i)
      if (is_extreme_risk(static_cast<double>(static_cast<log_ratio_t<P, P>>(logprob[i])),
                          static_cast<double>(advantage[s]), log_threshold))
        keep[i] = 0;
  }
}

}  // namespace turnwise::rejection
