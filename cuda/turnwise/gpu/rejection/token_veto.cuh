/// @file
/// Rejects a turn for a single token that the trainer finds far less likely than the sampler did, on the device.
#pragma once

#include <turnwise/gpu/rejection/usable_tokens.cuh>
#include <turnwise/rejection/token_veto.hpp>

#include <cmath>
#include <cstdint>

namespace turnwise::gpu::rejection {

using turnwise::rejection::token_veto_options;

namespace detail {

/// token_veto in one trajectory, by one warp.
__device__ inline void veto_of_trajectory(rollout_view const& batch, std::int64_t j,
                                          device_span<turn_statistics const> statistics, double log_threshold,
                                          scope veto_scope, device_span<reason_flags> reasons) {
  apply_ratio_rule(batch, j, statistics, veto_scope, reasons, [&](turn_statistics const& of_turns) {
    return turnwise::rejection::veto_reason(of_turns, log_threshold);
  });
}

TURNWISE_KERNEL void token_veto_kernel(rollout_view batch, device_span<turn_statistics const> statistics,
                                       double log_threshold, scope veto_scope, device_span<reason_flags> reasons) {
  gpu::detail::for_each_by_warp(static_cast<std::int64_t>(batch.trajectories()), [&](std::int64_t j) {
    veto_of_trajectory(batch, j, statistics, log_threshold, veto_scope, reasons);
  });
}

/// Checks the options and takes the threshold's log.
inline double log_veto_threshold(token_veto_options const& options) {
  turnwise::rejection::token_veto({}, {}, options, {});  // of no turns: checks the options
  return turnwise::rejection::log_of_option(options.threshold);
}

}  // namespace detail

/// Rejects each turn, or each trajectory, in which some token's ratio old / rollout is below the threshold: the device
/// version, with the same flags.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch, no workspace.
/// @param[in]     statistics  [S] from log_ratio_statistics.
/// @param[in]     options     the log of the threshold is taken on the host.
/// @param[in,out] reasons     [S] after usable_tokens; gains `token_veto`.
/// @throws precondition_error  sizes that differ, options as on the host; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @note  Exact: one comparison of doubles.
/// @par Complexity  O(S) work, a warp a trajectory.
/// @see turnwise::rejection::token_veto
inline void token_veto(rollout_view const& batch, device_span<turn_statistics const> statistics,
                       token_veto_options const& options, device_span<reason_flags> reasons,
                       ::cuda::stream_ref stream) {
  detail::check_ratio_rule(batch, statistics.size(), reasons.size(), "token_veto");
  double const log_threshold = detail::log_veto_threshold(options);
  launch("token_veto", detail::token_veto_kernel, gpu::detail::warp_blocks(batch.trajectories()),
         gpu::detail::warp_block_threads, 0, stream, batch, statistics, log_threshold, options.veto_scope, reasons);
}

}  // namespace turnwise::gpu::rejection
