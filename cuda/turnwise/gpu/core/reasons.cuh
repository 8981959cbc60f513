/// @file
/// The first step of a batch on the device: which turns the caller flagged off.
#pragma once

#include <turnwise/core/reason.hpp>
#include <turnwise/gpu/core/rollout.cuh>
#include <turnwise/gpu/core/warp.cuh>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu {
namespace detail {

__device__ inline reason_flags first_reasons(rollout_view const& batch, std::int64_t s) {
  return batch.flagged_off(s) ? reason::invalid : 0;
}

TURNWISE_KERNEL void begin_reasons_kernel(rollout_view batch, device_span<reason_flags> reasons) {
  for_each_by_thread(static_cast<std::int64_t>(batch.turns),
                     [&](std::int64_t s) { reasons[static_cast<std::size_t>(s)] = first_reasons(batch, s); });
}

}  // namespace detail

inline constexpr std::size_t begin_reasons_workspace_bytes = 0;  ///< takes no workspace

/// Sets each turn's reasons to `invalid` where the caller flagged it off, else to none.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch, no workspace.
/// @param[out] reasons  [S], overwritten.
/// @throws precondition_error  sizes that differ; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @par Complexity  O(S).
/// @see turnwise::begin_reasons
inline void begin_reasons(rollout_view const& batch, device_span<reason_flags> reasons, ::cuda::stream_ref stream) {
  check_sizes(batch, "begin_reasons");
  expects_size("begin_reasons", "reasons", reasons.size(), batch.turns, "turn");
  launch("begin_reasons", detail::begin_reasons_kernel, grid_blocks(batch.turns, 256), 256, 0, stream, batch, reasons);
}

}  // namespace turnwise::gpu
