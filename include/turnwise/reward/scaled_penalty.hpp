/// @file
/// Scales the reward of marked turns down, so that a negative one is a penalty too.
#pragma once

#include <turnwise/core/concepts.hpp>
#include <turnwise/core/error.hpp>
#include <turnwise/core/reason.hpp>
#include <turnwise/reward/detail/reward_limits.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace turnwise::reward {

/// What the penalty makes of the reward r of a marked turn.
enum class penalty_kind : std::uint8_t {
  away,      ///< r - (1 - factor) |r|: never above r
  multiply,  ///< factor r, which raises a negative reward (OpenRLHF stop_properly_penalty from 0 on, NeMo-RL)
  replace    ///< factor itself, of any sign (OpenRLHF stop_properly_penalty below 0)
};

/// Options of `scaled_penalty`.
struct scaled_penalty_options {
  penalty_kind kind = penalty_kind::away;  ///< what the penalty makes of the reward
  double factor = 0.5;                     ///< in [0, 1]; for `replace` any reward
};

/// The reward of a marked turn; NaN stays NaN.
[[nodiscard]] TURNWISE_HOST_DEVICE inline double penalised(double reward,
                                                           scaled_penalty_options const& options) noexcept {
  using std::fabs;
  using std::fma;
  switch (options.kind) {
    case penalty_kind::away:
      return fma(-(1.0 - options.factor), fabs(reward), reward);
    case penalty_kind::multiply:
      return options.factor * reward;
    default:
      return reward == reward ? options.factor : reward;
  }
}

namespace detail {

template <real T>
void check_scaled_penalty(scaled_penalty_options const& options) {
  if (options.kind == penalty_kind::replace)
    check_reward_option<T>(options.factor, "scaled_penalty", "factor");
  else
    expects(options.factor >= 0 && options.factor <= 1, "scaled_penalty: factor = ", options.factor,
            ", expected a number in [0, 1]");
}

/// A reward that is not flagged off is finite or missing (NaN).
template <real T>
void check_rewards(std::span<T const> reward, std::span<reason_flags const> reasons, std::string_view function,
                   std::string_view argument) {
  for (std::size_t s = 0; s < reward.size(); ++s)
    expects(
        (!reasons.empty() && (reasons[s] & reason::invalid) != 0) || std::isnan(reward[s]) || within_limit(reward[s]),
        function, ": ", argument, "[", s, "] = ", reward[s], " is infinite or beyond the magnitude limit");
}

}  // namespace detail

/// Takes part of the reward from marked turns: truncated ones, those that did not stop properly, rule breakers.
///
///     r' = r - (1 - factor) |r|   where marked (kind away), else r
///
/// Also called: stop_properly_penalty, truncation penalty.
/// @param[in]  reward   [S]; NaN = unscored.
/// @param[in]  marked   [S]; not 0: penalised.
/// @param[in]  reasons  [S] as begin_reasons wrote them, or empty; rewards of turns flagged off are not judged and
///                      stay.
/// @param[out] out      [S], unit of reward; may be the same span as reward. NaN stays NaN, of any kind.
/// @throws precondition_error  sizes that differ, a factor outside [0, 1] (`replace`: not finite or too large), an
///         infinite reward of a turn that is not flagged off; nothing is written.
/// @note  factor 1: no penalty; away with factor 0: a positive reward becomes 0, a negative one doubles.
/// @note  Scale before the baseline, or the scaled group no longer adds up to 0.
/// @note  Deterministic: one fused multiply-add a turn.
/// @par Complexity  O(S), no allocation.
/// @par Reference   ours (`away`); OpenRLHF, stop_properly_penalty_coef.
template <real T>
void scaled_penalty(no_deduce<std::span<T const>> reward, std::span<std::uint8_t const> marked,
                    scaled_penalty_options const& options, std::span<reason_flags const> reasons, std::span<T> out) {
  expects_size("scaled_penalty", "marked", marked.size(), reward.size(), "turn");
  if (!reasons.empty()) expects_size("scaled_penalty", "reasons", reasons.size(), reward.size(), "turn");
  expects_size("scaled_penalty", "out", out.size(), reward.size(), "turn");
  detail::check_scaled_penalty<T>(options);
  detail::check_rewards<T>(reward, reasons, "scaled_penalty", "reward");
  for (std::size_t s = 0; s < reward.size(); ++s) {
    bool const applies = marked[s] != 0 && (reasons.empty() || (reasons[s] & reason::invalid) == 0);
    out[s] = applies ? narrowed<T>(penalised(static_cast<double>(reward[s]), options)) : reward[s];
  }
}

}  // namespace turnwise::reward
