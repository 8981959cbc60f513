/// @file
/// Advantage over the group's mean, in units of that mean.
#pragma once

#include <turnwise/advantage/baseline_members.hpp>
#include <turnwise/advantage/detail/group_driver.hpp>

namespace turnwise::advantage {

/// Options of `max_rl`.
struct max_rl_options {
  double epsilon = 0;                                  ///< added to the mean that divides
  baseline_members members = baseline_members::valid;  ///< whose returns form the baseline
  int threads = 0;                                     ///< 0 = the runtime's default
};

namespace detail {

struct max_rl_policy {
  max_rl_options options;

#ifdef __CUDACC__
#pragma nv_exec_check_disable  // the host's group is for the host alone
#endif
  template <typename Group>
  [[nodiscard]] TURNWISE_HOST_DEVICE centre_and_divisor prepare(Group const& group) const {
    group_total const total = group.total();
    if (total.count < 2 || !(total.mean() > 0)) return {};
    return {total.mean(), total.mean() + options.epsilon};
  }

  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr double advantage(centre_and_divisor const& of_group,
                                                                group_member const& one) const {
    return of_group.advantage(one.value);
  }
};

}  // namespace detail

/// Advantage of each valid turn over the mean return of its group, divided by that mean: hard prompts weigh more.
///
///     A = (G - mean) / (mean + epsilon),   0 throughout a group whose mean is not above 0
///
/// Also called: MaxRL, maximum likelihood RL, p-normalisation.
/// @param[in]  groups       group_by::group: all turns of a prompt; group_by::turn: turn groups.
/// @param[in]  turn_return  [S] returns (or rewards), meant to be at least 0.
/// @param[in]  reasons      [S], or empty: all valid and kept.
/// @param[out] advantage    [S], no unit; not the same span as turn_return. 0 where invalid.
/// @throws precondition_error  sizes that differ, epsilon negative or not finite, a valid turn's return that is not
///         finite or beyond magnitude_limit; nothing is written.
/// @note  Fewer than two members: 0 for every turn of the group. Equal members: exactly 0 for them.
/// @note  Code bases: prime-rl as here; SkyRL adds 1e-6 to the mean (epsilon), and divides by negative means too.
/// @note  Biased as an estimate of the slope of the mean return; it has a goal of its own.
/// @note  For single-turn returns of 0 and 1 and epsilon 0, the expected gradient (mean over the n samples) is exactly
///        that of sum over k in [1, n - 1] of pass@k / k, which tends to log pass@1.
/// @note  Deterministic: the same bits for any order of trajectories and any thread count (see ordered_fold).
/// @par Complexity  O(S) time, no allocation.
/// @par Reference   Tajwar et al. 2026, arXiv:2602.02710.
template <real T>
void max_rl(grouping const& groups, no_deduce<std::span<T const>> turn_return,
            no_deduce<std::span<reason_flags const>> reasons, max_rl_options const& options, std::span<T> advantage) {
  detail::check_epsilon(options.epsilon, "max_rl");
  detail::group_call<T> const call{groups, turn_return, reasons, options.members, options.threads, advantage};
  detail::check_group_call(call, "max_rl");
  detail::for_each_group(call, detail::max_rl_policy{options});
}

}  // namespace turnwise::advantage
