/// @file
/// Rejects a turn for a single token that the trainer finds far less likely, or far likelier, than the sampler did, on
/// the device.
#pragma once

#include <turnwise/gpu/rejection/usable_tokens.cuh>
#include <turnwise/rejection/token_veto.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::rejection {

using turnwise::rejection::log_veto;
using turnwise::rejection::token_veto_options;

namespace detail {

/// token_veto in one trajectory, by one warp.
__device__ inline void veto_of_trajectory(rollout_view const& batch, std::int64_t j,
                                          device_span<turn_statistics const> statistics, log_veto const& veto,
                                          scope veto_scope, device_span<reason_flags> reasons) {
  apply_ratio_rule(
      batch, j, veto_scope, reasons, [&](std::size_t s) { return statistics[s]; },
      [&](turn_statistics const& total, std::size_t) { return turnwise::rejection::veto_reason(total, veto); });
}

TURNWISE_KERNEL void token_veto_kernel(rollout_view batch, device_span<turn_statistics const> statistics, log_veto veto,
                                       scope veto_scope, device_span<reason_flags> reasons) {
  gpu::detail::for_each_by_warp(static_cast<std::int64_t>(batch.trajectories()), [&](std::int64_t j) {
    veto_of_trajectory(batch, j, statistics, veto, veto_scope, reasons);
  });
}

}  // namespace detail

inline constexpr std::size_t token_veto_workspace_bytes = 0;  ///< takes no workspace

/// Rejects each turn, or each trajectory, in which some token's ratio old / rollout is below the threshold, or above
/// the outlier threshold: the device version, with the same flags.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch, no workspace.
/// @param[in]     statistics  [S] from log_ratio_statistics.
/// @param[in]     options     the logs of the thresholds are taken on the host.
/// @param[in,out] reasons     [S] after usable_tokens; gains `token_veto` and `token_outlier`.
/// @throws precondition_error  sizes that differ, options as on the host; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @note  Exact: two comparisons of doubles.
/// @par Complexity  O(S) work, a warp a trajectory.
/// @see turnwise::rejection::token_veto
inline void token_veto(rollout_view const& batch, device_span<turn_statistics const> statistics,
                       token_veto_options const& options, device_span<reason_flags> reasons,
                       ::cuda::stream_ref stream) {
  detail::check_ratio_rule(batch, statistics.size(), reasons.size(), "token_veto");
  log_veto const veto = turnwise::rejection::make_log_veto(options, "token_veto");
  launch("token_veto", detail::token_veto_kernel, gpu::detail::warp_blocks(batch.trajectories()),
         gpu::detail::warp_block_threads, 0, stream, batch, statistics, veto, options.veto_scope, reasons);
}

}  // namespace turnwise::gpu::rejection
