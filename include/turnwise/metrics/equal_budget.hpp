/// @file
/// Breadth against depth: what N trajectories of M turns reach when N * M turns may be spent.
#pragma once

#include <turnwise/metrics/best_at_k.hpp>
#include <turnwise/refinement/choose_turn.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace turnwise::metrics {

/// Options of `equal_budget`.
struct equal_budget_options {
  std::int64_t budget = 16;       ///< turns that may be spent on a prompt, at least 1
  bool exact = false;             ///< only splits with N * M = budget; else all with N * M <= budget
  std::int64_t trajectories = 0;  ///< largest N; 0: as many as each prompt has
};

/// One split of the budget.
struct budget_split {
  std::int64_t trajectories = 0;  ///< N
  std::int64_t turns = 0;         ///< M
  double expected_best = 0;       ///< mean over prompts

  friend constexpr bool operator==(budget_split const&, budget_split const&) = default;
};

/// What equal_budget returns.
struct budget_table {
  std::vector<budget_split> splits;  ///< by turns, then by trajectories
  std::int64_t groups = 0;           ///< prompts that every split is averaged over
  std::int64_t left_out = 0;         ///< prompts with too few trajectories
};

namespace detail {

/// Best scores after 1, 2, ... turns that are not flagged off; empty unless the first of them counts.
template <real T>
std::vector<double> best_so_far(rollout_view const& batch, std::size_t j, std::span<T const> score,
                                std::span<reason_flags const> reasons) {
  std::vector<double> best;
  for (std::size_t s = batch.first_turn(j); s < batch.first_turn(j + 1); ++s) {
    reason_flags const flags = refinement::detail::flags_of(batch, reasons, s);
    if ((flags & reason::invalid) != 0) continue;
    bool const counts = is_valid(flags) && score[s] == score[s];
    if (best.empty() && !counts) break;
    auto const value = static_cast<double>(score[s]);
    best.push_back(best.empty() || (counts && value > best.back()) ? value : best.back());
  }
  return best;
}

/// The prompts' trajectories that count, as best_so_far.
using running_best = std::vector<std::vector<double>>;

/// Expected best of each group's trajectories cut at `turns`, averaged over groups, for N = 1 .. most.
inline std::vector<double> expected_bests(std::vector<running_best> const& groups, std::int64_t turns,
                                          std::int64_t most) {
  std::vector<std::vector<group_estimate>> by_number(static_cast<std::size_t>(most),
                                                     std::vector<group_estimate>(groups.size()));
  for (std::size_t g = 0; g < groups.size(); ++g) {
    std::vector<double> ascending;
    for (auto const& best : groups[g])
      ascending.push_back(best[std::min(best.size(), static_cast<std::size_t>(turns)) - 1]);
    std::ranges::sort(ascending);
    auto const n = static_cast<std::int64_t>(ascending.size());
    for (std::size_t k = 0; k < by_number.size(); ++k)
      by_number[k][g] = {expected_best(ascending, static_cast<std::int64_t>(k) + 1), n, true};
  }
  std::vector<double> means;
  for (auto const& estimates : by_number) means.push_back(mean_of(estimates).mean);
  return means;
}

}  // namespace detail

/// The expected best score of N trajectories cut after M turns, for every split N * M of a budget.
///
///     value(N, M) = mean over prompts of E[max over N trajectories, drawn without replacement, of the best score of
///                   their first M turns]
///
/// With kernel_score: `fast` gives fast_p, `correct` pass@N, `speedup` the best speedup of each split.
/// @param[in] score    [S] any score; NaN: not scored.
/// @param[in] reasons  [S], or empty: turns that are not flagged off are valid. Rejected turns
///                     count: they were sampled.
/// @return  splits with M up to the longest trajectory and N up to `trajectories`. Every split is over the same prompts
///          and the same trajectories; prompts that have fewer than the largest N are left out. `trajectories` = 0
///          takes the smallest prompt's number, so that only prompts without any are left out.
/// @throws precondition_error  sizes that differ, an inconsistent batch, a trajectory id twice in a group, budget below
///         1, trajectories negative, a valid turn's score that is infinite or beyond magnitude_limit.
/// @note  A trajectory takes part if its first turn that is not flagged off is valid and scored: else its value at
///        M = 1 is not known. Later turns that do not count are passed over, but were sampled: they are part of M.
/// @note  A trajectory that ended early keeps its best: the budget is what may be spent, not what was.
/// @note  No prompt left: no splits. Unbiased for each split.
/// @note  Deterministic: the same bits for any order of trajectories in memory.
/// @par Complexity  O(M S log S + B K) time for M and S turns, B splits, K trajectories; O(S) memory.
/// @par Reference   ours; the estimator of each split is that of best_at_k.
template <real T>
[[nodiscard]] budget_table equal_budget(rollout_view const& batch, std::span<T const> score,
                                        std::span<reason_flags const> reasons, equal_budget_options const& options) {
  refinement::detail::check_scores(batch, score, reasons, "equal_budget");
  expects(options.budget >= 1, "equal_budget: budget = ", options.budget, ", expected at least 1");
  expects(options.trajectories >= 0, "equal_budget: trajectories = ", options.trajectories, ", expected at least 0");

  grouping const all = detail::group_trajectories(batch);
  std::vector<detail::running_best> groups(all.groups());
  for (std::size_t g = 0; g < all.groups(); ++g)
    for (std::int64_t const j : all.members(g))
      if (auto best = detail::best_so_far(batch, static_cast<std::size_t>(j), score, reasons); !best.empty())
        groups[g].push_back(std::move(best));

  std::erase_if(groups, [](auto const& group) { return group.empty(); });
  budget_table table;
  if (!groups.empty()) {
    auto const smallest = std::ranges::min_element(groups, {}, &detail::running_best::size)->size();
    std::int64_t const wanted = options.trajectories > 0 ? options.trajectories : static_cast<std::int64_t>(smallest);
    std::int64_t const most = std::min(wanted, options.budget);
    std::erase_if(groups, [&](auto const& group) { return static_cast<std::int64_t>(group.size()) < most; });
    std::size_t longest = 0;
    for (auto const& group : groups)
      for (auto const& best : group) longest = std::max(longest, best.size());
    for (std::int64_t m = 1; m <= std::min(static_cast<std::int64_t>(longest), options.budget); ++m) {
      auto const values = detail::expected_bests(groups, m, std::min(most, options.budget / m));
      for (std::int64_t n = 1; n <= static_cast<std::int64_t>(values.size()); ++n)
        if (!options.exact || n * m == options.budget)
          table.splits.push_back({n, m, values[static_cast<std::size_t>(n - 1)]});
    }
  }
  table.groups = static_cast<std::int64_t>(groups.size());
  table.left_out = static_cast<std::int64_t>(all.groups() - groups.size());
  return table;
}

}  // namespace turnwise::metrics
