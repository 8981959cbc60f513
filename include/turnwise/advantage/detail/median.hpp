/// @file
/// Order statistics of a group by counting, without a sort: exact, so the same bits on host and device.
#pragma once

#include <turnwise/advantage/detail/group_values.hpp>

#include <cstdint>
#include <limits>

namespace turnwise::advantage::detail {

/// The bits of -0: the sign.
inline constexpr std::int64_t sign_bit = std::numeric_limits<std::int64_t>::min();

/// Integers in the order of the numbers; both zeros have 0.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr std::int64_t ordered_key(double value) noexcept {
  auto const bits = __builtin_bit_cast(std::int64_t, value);
  return bits >= 0 ? bits : sign_bit - bits;
}
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr double number_of_key(std::int64_t key) noexcept {
  return __builtin_bit_cast(double, key >= 0 ? key : sign_bit - key);
}

/// The number halfway between two in that order: at least low, less than high.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr double halfway(double low, double high) noexcept {
  std::int64_t const a = ordered_key(low);
  std::int64_t const b = ordered_key(high);
  return number_of_key((a & b) + ((a ^ b) >> 1));
}

#ifdef __CUDACC__
#pragma nv_exec_check_disable  // the host's group is for the host alone
#endif
/// Median of f(value) over the `count` > 0 baseline members, which lie in [low, high]: the mean of the two middle ones
/// where count is even.
///
/// Halves the range until one value is left, at most 64 times; about log2(count) times for values that spread.
template <typename Group, typename Function>
[[nodiscard]] TURNWISE_HOST_DEVICE double median(Group const& group, Function f, std::int64_t count, double low,
                                                 double high) {
  std::int64_t const lower_middle = (count - 1) / 2;
  while (low < high) {
    double const pivot = halfway(low, high);
    member_split const parts = group.split(f, pivot);
    if (lower_middle < parts.not_above)
      high = parts.largest;
    else
      low = parts.smallest_above;
  }
  low += 0.0;  // of the two zeros always the same one
  if (count % 2 != 0) return low;
  member_split const parts = group.split(f, low);
  return count / 2 < parts.not_above ? low : 0.5 * (low + parts.smallest_above) + 0.0;
}

}  // namespace turnwise::advantage::detail
