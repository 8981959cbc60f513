/// @file
/// What a sample adds to the best of k.
#pragma once

#include <turnwise/advantage/baseline_members.hpp>
#include <turnwise/advantage/detail/group_driver.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace turnwise::advantage {

/// Options of `pass_at_k`.
struct pass_at_k_options {
  std::int64_t k = 0;     ///< samples of which the best counts, at least 2; 0, or more than there are: all of the group
  bool scale = false;     ///< divide by the group's deviation (ddof 1)
  double epsilon = 1e-6;  ///< added to the deviation, outside the root
  baseline_members members = baseline_members::valid;  ///< whose returns form the baseline
  int threads = 0;                                     ///< 0 = the runtime's default
};

namespace detail {

/// C(q, u) / C(n, u), q <= n: the share of the u-subsets of n ranks that has only ranks below q.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr double subset_share(std::int64_t q, std::int64_t n,
                                                                 std::int64_t u) noexcept {
  if (q < u) return 0;
  // The product over t < u of (q - t) / (n - t) has the same value with u and n - q exchanged: the shorter one.
  std::int64_t const factors = u < n - q ? u : n - q;
  std::int64_t const gap = u < n - q ? n - q : u;
  double share = 1;
  for (std::int64_t t = 0; t < factors; ++t)
    share = share * static_cast<double>(n - gap - t) / static_cast<double>(n - t);
  return share;
}

struct pass_at_k_policy {
  pass_at_k_options options;

  struct state {
    ranked_members ranked;
    double divisor;
  };

  /// How many others a sample is set beside, at most.
  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr std::int64_t companions(std::int64_t others) const {
    return options.k == 0 || options.k - 1 > others ? others : options.k - 1;
  }

#ifdef __CUDACC__
#pragma nv_exec_check_disable  // the host's group is for the host alone
#endif
  template <typename Group>
  [[nodiscard]] TURNWISE_HOST_DEVICE state prepare(Group const& group) const {
    group_total const total = group.total();
    std::int64_t const others = total.count - 1;
    std::int64_t const u = companions(others);
    double divisor = 1;
    if (options.scale && total.count > 1 && !total.equal())
      divisor = deviation(group, total.mean(), total.count, 1) + options.epsilon;
    if (!(divisor > 0)) divisor = 1;  // squares that underflow, without epsilon
    return {group.ranked([others, u](std::int64_t below) { return subset_share(below, others, u); }), divisor};
  }

  [[nodiscard]] TURNWISE_HOST_DEVICE double advantage(state const& of_group, group_member const& one) const {
    ranked_members const& members = of_group.ranked;
    std::int64_t const below = members.below(one.value);
    if (below == 0) return 0;
    if (one.is_member) return members.sum[below] / of_group.divisor;
    // Beside all n members instead of n - 1: the shares of the sum times (n - u) / n, and one more gap.
    std::int64_t const n = members.count;
    std::int64_t const u = companions(n);
    double const share_of_sum = static_cast<double>(n - u) / static_cast<double>(n);
    using std::fma;
    return fma(one.value - members.value[below - 1], subset_share(below, n, u), members.sum[below - 1] * share_of_sum) /
           of_group.divisor;
  }
};

}  // namespace detail

/// What each valid turn adds to the best of k samples: the average, over the sets T of k turns of its group that hold
/// it, of max(T) minus the max without it.
///
///     A = sum over q in [1, rank] of (G[q] - G[q - 1]) C(q, k - 1) / C(n - 1, k - 1)   G[0] <= ... <= G[n - 1] members
///     k = n (or 0):  A = best - second best for the single best turn, 0 for all others
///
/// Also called: PKPO, leave-one-out max@k (its s_i^(loo-1) is k / n times A); with k = 0 and scale, GRPO pass@k.
/// @param[in]  groups       of single-turn samples, or turn groups: a turn is a sample.
/// @param[in]  turn_return  [S] returns (or rewards), continuous or 0 and 1.
/// @param[in]  reasons      [S], or empty: all valid and kept.
/// @param[out] advantage    [S], at least 0; unit of turn_return, or none with `scale`; not the same span. 0 where
///                          invalid.
/// @throws precondition_error  sizes that differ, k negative or 1 (use leave_one_out), epsilon negative or not finite,
///         a valid turn's return that is not finite or beyond magnitude_limit; nothing is written.
/// @note  k above the group's n: k = n. No other member: 0. A tie for the best, equal members: 0. A valid turn that is
///        no member is set beside sets of k - 1 members.
/// @note  Unbiased where n >= k is fixed: the mean over the n samples of A times the score has the gradient of
///        E[max of k] / k as its expectation.
/// @note  Code bases: verl has k = 0 with scale, and throws for a group of one. It too gives nothing for a tie.
/// @note  Deterministic: a fold over the sorted members, the same bits for any order of trajectories and any thread
///        count.
/// @par Complexity  O(n log n + n min(k, n - k)) a group of n; 16 S bytes are allocated.
/// @par Reference   Walder and Karkhanis 2025, arXiv:2505.15201.
template <real T>
void pass_at_k(grouping const& groups, no_deduce<std::span<T const>> turn_return,
               no_deduce<std::span<reason_flags const>> reasons, pass_at_k_options const& options,
               std::span<T> advantage) {
  expects(options.k == 0 || options.k >= 2, "pass_at_k: k = ", options.k,
          ", expected 0 (all of the group) or at least 2");
  detail::check_epsilon(options.epsilon, "pass_at_k");
  detail::group_call<T> call{groups, turn_return, reasons, options.members, options.threads, advantage};
  detail::check_group_call(call, "pass_at_k");
  std::vector<double> scratch(2 * groups.turns());
  call.scratch = scratch;
  detail::for_each_group(call, detail::pass_at_k_policy{options});
}

}  // namespace turnwise::advantage
