/// @file
/// Rejects groups whose outcomes or returns hardly differ: they teach nothing.
#pragma once

#include <turnwise/rejection/detail/group_rule.hpp>

#include <cmath>
#include <cstdint>
#include <span>
#include <string_view>

namespace turnwise::rejection {

/// How far apart the values of a group are.
enum class spread_measure : std::uint8_t {
  range,     ///< largest minus smallest
  deviation  ///< sample deviation: the sum of squares is divided by n - 1
};

/// Options of `group_spread`.
struct group_spread_options {
  spread_measure measure = spread_measure::range;  ///< what is compared with the threshold
  /// A spread up to here rejects, inclusive; 0: equal values (deviation: or so near that their squares vanish).
  double threshold = 0;
  scope level = scope::turn;  ///< trajectory: one value a trajectory, that of its last valid turn in the group
  bool keep_lone = true;      ///< groups with a single value, which has no spread; false: rejected (slime)
  int threads = 0;            ///< 0 = the runtime's default
};

namespace detail {

/// `group_spread` if the values of a group hardly differ. Equal values have spread 0 exactly.
#ifdef __CUDACC__
#pragma nv_exec_check_disable  // the host's group is for the host alone
#endif
template <typename Group>
[[nodiscard]] TURNWISE_HOST_DEVICE reason_flags spread_reason(Group const& group, group_spread_options const& options) {
  auto const total = group.total();
  if (total.count < 2) return total.count == 0 || options.keep_lone ? 0 : reason::group_spread;
  double spread = total.max - total.min;
  if (options.measure == spread_measure::deviation && spread > 0) {
    double const mean = total.sum / static_cast<double>(total.count);
    double const squares = group.fold([mean](double sum, double value) {
      double const difference = value - mean;
      using std::fma;
      return fma(difference, difference, sum);
    });
    using std::sqrt;
    spread = sqrt(squares / static_cast<double>(total.count - 1));
  }
  return spread <= options.threshold ? reason::group_spread : 0;
}

inline void check_spread_options(group_spread_options const& options, std::string_view function) {
  expects(options.threshold >= 0 && within_limit(options.threshold), function, ": threshold = ", options.threshold,
          ", expected a number from 0 to 2^500");
}

}  // namespace detail

/// Rejects each group whose values hardly differ, as a whole: reason `group_spread`.
///
///     range:     max - min <= threshold;      deviation: sqrt(sum (value - mean)^2 / (n - 1)) <= threshold
///
/// Give it the outcome to gate on outcomes (a shaped reward differs a little even where every answer fails, and a
/// division by its deviation blows that up), or the return.
/// Also called: dynamic sampling filter (DAPO), zero-variance filter, no-signal filter.
/// @param[in]     groups   group_by::group for whole prompts; group_by::turn judges each turn index on its own.
/// @param[in]     value    [S] outcome, reward or return; those of invalid turns are not read as numbers.
/// @param[in,out] reasons  [S] in which validity is settled; every valid turn of a rejected group gains `group_spread`.
/// @throws precondition_error  sizes that differ; threshold negative or not finite; a valid turn's value that is not
///         finite or beyond magnitude_limit. Nothing is written.
/// @note  Decided on the full group: its valid turns, those rejected by other rules included. Groups without a valid
///        turn are passed over.
/// @note  Code bases disagree on thresholds (0, 1e-6, 1e-3) and on a lone value: verl and SkyRL keep it, slime does
///        not.
/// @note  Deterministic: the same bits in any order of trajectories and on every backend.
/// @par Complexity  O(S) time (level trajectory: times the invalid turns between valid ones), no allocation.
/// @par Reference   DAPO, arXiv:2503.14476.
template <real T>
void group_spread(grouping const& groups, std::span<T const> value, group_spread_options const& options,
                  std::span<reason_flags> reasons) {
  detail::check_spread_options(options, "group_spread");
  detail::check_group_rule(groups, value, reasons, "group_spread", "value");
  detail::apply_group_rule(groups, value, options.level, options.threads, reasons,
                           [&](auto const& group) { return detail::spread_reason(group, options); });
}

}  // namespace turnwise::rejection
