/// @file
/// Sums of doubles that come out the same on every backend and with any number of threads.
#pragma once

#include <turnwise/core/config.hpp>

#include <array>
#include <cstddef>

namespace turnwise {

/// How many partial sums a fold over n elements keeps: 1 up to 32 elements, then 32, then 1024.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr std::size_t fold_lanes(std::size_t n) noexcept {
  return n <= 32 ? 1 : n <= 4096 ? 32 : 1024;
}

namespace detail {

template <std::size_t Lanes, typename Step>
double folded(std::size_t n, Step& step) {
  std::array<double, Lanes> lane{};
  for (std::size_t i = 0; i < n; ++i) lane[i % Lanes] = step(lane[i % Lanes], i);
  for (std::size_t half = Lanes / 2; half > 0; half /= 2)
    for (std::size_t l = 0; l < half; ++l) lane[l] += lane[l + half];
  return lane[0];
}

}  // namespace detail

/// Folds step(accumulator, i) over i in [0, n) in one fixed order, from 0.
///
/// Element i goes to lane i mod L, L = fold_lanes(n); each lane is folded in order, then the lanes are added as a
/// binary tree (lane l += lane l + half). A step that multiplies writes std::fma, so that no compiler can contract it
/// differently. The device twin follows the same order.
template <typename Step>
[[nodiscard]] double ordered_fold(std::size_t n, Step step) {
  switch (fold_lanes(n)) {
    case 1:
      return detail::folded<1>(n, step);
    case 32:
      return detail::folded<32>(n, step);
    default:
      return detail::folded<1024>(n, step);
  }
}

/// Adds value(i) over i in [0, n) in the order of ordered_fold.
template <typename Value>
[[nodiscard]] double ordered_sum(std::size_t n, Value value) {
  return ordered_fold(n, [&](double sum, std::size_t i) { return sum + value(i); });
}

}  // namespace turnwise
