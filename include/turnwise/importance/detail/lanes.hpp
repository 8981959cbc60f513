/// @file
/// Eight tokens at a time, in the vector types of GCC and Clang: they compile to whatever the target has.
#pragma once

#include <turnwise/core/concepts.hpp>
#include <turnwise/importance/log_ratio.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace turnwise::importance::detail {

inline constexpr std::size_t lanes = 8;

using float_lanes [[gnu::vector_size(4 * lanes)]] = float;
using double_lanes [[gnu::vector_size(8 * lanes)]] = double;
using int32_lanes [[gnu::vector_size(4 * lanes)]] = std::int32_t;
using int64_lanes [[gnu::vector_size(8 * lanes)]] = std::int64_t;
using uint64_lanes [[gnu::vector_size(8 * lanes)]] = std::uint64_t;

/// The vector types that go with log ratios of type T.
template <real T>
struct lanes_of;
template <>
struct lanes_of<float> {
  using values = float_lanes;
  using keys = int32_lanes;
};
template <>
struct lanes_of<double> {
  using values = double_lanes;
  using keys = int64_lanes;
};

template <>
struct bits_of<double_lanes> {
  using type = uint64_lanes;
  static type get(double_lanes value) noexcept { return reinterpret_cast<type>(value); }
  static double_lanes put(type bits) noexcept { return reinterpret_cast<double_lanes>(bits); }
};

/// Eight log-probs as T.
template <real T, logprob Value>
[[gnu::always_inline]] inline typename lanes_of<T>::values load(Value const* from) noexcept {
  typename lanes_of<T>::values result;
  if constexpr (std::same_as<T, Value>)
    std::memcpy(&result, from, sizeof result);
  else
    for (std::size_t l = 0; l < lanes; ++l) result[l] = static_cast<T>(from[l]);
  return result;
}

}  // namespace turnwise::importance::detail
