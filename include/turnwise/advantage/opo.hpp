/// @file
/// Advantage over the weighted mean of the group.
#pragma once

#include <turnwise/advantage/baseline_members.hpp>
#include <turnwise/advantage/detail/group_driver.hpp>

#include <cmath>

namespace turnwise::advantage {

/// Options of `opo`.
struct opo_options {
  baseline_members members = baseline_members::valid;  ///< whose returns form the baseline
  int threads = 0;                                     ///< 0 = the runtime's default
};

namespace detail {

/// A power of 2 by which sums of weights become near 1: products with returns then neither overflow nor, for small
/// weights, lose bits. For subnormal numbers 2^1000.
[[nodiscard]] TURNWISE_HOST_DEVICE inline double inverse_power_of_2(double weight) noexcept {
  using std::ilogb;
  using std::scalbn;
  int const exponent = ilogb(weight);
  return scalbn(1.0, exponent < -1000 ? 1000 : -exponent);
}

struct opo_policy {
#ifdef __CUDACC__
#pragma nv_exec_check_disable  // the host's group is for the host alone
#endif
  template <typename Group>
  [[nodiscard]] TURNWISE_HOST_DEVICE centre_and_divisor prepare(Group const& group) const {
    group_total const total = group.total();
    if (total.count < 2) return {};
    if (total.equal()) return {total.min, 1};
    double const weight = group.weighted_sum([](double, double of_turn) { return of_turn; });
    if (!(weight > 0)) return {total.mean(), 1};
    group_total const weighted = group.weighted_total();
    if (weighted.equal()) return {weighted.min, 1};
    double const scale = inverse_power_of_2(weight);
    double const sum = group.weighted_sum([scale](double value, double of_turn) {
      using std::fma;
      return fma(of_turn * scale, value, 0.0);  // a rounded product that no compiler draws into the sum
    });
    return {sum / (weight * scale), 1};
  }

  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr double advantage(centre_and_divisor const& of_group,
                                                                group_member const& one) const {
    return of_group.advantage(one.value);
  }
};

}  // namespace detail

/// Advantage of each valid turn over the mean return of its group, weighted by how much gradient a turn carries.
///
///     A = G - sum(w G) / sum(w)     over the baseline members of the group
///
/// Also called: OPO, optimal reward baseline (w = token count); with w = the sum of the turn's token weights
/// 1 - 2 p + sum p^2, the turn-level form of the optimal token baseline (OTB).
/// @param[in]  groups       group_by::group: all turns of a prompt; group_by::turn: turn groups.
/// @param[in]  turn_return  [S] returns (or rewards).
/// @param[in]  weight       [S], at least 0; only ratios within a group count. Weights of invalid turns are not read.
/// @param[in]  reasons      [S], or empty: all valid and kept.
/// @param[out] advantage    [S], unit of turn_return; not the same span as turn_return or weight. 0 where invalid.
/// @throws precondition_error  sizes that differ; a valid turn's return that is not finite or beyond magnitude_limit,
///         its weight negative, not finite or beyond magnitude_limit; nothing is written.
/// @note  Fewer than two members: 0 for every turn of the group. Equal members, or all with a weight equal: exactly 0
///        for them.
/// @note  Members without weight (no tokens) leave the baseline; if none has weight, it is the plain mean.
/// @note  Biased as group_relative is: the turn is part of its own baseline. Equal weights: mean-centred.
/// @note  Deterministic: the same bits for any order of trajectories and any thread count (see ordered_fold).
/// @par Complexity  O(S) time, no allocation.
/// @par Reference   Hao et al. 2025, arXiv:2505.23585; optimal token baseline: Li et al. 2026, arXiv:2602.07078.
template <real T>
void opo(grouping const& groups, no_deduce<std::span<T const>> turn_return, std::span<double const> weight,
         no_deduce<std::span<reason_flags const>> reasons, opo_options const& options, std::span<T> advantage) {
  expects_size("opo", "weight", weight.size(), groups.turns(), "turn");
  detail::group_call<T> const call{groups, turn_return, reasons, options.members, options.threads, advantage, weight};
  detail::check_group_call(call, "opo");
  detail::for_each_group(call, detail::opo_policy{});
}

}  // namespace turnwise::advantage
