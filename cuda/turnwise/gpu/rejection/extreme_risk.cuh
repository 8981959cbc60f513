/// @file
/// Masks improbable tokens of turns that did badly, whose gradients explode, on the device.
#pragma once

#include <turnwise/gpu/importance/detail/turn_pieces.cuh>
#include <turnwise/rejection/extreme_risk.hpp>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::rejection {

using turnwise::rejection::extreme_risk_options;

namespace detail {

template <real T, logprob_value P>
TURNWISE_KERNEL void extreme_risk_kernel(token_plan plan, device_span<T const> advantage, device_span<P const> logprob,
                                         double log_threshold, device_span<std::uint8_t> keep) {
  importance::detail::for_each_piece(plan, [&](importance::detail::turn_piece const& piece) {
    if (piece.turn < 0) return;
    double const of_turn = static_cast<double>(advantage[static_cast<std::size_t>(piece.turn)]);
    if (!(of_turn < 0)) return;
    piece.for_each_token([&](std::int64_t token) {
      auto const i = static_cast<std::size_t>(token);
      double const value = static_cast<double>(static_cast<log_ratio_t<P, P>>(logprob[i]));
      if (turnwise::rejection::is_extreme_risk(value, of_turn, log_threshold)) keep[i] = 0;
    });
  });
}

}  // namespace detail

inline constexpr std::size_t extreme_risk_workspace_bytes = 0;  ///< takes no workspace

/// Clears the tokens of turns of negative advantage that the policy finds too improbable: the device version, with the
/// same bytes.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch, no workspace.
/// @param[in]     plan       of the batch, over arrays of N tokens.
/// @param[in]     advantage  [S]; a NaN is not negative.
/// @param[in]     logprob    [N] nats.
/// @param[in]     options    the log of the threshold is taken on the host.
/// @param[in,out] keep       [N] of begin_token_mask, or of the rule before.
/// @throws precondition_error  sizes that differ, options as on the host; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @par Complexity  O(N), a warp a chunk of tokens.
/// @see turnwise::rejection::extreme_risk
template <real T, logprob_value P>
void extreme_risk(token_plan const& plan, device_span<T const> advantage, device_span<P const> logprob,
                  extreme_risk_options const& options, device_span<std::uint8_t> keep, ::cuda::stream_ref stream) {
  expects_size("extreme_risk", "advantage", advantage.size(), plan.turns, "turn of the plan");
  expects_size("extreme_risk", "logprob", logprob.size(), plan.tokens, "token of the plan");
  expects_size("extreme_risk", "keep", keep.size(), plan.tokens, "token of the plan");
  double const log_threshold = turnwise::rejection::detail::log_risk_threshold(options, "extreme_risk");
  if (plan.turns == 0) return;
  launch("extreme_risk", detail::extreme_risk_kernel<T, P>, gpu::detail::warp_blocks(plan.chunks.size()),
         gpu::detail::warp_block_threads, 0, stream, plan, advantage, logprob, log_threshold, keep);
}

}  // namespace turnwise::gpu::rejection
