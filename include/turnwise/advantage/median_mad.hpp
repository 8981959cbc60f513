/// @file
/// Advantage over the group's median, in units of its median absolute deviation.
#pragma once

#include <turnwise/advantage/baseline_members.hpp>
#include <turnwise/advantage/detail/group_driver.hpp>
#include <turnwise/advantage/detail/median.hpp>

#include <cmath>

namespace turnwise::advantage {

/// Options of `median_mad`.
struct median_mad_options {
  bool scale = true;                                   ///< divide by the deviation; false: median-centred only
  double epsilon = 1e-6;                               ///< added to the deviation
  baseline_members members = baseline_members::valid;  ///< whose returns form the baseline
  int threads = 0;                                     ///< 0 = the runtime's default
};

/// Makes the median absolute deviation estimate the standard deviation of normal data.
inline constexpr double normal_mad = 1.4826;

namespace detail {

struct median_mad_policy {
  median_mad_options options;

#ifdef __CUDACC__
#pragma nv_exec_check_disable  // the host's group is for the host alone
#endif
  template <typename Group>
  [[nodiscard]] TURNWISE_HOST_DEVICE centre_and_divisor prepare(Group const& group) const {
    using std::fabs;
    using std::fma;
    group_total const total = group.total();
    if (total.count < 2) return {};
    double const centre = median(
        group, [](double value) { return value; }, total.count, total.min, total.max);
    if (!options.scale) return {centre, 1};
    double const farthest = total.max - centre > centre - total.min ? total.max - centre : centre - total.min;
    double const mad = median(
        group, [centre](double value) { return fabs(value - centre); }, total.count, 0, farthest);
    return {centre, mad > 0 ? fma(normal_mad, mad, options.epsilon) : 1};
  }

  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr double advantage(centre_and_divisor const& of_group,
                                                                group_member const& one) const {
    return of_group.advantage(one.value);
  }
};

}  // namespace detail

/// Advantage of each valid turn over the median return of its group, divided by the group's median absolute deviation:
/// a few outliers move neither.
///
///     A = (G - median) / (1.4826 MAD + epsilon),   MAD = median of abs(G - median)
///
/// Also called: robust z-score.
/// @param[in]  groups       group_by::group: all turns of a prompt; group_by::turn: turn groups.
/// @param[in]  turn_return  [S] returns (or rewards).
/// @param[in]  reasons      [S], or empty: all valid and kept.
/// @param[out] advantage    [S]; unit of turn_return, or none with `scale`; not the same span. 0 where invalid.
/// @throws precondition_error  sizes that differ, epsilon negative or not finite, a valid turn's return that is not
///         finite or beyond magnitude_limit; nothing is written.
/// @note  A median of an even number of members is the mean of the two middle ones.
/// @note  Fewer than two members: 0 for every turn of the group. Equal members: exactly 0 for them. MAD 0 (most of the
///        members equal): those get 0, the others their undivided distance.
/// @note  Biased: the turn is part of its own baseline.
/// @note  Deterministic: order statistics are exact, the same bits for any order of trajectories and any thread count.
/// @par Complexity  O(S) time per halving of the range, at most 64 for each median; no sort, no allocation.
/// @par Reference   Rousseeuw and Croux 1993, Alternatives to the median absolute deviation. We know of no trainer that
///                  has it.
template <real T>
void median_mad(grouping const& groups, no_deduce<std::span<T const>> turn_return,
                no_deduce<std::span<reason_flags const>> reasons, median_mad_options const& options,
                std::span<T> advantage) {
  detail::check_epsilon(options.epsilon, "median_mad");
  detail::group_call<T> const call{groups, turn_return, reasons, options.members, options.threads, advantage};
  detail::check_group_call(call, "median_mad");
  detail::for_each_group(call, detail::median_mad_policy{options});
}

}  // namespace turnwise::advantage
