/// @file
/// Sums of doubles without rounding: the same whatever the order, the split into parts and the backend.
#pragma once

#include <turnwise/core/config.hpp>

#include <cmath>
#include <cstdint>

namespace turnwise {

/// A sum of doubles held exactly, as digits of base 2^32 over the whole range of a double; zero at the start.
///
///     sum = (digit[0] + digit[1] 2^32 + digit[2] 2^64 + ...) 2^-1074
///
/// Digits are signed 64-bit integers that do not carry into each other until carry() is called, so adding is adding
/// integers: sums may be joined by threads, atomics and ranks (an all-reduce of `digits` integers) in any order.
/// Also called: superaccumulator, long accumulator, reproducible sum.
/// @note  A digit has room for most_adds adds of either kind between two carries. A sum that was carried counts as one
///        add where it is joined with others. Beyond that it wraps around.
/// @note  Signed zeros: an exact 0 is +0. A NaN or infinity is left out: callers check their values.
/// @par Complexity  three integer additions a value (add_times: up to twelve), no allocation.
/// @par Reference   Kulisch and Miranker 1981; Neal 2015, arXiv:1505.05571.
struct exact_sum {
  /// 2046 positions of the lowest bit, 53 bits, and 63 more for the times a value is added.
  static constexpr int digits = 68;
  /// Adds that fit between two carries: each changes a digit by less than 2^34.
  static constexpr std::int64_t most_adds = std::int64_t{1} << 29;

  std::int64_t digit[digits]{};  ///< of base 2^32, lowest first

  /// Adds a finite number.
  TURNWISE_HOST_DEVICE constexpr void add(double value) noexcept {
    split(value, 1, [this](int i, std::int64_t amount) { digit[i] += amount; });
  }
  /// Adds a finite number `times` times, times >= 0.
  TURNWISE_HOST_DEVICE constexpr void add_times(double value, std::int64_t times) noexcept {
    split(value, times, [this](int i, std::int64_t amount) { digit[i] += amount; });
  }
  TURNWISE_HOST_DEVICE constexpr exact_sum& operator+=(exact_sum const& other) noexcept {
    for (int i = 0; i < digits; ++i) digit[i] += other.digit[i];
    return *this;
  }
  friend constexpr bool operator==(exact_sum const&, exact_sum const&) = default;

  /// Brings all digits but the last into [0, 2^32); the sum stays. Equal sums then have equal digits.
  TURNWISE_HOST_DEVICE constexpr void carry() noexcept {
    for (int i = 0; i + 1 < digits; ++i) {
      std::int64_t const over = digit[i] >> 32;
      digit[i] &= 0xffffffff;
      digit[i + 1] += over;
    }
  }

  /// The sum, rounded once to the nearest double (ties to even); infinite beyond the largest.
  [[nodiscard]] TURNWISE_HOST_DEVICE double value() const noexcept { return quotient(1); }
  /// The sum divided by a positive integer, rounded once: n equal values have exactly that value as mean.
  [[nodiscard]] TURNWISE_HOST_DEVICE double quotient(std::int64_t divisor) const noexcept;

  /// Calls add_to(i, amount) for the digits that value * times changes; for accumulators in other memory.
#ifdef __CUDACC__
#pragma nv_exec_check_disable  // add_to may be for the device alone
#endif
  template <typename AddTo>
  static TURNWISE_HOST_DEVICE constexpr void split(double value, std::int64_t times, AddTo add_to) noexcept {
    auto const bits = __builtin_bit_cast(std::uint64_t, value);
    auto const exponent = static_cast<int>(bits >> 52 & 0x7ff);
    std::uint64_t const fraction = bits & ((std::uint64_t{1} << 52) - 1);
    if (exponent == 0x7ff || (exponent == 0 && fraction == 0)) return;
    std::uint64_t const mantissa = exponent == 0 ? fraction : fraction | std::uint64_t{1} << 52;
    int const position = exponent == 0 ? 0 : exponent - 1;  // of the lowest bit, from 2^-1074
    bool const negative = bits >> 63 != 0;
    if (times == 1) return add_shifted(mantissa, position, negative, add_to);
    // Half words of both factors: each product fits 64 bits.
    auto const count = static_cast<std::uint64_t>(times);
    for (int i = 0; i < 2; ++i)
      for (int k = 0; k < 2; ++k) {
        std::uint64_t const product = (mantissa >> 32 * i & 0xffffffff) * (count >> 32 * k & 0xffffffff);
        if (product != 0) add_shifted(product, position + 32 * (i + k), negative, add_to);
      }
  }

 private:
#ifdef __CUDACC__
#pragma nv_exec_check_disable
#endif
  template <typename AddTo>
  static TURNWISE_HOST_DEVICE constexpr void add_shifted(std::uint64_t number, int position, bool negative,
                                                         AddTo add_to) noexcept {
    int const shift = position % 32;
    std::uint64_t const low = number << shift;
    std::uint64_t const high = shift == 0 ? 0 : number >> (64 - shift);
    std::int64_t const sign = negative ? -1 : 1;
    add_to(position / 32, sign * static_cast<std::int64_t>(low & 0xffffffff));
    add_to(position / 32 + 1, sign * static_cast<std::int64_t>(low >> 32));
    add_to(position / 32 + 2, sign * static_cast<std::int64_t>(high));
  }

  /// Bit `i` of a sum that is carried and not negative; the last digit has up to 63.
  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr std::uint64_t bit(int i) const noexcept {
    int const at = i / 32 < digits - 1 ? i / 32 : digits - 1;
    return static_cast<std::uint64_t>(digit[at]) >> (i - 32 * at) & 1;
  }
};

inline TURNWISE_HOST_DEVICE double exact_sum::quotient(std::int64_t divisor) const noexcept {
  exact_sum magnitude = *this;
  magnitude.carry();
  bool const negative = magnitude.digit[digits - 1] < 0;
  if (negative) {
    for (std::int64_t& part : magnitude.digit) part = -part;
    magnitude.carry();
  }
  int last = digits - 1;
  while (last >= 0 && magnitude.digit[last] == 0) --last;
  if (last < 0) return 0.0;

  // Long division a bit at a time: leading zeros, then 64 bits of the quotient, down to half of the smallest double.
  auto const by = static_cast<std::uint64_t>(divisor);
  std::uint64_t rest = 0, bits = 0;
  int low = 32 * last + (last == digits - 1 ? 64 : 32);  // position of the lowest bit of `bits`
  while (bits >> 63 == 0 && low >= 0) {
    --low;
    rest = rest << 1 | (low >= 0 ? magnitude.bit(low) : 0);
    bits <<= 1;
    if (rest >= by) {
      rest -= by;
      bits |= 1;
    }
  }
  bool below = rest != 0;  // anything less than the lowest bit
  if (low > 0) {
    for (int i = 0; i < low / 32; ++i) below = below || magnitude.digit[i] != 0;
    below = below || (magnitude.digit[low / 32] & ((std::int64_t{1} << low % 32) - 1)) != 0;
  }

  // To 53 bits, or to fewer where the smallest double is coarser; there low is -1.
  int width = 64;
  while (width > 0 && bits >> (width - 1) == 0) --width;
  int const drop = width > 53 ? width - 53 : 1;
  std::uint64_t const half = std::uint64_t{1} << (drop - 1);
  std::uint64_t const cut = bits & (2 * half - 1);
  std::uint64_t kept = bits >> drop;
  if (cut > half || (cut == half && (below || (kept & 1) != 0))) ++kept;
  using std::ldexp;
  double const result = ldexp(static_cast<double>(kept), low + drop - 1074);
  return negative ? -result : result;
}

}  // namespace turnwise
