/// @file
/// Which turn of a trajectory is its answer: the best one, the last one, or the one at an index.
#pragma once

#include <turnwise/core/rollout.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

namespace turnwise::refinement {

/// What makes a turn the answer.
enum class turn_choice : std::uint8_t {
  best,     ///< the highest score
  last,     ///< the last turn that counts
  at_index  ///< the turn with a given index
};

/// Which of several best turns is taken.
enum class tie_policy : std::uint8_t { earliest, latest };

/// No limit on turns.
inline constexpr std::int64_t all_turns = std::numeric_limits<std::int64_t>::max();

/// Options of `choose_turn`.
struct choose_turn_options {
  turn_choice choice = turn_choice::best;  ///< what makes a turn the answer
  tie_policy ties = tie_policy::earliest;  ///< of equal best turns
  std::int64_t turn_limit = all_turns;     ///< only the first so many turns that are not flagged off are looked at
  std::int64_t turn_index = 0;             ///< for turn_choice::at_index; else 0
};

namespace detail {

/// Flags of turn s; without reasons those of begin_reasons.
[[nodiscard]] constexpr reason_flags flags_of(rollout_view const& batch, std::span<reason_flags const> reasons,
                                              std::size_t s) noexcept {
  return !reasons.empty() ? reasons[s] : batch.flagged_off(s) ? reason::invalid : 0;
}

/// Checks a batch with one score a turn: those of valid turns are NaN or within the limit.
template <real T>
void check_scores(rollout_view const& batch, std::span<T const> score, std::span<reason_flags const> reasons,
                  std::string_view function) {
  check_rollout(batch, function);
  expects_size(function, "score", score.size(), batch.turns(), "turn");
  if (!reasons.empty()) expects_size(function, "reasons", reasons.size(), batch.turns(), "turn");
  for (std::size_t s = 0; s < score.size(); ++s)
    expects(!is_valid(flags_of(batch, reasons, s)) || score[s] != score[s] || within_limit(score[s]), function,
            ": score[", s, "] = ", score[s], " is infinite or beyond the magnitude limit");
}

inline void check_choice(choose_turn_options const& options, std::string_view function) {
  expects(options.turn_limit >= 1, function, ": turn_limit = ", options.turn_limit, ", expected at least 1");
  expects(options.choice == turn_choice::at_index || options.turn_index == 0, function,
          ": turn_index = ", options.turn_index, " is given, but the choice is not at_index");
}

/// The chosen turn of trajectory j, or -1. Arguments are checked.
template <real T>
[[nodiscard]] std::int64_t chosen_turn(rollout_view const& batch, std::size_t j, std::span<T const> score,
                                       std::span<reason_flags const> reasons, choose_turn_options const& options) {
  std::int64_t chosen = -1;
  std::int64_t sampled = 0;
  for (std::size_t s = batch.first_turn(j); s < batch.first_turn(j + 1); ++s) {
    reason_flags const flags = flags_of(batch, reasons, s);
    if ((flags & reason::invalid) != 0) continue;
    if (++sampled > options.turn_limit) break;
    if (!is_valid(flags) || score[s] != score[s]) continue;
    bool const takes = [&] {
      if (options.choice == turn_choice::at_index) return batch.index_of(j, s) == options.turn_index;
      if (options.choice == turn_choice::last || chosen < 0) return true;
      T const best = score[static_cast<std::size_t>(chosen)];
      return score[s] > best || (score[s] == best && options.ties == tie_policy::latest);
    }();
    if (takes) chosen = static_cast<std::int64_t>(s);
  }
  return chosen;
}

}  // namespace detail

/// Chooses one turn of each trajectory.
///
///     best: argmax of the score;   last: the last turn that counts;   at_index: the turn whose index is turn_index
///
/// A turn counts if it is valid and its score is not NaN; the others are passed over.
/// Also called: best-turn and last-turn answer, final answer selection.
/// @param[in]  score    [S] reward, speedup, or 1 and 0 for correct and wrong; NaN: not scored.
/// @param[in]  reasons  [S], or empty: turns that are not flagged off are valid. Rejected turns
///                      count: they were sampled.
/// @param[out] chosen   [J] the turn, an index into the turns of the batch; -1: no turn counts.
/// @throws precondition_error  sizes that differ, turn_limit below 1, a turn_index without at_index, a valid turn's
///         score that is infinite or beyond magnitude_limit; nothing is written.
/// @note  Ties follow `ties` (-0 and 0 tie). A turn that is flagged off does not use up turn_limit: it was not sampled;
///        an unscored one does.
/// @note  Deterministic: comparisons alone.
/// @par Complexity  O(S), no allocation.
/// @par Reference   ours.
template <real T>
void choose_turn(rollout_view const& batch, std::span<T const> score, std::span<reason_flags const> reasons,
                 choose_turn_options const& options, std::span<std::int64_t> chosen) {
  detail::check_scores(batch, score, reasons, "choose_turn");
  detail::check_choice(options, "choose_turn");
  expects_size("choose_turn", "chosen", chosen.size(), batch.trajectories(), "trajectory");
  for (std::size_t j = 0; j < chosen.size(); ++j) chosen[j] = detail::chosen_turn(batch, j, score, reasons, options);
}

}  // namespace turnwise::refinement
