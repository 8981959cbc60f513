/// @file
/// What a policy of the group driver can ask a group: totals, folds, order. All of it is exact or folded in canonical
/// order, so that a policy gives the same bits here and on the device (warp_group).
#pragma once

#include <turnwise/advantage/baseline_members.hpp>
#include <turnwise/core/concepts.hpp>
#include <turnwise/core/grouping.hpp>
#include <turnwise/core/ordered_sum.hpp>
#include <turnwise/core/reason.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace turnwise::advantage {
namespace detail {

/// Sum and number of baseline members.
struct member_total {
  double sum = 0;
  std::int64_t count = 0;
};

/// Totals of a group's baseline members, with their range.
struct group_total {
  double sum = 0;
  std::int64_t count = 0;
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();

  /// All members have one value; then it is the mean, exactly.
  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr bool equal() const noexcept { return count > 0 && min == max; }
  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr double mean() const noexcept {
    return equal() ? min : sum / static_cast<double>(count);
  }
};

/// How a pivot parts numbers.
struct member_split {
  std::int64_t not_above = 0;                                       ///< how many are at most the pivot
  double largest = -std::numeric_limits<double>::infinity();        ///< of those
  double smallest_above = std::numeric_limits<double>::infinity();  ///< of the others

  TURNWISE_HOST_DEVICE constexpr void add(double value, double pivot) noexcept {
    if (value <= pivot) {
      ++not_above;
      largest = value > largest ? value : largest;
    } else {
      smallest_above = value < smallest_above ? value : smallest_above;
    }
  }
};

/// Baseline members in ascending order, with a running sum over them.
struct ranked_members {
  double const* value = nullptr;
  double const* sum = nullptr;
  std::int64_t count = 0;

  /// How many are less than `bound`.
  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr std::int64_t below(double bound) const noexcept {
    std::int64_t first = 0;
    for (std::int64_t last = count; first < last;) {
      std::int64_t const middle = first + (last - first) / 2;
      if (value[middle] < bound)
        first = middle + 1;
      else
        last = middle;
    }
    return first;
  }
};

/// sum[q] = sum over p in [1, q] of (value[p] - value[p - 1]) * weight[p]; `sum` holds the weights before.
TURNWISE_HOST_DEVICE inline void sum_gaps(double const* value, std::int64_t count, double* sum) noexcept {
  using std::fma;
  double total = 0;
  for (std::int64_t q = 0; q < count; ++q) {
    if (q > 0) total = fma(value[q] - value[q - 1], sum[q], total);
    sum[q] = total;
  }
}

/// Which baseline members a fold takes: all, or those for which another such function of (turn, trajectory) holds.
struct every_member {
  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr bool operator()(std::int64_t, std::int64_t) const noexcept {
    return true;
  }
};

/// The arguments of a group-wise advantage.
template <real T>
struct group_call {
  grouping const& groups;
  std::span<T const> turn_return;
  std::span<reason_flags const> reasons;
  baseline_members members;
  int threads;
  std::span<T> advantage;
  std::span<double const> weight{};  ///< [S], or empty: the policy takes none
  std::span<double> scratch{};       ///< [2 S] for group_values::ranked, or empty: the policy does not call it
};

/// What a policy sees of one group.
template <real T>
class group_values {
 public:
  group_values(group_call<T> const& call, std::size_t group)
      : call_(call),
        group_(group),
        turns_(call.groups.members(group)),
        trajectories_(call.groups.trajectories(group)) {}

  [[nodiscard]] bool valid(std::int64_t turn) const { return call_.reasons.empty() || is_valid(flags(turn)); }
  [[nodiscard]] bool member(std::int64_t turn) const {
    if (call_.reasons.empty()) return true;
    return call_.members == baseline_members::valid ? is_valid(flags(turn)) : is_kept(flags(turn));
  }
  [[nodiscard]] double value(std::int64_t turn) const {
    return static_cast<double>(call_.turn_return[static_cast<std::size_t>(turn)]);
  }
  [[nodiscard]] std::span<std::int64_t const> turns() const { return turns_; }
  [[nodiscard]] std::span<std::int64_t const> trajectories() const { return trajectories_; }

  /// Folds step(accumulator, value) over baseline members in canonical order.
  template <typename Step, typename Counts = every_member>
  [[nodiscard]] double fold(Step step, Counts counts = {}) const {
    return ordered_fold(turns_.size(), [&](double sum, std::size_t k) {
      std::int64_t const turn = turns_[k];
      return member(turn) && counts(turn, trajectories_[k]) ? step(sum, value(turn)) : sum;
    });
  }

  /// Adds item(value, weight) over the baseline members in canonical order.
  template <typename Item>
  [[nodiscard]] double weighted_sum(Item item) const {
    return ordered_fold(turns_.size(), [&](double sum, std::size_t k) {
      std::int64_t const turn = turns_[k];
      return member(turn) ? sum + item(value(turn), weight(turn)) : sum;
    });
  }

  template <typename Counts = every_member>
  [[nodiscard]] group_total total(Counts counts = {}) const {
    group_total result;
    result.sum = fold(
        [&](double sum, double value) {
          ++result.count;
          result.min = value < result.min ? value : result.min;
          result.max = value > result.max ? value : result.max;
          return sum + value;
        },
        counts);
    return result;
  }

  /// The total of the baseline members that have a weight above 0.
  [[nodiscard]] group_total weighted_total() const {
    return total([this](std::int64_t turn, std::int64_t) { return weight(turn) > 0; });
  }

  /// How many baseline members have a value for which `wanted` holds.
  template <typename Wanted>
  [[nodiscard]] std::int64_t count(Wanted wanted) const {
    std::int64_t result = 0;
    for (std::int64_t const turn : turns_) result += member(turn) && wanted(value(turn));
    return result;
  }

  /// How `pivot` parts f(value) of the baseline members.
  template <typename Function>
  [[nodiscard]] member_split split(Function f, double pivot) const {
    member_split result;
    for (std::int64_t const turn : turns_)
      if (member(turn)) result.add(f(value(turn)), pivot);
    return result;
  }

  /// The baseline members in ascending order, and the running sum of the gaps between them (see sum_gaps), each times
  /// weight(how many members are below it). Needs scratch.
  template <typename Weight>
  [[nodiscard]] ranked_members ranked(Weight weight) const {
    double* const values = call_.scratch.data() + (turns_.data() - call_.groups.order().data());
    double* const sums = values + call_.groups.turns();
    std::int64_t count = 0;
    for (std::int64_t const turn : turns_)
      if (member(turn)) values[count++] = value(turn) + 0.0;  // one zero, so that equal values have the same bits
    std::sort(values, values + count);
    for (std::int64_t q = 0; q < count; ++q) sums[q] = q > 0 && values[q] > values[q - 1] ? weight(q) : 0.0;
    sum_gaps(values, count, sums);
    return {values, sums, count};
  }

  /// First member turn of each trajectory of the pool but one, in canonical order.
  [[nodiscard]] member_total first_turns_of_others(std::int64_t trajectory) const {
    member_total result;
    auto const pool = call_.groups.pool(group_);
    result.sum = ordered_fold(pool.size(), [&](double sum, std::size_t k) {
      if (pool[k] == trajectory) return sum;
      auto const [first, last] = call_.groups.turns_of(pool[k]);
      for (std::size_t s = first; s < last; ++s) {
        if (!member(static_cast<std::int64_t>(s))) continue;
        ++result.count;
        return sum + value(static_cast<std::int64_t>(s));
      }
      return sum;
    });
    return result;
  }

 private:
  [[nodiscard]] double weight(std::int64_t turn) const { return call_.weight[static_cast<std::size_t>(turn)]; }
  [[nodiscard]] reason_flags flags(std::int64_t turn) const { return call_.reasons[static_cast<std::size_t>(turn)]; }

  group_call<T> call_;
  std::size_t group_;
  std::span<std::int64_t const> turns_, trajectories_;
};

#ifdef __CUDACC__
#pragma nv_exec_check_disable  // the host's group is for the host alone
#endif
/// Deviation of `count` baseline members from their mean, the sum of squares divided by count - ddof: the second pass.
template <typename Group, typename Counts = every_member>
[[nodiscard]] TURNWISE_HOST_DEVICE double deviation(Group const& group, double mean, std::int64_t count, int ddof,
                                                    Counts counts = {}) {
  double const squares = group.fold(
      [mean](double sum, double value) {
        double const difference = value - mean;
        using std::fma;
        return fma(difference, difference, sum);
      },
      counts);
  using std::sqrt;
  return sqrt(squares / static_cast<double>(count - ddof));
}

}  // namespace detail
}  // namespace turnwise::advantage
