/// @file
/// The token loops: eight tokens a step, without branches. A run of tokens with a NaN, an infinity or a clamped log
/// ratio shows in its minimum and maximum, and is done again one token at a time.
#pragma once

#include <turnwise/core/rollout.hpp>
#include <turnwise/importance/detail/lanes.hpp>
#include <turnwise/importance/turn_statistics.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace turnwise::importance::detail {

/// The tokens of one turn.
template <logprob Old, logprob Rollout>
struct token_range {
  Old const* old_logprob;
  Rollout const* rollout_logprob;
  std::uint8_t const* mask;  ///< null: all on
  std::size_t size;

  [[nodiscard]] token_range slice(std::size_t first, std::size_t count) const {
    return {old_logprob + first, rollout_logprob + first, mask == nullptr ? nullptr : mask + first, count};
  }
};

template <logprob Old, logprob Rollout>
token_range<Old, Rollout> turn_tokens(rollout_view const& batch, token_logprobs<Old, Rollout> const& tokens,
                                      std::size_t s) {
  auto const begin = static_cast<std::size_t>(batch.turn_begin[s]);
  auto const size = static_cast<std::size_t>(batch.turn_end[s]) - begin;
  return {tokens.old_logprob.data() + begin, tokens.rollout_logprob.data() + begin,
          tokens.mask.empty() ? nullptr : tokens.mask.data() + begin, size};
}

/// A finite or infinite float as a signed integer of the same order; NaNs lie beyond the infinities. Its own inverse.
template <typename Key>
[[gnu::always_inline]] inline Key order_key(Key bits) {
  using integer = std::remove_cvref_t<decltype(Key{}[0])>;
  return bits ^ ((bits >> (8 * sizeof(integer) - 1)) & std::numeric_limits<integer>::max());
}

/// Running sums of a turn, in lanes.
template <real T>
struct lane_sums {
  using keys = typename lanes_of<T>::keys;
  using key = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
  static constexpr key lowest = std::numeric_limits<key>::min();
  static constexpr key highest = std::numeric_limits<key>::max();

  keys min = keys{} + highest;
  keys max = keys{} + lowest;
  uint64_lanes sum{};  ///< of the bit patterns of d + grid_shift
  int64_lanes count{};

  double_lanes k3{};
  double_lanes excess_squared{};
  double_lanes rollout_logprob{};
};

template <typename Key>
[[gnu::always_inline]] inline void lower(Key& min, Key value) {
  min = value < min ? value : min;
}
template <typename Key>
[[gnu::always_inline]] inline void raise(Key& max, Key value) {
  max = value > max ? value : max;
}

/// Adds the moments of eight tokens; `on` is all ones where the token counts.
template <real T>
[[gnu::always_inline]] inline void add_moments(lane_sums<T>& sums, double_lanes d, double_lanes rollout,
                                               uint64_lanes on) {
  auto const [k3, excess] = excess_of(d);
  auto const select = [on](double_lanes value) {
    return reinterpret_cast<double_lanes>(reinterpret_cast<uint64_lanes>(value) & on);
  };
  double_lanes const counted = select(excess);
  sums.k3 += select(k3);
  sums.excess_squared += counted * counted;
  sums.rollout_logprob += select(rollout);
}

/// Adds eight tokens whose log ratios are within +-64 where `on`.
template <bool Masked, bool Moments, real T>
[[gnu::always_inline]] inline void add_lanes(lane_sums<T>& sums, typename lanes_of<T>::values old_logprob,
                                             typename lanes_of<T>::values rollout_logprob, int64_lanes on) {
  using keys = typename lanes_of<T>::keys;
  auto const d = old_logprob - rollout_logprob;
  keys const key = order_key(reinterpret_cast<keys>(d));
  double_lanes const shifted = __builtin_convertvector(d, double_lanes) + grid_shift;
  if constexpr (Masked) {
    keys const on_key = __builtin_convertvector(on, keys);
    lower(sums.min, (key & on_key) | (lane_sums<T>::highest & ~on_key));
    raise(sums.max, (key & on_key) | (lane_sums<T>::lowest & ~on_key));
    sums.sum += reinterpret_cast<uint64_lanes>(shifted) & reinterpret_cast<uint64_lanes>(on);
    sums.count -= on;
  } else {
    lower(sums.min, key);
    raise(sums.max, key);
    sums.sum += reinterpret_cast<uint64_lanes>(shifted);
  }
  if constexpr (Moments)
    add_moments(sums, shifted - grid_shift, __builtin_convertvector(rollout_logprob, double_lanes),
                Masked ? reinterpret_cast<uint64_lanes>(on) : ~uint64_lanes{});
}

/// All ones in the lanes from `first` on, or below it.
[[gnu::always_inline]] inline int64_lanes lanes_from(std::size_t first) {
  static constexpr std::int64_t window[2 * lanes]{0, 0, 0, 0, 0, 0, 0, 0, -1, -1, -1, -1, -1, -1, -1, -1};
  int64_lanes on;
  std::memcpy(&on, window + (lanes - first), sizeof on);
  return on;
}

/// Fewer than eight tokens, copied so that no load leaves the turn.
template <bool Moments, real T, logprob Old, logprob Rollout>
[[gnu::always_inline]] inline void add_tail(lane_sums<T>& sums, token_range<Old, Rollout> const& tokens) {
  T old_logprob[lanes]{};
  T rollout_logprob[lanes]{};
  std::int64_t on[lanes]{};
  for (std::size_t l = 0; l < tokens.size; ++l) {
    old_logprob[l] = static_cast<T>(tokens.old_logprob[l]);
    rollout_logprob[l] = static_cast<T>(tokens.rollout_logprob[l]);
    on[l] = tokens.mask == nullptr || tokens.mask[l] != 0 ? -1 : 0;
  }
  int64_lanes on_lanes;
  std::memcpy(&on_lanes, on, sizeof on);
  add_lanes<true, Moments, T>(sums, load<T>(old_logprob), load<T>(rollout_logprob), on_lanes);
}

/// Adds tokens, right if all log ratios that count are within +-64.
template <bool Masked, bool Moments, real T, logprob Old, logprob Rollout>
[[gnu::always_inline]] inline void add_plain(lane_sums<T>& sums, token_range<Old, Rollout> const& tokens) {
  lane_sums<T> running = sums;
  std::size_t i = 0;
  for (; i + lanes <= tokens.size; i += lanes) {
    int64_lanes on{};
    if constexpr (Masked)
      for (std::size_t l = 0; l < lanes; ++l) on[l] = tokens.mask[i + l] != 0 ? -1 : 0;
    add_lanes<Masked, Moments, T>(running, load<T>(tokens.old_logprob + i), load<T>(tokens.rollout_logprob + i), on);
  }
  if constexpr (!Masked) running.count[0] += static_cast<std::int64_t>(i);
  if (i < tokens.size) {
    if (Moments || Masked || tokens.size < lanes) {
      add_tail<Moments>(running, tokens.slice(i, tokens.size - i));
    } else {  // the last eight tokens, of which those already added are off
      std::size_t const last = tokens.size - lanes;
      add_lanes<true, false, T>(running, load<T>(tokens.old_logprob + last), load<T>(tokens.rollout_logprob + last),
                                lanes_from(i - last));
    }
  }
  sums = running;
}

/// Adds tokens of any value: non-finite ones are counted, large ones clamped.
template <bool Moments, real T, logprob Old, logprob Rollout>
[[gnu::noinline]] void add_any(turn_statistics& statistics, lane_sums<T>& sums,
                               token_range<Old, Rollout> const& tokens) {
  for (std::size_t first = 0; first < tokens.size; first += lanes) {
    double_lanes clamped{};
    double_lanes rollout{};
    int64_lanes on{};
    for (std::size_t l = 0; l < lanes && first + l < tokens.size; ++l) {
      std::size_t const i = first + l;
      if (tokens.mask != nullptr && tokens.mask[i] == 0) continue;
      auto const d = log_ratio(tokens.old_logprob[i], tokens.rollout_logprob[i]);
      if (!is_finite(d)) {
        ++statistics.non_finite;
        continue;
      }
      double const value = static_cast<double>(d) + 0.0;
      std::int64_t const index = log_ratio_index(d);
      statistics += {1, index, value, value, 0, is_saturated(d) ? 1 : 0};
      clamped[l] = static_cast<double>(index) * log_ratio_unit;
      rollout[l] = static_cast<double>(static_cast<T>(tokens.rollout_logprob[i]));
      on[l] = -1;
    }
    if constexpr (Moments) add_moments(sums, clamped, rollout, reinterpret_cast<uint64_lanes>(on));
  }
}

/// Sum of eight lanes as a binary tree.
[[gnu::always_inline]] inline double tree_sum(double_lanes v) {
  return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

/// The record of the lanes; adding +0 turns -0 into +0.
template <real T>
[[gnu::always_inline]] inline turn_statistics collect(lane_sums<T> const& sums) {
  std::int64_t count = 0;
  std::uint64_t sum = 0;
  auto min = sums.min[0];
  auto max = sums.max[0];
  for (std::size_t l = 0; l < lanes; ++l) {
    count += sums.count[l];
    sum += sums.sum[l];
    min = std::min<decltype(min)>(min, sums.min[l]);
    max = std::max<decltype(max)>(max, sums.max[l]);
  }
  if (count == 0) return {};
  using keys = typename lane_sums<T>::keys;
  auto const value = [](auto key) { return reinterpret_cast<typename lanes_of<T>::values>(order_key(keys{} + key))[0]; };
  return {count, static_cast<std::int64_t>(sum - static_cast<std::uint64_t>(count) * grid_shift_bits),
          static_cast<double>(value(min)) + 0.0, static_cast<double>(value(max)) + 0.0, 0, 0};
}

template <bool Moments, logprob Old, logprob Rollout>
[[gnu::always_inline]] inline turn_statistics reduce(token_range<Old, Rollout> const& tokens, ratio_moments* moments) {
  using wide = log_ratio_t<Old, Rollout>;
  constexpr std::size_t run = 4096;  // tokens done again when one of them is not plain
  lane_sums<wide> sums;
  turn_statistics others;
  for (std::size_t first = 0; first < tokens.size; first += run) {
    auto const part = tokens.slice(first, std::min(run, tokens.size - first));
    lane_sums<wide> const before = sums;
    if (part.mask == nullptr)
      add_plain<false, Moments>(sums, part);
    else
      add_plain<true, Moments>(sums, part);
    turn_statistics const so_far = collect(sums);
    if (so_far.min < -log_ratio_limit || so_far.max > log_ratio_limit || so_far.min != so_far.min) {
      sums = before;
      add_any<Moments>(others, sums, part);
    }
  }
  others += collect(sums);
  if constexpr (Moments) *moments = {tree_sum(sums.k3), tree_sum(sums.excess_squared), tree_sum(sums.rollout_logprob)};
  return others;
}

/// Statistics of one turn.
template <logprob Old, logprob Rollout>
turn_statistics reduce_turn(token_range<Old, Rollout> const& tokens) {
  return reduce<false>(tokens, nullptr);
}

/// Statistics and moments of one turn. The moments have a fixed order: token i goes to lane i mod 8, a token that does
/// not count adds 0, and the lanes are added as a binary tree.
template <logprob Old, logprob Rollout>
turn_statistics reduce_turn(token_range<Old, Rollout> const& tokens, ratio_moments& moments) {
  return reduce<true>(tokens, &moments);
}

}  // namespace turnwise::importance::detail
