/// @file
/// Spreads each turn's advantage over its tokens.
#pragma once

#include <turnwise/core/parallel_for.hpp>
#include <turnwise/core/rollout.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace turnwise::advantage {
namespace detail {

/// Turns with tokens in the order of their tokens; throws if two of them overlap.
inline std::vector<std::size_t> token_order(rollout_view const& batch, std::string_view function) {
  std::vector<std::size_t> order;
  order.reserve(batch.turns());
  for (std::size_t s = 0; s < batch.turns(); ++s)
    if (batch.turn_end[s] > batch.turn_begin[s]) order.push_back(s);
  auto const begin = [&](std::size_t s) { return batch.turn_begin[s]; };
  if (!std::ranges::is_sorted(order, {}, begin)) std::ranges::sort(order, {}, begin);
  for (std::size_t i = 1; i < order.size(); ++i)
    expects(batch.turn_end[order[i - 1]] <= batch.turn_begin[order[i]], function, ": the tokens of turn ",
            std::max(order[i - 1], order[i]), " overlap those of turn ", std::min(order[i - 1], order[i]));
  return order;
}

}  // namespace detail

/// Writes each token's advantage and loss mask.
///
///     advantage[n] = A(turn of n), mask[n] = 1   where the turn is kept and the token unmasked;   else 0 and 0
///
/// @param[in]  batch      S turns over N tokens; token ranges must not overlap.
/// @param[in]  mask       [N] or empty: all tokens were generated.
/// @param[in]  turn_advantage, reasons  [S].
/// @param[out] token_advantage  [N], or empty: not wanted. Tokens in no turn get 0.
/// @param[out] token_mask       [N], or empty: not wanted.
/// @param[in]  threads    0 = the runtime's default.
/// @throws precondition_error  sizes that differ, ranges outside the arrays, turns that overlap; nothing is written.
/// @note  Each token is written once. Deterministic: the same bits everywhere.
/// @par Complexity  O(N + S) time, O(S log S) when turns do not stand in token order; O(S) memory.
/// @par Reference   ours; trainers broadcast a sequence's advantage likewise.
template <real A, real T>
void per_token(rollout_view const& batch, std::span<std::uint8_t const> mask, std::span<A const> turn_advantage,
               std::span<reason_flags const> reasons, std::span<T> token_advantage,
               std::span<std::uint8_t> token_mask = {}, int threads = 0) {
  std::size_t const tokens = std::max(token_advantage.size(), token_mask.size());
  check_rollout(batch, "per_token");
  check_token_ranges(batch, tokens, "per_token");
  expects_size("per_token", "turn_advantage", turn_advantage.size(), batch.turns(), "turn");
  expects_size("per_token", "reasons", reasons.size(), batch.turns(), "turn");
  if (!mask.empty()) expects_size("per_token", "mask", mask.size(), tokens, "token");
  if (!token_advantage.empty()) expects_size("per_token", "token_advantage", token_advantage.size(), tokens, "token");
  if (!token_mask.empty()) expects_size("per_token", "token_mask", token_mask.size(), tokens, "token");
  std::vector<std::size_t> const order = detail::token_order(batch, "per_token");

  auto const fill = [&](std::size_t first, std::size_t last, T value, bool on) {
    if (!on) value = T{0};
    if (!token_advantage.empty()) {
      if (mask.empty() || !on)
        std::fill(token_advantage.data() + first, token_advantage.data() + last, value);
      else
        for (std::size_t n = first; n < last; ++n) token_advantage[n] = mask[n] != 0 ? value : T{0};
    }
    if (token_mask.empty()) return;
    if (mask.empty() || !on)
      std::fill(token_mask.data() + first, token_mask.data() + last, static_cast<std::uint8_t>(on));
    else
      for (std::size_t n = first; n < last; ++n) token_mask[n] = mask[n] != 0;
  };
  // Turn i of the order also clears the tokens between it and the next, so that every token has one writer.
  auto const begin_of = [&](std::size_t i) {
    return i < order.size() ? static_cast<std::size_t>(batch.turn_begin[order[i]]) : tokens;
  };
  fill(0, begin_of(0), T{0}, false);
  std::size_t const grain = order.empty() ? 1 : (std::size_t{1} << 18) / (tokens / order.size() + 1);
  parallel_for(order.size(), grain, threads, [&](std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) {
      std::size_t const s = order[i];
      auto const end = static_cast<std::size_t>(batch.turn_end[s]);
      fill(begin_of(i), end, narrowed<T>(turn_advantage[s]), is_kept(reasons[s]));
      fill(end, begin_of(i + 1), T{0}, false);
    }
  });
}

}  // namespace turnwise::advantage
