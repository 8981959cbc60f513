/// @file
/// Divides importance weights by their mean over the batch.
#pragma once

#include <turnwise/core/lane_fold.hpp>
#include <turnwise/core/rollout.hpp>
#include <turnwise/importance/log_ratio.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace turnwise::importance {

/// What a mean weight is made of. Sums of micro-batches and ranks add up.
struct weight_sums {
  double weight = 0;            ///< sum over what counts
  std::int64_t count = 0;       ///< how many
  std::int64_t non_finite = 0;  ///< weights that are NaN or infinite: in neither of the above

  /// Mean weight; 0 when nothing counts.
  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr double mean() const noexcept {
    return count == 0 ? 0.0 : weight / static_cast<double>(count);
  }
  TURNWISE_HOST_DEVICE constexpr weight_sums& operator+=(weight_sums const& other) noexcept {
    weight += other.weight;
    count += other.count;
    non_finite += other.non_finite;
    return *this;
  }
  friend constexpr bool operator==(weight_sums const&, weight_sums const&) = default;
};

/// The record of one weight that counts.
template <real W>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr weight_sums sum_of_weight(W weight) noexcept {
  if (!is_finite(weight)) return {.non_finite = 1};
  return {static_cast<double>(weight), 1, 0};
}

/// Options of `weight_normalisation`.
struct weight_normalisation_options {
  double floor = 1e-8;  ///< at least 0; a mean up to here divides nothing
};

/// Checks the options.
inline void check_weight_normalisation(weight_normalisation_options const& options) {
  expects(options.floor >= 0 && is_finite(options.floor), "weight_normalisation: floor = ", options.floor,
          ", expected a finite number, at least 0");
}

/// What weights are divided by: the mean, or 1 where that is at or below the floor or not finite.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr double weight_divisor(
    weight_sums const& total, weight_normalisation_options const& options) noexcept {
  double const mean = total.mean();
  return mean > options.floor && mean <= largest<double> ? mean : 1.0;
}

/// One weight divided; what is beyond W becomes its largest number.
template <real W>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr W normalised_weight(W weight, double divisor) noexcept {
  return narrowed<W>(static_cast<double>(weight) / divisor);
}

/// Sums the weights of the tokens that are kept.
///
/// @param[in] weight  [N] of importance_weight.
/// @param[in] keep    [N] 0 = left out (masked, or of a rejected turn: see advantage::per_token), or empty: all count.
/// @param[in] threads  0 = the runtime's default.
/// @throws precondition_error  sizes that differ.
/// @note  In the order of chunked_fold: the same bits for any threads and on the device. The sum of shards may differ
///        from that of the whole in rounding, by less than 1e-12 of it.
/// @par Complexity  one read; O(N / 4096) memory.
template <real W>
[[nodiscard]] weight_sums sum_weights(std::span<W const> weight, std::span<std::uint8_t const> keep, int threads = 0) {
  if (!keep.empty()) expects_size("sum_weights", "keep", keep.size(), weight.size(), "token, as weight");
  return chunked_fold<weight_sums>(weight.size(), threads, [&](std::size_t i) {
    return keep.empty() || keep[i] != 0 ? sum_of_weight(weight[i]) : weight_sums{};
  });
}

/// Sums the weights of the turns that are kept: each turn counts once, however many tokens it has.
///
/// @throws precondition_error  sizes that differ.
/// @par Reference   as for tokens.
template <real W>
[[nodiscard]] weight_sums sum_weights(std::span<W const> weight, std::span<reason_flags const> reasons) {
  expects_size("sum_weights", "reasons", reasons.size(), weight.size(), "turn, as weight");
  return chunked_fold<weight_sums>(
      weight.size(), 1, [&](std::size_t s) { return is_kept(reasons[s]) ? sum_of_weight(weight[s]) : weight_sums{}; });
}

/// Divides weights by the mean that `total` holds, so that those which count have mean 1.
///
///     w[i] /= total.mean()   if that is above the floor; else unchanged
///
/// Normalise after the bounds are applied, and once a batch: with `total` added up over micro-batches and ranks the
/// result does not depend on how the batch was cut. It makes the estimate self-normalised: less variance, slightly
/// biased. Also called: batch_normalize, self-normalised importance sampling (SNIS).
/// @param[in]     total   of sum_weights, over tokens or over turns as the weights are.
/// @param[in,out] weight  [N] or [S]; those that do not count are divided too.
/// @param[in]     threads  0 = the runtime's default.
/// @throws precondition_error  a floor that is negative or not finite; nothing is written.
/// @note  Nothing kept, all weights 0, or a mean at or below the floor (1e-8, as in verl): unchanged.
/// @note  The same bits everywhere.
/// @par Complexity  O(N), no allocation.
/// @par Reference   verl, rollout_is_batch_normalize.
template <real W>
void weight_normalisation(weight_sums const& total, weight_normalisation_options const& options, std::span<W> weight,
                          int threads = 0) {
  check_weight_normalisation(options);
  double const divisor = weight_divisor(total, options);
  if (divisor == 1.0) return;
  parallel_for(weight.size(), std::size_t{1} << 18, threads, [&](std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) weight[i] = normalised_weight(weight[i], divisor);
  });
}

}  // namespace turnwise::importance
