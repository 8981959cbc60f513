/// @file
/// Share of kernels that are correct and faster than p times the reference.
#pragma once

#include <turnwise/metrics/pass_at_k.hpp>
#include <turnwise/refinement/choose_turn.hpp>
#include <turnwise/reward/evaluation.hpp>
#include <turnwise/reward/kernel_reward.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

namespace turnwise::metrics {

/// Correct, and strictly faster than `threshold` times the reference; a NaN speedup is not. Compared as doubles: the
/// float nearest to 1.2 lies above 1.2.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr bool is_fast(bool correct, double speedup, double threshold) noexcept {
  return correct && speedup > threshold;
}

/// What kernel_score gives a turn.
enum class score_kind : std::uint8_t {
  correct,  ///< C
  fast,     ///< 1 if C = 1 and the speedup is above the threshold, else 0
  speedup   ///< the speedup if C = 1, else 0; a negative speedup counts as 0
};

/// Options of `kernel_score`.
struct kernel_score_options {
  score_kind kind = score_kind::speedup;  ///< what a turn's score is
  double threshold = 1.0;                 ///< p, finite, at least 0; for score_kind::fast
};

/// Options of `fast_p`.
struct fast_p_options {
  double threshold = 1.0;                            ///< p, finite, at least 0; 0: correct with a speedup above 0
  std::int64_t k = 1;                                ///< trajectories drawn
  too_few_policy too_few = too_few_policy::exclude;  ///< prompts with fewer than k trajectories
  refinement::turn_choice turns = refinement::turn_choice::best;  ///< best: any turn that is fast
  std::int64_t turn_limit = refinement::all_turns;  ///< only the first so many turns that are not flagged off
  std::int64_t turn_index = 0;                      ///< for turn_choice::at_index; else 0
};

namespace detail {

template <real E>
void check_kernel_score(reward::evaluation<E> const& turns, std::size_t count, std::span<reason_flags const> reasons,
                        kernel_score_options const& options, std::string_view function) {
  reward::check_evaluation(turns, count, function);
  if (!reasons.empty()) expects_size(function, "reasons", reasons.size(), count, "turn");
  expects(options.threshold >= 0 && within_limit(options.threshold), function, ": threshold = ", options.threshold,
          ", expected a number from 0 to 2^500");
  if (options.kind == score_kind::correct) return;
  for (std::size_t s = 0; s < count; ++s)
    expects((!reasons.empty() && !is_valid(reasons[s])) || !turns.counts_as_correct(s) ||
                std::isnan(turns.speedup[s]) || within_limit(turns.speedup[s]),
            function, ": speedup[", s, "] = ", turns.speedup[s], " is infinite or beyond the magnitude limit");
}

/// Score of turn s; NaN where the turn does not count.
template <real E>
[[nodiscard]] double score_of(reward::evaluation<E> const& turns, std::size_t s, reason_flags reasons,
                              kernel_score_options const& options) {
  if (!is_valid(reasons)) return std::numeric_limits<double>::quiet_NaN();
  if (!turns.counts_as_correct(s)) return 0.0;
  auto const speedup = static_cast<double>(turns.speedup[s]);
  if (options.kind == score_kind::correct) return 1.0;
  if (std::isnan(speedup)) return speedup;
  if (options.kind == score_kind::fast) return is_fast(true, speedup, options.threshold) ? 1.0 : 0.0;
  return reward::speedup_term(speedup, 0.0, std::numeric_limits<double>::infinity());
}

}  // namespace detail

/// Score of each turn from its evaluation, for choose_turn, best_at_k, equal_budget and solve_rate.
///
/// @param[in]  reasons  [S], or empty: all valid.
/// @param[out] score    [S]; NaN where the turn does not count: invalid, or (fast and speedup) C = 1 with a NaN
///                      speedup.
/// @throws precondition_error  sizes that differ, a threshold that is negative or not finite, an infinite speedup (or
///         one beyond magnitude_limit) of a valid turn with C = 1, not read for score_kind::correct; nothing is
///         written.
/// @note  Deterministic: each turn on its own, the same bits everywhere.
/// @par Complexity  O(S), no allocation.
template <real E, real T>
void kernel_score(reward::evaluation<E> const& turns, std::span<reason_flags const> reasons,
                  kernel_score_options const& options, std::span<T> score) {
  detail::check_kernel_score(turns, score.size(), reasons, options, "kernel_score");
  for (std::size_t s = 0; s < score.size(); ++s)
    score[s] = narrowed<T>(detail::score_of(turns, s, reasons.empty() ? 0 : reasons[s], options));
}

/// fast_p at k: chance that one of k trajectories of a prompt gives a kernel that is correct and faster than p.
///
///     1 - C(n - c, k) / C(n, k),   n trajectories with a turn that counts, c of them with a chosen turn with C = 1 and
///     speedup > p (strictly)
///
/// k = 1: the share c / n. The chosen turn: best (any turn that is fast), the last, or the one at turn_index; with
/// turn_limit M as if trajectories had M turns. For all turns as samples: kernel_score and best_at_k.
/// Also called: fast@p.
/// @param[in]  turns      evaluation arrays, [S] each; speedups are read only where C = 1; the profile may be empty.
/// @param[in]  reasons    [S], or empty: turns that are not flagged off are valid. Rejected turns
///                        count: they were sampled.
/// @param[out] per_group  [prompts] in the order of group ids, or empty.
/// @throws precondition_error  sizes that differ, an inconsistent batch, a trajectory id twice in a group, bad options,
///         an infinite speedup (or one beyond magnitude_limit) of a valid turn with C = 1, a prompt with fewer than k
///         such trajectories under too_few_policy::error; nothing is written.
/// @note  A turn does not count if it is invalid, or if C = 1 and the speedup is NaN (unscored). A trajectory in which
///        no turn counts, or none at turn_index, is no sample.
/// @note  The order of trajectories in memory does not show.
/// @par Complexity  O(S + J log J) time, O(S + J) memory.
/// @par Reference   KernelBench, Ouyang et al. 2025, arXiv:2502.10517 (fast_p, one sample); Chen et al. 2021 (at k).
template <real E>
group_mean fast_p(rollout_view const& batch, reward::evaluation<E> const& turns, std::span<reason_flags const> reasons,
                  fast_p_options const& options, std::span<group_estimate> per_group = {}) {
  check_rollout(batch, "fast_p");
  kernel_score_options const kind{score_kind::fast, options.threshold};
  std::vector<reason_flags> flags(batch.turns());
  if (!reasons.empty()) expects_size("fast_p", "reasons", reasons.size(), batch.turns(), "turn");
  for (std::size_t s = 0; s < flags.size(); ++s) flags[s] = refinement::detail::flags_of(batch, reasons, s);
  detail::check_kernel_score(turns, batch.turns(), flags, kind, "fast_p");
  refinement::choose_turn_options const choice{
      .choice = options.turns, .turn_limit = options.turn_limit, .turn_index = options.turn_index};
  refinement::detail::check_choice(choice, "fast_p");

  std::vector<double> score(batch.turns());
  for (std::size_t s = 0; s < score.size(); ++s) score[s] = detail::score_of(turns, s, flags[s], kind);
  grouping const groups = detail::group_trajectories(batch);
  auto const count = [&](std::size_t g) {
    detail::pass_count result;
    for (std::int64_t const j : groups.members(g)) {
      std::int64_t const chosen =
          refinement::detail::chosen_turn<double>(batch, static_cast<std::size_t>(j), score, flags, choice);
      if (chosen < 0) continue;
      ++result.samples;
      result.correct += score[static_cast<std::size_t>(chosen)] > 0;
    }
    return result;
  };
  return detail::estimate_groups(
      groups.groups(), {options.k, options.too_few}, "fast_p", count,
      [](detail::pass_count const& of, std::int64_t k) { return pass_probability(of.samples, of.correct, k); },
      per_group);
}

}  // namespace turnwise::metrics
