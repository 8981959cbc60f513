/// @file
/// An exponential of nothing but IEEE operations: the same code on host and device, for numbers and for registers of
/// them.
#pragma once

#include <turnwise/core/concepts.hpp>

#include <cstdint>
#include <type_traits>

namespace turnwise {
namespace detail {

/// The number type of one lane of F, and the signed integers of its size: for numbers and for vectors of them.
template <typename F>
struct lane_types {
  using number = std::remove_cvref_t<decltype(F{}[0])>;
  using words = decltype(F{} < F{});
};
template <>
struct lane_types<float> {
  using number = float;
  using words = std::int32_t;
};
template <>
struct lane_types<double> {
  using number = double;
  using words = std::int64_t;
};

/// Coefficients, from the constant up, of q in e^r = 1 + r + r^2 q(r) for |r| <= ln 2 / 2, and what reduces to there.
template <typename T>
struct exp_constants;

template <>
struct exp_constants<float> {
  static constexpr float lowest = -104.0f, highest = 89.0f;  ///< below: 0, above: infinity
  static constexpr float integer_shift = 0x1.8p23f;          ///< adding it rounds to an integer
  static constexpr float log2_e = 0x1.715476p0f;
  static constexpr float ln_2 = 0x1.62e4p-1f, ln_2_rest = 0x1.7f7d1cp-20f;  ///< products with ln_2 are exact
  static constexpr int mantissa_bits = 23, bias = 127;
  static constexpr int degree = 4;
  static constexpr TURNWISE_HOST_DEVICE float coefficient(int i) noexcept {
    constexpr float q[]{0.5f, 0x1.5554dcp-3f, 0x1.55551ap-5f, 0x1.120ba2p-7f, 0x1.6d113cp-10f};
    return q[i];
  }
};

template <>
struct exp_constants<double> {
  static constexpr double lowest = -746.0, highest = 710.0;
  static constexpr double integer_shift = 0x1.8p52;
  static constexpr double log2_e = 0x1.71547652b82fep0;
  static constexpr double ln_2 = 0x1.62e42fefa3p-1, ln_2_rest = 0x1.3de6af278ece6p-42;
  static constexpr int mantissa_bits = 52, bias = 1023;
  static constexpr int degree = 9;
  static constexpr TURNWISE_HOST_DEVICE double coefficient(int i) noexcept {
    constexpr double q[]{0x1.0000000000001p-1,  0x1.5555555555556p-3,  0x1.5555555553d4fp-5,  0x1.11111111109adp-7,
                         0x1.6c16c17893833p-10, 0x1.a01a01a7c8d47p-13, 0x1.a019b8ef67c6cp-16, 0x1.71de0d9c145d0p-19,
                         0x1.2891a8c1d838dp-22, 0x1.af38d53857513p-26};
    return q[i];
  }
};

}  // namespace detail

/// Up to here 2^k is a normal number, for float and double.
inline constexpr double exp_near_limit = 80;

/// e^x without a library call, a branch or a fused multiply-add, so that loops over it vectorise.
///
///     x = k ln 2 + r, |r| <= ln 2 / 2;   e^x = 2^k (1 + r + r^2 q(r))
///
/// @tparam Near  x is within +-exp_near_limit: the same bits in less time.
/// @tparam F  float, double, or a vector of either (of GCC and Clang, on the host).
/// @note  Error below 1.1 ulp, for float and for double.
/// @note  NaN gives NaN, infinity infinity, -infinity 0; beyond the range infinity or 0.
/// @note  Compilers may fuse products with sums: the last bit depends on flags and backend.
template <bool Near = false, typename F>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr F ieee_exp(F x) noexcept {
  using number = typename detail::lane_types<F>::number;
  using words = typename detail::lane_types<F>::words;
  using constants = detail::exp_constants<number>;
  if constexpr (!Near) {
    F const lowest = F{} + constants::lowest;
    F const highest = F{} + constants::highest;
    x = x < lowest ? lowest : x;  // NaN stays
    x = x > highest ? highest : x;
  }

  F const shifted = x * constants::log2_e + constants::integer_shift;
  F const k = shifted - constants::integer_shift;
  F const r = (x - k * constants::ln_2) - k * constants::ln_2_rest;
  F q = F{} + constants::coefficient(constants::degree);
  for (int i = constants::degree - 1; i >= 0; --i) q = q * r + constants::coefficient(i);
  F const mantissa = (r * r * q + r) + number{1};

  constexpr auto shift_bits = __builtin_bit_cast(typename detail::lane_types<number>::words, constants::integer_shift);
  words const exponent = __builtin_bit_cast(words, shifted) - shift_bits;
  auto const power = [](words n) { return __builtin_bit_cast(F, (n + constants::bias) << constants::mantissa_bits); };
  if constexpr (Near) return mantissa * power(exponent);
  words const half = exponent >> 1;  // 2^k may be out of range where e^x is not
  return mantissa * power(half) * power(exponent - half);
}

}  // namespace turnwise
