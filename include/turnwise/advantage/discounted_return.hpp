/// @file
/// Return of each turn inside its trajectory, and which turns a missing reward makes invalid.
#pragma once

#include <turnwise/core/rollout.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace turnwise::advantage {

/// What a missing reward (NaN) of a turn that is not flagged off does to the turns before it.
enum class unscored_policy : std::uint8_t {
  exclude,  ///< they are invalid too (`unscored_future`): their return is not known
  zero,     ///< they stay valid: the missing reward counts as 0
  error     ///< throws
};

/// Options of `discounted_return`.
struct discounted_return_options {
  double gamma = 1.0;                                   ///< in [0, 1]
  unscored_policy unscored = unscored_policy::exclude;  ///< what a missing reward does to the turns before it
};

/// One step of the recursion.
[[nodiscard]] TURNWISE_HOST_DEVICE inline double discounted_step(double reward, double gamma, double later) noexcept {
  using std::fma;
  return fma(gamma, later, reward);
}

namespace detail {

/// The reward that earlier returns see: 0 for a turn that is flagged off or unscored.
template <real T>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr double counted_reward(T reward, reason_flags reasons) noexcept {
  return (reasons & reason::invalid) != 0 || reward != reward ? 0.0 : static_cast<double>(reward);
}

/// What every kind of return asks of its arguments.
template <real T>
void check_returns(rollout_view const& batch, std::span<T const> reward, discounted_return_options const& options,
                   std::span<reason_flags const> reasons, std::size_t outputs, std::string_view function) {
  check_rollout(batch, function);
  expects_size(function, "reward", reward.size(), batch.turns(), "turn");
  expects_size(function, "reasons", reasons.size(), batch.turns(), "turn");
  expects_size(function, "turn_return", outputs, batch.turns(), "turn");
  expects(options.gamma >= 0 && options.gamma <= 1, function, ": gamma = ", options.gamma,
          ", expected a number in [0, 1]");
  for (std::size_t s = 0; s < reward.size(); ++s) {
    if (reasons[s] & reason::invalid) continue;
    bool const missing = std::isnan(reward[s]);
    expects(!missing || options.unscored != unscored_policy::error, function, ": reward[", s, "] is NaN");
    expects(missing || within_limit(reward[s]), function, ": reward[", s, "] = ", reward[s],
            " is infinite or beyond the magnitude limit");
  }
}

}  // namespace detail

/// Discounted sum of the rewards of a turn and of the turns after it in its trajectory.
///
///     G[t] = r[t] + gamma * G[t + 1],   r = 0 where the turn is flagged off or unscored
///
/// Also called: return-to-go, cumulative turn reward.
/// @param[in]     batch    S turns; steps are positions in the trajectory, not differences of turn indices.
/// @param[in]     reward   [S]; NaN = unscored. Rewards of turns flagged off are not judged.
/// @param[in,out] reasons  [S] as begin_reasons wrote them; gains `unscored` and `unscored_future`.
/// @param[out]    turn_return  [S], unit of reward, finite; may be the same span as reward.
/// @throws precondition_error  sizes that differ, gamma outside [0, 1], a reward or return of a turn not flagged off
///         that is infinite or beyond magnitude_limit, a NaN reward under unscored_policy::error; nothing is written.
/// @note  gamma = 0: each turn's own reward, and a missing reward concerns its own turn alone.
/// @note  Deterministic: one fused multiply-add a turn, the same bits everywhere.
/// @par Complexity  O(S), no allocation.
/// @par Reference   Dr. Kernel, arXiv:2602.05885 (gamma 1); Kevin, arXiv:2507.11948 (gamma 0.4).
template <real T>
void discounted_return(rollout_view const& batch, no_deduce<std::span<T const>> reward,
                       discounted_return_options const& options, std::span<reason_flags> reasons,
                       std::span<T> turn_return) {
  detail::check_returns<T>(batch, reward, options, reasons, turn_return.size(), "discounted_return");

  // Twice over the trajectories: first to check, then to write.
  auto const walk = [&](auto&& visit) {
    for (std::size_t j = 0; j < batch.trajectories(); ++j) {
      double later = 0;
      bool known = true;
      for (std::size_t s = batch.first_turn(j + 1); s-- > batch.first_turn(j);) {
        later = discounted_step(detail::counted_reward(reward[s], reasons[s]), options.gamma, later);
        known = visit(s, later, known);
      }
    }
  };
  walk([&](std::size_t s, double value, bool) {
    expects(value <= magnitude_limit<T> && value >= -magnitude_limit<T>, "discounted_return: the return of turn ", s,
            " = ", value, " is beyond the magnitude limit");
    return true;
  });
  bool const spreads = options.gamma > 0 && options.unscored == unscored_policy::exclude;
  walk([&](std::size_t s, double value, bool known) {
    bool const judged = (reasons[s] & reason::invalid) == 0;
    bool const missing = judged && std::isnan(reward[s]);
    if (missing)
      reasons[s] |= reason::unscored;
    else if (judged && !known)
      reasons[s] |= reason::unscored_future;
    turn_return[s] = static_cast<T>(value);
    return known && !(missing && spreads);
  });
}

}  // namespace turnwise::advantage
