/// @file
/// Advantage over the return of a greedy rollout.
#pragma once

#include <turnwise/core/concepts.hpp>
#include <turnwise/core/error.hpp>
#include <turnwise/core/reason.hpp>

#include <cstddef>
#include <span>

namespace turnwise::advantage {

/// One turn's term.
template <real T>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr T remax_advantage(T turn_return, T greedy_return) noexcept {
  return narrowed<T>(static_cast<double>(turn_return) - static_cast<double>(greedy_return));
}

/// Advantage of each valid turn over the return of a rollout with greedy decoding, which the caller ran.
///
///     A = G - greedy G
///
/// Also called: ReMax, greedy baseline.
/// @param[in]  turn_return    [S] returns (or rewards).
/// @param[in]  greedy_return  [S] return of the greedy rollout that the turn is compared with: of its prompt, or from
///                            the turn's own history on. Where there is none (it stopped earlier), 0 is as unbiased as
///                            any number that does not depend on the turn's action.
/// @param[in]  reasons        [S], or empty: all valid.
/// @param[out] advantage      [S], unit of turn_return; may be the same span as either input. 0 where invalid.
/// @throws precondition_error  sizes that differ, a valid turn's return or greedy return that is not finite or beyond
///         magnitude_limit; nothing is written.
/// @note  Equal returns give exactly 0. There is no group, so no lone member. NaN and infinity of invalid turns are not
///        read.
/// @note  Unbiased whatever the number of samples.
/// @note  Deterministic: one subtraction a turn.
/// @par Complexity  O(S), no allocation.
/// @par Reference   Li et al. 2023, arXiv:2310.10505.
template <real T>
void remax(no_deduce<std::span<T const>> turn_return, no_deduce<std::span<T const>> greedy_return,
           no_deduce<std::span<reason_flags const>> reasons, std::span<T> advantage) {
  std::size_t const turns = turn_return.size();
  expects_size("remax", "greedy_return", greedy_return.size(), turns, "turn");
  if (!reasons.empty()) expects_size("remax", "reasons", reasons.size(), turns, "turn");
  expects_size("remax", "advantage", advantage.size(), turns, "turn");
  auto const valid = [&](std::size_t s) { return reasons.empty() || is_valid(reasons[s]); };
  auto const check = [&](std::span<T const> values, char const* name) {
    for (std::size_t s = 0; s < turns; ++s)
      expects(!valid(s) || within_limit(values[s]), "remax: ", name, "[", s, "] = ", values[s],
              " of a valid turn is not finite or beyond the magnitude limit");
  };
  check(turn_return, "turn_return");
  check(greedy_return, "greedy_return");
  for (std::size_t s = 0; s < turns; ++s)
    advantage[s] = valid(s) ? remax_advantage(turn_return[s], greedy_return[s]) : T{0};
}

}  // namespace turnwise::advantage
