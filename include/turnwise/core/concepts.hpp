/// @file
/// The number types that the library takes.
#pragma once

#include <turnwise/core/config.hpp>

#include <concepts>
#include <cstddef>
#include <limits>
#include <type_traits>

namespace turnwise {

/// Type of rewards, returns and advantages. Arithmetic inside is always double.
template <typename T>
concept real = std::same_as<T, float> || std::same_as<T, double>;

/// Type of a log-probability: double, or any floating-point type that converts exactly to float (float itself, and the
/// half and bfloat16 types of Eigen, of the CUDA toolkit or of the user).
template <typename T>
concept logprob_value = real<T> ||(sizeof(T) <= 2 && !std::integral<T> && !std::is_enum_v<T> &&
                                   requires(T const value) { static_cast<float>(value); });

/// The type in which a log ratio of two log-prob types is formed: double when either is double, else float.
template <logprob_value A, logprob_value B>
using log_ratio_t = std::conditional_t<std::same_as<A, double> || std::same_as<B, double>, double, float>;

/// Keeps a parameter out of template argument deduction, so that vectors and arrays convert to its span.
template <typename T>
using no_deduce = std::type_identity_t<T>;

/// Largest finite number.
template <real T>
inline constexpr T largest = std::numeric_limits<T>::max();

/// Largest magnitude of a reward or return: 2^100 for float and 2^500 for double, so that no sum, difference or square
/// over a batch can overflow.
template <real T>
inline constexpr double magnitude_limit = std::same_as<T, float> ? 0x1p100 : 0x1p500;

/// A result as T; what is beyond T's range becomes its largest number, never an infinity.
template <real T>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr T narrowed(double value) noexcept {
  return value > largest<T> ? largest<T> : value < -largest<T> ? -largest<T> : static_cast<T>(value);
}

/// True for finite numbers within magnitude_limit; false for NaN.
template <real T>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr bool within_limit(T value) noexcept {
  double const wide = static_cast<double>(value);
  return wide <= magnitude_limit<T> && wide >= -magnitude_limit<T>;
}

}  // namespace turnwise
