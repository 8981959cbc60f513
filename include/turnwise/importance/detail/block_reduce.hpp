/// @file
/// The token loops: a register of tokens a step, without branches. A run of tokens with a NaN, an infinity or a clamped
/// log ratio shows in its sums, and is done again one token at a time.
#pragma once

#include <turnwise/core/rollout.hpp>
#include <turnwise/importance/detail/lanes.hpp>
#include <turnwise/importance/turn_statistics.hpp>

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

namespace turnwise::importance::detail {
inline namespace TURNWISE_VECTOR_NAMESPACE {

/// The tokens of one turn.
template <logprob_value Old, logprob_value Rollout>
struct token_range {
  Old const* old_logprob;
  Rollout const* rollout_logprob;
  std::uint8_t const* mask;  ///< null: all on
  std::size_t size;

  [[nodiscard]] token_range slice(std::size_t first, std::size_t count) const {
    return {old_logprob + first, rollout_logprob + first, mask == nullptr ? nullptr : mask + first, count};
  }
};

template <logprob_value Old, logprob_value Rollout>
token_range<Old, Rollout> turn_tokens(rollout_view const& batch, token_logprobs<Old, Rollout> const& tokens,
                                      std::size_t s) {
  auto const begin = static_cast<std::size_t>(batch.turn_begin[s]);
  auto const size = static_cast<std::size_t>(batch.turn_end[s]) - begin;
  return {tokens.old_logprob.data() + begin, tokens.rollout_logprob.data() + begin,
          tokens.mask.empty() ? nullptr : tokens.mask.data() + begin, size};
}

/// Sums over up to 1024 tokens, in lanes. A log ratio is split, without error, into a multiple of 2^-8 and a rest: the
/// multiples have exact sums even as floats, in which NaNs and infinities stay; the rest is rounded to the grid 2^-24.
template <real T>
struct lane_sums {
  using values = vec<T>;
  using words = vec<word<T>>;
  using pattern = std::make_unsigned_t<word<T>>;
  static constexpr std::size_t size = size_of<values>;
  static constexpr T infinity = std::numeric_limits<T>::infinity();
  static constexpr T coarse_shift = std::same_as<T, float> ? T(0x1.8p15) : T(0x1.8p44);  ///< adding it rounds to 2^-8
  static constexpr T fine_shift = std::same_as<T, float> ? T(0x1.8p-1) : T(0x1.8p28);    ///< and this to 2^-24

  values min = values{} + infinity;
  values max = values{} - infinity;
  values coarse{};
  vec<pattern> fine{};  ///< in units of 2^-24, modulo 2^32 or 2^64
  words on_count{};     ///< minus the tokens that counted among those added with `on`

  // Not constexpr: under --expt-relaxed-constexpr nvcc would compile it for the device too.
  lane_sums() noexcept {}

  [[gnu::always_inline]] void add(values const& d) {
    min = d < min ? d : min;
    max = d > max ? d : max;
    add_to_sum(d);
  }

  /// Lanes where `on` is not all ones are not looked at.
  [[gnu::always_inline]] void add(values const& d, words const& on) {
    words const counted = reinterpret_cast<words>(d) & on;
    values const low = reinterpret_cast<values>(counted | (reinterpret_cast<words>(values{} + infinity) & ~on));
    values const high = reinterpret_cast<values>(counted | (reinterpret_cast<words>(values{} - infinity) & ~on));
    min = low < min ? low : min;
    max = high > max ? high : max;
    add_to_sum(reinterpret_cast<values>(counted));
    on_count += on;
  }

 private:
  [[gnu::always_inline]] void add_to_sum(values const& d) {
    values const multiple = (d + coarse_shift) - coarse_shift;
    coarse += multiple;
    values const rounded = (d - multiple) + fine_shift;
    fine += reinterpret_cast<vec<pattern>>(rounded) - std::bit_cast<pattern>(fine_shift);
  }
};

/// Adds tokens, right if all log ratios that count are within +-64.
template <bool Masked, real T, logprob_value Old, logprob_value Rollout>
[[gnu::always_inline]] inline void add_plain(lane_sums<T>& sums, token_range<Old, Rollout> const& tokens) {
  using words = vec<word<T>>;
  constexpr std::size_t size = lane_sums<T>::size;
  std::size_t i = 0;
  auto const add_at = [&](std::size_t first, auto const&... on) __attribute__((always_inline)) {
    sums.add(load<T, size>(tokens.old_logprob + first) - load<T, size>(tokens.rollout_logprob + first), on...);
  };
  for (; i + size <= tokens.size; i += size) {
    if constexpr (Masked)
      add_at(i, lanes_on<word<T>, size>(load<std::uint8_t, size>(tokens.mask + i)));
    else
      add_at(i);
  }
  std::size_t const rest = tokens.size - i;
  if (rest == 0) return;
  if (!loads_first<T, Old> && tokens.size >= size) {  // the last `size` tokens, of which those already added are off
    std::size_t const last = tokens.size - size;
    words on = lanes_from<word<T>, size>(size - rest);
    if constexpr (Masked) on &= lanes_on<word<T>, size>(load<std::uint8_t, size>(tokens.mask + last));
    add_at(last, on);
  } else {
    words on = ~lanes_from<word<T>, size>(rest);
    if constexpr (Masked) on &= lanes_on<word<T>, size>(load_first<std::uint8_t, size>(tokens.mask + i, rest));
    sums.add(load_first<T, size>(tokens.old_logprob + i, rest) - load_first<T, size>(tokens.rollout_logprob + i, rest),
             on);
  }
}

/// The record of the lanes; false if not all was plain.
template <bool Masked, real T>
[[gnu::always_inline]] inline bool collect(lane_sums<T> const& sums, std::size_t tokens, turn_statistics& record) {
  auto const plus = [](auto const& a, auto const& b) { return a + b; };
  T const min = fold(sums.min, [](auto const& a, auto const& b) { return a < b ? a : b; });
  T const max = fold(sums.max, [](auto const& a, auto const& b) { return a > b ? a : b; });
  T const coarse = fold(sums.coarse, plus);
  if (!(min >= T(-log_ratio_limit) && max <= T(log_ratio_limit) && is_finite(coarse))) return false;
  record.count = Masked ? -std::int64_t{fold(sums.on_count, plus)} : static_cast<std::int64_t>(tokens);
  record.sum = static_cast<std::int64_t>(coarse * T(0x1p8)) * 0x10000 + static_cast<word<T>>(fold(sums.fine, plus));
  record.min = static_cast<double>(min) + 0.0;  // -0 becomes +0
  record.max = static_cast<double>(max) + 0.0;
  return true;
}

/// Sums of the moments, in eight lanes: token i of a turn goes to lane i mod 8.
template <std::size_t Bytes>
struct moment_sums {
  static constexpr std::size_t lanes = 8;
  static constexpr std::size_t size = Bytes / sizeof(double);
  static constexpr std::size_t registers = lanes / size;

  vec<double> k3[registers]{};
  vec<double> excess_squared[registers]{};
  vec<double> rollout_logprob[registers]{};

  /// Tokens that do not count have log ratio and log-prob 0, and add 0.
  template <bool Small>
  [[gnu::always_inline]] void add(std::size_t place, vec<double> const& d, vec<double> const& rollout) {
    auto const [k3_of, excess] = excess_of_lanes<Small>(d);
    k3[place] += k3_of;
    excess_squared[place] += excess * excess + 0.0;  // + 0.0 keeps the product apart from the sum, see excess_of
    rollout_logprob[place] += rollout;
  }

  [[nodiscard]] ratio_moments collect() const { return {tree(k3), tree(excess_squared), tree(rollout_logprob)}; }

 private:
  [[gnu::always_inline]] static double tree(vec<double> const (&sums)[registers]) {
    auto const plus = [](auto const& a, auto const& b) { return a + b; };
    if constexpr (registers == 4) return fold((sums[0] + sums[2]) + (sums[1] + sums[3]), plus);
    if constexpr (registers == 2) return fold(sums[0] + sums[1], plus);
    if constexpr (registers == 1) return fold(sums[0], plus);
  }
};

using moment_lanes = moment_sums<vector_bytes>;

/// What the sums of moments take of rollout log-probs; floats never overflow them.
template <typename V>
[[nodiscard, gnu::always_inline]] inline V bounded_logprobs(V values) {
  if constexpr (std::same_as<element_of<V>, double>)
    for (std::size_t l = 0; l < size_of<V>; ++l) values[l] = bounded_logprob(double{values[l]});
  return values;
}

/// Adds the moments of tokens whose log ratios are all within +-64 where they count.
template <bool Masked, bool Small, real T, logprob_value Old, logprob_value Rollout>
[[gnu::always_inline]] inline void add_moments(moment_lanes& moments, token_range<Old, Rollout> const& tokens) {
  constexpr std::size_t size = moment_lanes::size;
  moment_lanes sums = moments;
  auto const add = [&](std::size_t place, vec<T, size> const& old_logprob, vec<T, size> const& rollout_logprob,
                       auto const&... mask) __attribute__((always_inline)) {
    vec<T, size> d = old_logprob - rollout_logprob;
    vec<T, size> rollout = bounded_logprobs(rollout_logprob);
    if constexpr (Masked) {
      vec<word<T>, size> const on = lanes_on<word<T>, size>(mask...);
      d = keep(d, on);
      rollout = keep(rollout, on);
    }
    if constexpr (Small)  // floats up to 1/4 reach the grid as floats
      sums.template add<true>(place, widen((d + lane_sums<T>::fine_shift) - lane_sums<T>::fine_shift), widen(rollout));
    else
      sums.template add<false>(place, (widen(d) + grid_shift) - grid_shift, widen(rollout));
  };
  auto const add_at = [&](std::size_t place, std::size_t i) __attribute__((always_inline)) {
    if constexpr (Masked)
      add(place, load<T, size>(tokens.old_logprob + i), load<T, size>(tokens.rollout_logprob + i),
          load<std::uint8_t, size>(tokens.mask + i));
    else
      add(place, load<T, size>(tokens.old_logprob + i), load<T, size>(tokens.rollout_logprob + i));
  };
  auto const add_first = [&](std::size_t place, std::size_t i, std::size_t rest) __attribute__((always_inline)) {
    auto const old_logprob = load_first<T, size>(tokens.old_logprob + i, rest);
    auto const rollout_logprob = load_first<T, size>(tokens.rollout_logprob + i, rest);
    if constexpr (Masked)
      add(place, old_logprob, rollout_logprob, load_first<std::uint8_t, size>(tokens.mask + i, rest));
    else
      add(place, old_logprob, rollout_logprob);
  };
  [&]<std::size_t... P>(std::index_sequence<P...>) __attribute__((always_inline)) {
    std::size_t i = 0;
    for (; i + moment_lanes::lanes <= tokens.size; i += moment_lanes::lanes) (add_at(P, i + P * size), ...);
    std::size_t const rest = tokens.size - i;
    ((P * size < rest ? add_first(P, i + P * size, rest - P * size) : void()), ...);
  }
  (std::make_index_sequence<moment_lanes::registers>{});
  moments = sums;
}

/// Adds tokens of any value, one at a time: non-finite ones are counted, large ones clamped.
template <bool Moments, real T, logprob_value Old, logprob_value Rollout>
[[gnu::noinline]] void add_any(turn_statistics& statistics, moment_lanes& moments,
                               token_range<Old, Rollout> const& tokens) {
  constexpr std::size_t size = moment_lanes::size;
  for (std::size_t first = 0; first < tokens.size; first += size) {
    double clamped[size]{};
    double rollout[size]{};
    for (std::size_t i = first; i < std::min(first + size, tokens.size); ++i) {
      if (tokens.mask != nullptr && tokens.mask[i] == 0) continue;
      auto const d = log_ratio(tokens.old_logprob[i], tokens.rollout_logprob[i]);
      if (!is_finite(d)) {
        ++statistics.non_finite;
        continue;
      }
      double const value = static_cast<double>(d) + 0.0;
      std::int64_t const index = log_ratio_index(d);
      statistics += {1, index, value, value, 0, is_saturated(d) ? 1 : 0};
      clamped[i - first] = static_cast<double>(index) * log_ratio_unit;
      rollout[i - first] = bounded_logprob(static_cast<T>(tokens.rollout_logprob[i]));
    }
    if constexpr (Moments)
      moments.add<false>(first / size % moment_lanes::registers, load<double, size>(clamped),
                         load<double, size>(rollout));
  }
}

template <bool Masked, bool Moments, logprob_value Old, logprob_value Rollout>
[[gnu::always_inline]] inline turn_statistics reduce(token_range<Old, Rollout> const& tokens, ratio_moments* moments) {
  using wide = log_ratio_t<Old, Rollout>;
  constexpr std::size_t run = Moments ? 512 : 1024;  // a multiple of the moments' lanes
  turn_statistics statistics;
  moment_lanes sums;
  for (std::size_t first = 0; first < tokens.size; first += run) {
    auto const part = tokens.slice(first, std::min(run, tokens.size - first));
    lane_sums<wide> decisions;
    add_plain<Masked>(decisions, part);
    turn_statistics record;
    if (!collect<Masked>(decisions, part.size, record)) [[unlikely]] {
      add_any<Moments, wide>(statistics, sums, part);
      continue;
    }
    statistics += record;
    if constexpr (Moments) {
      if (record.min >= -small_log_ratio && record.max <= small_log_ratio)
        add_moments<Masked, true, wide>(sums, part);
      else
        add_moments<Masked, false, wide>(sums, part);
    }
  }
  if constexpr (Moments) *moments = sums.collect();
  return statistics;
}

/// Statistics of one turn.
template <logprob_value Old, logprob_value Rollout>
turn_statistics reduce_turn(token_range<Old, Rollout> const& tokens) {
  return tokens.mask == nullptr ? reduce<false, false>(tokens, nullptr) : reduce<true, false>(tokens, nullptr);
}

/// Statistics and moments of one turn. The moments have a fixed order: token i goes to lane i mod 8, a token that does
/// not count adds 0, and the lanes are added as a binary tree.
template <logprob_value Old, logprob_value Rollout>
turn_statistics reduce_turn(token_range<Old, Rollout> const& tokens, ratio_moments& moments) {
  return tokens.mask == nullptr ? reduce<false, true>(tokens, &moments) : reduce<true, true>(tokens, &moments);
}

}  // namespace TURNWISE_VECTOR_NAMESPACE
}  // namespace turnwise::importance::detail
