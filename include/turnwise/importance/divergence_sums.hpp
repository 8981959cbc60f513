/// @file
/// Exact sums, over each turn, of the k2 and k3 estimates of the divergence between sampler and trainer.
#pragma once

#include <turnwise/core/parallel_for.hpp>
#include <turnwise/core/rollout.hpp>
#include <turnwise/importance/detail/block_reduce.hpp>
#include <turnwise/importance/log_ratio.hpp>
#include <turnwise/importance/log_ratio_statistics.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace turnwise::importance {

/// Sums of k2 and k3 are integers in units of 2^-32.
inline constexpr double divergence_unit = 0x1p-32;

/// Largest k3 of a token, reached at a log ratio of about 13.86 (k2 stays below 2048).
inline constexpr double divergence_cap = 0x1p20;

namespace detail {

/// Adding this to a number in [0, 2^52] rounds it to an integer, which is then the difference of the bit patterns.
inline constexpr double integer_shift = 0x1p52;

/// The square of a grid index, plus this, shifted down by that, is k2 rounded half up.
inline constexpr int k2_half = 1 << 16;
inline constexpr int k2_shift = 17;

/// Where sums stop.
inline constexpr std::int64_t largest_sum = std::numeric_limits<std::int64_t>::max();

/// a + b, at most the largest integer: for numbers that are not negative the same in any order.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr std::int64_t saturating_sum(std::int64_t a, std::int64_t b) noexcept {
  return a > largest_sum - b ? largest_sum : a + b;
}

}  // namespace detail

/// Sums of k2 = d^2 / 2 and k3 = e^d - 1 - d over tokens, d = old - rollout clamped and on its grid: each token's value
/// is rounded to the grid 2^-32. Sums never wrap: they stop at 2^31, which takes 2^11 tokens at the cap.
struct turn_divergence {
  std::int64_t k2 = 0;  ///< in units of 2^-32
  std::int64_t k3 = 0;  ///< in units of 2^-32, each token's at most divergence_cap

  TURNWISE_HOST_DEVICE constexpr turn_divergence& operator+=(turn_divergence const& other) noexcept {
    k2 = detail::saturating_sum(k2, other.k2);
    k3 = detail::saturating_sum(k3, other.k3);
    return *this;
  }
  friend constexpr bool operator==(turn_divergence const&, turn_divergence const&) = default;
};

/// k2 and k3 of one token whose log ratio has this grid index (log_ratio_index).
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr turn_divergence token_divergence(std::int64_t index) noexcept {
  double const k3 = excess_of(static_cast<double>(index) * log_ratio_unit).k3;
  double const shifted = (k3 < divergence_cap ? k3 : divergence_cap) * (1 / divergence_unit) + detail::integer_shift;
  return {(index * index + detail::k2_half) >> detail::k2_shift,
          static_cast<std::int64_t>(__builtin_bit_cast(std::uint64_t, shifted) -
                                    __builtin_bit_cast(std::uint64_t, detail::integer_shift))};
}

namespace detail {
inline namespace TURNWISE_VECTOR_NAMESPACE {

/// Sums over up to 1024 tokens, in lanes. Tokens that do not count have log ratio 0, which adds 0.
struct divergence_lanes {
  vec<std::uint64_t> k2{}, k3{};

  // Not constexpr: under --expt-relaxed-constexpr nvcc would compile it for the device too.
  divergence_lanes() noexcept {}

  /// token_divergence of finite log ratios; `Small`: all within +-small_log_ratio, the same bits in less time.
  template <bool Small>
  [[gnu::always_inline]] void add(vec<double> const& d) {
    using bits = bits_of<vec<double>>;
    constexpr double limit = log_ratio_limit;
    vec<double> clamped = d;
    if constexpr (!Small) {
      clamped = clamped < -limit ? vec<double>{} - limit : clamped;
      clamped = clamped > limit ? vec<double>{} + limit : clamped;
    }
    vec<double> const shifted = clamped + grid_shift;
    vec<std::uint64_t> const index = bits::get(shifted) - grid_shift_bits;
    k2 += (index * index + k2_half) >> k2_shift;
    vec<double> k3_of = excess_of_lanes<Small>(vec<double>(shifted - grid_shift)).k3;
    if constexpr (!Small) k3_of = k3_of < divergence_cap ? k3_of : vec<double>{} + divergence_cap;
    k3 += bits::get(k3_of * (1 / divergence_unit) + integer_shift) - std::bit_cast<std::uint64_t>(integer_shift);
  }
  [[nodiscard]] turn_divergence collect() const {
    auto const plus = [](auto const& a, auto const& b) { return a + b; };
    return {static_cast<std::int64_t>(fold(k2, plus)), static_cast<std::int64_t>(fold(k3, plus))};
  }
};

/// Calls body(log ratios that count, or 0) for the registers of a run of tokens.
template <bool Masked, logprob_value Old, logprob_value Rollout, typename Body>
[[gnu::always_inline]] inline void for_each_register(token_range<Old, Rollout> const& tokens, Body body) {
  using wide = log_ratio_t<Old, Rollout>;
  constexpr std::size_t size = size_of<vec<double>>;
  auto const visit = [&](vec<wide, size> const& d, auto const&... mask) __attribute__((always_inline)) {
    vec<word<wide>, size> on = (d <= largest<wide>)&(d >= -largest<wide>);
    if constexpr (Masked) on &= lanes_on<word<wide>, size>(mask...);
    body(keep(d, on));
  };
  std::size_t i = 0;
  for (; i + size <= tokens.size; i += size) {
    auto const d = load<wide, size>(tokens.old_logprob + i) - load<wide, size>(tokens.rollout_logprob + i);
    if constexpr (Masked)
      visit(d, load<std::uint8_t, size>(tokens.mask + i));
    else
      visit(d);
  }
  std::size_t const rest = tokens.size - i;
  if (rest == 0) return;
  auto const d =
      load_first<wide, size>(tokens.old_logprob + i, rest) - load_first<wide, size>(tokens.rollout_logprob + i, rest);
  if constexpr (Masked)
    visit(d, load_first<std::uint8_t, size>(tokens.mask + i, rest));
  else
    visit(d);
}

/// Sums over one turn.
template <bool Masked, logprob_value Old, logprob_value Rollout>
[[nodiscard]] turn_divergence reduce_divergence(token_range<Old, Rollout> const& tokens) {
  using values = vec<log_ratio_t<Old, Rollout>, size_of<vec<double>>>;
  constexpr std::size_t run = 1024;  // of these the lanes cannot overflow
  turn_divergence total;
  for (std::size_t first = 0; first < tokens.size; first += run) {
    auto const part = tokens.slice(first, std::min(run, tokens.size - first));
    values largest_size{};
    for_each_register<Masked>(
        part, [&](values const& d) __attribute__((always_inline)) {
          values const size = d < 0 ? -d : d;
          largest_size = size > largest_size ? size : largest_size;
        });
    bool all_small = true;
    for (std::size_t l = 0; l < size_of<values>; ++l) all_small &= largest_size[l] <= small_log_ratio;
    divergence_lanes sums;
    if (all_small)
      for_each_register<Masked>(
          part, [&](values const& d) __attribute__((always_inline)) { sums.template add<true>(widen(d)); });
    else
      for_each_register<Masked>(
          part, [&](values const& d) __attribute__((always_inline)) { sums.template add<false>(widen(d)); });
    total += sums.collect();
  }
  return total;
}

}  // namespace TURNWISE_VECTOR_NAMESPACE
}  // namespace detail

/// Sums of k2 and k3 over each turn's usable tokens: unmasked, with a finite log ratio d = old - rollout.
///
///     k2 = d^2 / 2,   k3 = e^d - 1 - d;   the mean is divergence_unit * sum / count of log_ratio_statistics
///
/// k1 = -d needs no sums of its own: turn_statistics has them. For the estimates under the inverse ratio, swap the two
/// arrays.
/// Also called: Schulman's KL estimators; k3 is the low-variance KL.
/// @param[in]  batch    S turns; token ranges may overlap and stand in any order.
/// @param[in]  tokens   log-probs in nats and the optional mask, [N] each; masked tokens are not read as numbers.
/// @param[out] sums     [S].
/// @param[in]  threads  0 = the runtime's default.
/// @throws precondition_error  sizes that differ, a token range outside the arrays; nothing is written.
/// @note  A turn without usable tokens: 0. NaN and infinite log ratios add nothing.
/// @note  Exact: the same bits for any order, split, thread count, compiler and backend. Each token's value is off by
///        at most 2^-33 (k2) and 2^-33 + 1e-7 k3 (k3).
/// @par Complexity  one read of the tokens, O(S) writes, no allocation.
/// @par Reference   Schulman 2020, "Approximating KL divergence".
template <logprob_value Old, logprob_value Rollout>
void divergence_sums(rollout_view const& batch, token_logprobs<Old, Rollout> const& tokens,
                     std::span<turn_divergence> sums, int threads = 0) {
  detail::check_tokens(batch, tokens, "divergence_sums");
  expects_size("divergence_sums", "sums", sums.size(), batch.turns(), "turn");
  parallel_for(batch.turns(), detail::turn_grain(batch.turns(), tokens.old_logprob.size()), threads,
               [&](std::size_t first, std::size_t last) {
                 for (std::size_t s = first; s < last; ++s) {
                   auto const turn = detail::turn_tokens(batch, tokens, s);
                   sums[s] = tokens.mask.empty() ? detail::reduce_divergence<false>(turn)
                                                 : detail::reduce_divergence<true>(turn);
                 }
               });
}

}  // namespace turnwise::importance
