/// @file
/// One pass over the tokens on the device: turnwise::importance::log_ratio_statistics with the same bits.
#pragma once

#include <turnwise/gpu/core/token_plan_view.cuh>
#include <turnwise/gpu/importance/detail/join_turns.cuh>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace turnwise::gpu::importance {
namespace detail {

template <logprob_value Old, logprob_value Rollout>
void check_call(token_plan const& plan, token_logprobs<Old, Rollout> const& tokens, std::size_t statistics) {
  std::string_view const name = "log_ratio_statistics";
  expects_size(name, "old_logprob", tokens.old_logprob.size(), plan.tokens, "token of the plan");
  expects_size(name, "rollout_logprob", tokens.rollout_logprob.size(), plan.tokens, "token of the plan");
  if (!tokens.mask.empty()) expects_size(name, "mask", tokens.mask.size(), plan.tokens, "token of the plan");
  expects_size(name, "statistics", statistics, plan.turns, "turn of the plan");
}

template <bool Moments, logprob_value Old, logprob_value Rollout>
void enqueue(token_plan const& plan, token_logprobs<Old, Rollout> const& tokens,
             device_span<turn_statistics> statistics, device_span<ratio_moments> moments, workspace& scratch,
             ::cuda::stream_ref stream) {
  chunk_outputs<Moments> out{plan.tokens, scratch};
  if (plan.turns == 0) return;
  out.turn = statistics;
  out.turn_moments = moments;
  enqueue_chunks(plan, tokens, out, stream);
  launch("log_ratio_statistics: join", join_kernel<Moments>, grid_blocks(plan.chunks.size(), 256), 256, 0, stream, plan,
         out);
}

}  // namespace detail

/// Scratch for log_ratio_statistics over arrays of `tokens` tokens.
[[nodiscard]] inline std::size_t log_ratio_statistics_workspace_bytes(std::size_t tokens, bool moments = false) {
  workspace count;
  if (moments)
    detail::chunk_outputs<true>{tokens, count};
  else
    detail::chunk_outputs<false>{tokens, count};
  return count.used();
}

/// Statistics of each turn's log ratios: the device version, with the same bits.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. Two launches.
/// @param[in]  plan        of the batch, over arrays of N tokens.
/// @param[in]  tokens      [N] each; any element alignment (16 bytes is fastest).
/// @param[out] statistics  [S].
/// @throws precondition_error  sizes that differ, a workspace too small; nothing is enqueued.
/// @throws cuda_error          a launch was refused.
/// @par Complexity  one read of the tokens that any turn's chunks cover, O(S) writes.
/// @see turnwise::importance::log_ratio_statistics
template <logprob_value Old, logprob_value Rollout>
void log_ratio_statistics(token_plan const& plan, token_logprobs<Old, Rollout> const& tokens,
                          device_span<detail::turn_statistics> statistics, workspace scratch,
                          ::cuda::stream_ref stream) {
  detail::check_call(plan, tokens, statistics.size());
  detail::enqueue<false>(plan, tokens, statistics, {}, scratch, stream);
}

/// The same with the sums for metrics. Run-to-run deterministic and free of the launch shape; against the host the sums
/// differ in their order: relative difference below 1e-12 of the sum of magnitudes.
template <logprob_value Old, logprob_value Rollout>
void log_ratio_statistics(token_plan const& plan, token_logprobs<Old, Rollout> const& tokens,
                          device_span<detail::turn_statistics> statistics, device_span<detail::ratio_moments> moments,
                          workspace scratch, ::cuda::stream_ref stream) {
  detail::check_call(plan, tokens, statistics.size());
  expects_size("log_ratio_statistics", "moments", moments.size(), plan.turns, "turn of the plan");
  detail::enqueue<true>(plan, tokens, statistics, moments, scratch, stream);
}

}  // namespace turnwise::gpu::importance
