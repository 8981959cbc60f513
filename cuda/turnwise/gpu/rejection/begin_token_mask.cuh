/// @file
/// The mask that rules on single tokens start from, on the device.
#pragma once

#include <turnwise/core/reason.hpp>
#include <turnwise/gpu/importance/detail/turn_pieces.cuh>
#include <turnwise/rejection/begin_token_mask.hpp>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::rejection {
namespace detail {

TURNWISE_KERNEL void begin_token_mask_kernel(token_plan plan, device_span<std::uint8_t const> mask,
                                             device_span<reason_flags const> reasons, device_span<std::uint8_t> keep) {
  importance::detail::for_each_piece(plan, [&](importance::detail::turn_piece const& piece) {
    if (piece.turn < 0) return;
    if (!reasons.empty() && !is_kept(reasons[static_cast<std::size_t>(piece.turn)])) return;
    piece.for_each_token([&](std::int64_t token) {
      auto const i = static_cast<std::size_t>(token);
      if (mask.empty() || mask[i] != 0) keep[i] = 1;
    });
  });
}

}  // namespace detail

inline constexpr std::size_t begin_token_mask_workspace_bytes = 0;  ///< takes no workspace

/// Sets each token's keep byte to 1 where a kept turn generated it, else to 0: the device version.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch and one memset,
/// no workspace.
/// @param[in]  plan     of the batch, over arrays of N tokens.
/// @param[in]  mask     [N], or empty: all on.
/// @param[in]  reasons  [S], or empty: all kept.
/// @param[out] keep     [N], overwritten; no overlap with mask.
/// @throws precondition_error  sizes that differ, keep that overlaps mask; nothing is enqueued.
/// @throws cuda_error          a launch was refused.
/// @par Complexity  O(N), a warp a chunk of tokens.
/// @see turnwise::rejection::begin_token_mask
inline void begin_token_mask(token_plan const& plan, device_span<std::uint8_t const> mask,
                             device_span<reason_flags const> reasons, device_span<std::uint8_t> keep,
                             ::cuda::stream_ref stream) {
  expects_size("begin_token_mask", "keep", keep.size(), plan.tokens, "token of the plan");
  if (!mask.empty()) expects_size("begin_token_mask", "mask", mask.size(), plan.tokens, "token of the plan");
  if (!reasons.empty()) expects_size("begin_token_mask", "reasons", reasons.size(), plan.turns, "turn of the plan");
  turnwise::rejection::detail::check_keep_apart(mask.data(), mask.size(), keep.data(), keep.size());
  if (keep.empty()) return;
  check(cudaMemsetAsync(keep.data(), 0, keep.size(), stream.get()), "begin_token_mask: clear");
  if (plan.turns == 0) return;
  launch("begin_token_mask", detail::begin_token_mask_kernel, gpu::detail::warp_blocks(plan.chunks.size()),
         gpu::detail::warp_block_threads, 0, stream, plan, mask, reasons, keep);
}

}  // namespace turnwise::gpu::rejection
