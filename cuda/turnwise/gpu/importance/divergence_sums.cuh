/// @file
/// Exact sums, over each turn, of the k2 and k3 estimates of the divergence between sampler and trainer, on the device.
#pragma once

#include <turnwise/gpu/importance/detail/turn_pieces.cuh>
#include <turnwise/importance/divergence_sums.hpp>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::importance {

using turnwise::importance::turn_divergence;

namespace detail {

/// Adds to a sum that stops at the largest integer: free of order, so that atomics are exact.
__device__ inline void add_saturating(std::int64_t& sum, std::int64_t value) {
  auto* const word = reinterpret_cast<unsigned long long*>(&sum);
  unsigned long long seen = *word;
  for (unsigned long long expected = ~seen; expected != seen;) {
    expected = seen;
    auto const next = turnwise::importance::detail::saturating_sum(static_cast<std::int64_t>(expected), value);
    seen = atomicCAS(word, expected, static_cast<unsigned long long>(next));
  }
}

template <logprob_value Old, logprob_value Rollout>
TURNWISE_KERNEL void __launch_bounds__(gpu::detail::warp_block_threads)
    divergence_kernel(token_plan plan, token_logprobs<Old, Rollout> tokens, device_span<turn_divergence> sums) {
  for_each_piece(plan, [&](turn_piece const& piece) {
    turn_divergence mine;
    piece.for_each_token([&](std::int64_t i) {
      auto const at = static_cast<std::size_t>(i);
      if (!tokens.mask.empty() && tokens.mask[at] == 0) return;
      auto const d = turnwise::importance::log_ratio(tokens.old_logprob[at], tokens.rollout_logprob[at]);
      if (turnwise::importance::is_finite(d))
        mine += turnwise::importance::token_divergence(turnwise::importance::log_ratio_index(d));
    });
    for (int offset = piece.width / 2; offset > 0; offset /= 2)
      mine += {__shfl_xor_sync(every_lane, mine.k2, offset), __shfl_xor_sync(every_lane, mine.k3, offset)};
    if (piece.turn < 0 || piece.lane() != 0) return;
    turn_divergence& of_turn = sums[static_cast<std::size_t>(piece.turn)];
    if (piece.whole) {
      of_turn = mine;
    } else {
      add_saturating(of_turn.k2, mine.k2);
      add_saturating(of_turn.k3, mine.k3);
    }
  });
}

}  // namespace detail

inline constexpr std::size_t divergence_sums_workspace_bytes = 0;  ///< takes no workspace

/// Sums of k2 and k3 over each turn's usable tokens: the device version, with the same bits.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch and one memset,
/// no workspace.
/// @param[in]  plan    of the batch, over arrays of N tokens.
/// @param[in]  tokens  [N] each.
/// @param[out] sums    [S].
/// @throws precondition_error  sizes that differ; nothing is enqueued.
/// @throws cuda_error          a launch was refused.
/// @par Complexity  one read of the tokens of turns, O(S) writes; a warp a chunk of tokens.
/// @see turnwise::importance::divergence_sums
template <logprob_value Old, logprob_value Rollout>
void divergence_sums(token_plan const& plan, token_logprobs<Old, Rollout> const& tokens,
                     device_span<turn_divergence> sums, ::cuda::stream_ref stream) {
  expects_size("divergence_sums", "old_logprob", tokens.old_logprob.size(), plan.tokens, "token of the plan");
  expects_size("divergence_sums", "rollout_logprob", tokens.rollout_logprob.size(), plan.tokens, "token of the plan");
  if (!tokens.mask.empty())
    expects_size("divergence_sums", "mask", tokens.mask.size(), plan.tokens, "token of the plan");
  expects_size("divergence_sums", "sums", sums.size(), plan.turns, "turn of the plan");
  if (plan.turns == 0) return;
  check(cudaMemsetAsync(sums.data(), 0, sums.size() * sizeof(turn_divergence), stream.get()), "divergence_sums: clear");
  launch("divergence_sums", detail::divergence_kernel<Old, Rollout>, gpu::detail::warp_blocks(plan.chunks.size()),
         gpu::detail::warp_block_threads, 0, stream, plan, tokens, sums);
}

}  // namespace turnwise::gpu::importance
