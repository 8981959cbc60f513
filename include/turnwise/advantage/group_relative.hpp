/// @file
/// Advantage over the group's mean, in units of its deviation.
#pragma once

#include <turnwise/advantage/baseline_members.hpp>
#include <turnwise/advantage/detail/group_driver.hpp>

namespace turnwise::advantage {

/// Options of `group_relative`.
struct group_relative_options {
  bool scale = true;                                   ///< divide by the deviation; false: mean-centred only (Dr. GRPO)
  int ddof = 1;                                        ///< 0 or 1: the sum of squares is divided by n - ddof
  double epsilon = 1e-6;                               ///< added to the deviation, outside the root
  baseline_members members = baseline_members::valid;  ///< whose returns form the baseline
  int threads = 0;                                     ///< 0 = the runtime's default
};

namespace detail {

struct group_relative_policy {
  group_relative_options options;

#ifdef __CUDACC__
#pragma nv_exec_check_disable  // the host's group is for the host alone
#endif
  template <typename Group>
  [[nodiscard]] TURNWISE_HOST_DEVICE centre_and_divisor prepare(Group const& group) const {
    group_total const total = group.total();
    if (total.count < 2) return {};
    double const mean = total.mean();
    if (!options.scale || total.equal()) return {mean, 1};
    return {mean, deviation(group, mean, total.count, options.ddof) + options.epsilon};
  }

  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr double advantage(centre_and_divisor const& of_group,
                                                                group_member const& one) const {
    return of_group.advantage(one.value);
  }
};

}  // namespace detail

/// Advantage of each valid turn over the mean return of its group, divided by the group's deviation.
///
///     A = (G - mean) / (deviation + epsilon),   deviation = sqrt(sum (G - mean)^2 / (n - ddof)), two passes
///
/// Also called: GRPO (scale), Dr. GRPO and mean-centred REINFORCE (no scale).
/// @param[in]  groups       group_by::group: all turns of a prompt; group_by::turn: turn groups.
/// @param[in]  turn_return  [S] returns (or rewards).
/// @param[in]  reasons      [S], or empty: all valid and kept.
/// @param[out] advantage    [S]; unit of turn_return, or none with `scale`; not the same span. 0 where invalid.
/// @throws precondition_error  sizes that differ, ddof not 0 or 1, epsilon negative or not finite, a valid turn's
///         return that is not finite or beyond magnitude_limit; nothing is written.
/// @note  Fewer than two members: 0 for every turn of the group. Equal members: exactly 0 for them, and for a valid
///        turn that is no member its undivided distance.
/// @note  Biased: the turn is part of its own baseline, which shrinks the expected gradient by (n - 1) / n or more.
/// @note  Deterministic: the same bits for any order of trajectories and any thread count (see ordered_fold).
/// @par Complexity  O(S) time, no allocation.
/// @par Reference   Shao et al. 2024, arXiv:2402.03300; Liu et al. 2025, arXiv:2503.20783.
template <real T>
void group_relative(grouping const& groups, no_deduce<std::span<T const>> turn_return,
                    no_deduce<std::span<reason_flags const>> reasons, group_relative_options const& options,
                    std::span<T> advantage) {
  expects(options.ddof == 0 || options.ddof == 1, "group_relative: ddof = ", options.ddof, ", expected 0 or 1");
  detail::check_epsilon(options.epsilon, "group_relative");
  detail::group_call<T> const call{groups, turn_return, reasons, options.members, options.threads, advantage};
  detail::check_group_call(call, "group_relative");
  detail::for_each_group(call, detail::group_relative_policy{options});
}

}  // namespace turnwise::advantage
