/// @file
/// Chance that at least one of k samples is correct.
#pragma once

#include <turnwise/metrics/detail/at_k.hpp>
#include <turnwise/metrics/group_estimate.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace turnwise::metrics {

/// Probability that k of n samples, drawn without replacement, hold one of the c correct ones; 1 <= k <= n.
///
///     1 - C(n - c, k) / C(n, k) = 1 - prod over j < min(c, k) of (1 - max(c, k) / (n - j))
///
/// Built up as p <- p + (1 - p) max(c, k) / (n - j): nothing cancels, and k = 1 gives c / n exactly.
[[nodiscard]] inline double pass_probability(std::int64_t n, std::int64_t c, std::int64_t k) noexcept {
  if (n - c < k) return 1.0;
  std::int64_t const factors = std::min(c, k);
  auto const larger = static_cast<double>(std::max(c, k));
  double pass = 0;
  for (std::int64_t j = 0; j < factors; ++j) pass = std::fma(1.0 - pass, larger / static_cast<double>(n - j), pass);
  return pass;
}

namespace detail {

/// What pass@k needs of a group's samples.
struct pass_count {
  std::int64_t samples = 0, correct = 0;
  [[nodiscard]] constexpr std::int64_t size() const noexcept { return samples; }
};

}  // namespace detail

/// pass@k: the unbiased estimate of each group, and its mean over groups.
///
///     1 - C(n - c, k) / C(n, k),   n valid samples of the group, c of them correct
///
/// @param[in]  groups     samples are the turns of the grouping: by group id for single-turn samples, group_by::turn
///                        for turn groups. For one answer a trajectory see choose_turn and fast_p.
/// @param[in]  correct    [S].
/// @param[in]  reasons    [S], or empty: all valid. Invalid samples do not count; rejected ones do.
/// @param[out] per_group  [groups], or empty.
/// @throws precondition_error  sizes that differ, k below 1, a group with fewer than k samples under
///         too_few_policy::error; nothing is written.
/// @note  Fewer than k samples: too_few_policy. The code published with the paper gives 1 there. The plug-in estimate
///        1 - (1 - c/n)^k is biased low and not offered.
/// @note  Deterministic: the same bits for any order of samples.
/// @par Complexity  O(S + groups min(c, k)) time, O(groups) memory.
/// @par Reference   Chen et al. 2021, arXiv:2107.03374.
inline group_mean pass_at_k(grouping const& groups, std::span<std::uint8_t const> correct,
                            std::span<reason_flags const> reasons, at_k_options const& options,
                            std::span<group_estimate> per_group = {}) {
  expects_size("pass_at_k", "correct", correct.size(), groups.turns(), "turn");
  if (!reasons.empty()) expects_size("pass_at_k", "reasons", reasons.size(), groups.turns(), "turn");
  auto const count = [&](std::size_t g) {
    detail::pass_count result;
    for (std::int64_t const turn : groups.members(g)) {
      auto const s = static_cast<std::size_t>(turn);
      if (!reasons.empty() && !is_valid(reasons[s])) continue;
      ++result.samples;
      result.correct += correct[s] != 0;
    }
    return result;
  };
  return detail::estimate_groups(
      groups.groups(), options, "pass_at_k", count,
      [](detail::pass_count const& of, std::int64_t k) { return pass_probability(of.samples, of.correct, k); },
      per_group);
}

}  // namespace turnwise::metrics
