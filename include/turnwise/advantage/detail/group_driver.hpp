/// @file
/// The loop that every group-wise advantage runs in. A method is a small policy:
///
///     state prepare(group) const;                   // once a group
///     bool needs_others(state, one) const;          // once a valid turn: look into the pool?
///     double advantage(state, one, others) const;   // once a valid turn
#pragma once

#include <turnwise/core/concepts.hpp>
#include <turnwise/core/grouping.hpp>
#include <turnwise/core/ordered_sum.hpp>
#include <turnwise/core/parallel_for.hpp>
#include <turnwise/core/reason.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string_view>

namespace turnwise::advantage {

/// Which turns form a baseline: all valid ones (as published), or those kept by every filter.
enum class baseline_members : std::uint8_t { valid, kept };

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

/// What a policy sees of one group.
template <real T>
class group_values {
 public:
  group_values(grouping const& groups, std::size_t group, std::span<T const> returns,
               std::span<reason_flags const> reasons, baseline_members members)
      : groups_(groups), group_(group), returns_(returns), reasons_(reasons), members_(members) {}

  [[nodiscard]] bool valid(std::int64_t turn) const { return reasons_.empty() || is_valid(flags(turn)); }
  [[nodiscard]] bool member(std::int64_t turn) const {
    if (reasons_.empty()) return true;
    return members_ == baseline_members::valid ? is_valid(flags(turn)) : is_kept(flags(turn));
  }
  [[nodiscard]] double value(std::int64_t turn) const {
    return static_cast<double>(returns_[static_cast<std::size_t>(turn)]);
  }
  [[nodiscard]] std::span<std::int64_t const> turns() const { return groups_.members(group_); }
  [[nodiscard]] std::span<std::int64_t const> trajectories() const { return groups_.trajectories(group_); }

  /// Folds step(accumulator, value) over the baseline members in canonical order.
  template <typename Step>
  [[nodiscard]] double fold(Step step) const {
    auto const turn = turns();
    return ordered_fold(turn.size(),
                        [&](double sum, std::size_t k) { return member(turn[k]) ? step(sum, value(turn[k])) : sum; });
  }

  [[nodiscard]] group_total total() const {
    group_total result;
    result.sum = fold([&](double sum, double value) {
      ++result.count;
      result.min = value < result.min ? value : result.min;
      result.max = value > result.max ? value : result.max;
      return sum + value;
    });
    return result;
  }

  /// First member turn of each trajectory of the pool but one, in canonical order.
  [[nodiscard]] member_total first_turns_of_others(std::int64_t trajectory) const {
    member_total result;
    auto const pool = groups_.pool(group_);
    result.sum = ordered_fold(pool.size(), [&](double sum, std::size_t k) {
      if (pool[k] == trajectory) return sum;
      auto const [first, last] = groups_.turns_of(pool[k]);
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
  [[nodiscard]] reason_flags flags(std::int64_t turn) const { return reasons_[static_cast<std::size_t>(turn)]; }

  grouping const& groups_;
  std::size_t group_;
  std::span<T const> returns_;
  std::span<reason_flags const> reasons_;
  baseline_members members_;
};

/// The turn that an advantage is computed for.
struct group_member {
  double value;      ///< its return
  bool is_member;    ///< takes part in the baseline
  member_total own;  ///< the baseline members of its trajectory in this group
};

template <real T>
void check_group_call(grouping const& groups, std::span<T const> returns, std::span<reason_flags const> reasons,
                      std::span<T> advantage, std::string_view function) {
  expects_size(function, "turn_return", returns.size(), groups.turns(), "turn");
  if (!reasons.empty()) expects_size(function, "reasons", reasons.size(), groups.turns(), "turn");
  expects_size(function, "advantage", advantage.size(), groups.turns(), "turn");
  std::less_equal<T const*> const not_after;  // unlike <=, for any two pointers
  expects(advantage.empty() || not_after(returns.data() + returns.size(), advantage.data()) ||
              not_after(advantage.data() + advantage.size(), returns.data()),
          function, ": advantage must not overlap turn_return");
  for (std::size_t s = 0; s < returns.size(); ++s)
    expects((!reasons.empty() && !is_valid(reasons[s])) || within_limit(returns[s]), function, ": turn_return[", s,
            "] = ", returns[s], " of a valid turn is not finite or beyond the magnitude limit");
}

/// Runs a policy over all groups; invalid turns get 0. Arguments are checked by check_group_call.
template <real T, typename Policy>
void for_each_group(grouping const& groups, std::span<T const> returns, std::span<reason_flags const> reasons,
                    baseline_members members, int threads, Policy const& policy, std::span<T> advantage) {
  auto const write_group = [&](std::size_t g) {
    group_values<T> const group{groups, g, returns, reasons, members};
    auto const turn = group.turns();
    auto const trajectory = group.trajectories();
    auto const state = policy.prepare(group);
    for (std::size_t first = 0, last = 0; first < turn.size(); first = last) {
      member_total own;
      for (; last < turn.size() && trajectory[last] == trajectory[first]; ++last) {
        if (!group.member(turn[last])) continue;
        own.sum += group.value(turn[last]);
        ++own.count;
      }
      for (std::size_t k = first; k < last; ++k) {
        double result = 0;
        if (group.valid(turn[k])) {
          group_member const one{group.value(turn[k]), group.member(turn[k]), own};
          bool const looks = policy.needs_others(state, one);
          result = policy.advantage(state, one, looks ? group.first_turns_of_others(trajectory[k]) : member_total{});
        }
        advantage[static_cast<std::size_t>(turn[k])] = narrowed<T>(result);
      }
    }
  };
  std::size_t const average = groups.groups() == 0 ? 1 : groups.turns() / groups.groups() + 1;
  parallel_for(groups.groups(), 8192 / average, threads, [&](std::size_t first, std::size_t last) {
    for (std::size_t g = first; g < last; ++g) write_group(g);
  });
}

}  // namespace detail
}  // namespace turnwise::advantage
