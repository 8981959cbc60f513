/// @file
/// Rejects groups that are solved too often or too rarely.
#pragma once

#include <turnwise/rejection/detail/group_rule.hpp>

#include <span>
#include <string_view>

namespace turnwise::rejection {

/// The defaults are ROLL's difficulty mask, whose bounds are strict.
struct group_accuracy_options {
  double low = 0.1;           ///< mean outcome, inclusive
  double high = 0.95;         ///< mean outcome, inclusive
  scope level = scope::turn;  ///< trajectory: one outcome a trajectory, that of its last valid turn in the group
  int threads = 0;            ///< 0 = the runtime's default
};

namespace detail {

/// `group_accuracy` if the mean is outside the bounds. A quotient, so that low = c / n keeps c of n.
#ifdef __CUDACC__
#pragma nv_exec_check_disable  // the host's group is for the host alone
#endif
template <typename Group>
[[nodiscard]] TURNWISE_HOST_DEVICE reason_flags accuracy_reason(Group const& group,
                                                                group_accuracy_options const& options) {
  auto const total = group.total();
  if (total.count == 0) return 0;
  double const mean = total.min == total.max ? total.min : total.sum / static_cast<double>(total.count);
  return mean >= options.low && mean <= options.high ? 0 : reason::group_accuracy;
}

inline void check_accuracy_options(group_accuracy_options const& options, std::string_view function) {
  expects(options.low <= options.high, function, ": low = ", options.low, " and high = ", options.high,
          ", expected low <= high");
}

}  // namespace detail

/// Rejects each group whose mean outcome is outside [low, high], as a whole: reason `group_accuracy`.
///
///     keep iff low <= mean outcome over the group <= high
///
/// Also called: accuracy filter, difficulty mask, online difficulty filtering, band-pass.
/// @param[in]     groups   group_by::group for whole prompts; group_by::turn judges each turn index on its own.
/// @param[in]     outcome  [S] 1 for a success and 0 for a failure, or any score; invalid turns' are not read as
///                         numbers.
/// @param[in,out] reasons  [S] in which validity is settled; every valid turn of a rejected group gains
///                         `group_accuracy`.
/// @throws precondition_error  sizes that differ; low above high or NaN; a valid turn's outcome that is not finite or
///         beyond magnitude_limit. Nothing is written.
/// @note  Decided on the full group: its valid turns, those rejected by other rules included. At turn level long
///        trajectories weigh more; level trajectory counts each once. Groups without a valid turn are passed over.
/// @note  Constant outcomes between the bounds pass: group_spread catches those.
/// @note  Deterministic: the same bits in any order of trajectories and on every backend.
/// @par Complexity  O(S) time (level trajectory: times the invalid turns between valid ones), no allocation.
/// @par Reference   Bae et al. 2025, "Online difficulty filtering", arXiv:2504.03380.
template <real T>
void group_accuracy(grouping const& groups, std::span<T const> outcome, group_accuracy_options const& options,
                    std::span<reason_flags> reasons) {
  detail::check_accuracy_options(options, "group_accuracy");
  detail::check_group_rule(groups, outcome, reasons, "group_accuracy", "outcome");
  detail::apply_group_rule(groups, outcome, options.level, options.threads, reasons,
                           [&](auto const& group) { return detail::accuracy_reason(group, options); });
}

}  // namespace turnwise::rejection
