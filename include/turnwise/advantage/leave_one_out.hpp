/// @file
/// Advantage over the mean of the others.
#pragma once

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

struct leave_one_out_options {
  singleton_policy singleton = singleton_policy::keep;
  exclude_policy exclude = exclude_policy::trajectory;
  baseline_members members = baseline_members::valid;
  /// `kept` members make lone members common, and `keep` then gives them their whole return: a caller who wants that
  /// says so.
  bool allow_kept_with_keep = false;
  int threads = 0;  ///< 0 = the runtime's default
};

namespace detail {

struct leave_one_out_policy {
  leave_one_out_options options;

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

  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr bool needs_others(group_total const& total,
                                                                 group_member const& one) const {
    return options.singleton == singleton_policy::others && total.count == left_out(one).count;
  }

  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr double advantage(group_total const& total, group_member const& one,
                                                                member_total const& others) const {
    member_total const own = left_out(one);
    std::int64_t const rest = total.count - own.count;
    if (rest > 0) return one.value - (total.equal() ? total.min : (total.sum - own.sum) / static_cast<double>(rest));
    if (options.singleton == singleton_policy::zero) return 0.0;
    return others.count == 0 ? one.value : one.value - others.sum / static_cast<double>(others.count);
  }
};

}  // namespace detail

/// Advantage of each valid turn over the mean return of the others of its group.
///
///     A = G - (sum - own sum) / (n - own n)     sums over the baseline members of the group; own = what is left out
///     exclude = member:     A = G - (sum - G) / (n - 1), for a valid turn that is no member G - sum / n
///     exclude = trajectory: the members of its whole trajectory are left out
///
/// Also called: RLOO; with group_by::turn, turn-level leave-one-out (TRLOO).
/// @param[in]  groups       group_by::turn for turn-level baselines, group_by::group for prompt-level ones.
/// @param[in]  turn_return  [S] returns (or rewards of single-turn samples).
/// @param[in]  reasons      [S], or empty: all valid and kept. All filters are applied before baselines.
/// @param[out] advantage    [S], unit of turn_return; not the same span. 0 where the turn is invalid.
/// @throws precondition_error  sizes that differ; a valid turn's return that is not finite or beyond magnitude_limit;
///         members = kept with singleton = keep unless allowed; nothing is written.
/// @note  A lone member (no other member, with exclude = trajectory no other trajectory) follows `singleton`.
/// @note  Equal returns of all members give exactly 0. NaN and infinity of invalid turns are not read.
/// @note  Unbiased for independent trajectories, on-policy, without filters, with membership decided before the action
///        and exclude = trajectory, singleton = keep or others.
/// @note  Deterministic: the same bits for any order of trajectories and any thread count (see ordered_fold).
/// @par Complexity  O(S) time, no allocation; a lone member under `others` costs the turns of its pool.
/// @par Reference   Kool et al. 2019; Ahmadian et al. 2024, arXiv:2402.14740; Dr. Kernel, arXiv:2602.05885.
template <real T>
void leave_one_out(grouping const& groups, no_deduce<std::span<T const>> turn_return,
                   no_deduce<std::span<reason_flags const>> reasons, leave_one_out_options const& options,
                   std::span<T> advantage) {
  expects(options.members == baseline_members::valid || options.singleton != singleton_policy::keep ||
              options.allow_kept_with_keep,
          "leave_one_out: members = kept with singleton = keep gives lone survivors their whole return; "
          "choose singleton = zero or others, or set allow_kept_with_keep");
  detail::check_group_call(groups, turn_return, reasons, advantage, "leave_one_out");
  detail::for_each_group(groups, turn_return, reasons, options.members, options.threads,
                         detail::leave_one_out_policy{options}, advantage);
}

}  // namespace turnwise::advantage
