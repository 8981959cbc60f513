/// @file
/// What a turn is credited with of the rewards of its trajectory: their sum, the best, the last, its own.
#pragma once

#include <turnwise/advantage/discounted_return.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace turnwise::advantage {

/// T is the last turn of the trajectory that is not flagged off.
enum class return_kind : std::uint8_t {
  discounted_sum,  ///< discounted_return: sum over k of gamma^k r[t + k]
  max,             ///< max over k of gamma^k r[t + k]
  last,            ///< gamma^(T - t) r[T]
  current,         ///< r[t]
  best_so_far      ///< max of r[0], ..., r[t]
};

/// Options of `turn_return`.
struct turn_return_options {
  return_kind kind = return_kind::discounted_sum;  ///< what a turn is credited with
  double gamma = 1.0;  ///< in [0, 1]; 1 for current and best_so_far, which have no use for it
  unscored_policy unscored = unscored_policy::exclude;  ///< what a missing reward does to the turns before it
};

/// A return as it is carried from turn to turn: from the last to the first, for best_so_far from the first to the last.
struct carried_return {
  double value = 0;   ///< of the turn that was passed last
  bool any = false;   ///< a turn that is not flagged off has entered it
  bool known = true;  ///< no reward that the next turn's return needs is missing
};

/// True where returns are carried from the first turn to the last.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr bool looks_back(return_kind kind) noexcept {
  return kind == return_kind::best_so_far;
}

/// False for the kinds that look at no later turn.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr bool uses_gamma(return_kind kind) noexcept {
  return kind != return_kind::current && kind != return_kind::best_so_far;
}

/// One step of each kind but discounted_sum; the value is then the return of the turn.
///
/// @param reward   its reward; not read where the turn is flagged off or its reward is missing.
/// @param judged   it is not flagged off.
/// @param missing  judged, and its reward is NaN.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr carried_return return_step(return_kind kind, double gamma, double reward,
                                                                        bool judged, bool missing,
                                                                        carried_return const& carried) noexcept {
  double const own = judged && !missing ? reward : 0.0;
  double const ahead = gamma * carried.value;
  switch (kind) {
    case return_kind::max:
      // At gamma 0 no turn looks at a later one.
      if (!judged) return {ahead, carried.any, carried.known};
      return {gamma > 0 && carried.any && ahead > own ? ahead : own, true, carried.known && (!missing || gamma == 0)};
    case return_kind::last:
      if (!judged || carried.any) return {ahead, carried.any, carried.known};
      return {own, true, !missing || gamma == 0};
    case return_kind::best_so_far:
      if (!judged || missing || (carried.any && carried.value >= own)) return carried;
      return {own, true, true};
    default:
      return {own, judged, true};
  }
}

/// Return of each turn of its trajectory, of the kind that is asked for.
///
/// A turn flagged off takes no part: it is no maximum and not the last, and its own return is what the kind makes of the
/// others (0 with none); it is a step of gamma. A missing reward (NaN) makes its turn `unscored`, and counts as 0:
///
/// | kind | which turns need a missing reward (`unscored_future` under `exclude`, with gamma > 0) |
/// |---|---|
/// | discounted_sum, max | all before it |
/// | last | all before it, if it is the last turn's; otherwise none |
/// | current, best_so_far | none; best_so_far is the maximum of the scored turns, 0 while there is none |
///
/// Also called: return-to-go (sum), best-of-future and MaRS (max), outcome reward (last), greedy or myopic (current).
/// @param[in]     batch    S turns; steps are positions in the trajectory, not differences of turn indices.
/// @param[in]     reward   [S]; NaN = unscored. Rewards of turns flagged off are not judged.
/// @param[in,out] reasons  [S] as begin_reasons wrote them; gains `unscored` and `unscored_future`.
/// @param[out]    turn_return  [S], unit of reward, finite; may be the same span as reward.
/// @throws precondition_error  as discounted_return; a gamma other than 1 for current and best_so_far; nothing is
///         written.
/// @note  gamma = 0: a turn's own reward alone (max, discounted_sum); of `last`, 0 for all turns but the last.
/// @note  gamma < 1 brings negative rewards nearer to 0, so `max` prefers a failure that is further ahead.
/// @note  Deterministic: the same bits everywhere.
/// @par Complexity  O(S), no allocation.
/// @par Reference   Kevin, arXiv:2507.11948 (sum and max, gamma 0.4); Murphy, arXiv:2511.07833 (max).
template <real T>
void turn_return(rollout_view const& batch, no_deduce<std::span<T const>> reward, turn_return_options const& options,
                 std::span<reason_flags> reasons, std::span<T> turn_return) {
  discounted_return_options const sum{options.gamma, options.unscored};
  if (options.kind == return_kind::discounted_sum) return discounted_return(batch, reward, sum, reasons, turn_return);
  detail::check_returns<T>(batch, reward, sum, reasons, turn_return.size(), "turn_return");
  expects(uses_gamma(options.kind) || options.gamma == 1, "turn_return: gamma = ", options.gamma,
          ", expected 1: the kinds current and best_so_far look at no later turn");

  bool const spreads = options.unscored == unscored_policy::exclude;
  for (std::size_t j = 0; j < batch.trajectories(); ++j) {
    carried_return carried;
    std::size_t const first = batch.first_turn(j), last = batch.first_turn(j + 1);
    for (std::size_t k = first; k < last; ++k) {
      std::size_t const s = looks_back(options.kind) ? k : last - 1 - (k - first);
      bool const judged = (reasons[s] & reason::invalid) == 0;
      bool const missing = judged && std::isnan(reward[s]);
      carried = return_step(options.kind, options.gamma, static_cast<double>(reward[s]), judged, missing, carried);
      if (missing)
        reasons[s] |= reason::unscored;
      else if (judged && spreads && !carried.known)
        reasons[s] |= reason::unscored_future;
      turn_return[s] = static_cast<T>(carried.value);
    }
  }
}

}  // namespace turnwise::advantage
