/// @file
/// What rules on whole groups share: which turns of a group are looked at, and the loop over groups.
#pragma once

#include <turnwise/core/grouping.hpp>
#include <turnwise/core/ordered_sum.hpp>
#include <turnwise/core/parallel_for.hpp>
#include <turnwise/rejection/usable_tokens.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

namespace turnwise::rejection::detail {

/// Totals of the values that a rule looks at.
struct judged_total {
  double sum = 0;
  std::int64_t count = 0;
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
};

/// The values of one group that a rule looks at: of every valid turn, or of the last valid turn of each trajectory.
template <real T>
class judged_values {
 public:
  judged_values(grouping const& groups, std::size_t group, std::span<T const> value,
                std::span<reason_flags const> reasons, scope level)
      : turn_(groups.members(group)),
        trajectory_(groups.trajectories(group)),
        value_(value),
        reasons_(reasons),
        level_(level) {}

  /// Folds step(accumulator, value) in canonical order.
  template <typename Step>
  [[nodiscard]] double fold(Step step) const {
    return ordered_fold(turn_.size(), [&](double sum, std::size_t k) {
      return counts(k) ? step(sum, static_cast<double>(value_[turn(k)])) : sum;
    });
  }
  [[nodiscard]] judged_total total() const {
    judged_total result;
    result.sum = fold([&](double sum, double value) {
      ++result.count;
      result.min = value < result.min ? value : result.min;
      result.max = value > result.max ? value : result.max;
      return sum + value;
    });
    return result;
  }

 private:
  [[nodiscard]] std::size_t turn(std::size_t k) const { return static_cast<std::size_t>(turn_[k]); }
  [[nodiscard]] bool counts(std::size_t k) const {
    if (!is_valid(reasons_[turn(k)])) return false;
    if (level_ == scope::turn) return true;
    for (std::size_t later = k + 1; later < turn_.size() && trajectory_[later] == trajectory_[k]; ++later)
      if (is_valid(reasons_[turn(later)])) return false;
    return true;
  }

  std::span<std::int64_t const> turn_, trajectory_;
  std::span<T const> value_;
  std::span<reason_flags const> reasons_;
  scope level_;
};

/// Sizes, and that every valid turn's value is a number.
template <real T>
void check_group_rule(grouping const& groups, std::span<T const> value, std::span<reason_flags const> reasons,
                      std::string_view function, std::string_view argument) {
  expects_size(function, argument, value.size(), groups.turns(), "turn");
  expects_size(function, "reasons", reasons.size(), groups.turns(), "turn");
  for (std::size_t s = 0; s < value.size(); ++s)
    expects(!is_valid(reasons[s]) || within_limit(value[s]), function, ": ", argument, "[", s, "] = ", value[s],
            " of a valid turn is not finite or beyond the magnitude limit");
}

/// Gives every valid turn of a group the reasons that rule(values of the group) finds.
template <real T, typename Rule>
void apply_group_rule(grouping const& groups, std::span<T const> value, scope level, int threads,
                      std::span<reason_flags> reasons, Rule rule) {
  parallel_for(groups.groups(), 256, threads, [&](std::size_t first, std::size_t last) {
    for (std::size_t g = first; g < last; ++g) {
      reason_flags const found = rule(judged_values<T>{groups, g, value, reasons, level});
      if (found == 0) continue;
      for (std::int64_t const turn : groups.members(g)) {
        auto const s = static_cast<std::size_t>(turn);
        if (is_valid(reasons[s])) reasons[s] |= found;
      }
    }
  });
}

}  // namespace turnwise::rejection::detail
