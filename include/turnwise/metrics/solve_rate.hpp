/// @file
/// How often each prompt is solved, counted once a trajectory.
#pragma once

#include <turnwise/metrics/detail/at_k.hpp>
#include <turnwise/metrics/group_estimate.hpp>
#include <turnwise/refinement/choose_turn.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace turnwise::metrics {

/// Options of `solve_rate`.
struct solve_rate_options {
  refinement::choose_turn_options turn{};  ///< which turn's score is the trajectory's
  double solved_at = 1.0;                  ///< a score of at least this solves the prompt; finite
};

/// One prompt.
struct group_solves {
  std::int64_t trajectories = 0;  ///< that count
  std::int64_t solved = 0;        ///< that solve the prompt
  double mean_score = 0;          ///< over its trajectories; 0 without any

  /// Share of trajectories that solve the prompt; 0 without any.
  [[nodiscard]] constexpr double rate() const noexcept {
    return trajectories == 0 ? 0.0 : static_cast<double>(solved) / static_cast<double>(trajectories);
  }
  friend constexpr bool operator==(group_solves const&, group_solves const&) = default;
};

/// Over the prompts with a trajectory that counts; every number is finite.
struct solve_record {
  std::int64_t groups = 0;    ///< such prompts
  std::int64_t unscored = 0;  ///< prompts without one: in no mean
  std::int64_t once = 0;      ///< prompts solved at least once
  std::int64_t always = 0;    ///< prompts solved by every trajectory
  double mean_rate = 0;       ///< mean over prompts of the share of trajectories that solve it
  double mean_score = 0;      ///< mean over prompts of the mean score

  /// Share of prompts solved at least once, by every trajectory, by none; 0 without prompts.
  [[nodiscard]] constexpr double once_share() const noexcept { return share(once); }
  /// Share of prompts solved by every trajectory; 0 without prompts.
  [[nodiscard]] constexpr double always_share() const noexcept { return share(always); }
  /// Share of prompts solved by none; 0 without prompts.
  [[nodiscard]] constexpr double never_share() const noexcept { return share(groups - once); }

  friend constexpr bool operator==(solve_record const&, solve_record const&) = default;

 private:
  [[nodiscard]] constexpr double share(std::int64_t part) const noexcept {
    return groups == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(groups);
  }
};

/// Solve rates of prompts: each trajectory counts once, however many turns (rows) it has.
///
///     rate(g) = trajectories of g with score >= solved_at / trajectories of g that count
///
/// @param[in]  score      [S] 1 and 0 for correct and wrong, or any reward; NaN: not scored. A trajectory's score is
///                        that of its chosen turn (choose_turn). Where every turn repeats the trajectory's reward, any
///                        choice does.
/// @param[in]  reasons    [S], or empty: turns that are not flagged off are valid. Rejected turns
///                        count: they were sampled.
/// @param[out] per_group  [prompts] in the order of group ids, or empty.
/// @throws precondition_error  sizes that differ, an inconsistent batch, a trajectory id twice in a group, bad options,
///         a valid turn's score that is infinite or beyond magnitude_limit; nothing is written.
/// @note  A trajectory in which no turn counts does not count. Trajectories without turns likewise.
/// @note  Deterministic: the same bits for any order of trajectories in memory.
/// @par Complexity  O(S + J log J) time, O(J) memory.
/// @par Reference   ours.
template <real T>
solve_record solve_rate(rollout_view const& batch, std::span<T const> score, std::span<reason_flags const> reasons,
                        solve_rate_options const& options, std::span<group_solves> per_group = {}) {
  refinement::detail::check_scores(batch, score, reasons, "solve_rate");
  refinement::detail::check_choice(options.turn, "solve_rate");
  expects(within_limit(options.solved_at), "solve_rate: solved_at = ", options.solved_at,
          ", expected a number within +-2^500");
  grouping const groups = detail::group_trajectories(batch);
  if (!per_group.empty()) expects_size("solve_rate", "per_group", per_group.size(), groups.groups(), "group");

  solve_record record;
  std::vector<group_estimate> rate(groups.groups()), mean(groups.groups());
  for (std::size_t g = 0; g < groups.groups(); ++g) {
    auto const members = groups.members(g);
    group_solves one;
    double const sum = ordered_sum(members.size(), [&](std::size_t i) {
      std::int64_t const chosen =
          refinement::detail::chosen_turn(batch, static_cast<std::size_t>(members[i]), score, reasons, options.turn);
      if (chosen < 0) return 0.0;
      auto const value = static_cast<double>(score[static_cast<std::size_t>(chosen)]);
      ++one.trajectories;
      one.solved += value >= options.solved_at;
      return value;
    });
    bool const counted = one.trajectories > 0;
    if (counted) one.mean_score = sum / static_cast<double>(one.trajectories);
    rate[g] = {one.rate(), one.trajectories, counted};
    mean[g] = {one.mean_score, one.trajectories, counted};
    record.once += one.solved > 0;
    record.always += counted && one.solved == one.trajectories;
    if (!per_group.empty()) per_group[g] = one;
  }
  group_mean const rates = detail::mean_of(rate);
  record.groups = rates.groups;
  record.unscored = rates.left_out;
  record.mean_rate = rates.mean;
  record.mean_score = detail::mean_of(mean).mean;
  return record;
}

}  // namespace turnwise::metrics
