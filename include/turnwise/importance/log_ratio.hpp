/// @file
/// The log ratio of one token, and its exact grid: how sums over tokens come out the same in any order.
#pragma once

#include <turnwise/core/concepts.hpp>

#include <bit>
#include <concepts>
#include <cstdint>

namespace turnwise::importance {

/// Log ratios are clamped to +-64 before they are summed.
inline constexpr double log_ratio_limit = 64.0;

/// Sums of log ratios are integers in units of 2^-24.
inline constexpr double log_ratio_unit = 0x1p-24;

/// d = old - rollout: one IEEE subtraction in float, or in double when either is double.
#ifdef __CUDACC__
#pragma nv_exec_check_disable  // a half type of the user may convert on the host alone
#endif
template <logprob_value Old, logprob_value Rollout>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr log_ratio_t<Old, Rollout> log_ratio(Old old_logprob,
                                                                                 Rollout rollout_logprob) noexcept {
  using wide = log_ratio_t<Old, Rollout>;
  return static_cast<wide>(old_logprob) - static_cast<wide>(rollout_logprob);
}

/// Neither NaN nor infinite.
template <real T>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr bool is_finite(T value) noexcept {
  return value <= largest<T> && value >= -largest<T>;
}

/// Outside +-log_ratio_limit.
template <real T>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr bool is_saturated(T d) noexcept {
  return d > static_cast<T>(log_ratio_limit) || d < static_cast<T>(-log_ratio_limit);
}

/// A log-prob as sums of log-probs take it: within magnitude_limit, which only doubles can leave, so that no sum
/// overflows.
template <real T>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr double bounded_logprob(T value) noexcept {
  if constexpr (std::same_as<T, float>) return static_cast<double>(value);
  double const limit = magnitude_limit<double>;
  double const wide = static_cast<double>(value);
  return wide < -limit ? -limit : wide > limit ? limit : wide;
}

namespace detail {

/// Adding this rounds a double to the grid 2^-24 (to nearest, ties to even); the grid index is then the difference of
/// the bit patterns.
inline constexpr double grid_shift = 0x1.8p28;
inline constexpr std::uint64_t grid_shift_bits = std::bit_cast<std::uint64_t>(grid_shift);

}  // namespace detail

/// A finite log ratio as an integer in units of 2^-24: clamped to +-64, rounded to nearest, ties to even. Exact sums of
/// these do not depend on order below 2^33 tokens.
template <real T>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr std::int64_t log_ratio_index(T d) noexcept {
  double const wide = static_cast<double>(d);
  double const clamped = wide < -log_ratio_limit ? -log_ratio_limit : wide > log_ratio_limit ? log_ratio_limit : wide;
  return static_cast<std::int64_t>(__builtin_bit_cast(std::uint64_t, clamped + detail::grid_shift) -
                                   detail::grid_shift_bits);
}

namespace detail {

/// The bits of a double, and back; for the host's vectors of doubles too.
template <typename Float>
struct bits_of {
  using type = std::uint64_t;
  static constexpr TURNWISE_HOST_DEVICE type get(Float value) noexcept { return __builtin_bit_cast(type, value); }
  static constexpr TURNWISE_HOST_DEVICE Float put(type bits) noexcept { return __builtin_bit_cast(Float, bits); }
};

/// Cuts a double to its leading `53 - Bits` bits, so that products with it can be exact.
template <int Bits, typename Float>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr Float cut(Float value) noexcept {
  return bits_of<Float>::put(bits_of<Float>::get(value) & ~((std::uint64_t{1} << Bits) - 1));
}

}  // namespace detail

/// k3 = e^d - 1 - d of a token, and e^d - 1.
template <typename Float>
struct ratio_excess {
  Float k3;      ///< at least 0
  Float excess;  ///< its square is not exact: keep it apart from sums
};

/// Log ratios up to here have k = 0 below.
inline constexpr double small_log_ratio = 0.25;

/// k3 and ratio - 1 of a log ratio, from nothing but exact products and IEEE sums: no compiler can change a bit by
/// contracting a product with a sum, so every build and backend agrees.
///
///     d = k ln 2 + r;  e^r - 1 - r = r^2 q(r);  k3 = 2^k r^2 q(r) + (2^k r + (2^k - 1) - d)
///
/// @tparam Small  d is within +-small_log_ratio: the same bits in less time.
/// @param d  on the grid 2^-24 and within +-64; a double or a vector of doubles.
/// @note  Error below 1e-7 k3 (k3) and 2e-8 max(1, ratio) (ratio).
template <bool Small = false, typename Float>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr ratio_excess<Float> excess_of(Float d) noexcept {
  using bits = detail::bits_of<Float>;
  // Each product below that feeds a sum has factors of at most 53 bits together (d 31 and log2(e) 22, k 7 and ln 2 46,
  // r 27 and a coefficient 26, q and y 26 each) or a power of two; the others add 0, which rounds alike in one step or
  // two.
  constexpr double log2_e = 0x1.715478p0;
  constexpr double ln_2 = 0x1.62e42fefa3ap-1;
  constexpr double integer_shift = 0x1.8p52;
  Float const shifted = d * log2_e + integer_shift;
  Float const k = shifted - integer_shift;
  Float const r = Small ? d : detail::cut<26>(d - k * ln_2);

  // Polynomial of degree 5 for q(r) = (e^r - 1 - r) / r^2 on |r| < 0.347.
  constexpr double unit = 0x1p-26;
  Float const square = r * r;
  Float const y = detail::cut<27>(square);
  Float q = r * (13354 * unit) + 93507 * unit;
  q = detail::cut<27>(q) * y + (r * (559238 * unit) + 2796189 * unit);
  q = detail::cut<27>(q) * y + (r * (11184811 * unit) + 33554432 * unit);
  Float const tail = square * q + 0.0;
  if constexpr (Small) return {tail, d + tail};

  Float const scale = bits::put((bits::get(shifted) << 52) + (std::uint64_t{1023} << 52));
  Float const k3 = scale * tail + ((scale * r + (scale - 1.0)) - d);
  return {k3, d + k3};
}

}  // namespace turnwise::importance
