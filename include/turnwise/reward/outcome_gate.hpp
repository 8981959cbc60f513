/// @file
/// Lets a shaping term count only where the outcome is good, so that no failure is paid for its looks.
#pragma once

#include <turnwise/reward/kernel_reward.hpp>
#include <turnwise/reward/scaled_penalty.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace turnwise::reward {

/// How the shaping term meets the outcome.
enum class shaping_form : std::uint8_t {
  added,  ///< outcome + weight * shaping
  factor  ///< outcome (1 + weight * shaping)
};

/// Options of `outcome_gate`.
struct outcome_gate_options {
  double threshold = 0.0;                                 ///< outcomes above it open the gate
  double weight = 1.0;                                    ///< of the shaping term
  double low = -std::numeric_limits<double>::infinity();  ///< smaller shaping terms count as this
  double high = std::numeric_limits<double>::infinity();  ///< larger ones as this
  shaping_form form = shaping_form::added;                ///< how the shaping term meets the outcome

  /// A length bonus in [0, 1] as a factor of the rewards of correct turns (prime-rl).
  [[nodiscard]] static constexpr outcome_gate_options length_bonus() noexcept {
    return {.low = 0, .high = 1, .form = shaping_form::factor};
  }
};

/// The shaped reward. NaN where the outcome is, or where the gate is open and the shaping term is.
[[nodiscard]] TURNWISE_HOST_DEVICE inline double gated_reward(double outcome, double shaping,
                                                              outcome_gate_options const& options) noexcept {
  if (!(outcome > options.threshold)) return outcome;
  double const bounded = shaping < options.low ? options.low : shaping > options.high ? options.high : shaping;
  using std::fma;
  return options.form == shaping_form::added ? fma(options.weight, bounded, outcome)
                                             : outcome * fma(options.weight, bounded, 1.0);
}

namespace detail {

inline void check_outcome_gate(outcome_gate_options const& options) {
  expects(within_limit(options.threshold), "outcome_gate: threshold = ", options.threshold,
          ", expected a number within +-2^500");
  expects(within_limit(options.weight), "outcome_gate: weight = ", options.weight,
          ", expected a number within +-2^500");
  // What a term is cut to is finite, even of no weight.
  expects(options.low <= magnitude_limit<double>, "outcome_gate: low = ", options.low, ", expected at most 2^500");
  expects(options.high >= -magnitude_limit<double>, "outcome_gate: high = ", options.high,
          ", expected at least -2^500");
  expects(options.low <= options.high, "outcome_gate: low = ", options.low, ", expected at most high = ", options.high);
}

}  // namespace detail

/// Adds a shaping term (format, length, style, speed) to the outcome where the outcome is above a threshold.
///
///     r = outcome + gate * weight * clamp(shaping, low, high),   gate = 1 iff outcome > threshold
///     r = outcome (1 + gate * weight * clamp(shaping, low, high))   as a factor
///
/// Ungated shaping ranks failures among each other: a short wrong answer above a long one.
/// Also called: success-gated shaping, correctness-gated length bonus.
/// @param[in]  outcome  [S] the reward proper; NaN = unscored.
/// @param[in]  shaping  [S]; not read where the gate is closed.
/// @param[in]  options  with a bounded bonus: length_bonus().
/// @param[in]  reasons  [S] as begin_reasons wrote them, or empty; outcomes of turns flagged off are not judged and
///                      stay.
/// @param[out] reward   [S], unit of outcome; may be the same span as outcome or shaping. NaN where the outcome is, or
///                      where the gate is open and the shaping term is.
/// @throws precondition_error  sizes that differ, threshold or weight not finite, low above high, low = infinity or
///         high = -infinity, an infinite outcome, shaping term behind an open gate, or a reward beyond
///         magnitude_limit, of a turn that is not flagged off; nothing is written.
/// @note  Gates turn by turn. To drop whole groups without a good outcome use a filter on groups.
/// @note  Deterministic: one fused multiply-add a turn (as a factor, and one product).
/// @par Complexity  O(S), no allocation.
/// @par Reference   ours; prime-rl's length bonus as a factor.
template <real T>
void outcome_gate(no_deduce<std::span<T const>> outcome, no_deduce<std::span<T const>> shaping,
                  outcome_gate_options const& options, std::span<reason_flags const> reasons, std::span<T> reward) {
  expects_size("outcome_gate", "shaping", shaping.size(), outcome.size(), "turn");
  if (!reasons.empty()) expects_size("outcome_gate", "reasons", reasons.size(), outcome.size(), "turn");
  expects_size("outcome_gate", "reward", reward.size(), outcome.size(), "turn");
  detail::check_outcome_gate(options);
  detail::check_rewards<T>(outcome, reasons, "outcome_gate", "outcome");
  auto const flagged_off = [&](std::size_t s) { return !reasons.empty() && (reasons[s] & reason::invalid) != 0; };
  auto const of_turn = [&](std::size_t s) {
    return gated_reward(static_cast<double>(outcome[s]), static_cast<double>(shaping[s]), options);
  };
  for (std::size_t s = 0; s < outcome.size(); ++s) {
    if (flagged_off(s) || !(static_cast<double>(outcome[s]) > options.threshold)) continue;
    expects(std::isnan(shaping[s]) || within_limit(shaping[s]), "outcome_gate: shaping[", s, "] = ", shaping[s],
            " is infinite or beyond the magnitude limit");
    expects(detail::is_reward<T>(of_turn(s)), "outcome_gate: shaping[", s, "] = ", shaping[s], " makes a reward of ",
            of_turn(s), ", beyond the magnitude limit");
  }
  for (std::size_t s = 0; s < outcome.size(); ++s) reward[s] = flagged_off(s) ? outcome[s] : static_cast<T>(of_turn(s));
}

}  // namespace turnwise::reward
