/// @file
/// Advantage over the mean of the others.
#pragma once

#include <turnwise/advantage/baseline_members.hpp>
#include <turnwise/advantage/detail/group_driver.hpp>

namespace turnwise::advantage {

/// What a lone member gets: a turn that has no other to be compared with in its group.
enum class singleton_policy : std::uint8_t {
  keep,   ///< its return (as published)
  zero,   ///< 0; shrinks the expected gradient
  others  ///< its return minus the mean, over the other trajectories of its pool, of their first member turn's return
};

/// Whose returns are left out of a turn's baseline when one trajectory has several turns in the group.
enum class exclude_policy : std::uint8_t {
  trajectory,  ///< all turns of its own trajectory (unbiased)
  member       ///< the turn alone (the usual code; biased in multi-turn data)
};

/// Options of `leave_one_out`.
struct leave_one_out_options {
  singleton_policy singleton = singleton_policy::keep;  ///< what a lone member gets
  exclude_policy exclude = exclude_policy::trajectory;  ///< what a turn leaves out of its own baseline
  baseline_members members = baseline_members::valid;   ///< whose returns form the baseline
  /// `kept` members make lone members common, and `keep` then gives them their whole return: a caller who wants that
  /// says so.
  bool allow_kept_with_keep = false;
  int threads = 0;        ///< 0 = the runtime's default
  bool scale = false;     ///< divide by the deviation of the others as well (ddof 1)
  double epsilon = 1e-6;  ///< added to the deviation, outside the root
};

namespace detail {

/// @tparam MayScale  false: `scale` is off, which spares the device registers.
template <bool MayScale>
struct leave_one_out_rule {
  leave_one_out_options options;

  /// What a turn is compared with where the group's totals do not tell; divisor 0: they do.
  struct comparison {
    double baseline = 0;
    double divisor = 0;
  };

#ifdef __CUDACC__
#pragma nv_exec_check_disable  // the host's group is for the host alone
#endif
  template <typename Group>
  [[nodiscard]] TURNWISE_HOST_DEVICE group_total prepare(Group const& group) const {
    return group.total();
  }

  /// What the turn leaves out of its own baseline.
  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr member_total left_out(group_member const& one) const {
    if (options.exclude == exclude_policy::trajectory) return one.own;
    return one.is_member ? member_total{one.value, 1} : member_total{};
  }

  /// A lone member looks into its pool; a deviation needs two others that may differ.
  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr bool needs_others(group_total const& total,
                                                                 group_member const& one) const {
    std::int64_t const rest = total.count - left_out(one).count;
    return rest == 0 ? options.singleton == singleton_policy::others
                     : MayScale && options.scale && rest > 1 && !total.equal();
  }

#ifdef __CUDACC__
#pragma nv_exec_check_disable
#endif
  template <typename Group>
  [[nodiscard]] TURNWISE_HOST_DEVICE comparison others(Group const& group, group_total const& total,
                                                       group_member const& one) const {
    if constexpr (MayScale)
      if (total.count > left_out(one).count) return rest_of_group(group, one);
    member_total const first = group.first_turns_of_others(one.trajectory);
    return {first.count == 0 ? 0.0 : first.sum / static_cast<double>(first.count), 1};
  }

#ifdef __CUDACC__
#pragma nv_exec_check_disable
#endif
  /// Mean and deviation of the others, in two passes over them.
  template <typename Group>
  [[nodiscard]] TURNWISE_HOST_DEVICE comparison rest_of_group(Group const& group, group_member const& one) const {
    bool const whole = options.exclude == exclude_policy::trajectory;
    auto const stays = [whole, &one](std::int64_t turn, std::int64_t trajectory) {
      return whole ? trajectory != one.trajectory : turn != one.turn;
    };
    group_total const rest = group.total(stays);
    if (rest.equal()) return {rest.min, 1};
    return {rest.mean(), deviation(group, rest.mean(), rest.count, 1, stays) + options.epsilon};
  }

  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr double advantage(group_total const& total, group_member const& one,
                                                                comparison const& others) const {
    if (others.divisor > 0) return (one.value - others.baseline) / others.divisor;
    member_total const own = left_out(one);
    std::int64_t const rest = total.count - own.count;
    if (rest > 0) return one.value - (total.equal() ? total.min : (total.sum - own.sum) / static_cast<double>(rest));
    return options.singleton == singleton_policy::zero ? 0.0 : one.value;
  }
};

using leave_one_out_policy = leave_one_out_rule<true>;

}  // namespace detail

/// Advantage of each valid turn over the mean return of the others of its group.
///
///     A = G - (sum - own sum) / (n - own n)     sums over the baseline members of the group; own = what is left out
///     exclude = member:     A = G - (sum - G) / (n - 1), for a valid turn that is no member G - sum / n
///     exclude = trajectory: the members of its whole trajectory are left out
///     scale:                A = (G - mean of the others) / (deviation of the others + epsilon), two passes over them
///
/// Also called: RLOO; with group_by::turn, turn-level leave-one-out (TRLOO); with scale, leave-one-out GRPO.
/// @param[in]  groups       group_by::turn for turn-level baselines, group_by::group for prompt-level ones.
/// @param[in]  turn_return  [S] returns (or rewards of single-turn samples).
/// @param[in]  reasons      [S], or empty: all valid and kept. All filters are applied before baselines.
/// @param[out] advantage    [S], unit of turn_return, or none with `scale`; not the same span. 0 where invalid.
/// @throws precondition_error  sizes that differ; a valid turn's return that is not finite or beyond magnitude_limit;
///         members = kept with singleton = keep unless allowed; epsilon negative or not finite; nothing is written.
/// @note  A lone member (no other member, with exclude = trajectory no other trajectory) follows `singleton`.
/// @note  Equal returns of all members give exactly 0. NaN and infinity of invalid turns are not read.
/// @note  scale: fewer than two others, or others that are all equal: undivided.
/// @note  Unbiased for independent trajectories, on-policy, without filters, with membership decided before the action
///        exclude = trajectory, singleton = keep or others, and no scale.
/// @note  Deterministic: the same bits for any order of trajectories and any thread count (see ordered_fold).
/// @par Complexity  O(S) time, no allocation; a lone member under `others` costs the turns of its pool, each turn under
///                  `scale` two passes over its group.
/// @par Reference   Kool et al. 2019; Ahmadian et al. 2024, arXiv:2402.14740; Dr. Kernel, arXiv:2602.05885.
template <real T>
void leave_one_out(grouping const& groups, no_deduce<std::span<T const>> turn_return,
                   no_deduce<std::span<reason_flags const>> reasons, leave_one_out_options const& options,
                   std::span<T> advantage) {
  expects(options.members == baseline_members::valid || options.singleton != singleton_policy::keep ||
              options.allow_kept_with_keep,
          "leave_one_out: members = kept with singleton = keep gives lone survivors their whole return; "
          "choose singleton = zero or others, or set allow_kept_with_keep");
  detail::check_epsilon(options.epsilon, "leave_one_out");
  detail::group_call<T> const call{groups, turn_return, reasons, options.members, options.threads, advantage};
  detail::check_group_call(call, "leave_one_out");
  detail::for_each_group(call, detail::leave_one_out_policy{options});
}

}  // namespace turnwise::advantage
