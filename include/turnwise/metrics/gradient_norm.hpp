/// @file
/// The norm of all gradients together, whether they are finite, and by what to scale them.
#pragma once

#include <turnwise/core/concepts.hpp>
#include <turnwise/core/error.hpp>
#include <turnwise/core/parallel_for.hpp>
#include <turnwise/importance/log_ratio.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace turnwise::metrics {

/// Root of the sum of squares, or the largest magnitude.
enum class norm_kind : std::uint8_t { l2, infinity };

/// Options of `gradient_norm`.
struct gradient_norm_options {
  norm_kind kind = norm_kind::l2;                             ///< the norm
  double max_norm = std::numeric_limits<double>::infinity();  ///< above 0; infinity: no clipping
  double epsilon = 1e-6;                                      ///< added to the norm before it divides; at least 0
};

/// What a norm is made of. Sums of parts add up.
struct gradient_sums {
  double squares = 0;           ///< of the finite elements that are not tiny
  double largest = 0;           ///< magnitude among all finite ones
  std::int64_t non_finite = 0;  ///< elements that are NaN or infinite
  double tiny_squares = 0;      ///< of the tiny ones (below 2^-450, doubles alone), each times 2^600 before

  TURNWISE_HOST_DEVICE constexpr gradient_sums& operator+=(gradient_sums const& other) noexcept {
    squares += other.squares;
    largest = other.largest > largest ? other.largest : largest;
    non_finite += other.non_finite;
    tiny_squares += other.tiny_squares;
    return *this;
  }
  friend constexpr bool operator==(gradient_sums const&, gradient_sums const&) = default;
};

/// What gradient_norm returns.
struct gradient_norm_record {
  gradient_sums sums{};    ///< what the norm is made of
  double norm = 0;         ///< over the finite elements
  double clip_factor = 1;  ///< what to multiply the gradients by; 0 when they are not finite: skip the step
  bool finite = true;      ///< every element is, and so is the norm

  friend constexpr bool operator==(gradient_norm_record const&, gradient_norm_record const&) = default;
};

namespace detail {

/// Elements are taken in chunks, and added up in this many lanes: element i of a chunk goes to lane i mod 2048.
inline constexpr std::size_t gradient_chunk = 65536;
inline constexpr std::size_t gradient_lanes = 2048;

[[nodiscard]] TURNWISE_HOST_DEVICE constexpr std::size_t gradient_chunks(std::size_t size) noexcept {
  return size / gradient_chunk + (size % gradient_chunk != 0);
}

/// The square of a number below the limit loses bits, or all of them: it is taken of a multiple, and summed apart.
inline constexpr double tiny_limit = 0x1p-450;
inline constexpr double tiny_scale = 0x1p600;

/// Whether T has tiny numbers: the squares of the narrow types, subnormal numbers too, are far above 2^-900.
template <logprob_value T>
inline constexpr bool has_tiny = std::same_as<T, double>;

/// sum + value^2, rounded once. Squares of the narrow types are exact, so that no fused operation is needed for them.
template <logprob_value T>
[[nodiscard]] TURNWISE_HOST_DEVICE double plus_square(double sum, double value) noexcept {
  using std::fma;
  if constexpr (std::same_as<T, double>)
    return fma(value, value, sum);
  else
    return sum + value * value;
}

/// Adds the square of a double to the sum that it belongs to.
TURNWISE_HOST_DEVICE inline void add_square(double value, double magnitude, double& squares,
                                            double& tiny_squares) noexcept {
  bool const tiny = magnitude < tiny_limit;
  double const sum = plus_square<double>(tiny ? tiny_squares : squares, tiny ? value * tiny_scale : value);
  tiny_squares = tiny ? sum : tiny_squares;
  squares = tiny ? squares : sum;
}

/// Lane l += lane l + half, for half = lanes / 2, ..., 1.
inline double fold_gradient_lanes(std::array<double, gradient_lanes>& lane) noexcept {
  for (std::size_t half = gradient_lanes / 2; half > 0; half /= 2)
    for (std::size_t l = 0; l < half; ++l) lane[l] += lane[l + half];
  return lane[0];
}

template <logprob_value T>
[[nodiscard]] gradient_sums sums_of_chunk(std::span<T const> chunk) noexcept {
  std::array<double, gradient_lanes> lane{};
  std::array<double, has_tiny<T> ? gradient_lanes : 0> tiny_lane{};
  gradient_sums sums;
  for (std::size_t row = 0; row < chunk.size(); row += gradient_lanes) {
    std::size_t const size = chunk.size() - row < gradient_lanes ? chunk.size() - row : gradient_lanes;
    std::int64_t bad = 0;
    double largest = 0;
    for (std::size_t l = 0; l < size; ++l) {
      auto const value = static_cast<log_ratio_t<T, T>>(chunk[row + l]);
      bool const finite = importance::is_finite(value);
      double const wide = finite ? static_cast<double>(value) : 0.0;
      double const magnitude = wide < 0 ? -wide : wide;
      largest = magnitude > largest ? magnitude : largest;
      bad += !finite;
      if constexpr (has_tiny<T>)
        add_square(wide, magnitude, lane[l], tiny_lane[l]);
      else
        lane[l] = plus_square<T>(lane[l], wide);
    }
    sums.largest = largest > sums.largest ? largest : sums.largest;
    sums.non_finite += bad;
  }
  sums.squares = fold_gradient_lanes(lane);
  if constexpr (has_tiny<T>) sums.tiny_squares = fold_gradient_lanes(tiny_lane);
  return sums;
}

inline void check_gradient_norm(gradient_norm_options const& options) {
  expects(options.max_norm > 0, "gradient_norm: max_norm = ", options.max_norm,
          ", expected a number above 0 (or infinity)");
  expects(options.epsilon >= 0 && importance::is_finite(options.epsilon), "gradient_norm: epsilon = ", options.epsilon,
          ", expected a finite number, at least 0");
}

}  // namespace detail

/// Root of all squares, those of tiny elements included where they count.
[[nodiscard]] TURNWISE_HOST_DEVICE inline double norm_of_squares(gradient_sums const& sums) noexcept {
  using std::sqrt;
  double const scale = detail::tiny_scale;
  // Beside squares of 2^-700 those of tiny elements, below 2^-900 each, are nothing.
  if (sums.tiny_squares == 0 || sums.squares > 0x1p-700) return sqrt(sums.squares);
  return sqrt(sums.squares * scale * scale + sums.tiny_squares) / scale;
}

/// The record of given sums.
[[nodiscard]] TURNWISE_HOST_DEVICE inline gradient_norm_record norm_of_sums(
    gradient_sums const& sums, gradient_norm_options const& options) noexcept {
  gradient_norm_record record{.sums = sums};
  record.norm = options.kind == norm_kind::l2 ? norm_of_squares(sums) : sums.largest;
  record.finite = sums.non_finite == 0 && importance::is_finite(record.norm);
  double const factor = options.max_norm / (record.norm + options.epsilon);
  record.clip_factor = !record.finite ? 0.0 : factor < 1.0 ? factor : 1.0;
  return record;
}

/// Global norm of the gradients in a list of arrays, and the factor that brings it to max_norm.
///
///     l2: norm = sqrt(sum of g^2), infinity: norm = max |g|;   clip_factor = min(1, max_norm / (norm + epsilon))
///
/// Also called: clip_grad_norm, global gradient-norm clipping.
/// @tparam T  float, double, or a 16-bit type that converts to float exactly (half, bfloat16).
/// @param[in] gradients  any number of arrays of any sizes; together one vector.
/// @param[in] threads    0 = the runtime's default.
/// @throws precondition_error  max_norm not above 0, epsilon negative or not finite.
/// @note  NaN and infinite elements are counted and enter no sum: finite is false and clip_factor 0. A sum of squares
///        beyond the largest double (elements above 1e154, doubles alone) likewise, with an infinite norm. Small
///        elements, subnormal ones too, count in full.
/// @note  No arrays, no elements: norm 0, clip_factor 1.
/// @note  The same bits for any threads, compiler and backend: doubles, in chunks of 65536 elements of each array, in
///        the order of the list. Error below 1e-12 of the norm.
/// @par Complexity  one read; 32 bytes of memory a chunk.
/// @par Reference   Pascanu et al. 2013, arXiv:1211.5063.
/// @see turnwise::gpu::metrics::gradient_norm; join_gradient_norms for several types or ranks
template <logprob_value T>
[[nodiscard]] gradient_norm_record gradient_norm(std::span<std::span<T const> const> gradients,
                                                 gradient_norm_options const& options, int threads = 0) {
  detail::check_gradient_norm(options);
  std::vector<std::span<T const>> chunk;
  for (std::span<T const> const array : gradients)
    for (std::size_t first = 0; first < array.size(); first += detail::gradient_chunk)
      chunk.push_back(array.subspan(first, std::min(detail::gradient_chunk, array.size() - first)));
  std::vector<gradient_sums> sums(chunk.size());
  parallel_for(chunk.size(), 4, threads, [&](std::size_t first, std::size_t last) {
    for (std::size_t c = first; c < last; ++c) sums[c] = detail::sums_of_chunk(chunk[c]);
  });

  std::array<double, detail::gradient_lanes> lane{}, tiny_lane{};
  gradient_sums total;
  for (std::size_t c = 0; c < sums.size(); ++c) {
    lane[c % detail::gradient_lanes] += sums[c].squares;
    tiny_lane[c % detail::gradient_lanes] += sums[c].tiny_squares;
    total += sums[c];
  }
  total.squares = detail::fold_gradient_lanes(lane);
  total.tiny_squares = detail::fold_gradient_lanes(tiny_lane);
  return norm_of_sums(total, options);
}

/// The record of several parts together: of gradients of several types, or of shards on other ranks.
///
/// @param[in] parts  added up in their order; the norms in them are not used.
/// @throws precondition_error  options as for gradient_norm.
[[nodiscard]] inline gradient_norm_record join_gradient_norms(std::span<gradient_norm_record const> parts,
                                                              gradient_norm_options const& options) {
  detail::check_gradient_norm(options);
  gradient_sums total;
  for (gradient_norm_record const& part : parts) total += part.sums;
  return norm_of_sums(total, options);
}

}  // namespace turnwise::metrics
