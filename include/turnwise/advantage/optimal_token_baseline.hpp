/// @file
/// A baseline for each token position: the group's returns, weighted by the gradient gathered so far.
#pragma once

#include <turnwise/advantage/baseline_members.hpp>
#include <turnwise/advantage/detail/group_driver.hpp>
#include <turnwise/advantage/per_token.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace turnwise::advantage {

/// What a token gets where fewer than two baseline members have its position.
enum class lone_position : std::uint8_t {
  zero,  ///< advantage 0, as the formula gives for the only member there
  keep   ///< its turn's whole return: baseline 0
};

/// Options of `optimal_token_baseline`.
struct optimal_token_baseline_options {
  lone_position singleton = lone_position::zero;  ///< in groups of fewer than two members (verl: keep)
  lone_position tail = lone_position::zero;       ///< behind the second longest member (verl's handle_zero_tail: keep)
  baseline_members members = baseline_members::valid;  ///< whose returns form the baseline
  int threads = 0;                                     ///< 0 = the runtime's default
};

namespace detail {

/// Largest weight of a token, so that no weighted sum of returns can overflow.
inline constexpr double token_weight_limit = magnitude_limit<float>;

template <real T>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr bool is_token_weight(T weight) noexcept {
  return weight >= 0 && static_cast<double>(weight) <= token_weight_limit;
}

/// In place of a baseline: advantage 0.
inline constexpr double no_baseline = std::numeric_limits<double>::quiet_NaN();

/// Positions that are summed as one block of a cumulative weight.
inline constexpr std::size_t prefix_lanes = 32;

/// Weights are multiplied by this, so that products of small ones with returns keep their bits.
inline constexpr double position_weight_scale = 0x1p300;

/// The members of a group that have one position, added in canonical order.
struct position_sums {
  std::int64_t members = 0;
  double reference = 0;  ///< return of the first of them with a weight
  double weight = 0;     ///< times position_weight_scale, as excess is
  double excess = 0;     ///< weighted sum of their returns, less the reference: 0 when all with a weight are equal

  TURNWISE_HOST_DEVICE void add(double turn_return, double cumulative_weight) noexcept {
    double const scaled = cumulative_weight * position_weight_scale;  // exact
    if (!(weight > 0)) reference = turn_return;
    ++members;
    weight += scaled;
    using std::fma;
    excess = fma(scaled, turn_return - reference, excess);
  }
  /// Or no_baseline.
  [[nodiscard]] TURNWISE_HOST_DEVICE double baseline(lone_position alone) const noexcept {
    if (members < 2 && alone == lone_position::keep) return 0;
    return members >= 2 && weight > 0 ? reference + excess / weight : no_baseline;
  }
};

[[nodiscard]] TURNWISE_HOST_DEVICE constexpr double over_baseline(double turn_return, double baseline) noexcept {
  return baseline == baseline ? turn_return - baseline : 0.0;
}

/// Calls use(p, W) for the cumulative weight W of each unmasked token p of [begin, end), counted from 0. Blocks of
/// prefix_lanes positions are summed as a warp does (lane l += lane l - 1, then l - 2, 4, 8, 16), one after the other.
template <real T, typename Use>
void for_each_cumulative(std::span<T const> weight, std::span<std::uint8_t const> mask, std::size_t begin,
                         std::size_t end, Use use) {
  double before = 0;
  std::size_t done = 0;
  for (std::size_t n = begin; n < end;) {
    std::array<double, prefix_lanes> lane{};
    std::size_t count = 0;
    for (; n < end && count < prefix_lanes; ++n)
      if (mask.empty() || mask[n] != 0) lane[count++] = static_cast<double>(weight[n]);
    for (std::size_t step = 1; step < prefix_lanes; step *= 2)
      for (std::size_t l = prefix_lanes; l-- > step;) lane[l] += lane[l - step];
    for (std::size_t l = 0; l < count; ++l) use(done + l, before + lane[l]);
    before += lane.back();
    done += count;
  }
}

template <real T, real A>
void check_optimal_token_baseline(rollout_view const& batch, grouping const& groups, std::span<std::uint8_t const> mask,
                                  std::span<T const> weight, std::span<A const> turn_return,
                                  std::span<reason_flags const> reasons, baseline_members members,
                                  std::span<T> advantage) {
  std::string_view const name = "optimal_token_baseline";
  check_rollout(batch, name);
  check_token_ranges(batch, weight.size(), name);
  expects_size(name, "groups", groups.turns(), batch.turns(), "turn");
  expects_size(name, "turn_return", turn_return.size(), batch.turns(), "turn");
  if (!reasons.empty()) expects_size(name, "reasons", reasons.size(), batch.turns(), "turn");
  if (!mask.empty()) expects_size(name, "mask", mask.size(), weight.size(), "token, as weight");
  expects_size(name, "advantage", advantage.size(), weight.size(), "token, as weight");
  static_cast<void>(token_order(batch, name));  // throws where turns overlap
  for (std::size_t s = 0; s < turn_return.size(); ++s) {
    reason_flags const flags = reasons.empty() ? 0 : reasons[s];
    if (!is_valid(flags)) continue;
    expects(within_limit(turn_return[s]), name, ": turn_return[", s, "] = ", turn_return[s],
            " of a valid turn is not finite or beyond the magnitude limit");
    if (members == baseline_members::kept && !is_kept(flags)) continue;
    auto const end = static_cast<std::size_t>(batch.turn_end[s]);
    for (auto n = static_cast<std::size_t>(batch.turn_begin[s]); n < end; ++n)
      expects((!mask.empty() && mask[n] == 0) || is_token_weight(weight[n]), name, ": weight[", n, "] = ", weight[n],
              " of a baseline member is negative, not finite or too large");
  }
}

}  // namespace detail

/// Advantage of each token over the mean return of its group, weighted at each position by the gradient that every
/// member has gathered up to there.
///
///     W_i(p) = w_i(0) + ... + w_i(p)                 p counts the unmasked tokens of turn i
///     B(p)   = sum G_i W_i(p) / sum W_i(p)           over the baseline members that have a token p
///     A_i(p) = G_i - B(p)
///
/// The weight is a proxy of the squared norm of a token's score, 1 - 2 pi + sum pi^2 with pi under the policy that is
/// trained; multiply it by the squared importance ratio to correct for the sampler (Dr. Kernel).
/// Also called: OTB.
/// @param[in]  batch        S turns over N tokens; token ranges must not overlap.
/// @param[in]  groups       group_by::turn or group_by::group; for single-turn samples the prompt.
/// @param[in]  mask         [N], or empty: all tokens were generated.
/// @param[in]  weight       [N] w in [0, 2^100]; read at the unmasked tokens of baseline members.
/// @param[in]  turn_return  [S] G.
/// @param[in]  reasons      [S], or empty: all valid and kept.
/// @param[out] advantage    [N], unit of turn_return; may be the same span as weight. 0 for masked tokens, tokens in no
///             turn and tokens of invalid turns.
/// @throws precondition_error  sizes that differ, ranges outside the arrays, turns that overlap, a valid turn's return
///         that is not finite or beyond magnitude_limit, a member's weight that is negative, not finite or too large;
///         nothing is written.
/// @note  Positions that fewer than two members have: `tail`; in groups of fewer than two members: `singleton`.
/// @note  Weights that are all 0 up to a position: advantage 0 there, for the score is 0. Equal returns of the members
///        at a position that have a weight there: exactly 0 for them.
/// @note  Biased as opo is: the turn is part of its own baseline. At a position whose cumulative weights are equal:
///        mean-centred over the members there.
/// @note  verl adds 1e-8 to the sum of weights, and leaves masked tokens out of positions in its multi-turn form only.
/// @note  Deterministic: members in canonical order one after the other, cumulative weights in blocks of 32 positions
///        (see for_each_cumulative): the same bits for any order of trajectories, any thread count and on the device.
/// @par Complexity  O(N + S) time, O(tokens of a group) memory a thread.
/// @par Reference   Li et al. 2026, arXiv:2602.07078; verl, optimal_token_baseline and tir_optimal_token_baseline.
/// @see turnwise::gpu::advantage::optimal_token_baseline
template <real T, real A>
void optimal_token_baseline(rollout_view const& batch, grouping const& groups, std::span<std::uint8_t const> mask,
                            no_deduce<std::span<T const>> weight, std::span<A const> turn_return,
                            std::span<reason_flags const> reasons, optimal_token_baseline_options const& options,
                            std::span<T> advantage) {
  detail::check_optimal_token_baseline<T, A>(batch, groups, mask, weight, turn_return, reasons, options.members,
                                             advantage);
  auto const flags = [&](std::size_t s) { return reasons.empty() ? reason_flags{0} : reasons[s]; };
  auto const is_member = [&](std::size_t s) {
    return options.members == baseline_members::valid ? is_valid(flags(s)) : is_kept(flags(s));
  };
  auto const begin = [&](std::size_t s) { return static_cast<std::size_t>(batch.turn_begin[s]); };
  auto const end = [&](std::size_t s) { return static_cast<std::size_t>(batch.turn_end[s]); };
  auto const write_group = [&](std::size_t g, std::vector<detail::position_sums>& sums) {
    sums.clear();
    std::int64_t members = 0;
    for (std::int64_t const turn : groups.members(g)) {
      auto const s = static_cast<std::size_t>(turn);
      if (!is_member(s)) continue;
      ++members;
      detail::for_each_cumulative<T>(weight, mask, begin(s), end(s), [&](std::size_t p, double cumulative) {
        if (p == sums.size()) sums.emplace_back();
        sums[p].add(static_cast<double>(turn_return[s]), cumulative);
      });
    }
    lone_position const alone = members < 2 ? options.singleton : options.tail;
    for (std::int64_t const turn : groups.members(g)) {
      auto const s = static_cast<std::size_t>(turn);
      std::size_t p = 0;
      for (std::size_t n = begin(s); n < end(s); ++n) {
        bool const on = is_valid(flags(s)) && (mask.empty() || mask[n] != 0);
        detail::position_sums const at = on && p < sums.size() ? sums[p] : detail::position_sums{};
        p += on;
        advantage[n] =
            narrowed<T>(on ? detail::over_baseline(static_cast<double>(turn_return[s]), at.baseline(alone)) : 0.0);
      }
    }
  };
  auto const order = detail::token_order(batch, "optimal_token_baseline");
  for (std::size_t i = 0, next = 0; i <= order.size(); ++i) {  // the tokens in no turn
    std::size_t const stop = i < order.size() ? begin(order[i]) : advantage.size();
    std::fill(advantage.data() + next, advantage.data() + stop, T{0});
    if (i < order.size()) next = end(order[i]);
  }
  std::size_t const average = groups.groups() == 0 ? 1 : weight.size() / groups.groups() + 1;
  parallel_for(groups.groups(), (std::size_t{1} << 16) / average, options.threads,
               [&](std::size_t first, std::size_t last) {
                 std::vector<detail::position_sums> sums;
                 for (std::size_t g = first; g < last; ++g) write_group(g, sums);
               });
}

}  // namespace turnwise::advantage
