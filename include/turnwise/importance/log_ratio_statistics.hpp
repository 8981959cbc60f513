/// @file
/// One pass over the tokens: everything about a turn's log ratios that later rules and metrics need.
#pragma once

#include <turnwise/core/parallel_for.hpp>
#include <turnwise/core/rollout.hpp>
#include <turnwise/importance/detail/block_reduce.hpp>
#include <turnwise/importance/log_ratio.hpp>
#include <turnwise/importance/turn_statistics.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace turnwise::importance {

namespace detail {

template <logprob_value Old, logprob_value Rollout>
void check_tokens(rollout_view const& batch, token_logprobs<Old, Rollout> const& tokens, std::string_view function) {
  check_rollout(batch, function);
  std::size_t const count = tokens.old_logprob.size();
  expects_size(function, "rollout_logprob", tokens.rollout_logprob.size(), count, "token, as old_logprob");
  if (!tokens.mask.empty()) expects_size(function, "mask", tokens.mask.size(), count, "token, as old_logprob");
  check_token_ranges(batch, count, function);
}

/// Turns that hold about 256 Ki tokens: what a thread takes at a time, and what is too little to start a second one.
inline std::size_t turn_grain(std::size_t turns, std::size_t tokens) {
  return turns == 0 ? 1 : std::max<std::size_t>(1, (std::size_t{1} << 18) / (tokens / turns + 1));
}

}  // namespace detail

/// Statistics of each turn's log ratios d = old - rollout, in one pass over the tokens.
///
/// @param[in]  batch       S turns; token ranges may overlap and stand in any order.
/// @param[in]  tokens      log-probs in nats and the optional mask, [N] each; masked tokens are not read as numbers.
/// @param[out] statistics  [S].
/// @param[in]  threads     0 = the runtime's default.
/// @throws precondition_error  sizes that differ, a token range outside the arrays; nothing is written.
/// @note  A turn without unmasked tokens: count 0, sum 0, min +inf, max -inf. NaN and infinite log ratios are counted
///        (non_finite) and enter nothing else.
/// @note  Exact: the same bits for any order, split, thread count, compiler and backend, below 2^33 tokens a turn.
/// @par Complexity  one read of the tokens, O(S) writes, no allocation.
/// @par Reference   ours.
/// @see docs/exactness.md for the grid.
template <logprob_value Old, logprob_value Rollout>
void log_ratio_statistics(rollout_view const& batch, token_logprobs<Old, Rollout> const& tokens,
                          std::span<turn_statistics> statistics, int threads = 0) {
  detail::check_tokens(batch, tokens, "log_ratio_statistics");
  expects_size("log_ratio_statistics", "statistics", statistics.size(), batch.turns(), "turn");
  parallel_for(batch.turns(), detail::turn_grain(batch.turns(), tokens.old_logprob.size()), threads,
               [&](std::size_t first, std::size_t last) {
                 for (std::size_t s = first; s < last; ++s)
                   statistics[s] = detail::reduce_turn(detail::turn_tokens(batch, tokens, s));
               });
}

/// The same with the sums that mismatch metrics need, from the same single read.
///
/// @param[out] moments  [S]; the same bits for any order, split of turns, thread count and compiler.
/// @par Reference   ours.
template <logprob_value Old, logprob_value Rollout>
void log_ratio_statistics(rollout_view const& batch, token_logprobs<Old, Rollout> const& tokens,
                          std::span<turn_statistics> statistics, std::span<ratio_moments> moments, int threads = 0) {
  detail::check_tokens(batch, tokens, "log_ratio_statistics");
  expects_size("log_ratio_statistics", "statistics", statistics.size(), batch.turns(), "turn");
  expects_size("log_ratio_statistics", "moments", moments.size(), batch.turns(), "turn");
  parallel_for(batch.turns(), detail::turn_grain(batch.turns(), tokens.old_logprob.size()), threads,
               [&](std::size_t first, std::size_t last) {
                 for (std::size_t s = first; s < last; ++s)
                   statistics[s] = detail::reduce_turn(detail::turn_tokens(batch, tokens, s), moments[s]);
               });
}

}  // namespace turnwise::importance
