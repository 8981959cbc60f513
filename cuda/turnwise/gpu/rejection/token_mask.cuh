/// @file
/// Masks single tokens whose importance ratio, or an estimate of divergence from it, leaves its bounds, on the device.
#pragma once

#include <turnwise/gpu/core/rollout.cuh>
#include <turnwise/gpu/core/warp.cuh>
#include <turnwise/rejection/token_mask.hpp>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::rejection {

using turnwise::rejection::token_bounds;
using turnwise::rejection::token_mask_options;

namespace detail {

template <logprob_value Old, logprob_value Rollout>
TURNWISE_KERNEL void token_mask_kernel(token_logprobs<Old, Rollout> tokens, token_bounds bounds,
                                       device_span<std::uint8_t> keep) {
  gpu::detail::for_each_by_thread(static_cast<std::int64_t>(keep.size()), [&](std::int64_t token) {
    auto const i = static_cast<std::size_t>(token);
    if (keep[i] == 0) return;
    bool const on = tokens.mask.empty() || tokens.mask[i] != 0;
    if (!on || !turnwise::rejection::keeps_token(
                   turnwise::importance::log_ratio(tokens.old_logprob[i], tokens.rollout_logprob[i]), bounds))
      keep[i] = 0;
  });
}

}  // namespace detail

inline constexpr std::size_t token_mask_workspace_bytes = 0;  ///< takes no workspace

/// Clears the tokens whose ratio old / rollout (or k1, k2, k3) is outside [low, high], and those without a finite one:
/// the device version, with the same bytes.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch, no workspace.
/// @param[in]     tokens   [N] each; tokens that tokens.mask (may be empty) has off are cleared.
/// @param[in]     options  the logs of ratio bounds are taken on the host; `threads` is not used.
/// @param[in,out] keep     [N] of begin_token_mask, or of the rule before; may be the same memory as tokens.mask.
/// @throws precondition_error  sizes that differ, options as on the host; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @par Complexity  O(N).
/// @see turnwise::rejection::token_mask
template <logprob_value Old, logprob_value Rollout>
void token_mask(token_logprobs<Old, Rollout> const& tokens, token_mask_options const& options,
                device_span<std::uint8_t> keep, ::cuda::stream_ref stream) {
  expects_size("token_mask", "old_logprob", tokens.old_logprob.size(), keep.size(), "token, as keep");
  expects_size("token_mask", "rollout_logprob", tokens.rollout_logprob.size(), keep.size(), "token, as keep");
  if (!tokens.mask.empty()) expects_size("token_mask", "mask", tokens.mask.size(), keep.size(), "token, as keep");
  token_bounds const bounds = turnwise::rejection::make_token_bounds(options, "token_mask");
  launch("token_mask", detail::token_mask_kernel<Old, Rollout>, grid_blocks(keep.size(), 256), 256, 0, stream, tokens,
         bounds, keep);
}

}  // namespace turnwise::gpu::rejection
