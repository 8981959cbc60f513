/// @file
/// Sums over a row of logits: how parts of a row are joined, and what a whole row gives.
#pragma once

#include <turnwise/core/concepts.hpp>
#include <turnwise/core/error.hpp>
#include <turnwise/logprob/row_sums.hpp>

#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <string_view>

namespace turnwise::logprob {
namespace detail {

template <real T>
inline constexpr T log2_e = static_cast<T>(1.4426950408889634074);
template <real T>
inline constexpr T ln_2 = static_cast<T>(0.69314718055994530942);

template <real T>
inline constexpr T infinity = std::numeric_limits<T>::infinity();
template <real T>
inline constexpr T not_a_number = std::numeric_limits<T>::quiet_NaN();

/// A temperature as the sums take it: exp(x / temperature) = exp2(x * log2_scale).
template <real T>
struct softmax_scale {
  T log2_scale;
  T inverse;

  softmax_scale(double temperature, std::string_view function) {
    expects(temperature >= 1e-30 && temperature <= 1e30, function, ": temperature = ", temperature,
            ", expected between 1e-30 and 1e30");
    log2_scale = static_cast<T>(log2_e<double> / temperature);
    inverse = static_cast<T>(1 / temperature);
  }
};

/// Exponents are cut off here, where 2^x is 0 already, so that 0 * log 0 is 0.
template <real T>
inline constexpr T lowest_exponent = std::same_as<T, float> ? T{-160} : T{-1100};

/// 2^x; on the device in float the hardware's, within 2 ulp, exactly 1 at 0, results below 2^-126 flushed to 0.
template <real T>
[[nodiscard]] TURNWISE_HOST_DEVICE inline T exp2_of(T x) noexcept {
#ifdef __CUDA_ARCH__
  if constexpr (std::same_as<T, float>) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
  }
#endif
  return std::exp2(x);
}

/// The larger of two numbers; NaN if either is.
template <real T>
[[nodiscard]] TURNWISE_HOST_DEVICE inline T max_or_nan(T a, T b) noexcept {
#ifdef __CUDA_ARCH__
  if constexpr (std::same_as<T, float>) {
    float result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
  }
#endif
  return a > b || a != a ? a : b;
}

/// log2(e) of a logit with the maximum taken off, cut off at lowest_exponent (NaN too, which the maximum remembers).
template <real T>
[[nodiscard]] TURNWISE_HOST_DEVICE inline T exponent_of(T difference, T log2_scale) noexcept {
#ifdef __CUDA_ARCH__
  return fmax(difference * log2_scale, lowest_exponent<T>);
#else
  T const exponent = difference * log2_scale;
  return exponent > lowest_exponent<T> ? exponent : lowest_exponent<T>;
#endif
}

/// a * b, rounded: on the device never made part of an fma with what it is added to later, so that the lanes of a warp
/// and all kernels get the same bits.
template <real T>
[[nodiscard]] TURNWISE_HOST_DEVICE inline T rounded_product(T a, T b) noexcept {
#ifdef __CUDA_ARCH__
  if constexpr (std::same_as<T, float>)
    return __fmul_rn(a, b);
  else
    return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

/// A part without logits.
template <real T>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr logprob_partial<T> empty_partial() noexcept {
  return {-largest<T>, 0, 0, 0, 0};
}

/// The same sums about another maximum, at least as large.
template <real T>
TURNWISE_HOST_DEVICE inline void rescale(logprob_partial<T>& part, T maximum, T log2_scale) noexcept {
  T const exponent = exponent_of(part.maximum - maximum, log2_scale);
  T const factor = exp2_of(exponent);
  part.e_log_e = rounded_product(factor, std::fma(exponent, part.sum, part.e_log_e));
  part.sum = rounded_product(factor, part.sum);
  part.squares = rounded_product(factor * factor, part.squares);
  part.maximum = maximum;
}

/// Sums of two parts about the same maximum.
template <real T>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr logprob_partial<T> added(logprob_partial<T> const& a,
                                                                      logprob_partial<T> const& b) noexcept {
  return {a.maximum, a.sum + b.sum, a.e_log_e + b.e_log_e, a.squares + b.squares, a.target + b.target};
}

/// Two parts as one. Neither rounds when the other has no logits.
template <real T>
[[nodiscard]] TURNWISE_HOST_DEVICE inline logprob_partial<T> merged(logprob_partial<T> a, logprob_partial<T> b,
                                                                    T log2_scale) noexcept {
  T const maximum = max_or_nan(a.maximum, b.maximum);
  rescale(a, maximum, log2_scale);
  rescale(b, maximum, log2_scale);
  return added(a, b);
}

/// What is wrong with a row.
enum class row_fault : std::uint8_t { none, logits, id };

/// What a whole row gives.
template <real T>
struct row_result {
  T logprob = 0;
  T entropy = 0;
  T sum_squares = 0;
  log_normalizer<T> normalizer{};
  row_fault fault = row_fault::none;
};

/// The target's logit and the log-sum-exp stay apart until the last step, (target - maximum) / temperature - log_sum:
/// neither term is positive, nor is the log-prob.
template <real T>
[[nodiscard]] TURNWISE_HOST_DEVICE inline row_result<T> finish_row(logprob_partial<T> const& row, T inverse) noexcept {
  bool const bad_logits = !(row.maximum <= largest<T>) || row.sum == 0;
  if (bad_logits || row.target != row.target) {
    T const nan = not_a_number<T>;
    return {nan, nan, nan, {nan, nan}, bad_logits ? row_fault::logits : row_fault::id};
  }
  T const log_sum = std::log(row.sum);
  return {std::fma(row.target - row.maximum, inverse, -log_sum),
          std::fma(-ln_2<T>, row.e_log_e / row.sum, log_sum),
          row.squares / row.sum / row.sum,
          {row.maximum, log_sum},
          row_fault::none};
}

}  // namespace detail
}  // namespace turnwise::logprob
