/// @file
/// The record of policy_loss while it is summed in the lanes of registers.
#pragma once

#include <turnwise/importance/detail/lanes.hpp>
#include <turnwise/loss/detail/evaluate.hpp>
#include <turnwise/loss/record.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace turnwise::loss::detail {
inline namespace TURNWISE_VECTOR_NAMESPACE {

/// A register of T; one number where the compiler knows no vectors in functions for the device.
#ifdef __CUDACC__
template <real T>
using pack = T;
#else
template <real T>
using pack = importance::detail::vec<T>;
#endif

/// Sums of lanes in double, and counts of flags.
template <typename F>
struct lane_records {
  using sums = importance::detail::vec<double, lanes_of<F>>;
  using counts = flag<F>;
};
template <real F>
struct lane_records<F> {
  using sums = double;
  using counts = std::int64_t;
};
template <typename F>
using wide_sums = typename lane_records<F>::sums;
template <typename F>
using flag_counts = typename lane_records<F>::counts;

/// Counts true lanes.
template <typename F>
[[gnu::always_inline]] inline void count_flags(flag_counts<F>& to, flag<F> const& on) {
  if constexpr (real<F>)
    to += on;
  else
    to -= on;  // a true lane is -1
}

/// Adds lanes in double, and clears them.
template <typename F>
[[gnu::always_inline]] inline void widen(wide_sums<F>& to, F& from) {
  if constexpr (real<F>)
    to += static_cast<double>(from);
  else
    to += __builtin_convertvector(from, wide_sums<F>);
  from = F{};
}

template <typename Lanes, typename Join>
[[nodiscard]] auto fold_lanes(Lanes const& lanes, Join join) {
  if constexpr (std::is_arithmetic_v<Lanes>)
    return lanes;
  else
    return importance::detail::fold(lanes, join);
}
template <typename Lanes>
[[nodiscard]] auto total(Lanes const& lanes) {
  return fold_lanes(lanes, [](auto const& a, auto const& b) { return a + b; });
}

/// Sums over a few steps, in F.
template <typename F>
struct lane_sums {
  F policy_loss{}, log_ratio{}, ratio{};
  F ratio_min = F{} + std::numeric_limits<number<F>>::infinity();
  F ratio_max = F{} - std::numeric_limits<number<F>>::infinity();
  flag_counts<F> clipped_low{}, clipped_high{};

  [[gnu::always_inline]] void add(plain_result<F> const& token) {
    policy_loss += token.value;
    log_ratio += token.log_ratio;
    ratio += token.ratio;
    ratio_min = token.ratio < ratio_min ? token.ratio : ratio_min;
    ratio_max = token.ratio > ratio_max ? token.ratio : ratio_max;
    count_flags<F>(clipped_low, token.clipped_low);
    count_flags<F>(clipped_high, token.clipped_high);
  }
};

/// Sums over some turns, in double.
template <typename F>
struct lane_record {
  F ratio_min = F{} + std::numeric_limits<number<F>>::infinity();
  F ratio_max = F{} - std::numeric_limits<number<F>>::infinity();
  flag_counts<F> on{}, tokens{}, saturated{}, clipped_low{}, clipped_high{};
  wide_sums<F> policy_loss{}, log_ratio{}, ratio{};
  std::int64_t plain_tokens = 0;  ///< in addition to those in lanes

  [[gnu::always_inline]] void add(token_result<F> token, flag<F> const& unmasked) {
    F const low = select<F>(token.in_loss, token.ratio, ratio_min);
    F const high = select<F>(token.in_loss, token.ratio, ratio_max);
    ratio_min = low < ratio_min ? low : ratio_min;
    ratio_max = high > ratio_max ? high : ratio_max;
    count_flags<F>(on, unmasked);
    count_flags<F>(tokens, token.in_loss);
    count_flags<F>(saturated, token.saturated);
    count_flags<F>(clipped_low, token.clipped_low);
    count_flags<F>(clipped_high, token.clipped_high);
    widen<F>(policy_loss, token.policy_loss);
    widen<F>(log_ratio, token.log_ratio);
    widen<F>(ratio, token.ratio);
  }

  [[gnu::always_inline]] void add(lane_sums<F> sums, std::size_t count) {
    ratio_min = sums.ratio_min < ratio_min ? sums.ratio_min : ratio_min;
    ratio_max = sums.ratio_max > ratio_max ? sums.ratio_max : ratio_max;
    clipped_low += sums.clipped_low;
    clipped_high += sums.clipped_high;
    widen<F>(policy_loss, sums.policy_loss);
    widen<F>(log_ratio, sums.log_ratio);
    widen<F>(ratio, sums.ratio);
    plain_tokens += static_cast<std::int64_t>(count);
  }

  void add_to(loss_record& record) const {
    std::int64_t const in_loss = total(tokens);
    record.policy_loss += total(policy_loss);
    record.tokens += in_loss + plain_tokens;
    record.non_finite += total(on) - in_loss;
    record.saturated += total(saturated);
    record.clipped_low += total(clipped_low);
    record.clipped_high += total(clipped_high);
    record.log_ratio_sum += total(log_ratio);
    record.ratio_sum += total(ratio);
    record.ratio_min = fold_lanes(ratio_min, [](auto const& a, auto const& b) { return a < b ? a : b; });
    record.ratio_max = fold_lanes(ratio_max, [](auto const& a, auto const& b) { return a > b ? a : b; });
  }
};

/// Sums of KL and entropy.
template <typename F>
struct extra_lanes {
  wide_sums<F> kl{}, kl_loss{}, entropy{}, entropy_loss{};

  [[gnu::always_inline]] void add(token_result<F> token) {
    widen<F>(kl, token.kl);
    widen<F>(kl_loss, token.kl_loss);
    widen<F>(entropy, token.entropy);
    widen<F>(entropy_loss, token.entropy_loss);
  }

  void add_to(loss_record& record) const {
    record.kl_sum += total(kl);
    record.kl_loss += total(kl_loss);
    record.entropy_sum += total(entropy);
    record.entropy_loss += total(entropy_loss);
  }
};

}  // namespace TURNWISE_VECTOR_NAMESPACE
}  // namespace turnwise::loss::detail
