/// @file
/// Rejects turns whose estimated divergence between sampler and trainer leaves its bounds, on the device.
#pragma once

#include <turnwise/gpu/rejection/usable_tokens.cuh>
#include <turnwise/rejection/divergence_limit.hpp>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::rejection {

using turnwise::importance::turn_divergence;
using turnwise::rejection::divergence_limit_options;
using turnwise::rejection::divergence_record;

namespace detail {

TURNWISE_KERNEL void divergence_limit_kernel(rollout_view batch, device_span<turn_statistics const> statistics,
                                             device_span<turn_divergence const> sums, divergence_limit_options options,
                                             device_span<reason_flags> reasons) {
  gpu::detail::for_each_by_warp(static_cast<std::int64_t>(batch.trajectories()), [&](std::int64_t j) {
    apply_ratio_rule(
        batch, j, options.level, reasons,
        [&](std::size_t s) {
          return divergence_record{statistics[s], sums.empty() ? turn_divergence{} : sums[s]};
        },
        [&](divergence_record const& total, std::size_t) {
          return turnwise::rejection::divergence_reason(total, options);
        });
  });
}

}  // namespace detail

inline constexpr std::size_t divergence_limit_workspace_bytes = 0;  ///< takes no workspace

/// Rejects each turn whose divergence estimate, or whose trajectory's, is outside [low, high]: the device version, with
/// the same flags.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch, no workspace.
/// @param[in]     statistics  [S] from log_ratio_statistics.
/// @param[in]     sums        [S] from divergence_sums; may be empty for k1 and for max.
/// @param[in,out] reasons     [S] after usable_tokens; gains `divergence`.
/// @throws precondition_error  sizes that differ, options as on the host; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @note  Exact: integer sums, one product and two comparisons of doubles.
/// @par Complexity  O(S) work, a warp a trajectory.
/// @see turnwise::rejection::divergence_limit
inline void divergence_limit(rollout_view const& batch, device_span<turn_statistics const> statistics,
                             device_span<turn_divergence const> sums, divergence_limit_options const& options,
                             device_span<reason_flags> reasons, ::cuda::stream_ref stream) {
  detail::check_ratio_rule(batch, statistics.size(), reasons.size(), "divergence_limit");
  if (!sums.empty() || turnwise::rejection::detail::needs_divergence_sums(options))
    expects_size("divergence_limit", "sums", sums.size(), batch.turns, "turn");
  turnwise::rejection::detail::check_divergence_options(options, "divergence_limit");
  launch("divergence_limit", detail::divergence_limit_kernel, gpu::detail::warp_blocks(batch.trajectories()),
         gpu::detail::warp_block_threads, 0, stream, batch, statistics, sums, options, reasons);
}

}  // namespace turnwise::gpu::rejection
