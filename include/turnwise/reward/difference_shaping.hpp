/// @file
/// Pays each turn for what it changes: its reward minus that of the turn before.
#pragma once

#include <turnwise/core/rollout.hpp>
#include <turnwise/reward/detail/reward_limits.hpp>
#include <turnwise/reward/scaled_penalty.hpp>

#include <cstddef>
#include <span>

namespace turnwise::reward {

/// Options of `difference_shaping`.
struct difference_shaping_options {
  double initial = 0.0;  ///< what the first scored turn of a trajectory is compared with
};

/// Replaces each reward by its difference from the last scored one before it in the trajectory.
///
///     r'[t] = r[t] - r[p],   p = the last turn before t that is scored and not flagged off; r[p] = initial without one
///
/// The differences of a trajectory add up to its last scored reward minus `initial`.
/// Also called: delta reward, improvement reward, turn-level reward difference.
/// @param[in]  batch   S turns.
/// @param[in]  reward  [S]; NaN = unscored.
/// @param[in]  reasons [S] as begin_reasons wrote them; rewards of turns flagged off are not judged.
/// @param[out] shaped  [S], unit of reward; may be the same span as reward. An unscored reward stays NaN and the turn
///                     after it is compared with the one before; a turn flagged off keeps its reward.
/// @throws precondition_error  an inconsistent batch, sizes that differ, `initial` not finite or beyond
///         magnitude_limit<T>, an infinite reward of a turn that is not flagged off; nothing is written.
/// @note  With a discounted sum of gamma 1 a turn's return is then r[last] - r[p]: what came before is its baseline.
/// @note  Deterministic: one subtraction of doubles a turn.
/// @par Complexity  O(S), no allocation.
/// @par Reference   Ng et al. 1999 (potential-based shaping at gamma 1); the published trainer of arXiv:2602.05885.
template <real T>
void difference_shaping(rollout_view const& batch, no_deduce<std::span<T const>> reward,
                        difference_shaping_options const& options, std::span<reason_flags const> reasons,
                        std::span<T> shaped) {
  check_rollout(batch, "difference_shaping");
  expects_size("difference_shaping", "reward", reward.size(), batch.turns(), "turn");
  expects_size("difference_shaping", "reasons", reasons.size(), batch.turns(), "turn");
  expects_size("difference_shaping", "shaped", shaped.size(), batch.turns(), "turn");
  detail::check_reward_option<T>(options.initial, "difference_shaping", "initial");
  detail::check_rewards<T>(reward, reasons, "difference_shaping", "reward");
  for (std::size_t j = 0; j < batch.trajectories(); ++j) {
    double previous = options.initial;
    for (std::size_t s = batch.first_turn(j); s < batch.first_turn(j + 1); ++s) {
      double const own = static_cast<double>(reward[s]);
      bool const scored = (reasons[s] & reason::invalid) == 0 && own == own;
      shaped[s] = scored ? narrowed<T>(own - previous) : reward[s];
      if (scored) previous = own;
    }
  }
}

}  // namespace turnwise::reward
