/// @file
/// Expected best value of k samples.
#pragma once

#include <turnwise/metrics/detail/at_k.hpp>
#include <turnwise/metrics/group_estimate.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace turnwise::metrics {

/// Mean over all subsets of k of the n values of their largest; the values ascend, 1 <= k <= n.
///
///     sum over i = k..n of w(i) x(i),   w(i) = C(i - 1, k - 1) / C(n, k)
///
/// by w(n) = k / n, w(i - 1) = w(i) (i - k) / (i - 1), from the largest value down.
[[nodiscard]] inline double expected_best(std::span<double const> ascending, std::int64_t k) noexcept {
  auto const n = static_cast<std::int64_t>(ascending.size());
  auto const value = [&](std::int64_t i) { return ascending[static_cast<std::size_t>(i - 1)]; };
  if (value(k) == value(n)) return value(n);
  double weight = static_cast<double>(k) / static_cast<double>(n);
  double sum = 0;
  for (std::int64_t i = n;; --i) {
    sum = std::fma(weight, value(i), sum);
    if (i == k) return sum;
    weight *= static_cast<double>(i - k) / static_cast<double>(i - 1);
  }
}

/// best@k: the expected largest value of k samples drawn without replacement, of each group and on average.
///
/// With the speedup of correct samples and 0 for the others (kernel_score): the expected best-of-k speedup. With 1 and
/// 0: pass@k.
/// @param[in]  groups     samples are the turns of the grouping.
/// @param[in]  value      [S]; NaN: does not count.
/// @param[in]  reasons    [S], or empty: all valid. Invalid samples do not count; rejected ones do.
/// @param[out] per_group  [groups], or empty.
/// @throws precondition_error  sizes that differ, k below 1, a valid sample's value that is infinite or beyond
///         magnitude_limit, a group with fewer than k samples under too_few_policy::error; nothing is written.
/// @note  Equal values give that value exactly; k = n gives the largest exactly; k = 1 is the mean.
/// @note  Unbiased. verl's best@k averages seeded draws with replacement instead, which is random and biased low.
/// @note  Deterministic: the same bits for any order of samples.
/// @par Complexity  O(S log S) time, O(S) memory.
/// @par Reference   Chen et al. 2021, arXiv:2107.03374 (0 and 1); order statistics.
template <real T>
group_mean best_at_k(grouping const& groups, std::span<T const> value, std::span<reason_flags const> reasons,
                     at_k_options const& options, std::span<group_estimate> per_group = {}) {
  expects_size("best_at_k", "value", value.size(), groups.turns(), "turn");
  if (!reasons.empty()) expects_size("best_at_k", "reasons", reasons.size(), groups.turns(), "turn");
  auto const counts = [&](std::size_t s) { return (reasons.empty() || is_valid(reasons[s])) && value[s] == value[s]; };
  for (std::size_t s = 0; s < value.size(); ++s)
    expects(!counts(s) || within_limit(value[s]), "best_at_k: value[", s, "] = ", value[s],
            " is infinite or beyond the magnitude limit");
  auto const gather = [&](std::size_t g) {
    std::vector<double> ascending;
    for (std::int64_t const turn : groups.members(g))
      if (auto const s = static_cast<std::size_t>(turn); counts(s)) ascending.push_back(static_cast<double>(value[s]));
    std::ranges::sort(ascending);
    return ascending;
  };
  return detail::estimate_groups(groups.groups(), options, "best_at_k", gather, expected_best, per_group);
}

}  // namespace turnwise::metrics
