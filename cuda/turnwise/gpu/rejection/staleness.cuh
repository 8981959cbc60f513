/// @file
/// Rejects turns that a policy of too old a version sampled, on the device.
#pragma once

#include <turnwise/gpu/core/rollout.cuh>
#include <turnwise/gpu/core/status.cuh>
#include <turnwise/gpu/core/warp.cuh>
#include <turnwise/rejection/staleness.hpp>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::rejection {

using turnwise::rejection::staleness_options;

namespace detail {

TURNWISE_KERNEL void staleness_kernel(device_span<std::int64_t const> policy_version, staleness_options options,
                                      device_span<reason_flags> reasons, status_record* status) {
  gpu::detail::for_each_by_thread(static_cast<std::int64_t>(reasons.size()), [&](std::int64_t turn) {
    auto const s = static_cast<std::size_t>(turn);
    if (!is_valid(reasons[s])) return;
    bool const from_future = policy_version[s] > options.current_version;
    if (from_future) report(status, status_code::policy_version, turn);
    reason_flags const found =
        from_future ? reason::stale : turnwise::rejection::staleness_reason(policy_version[s], options);
    if (found != 0) reasons[s] |= found;
  });
}

}  // namespace detail

inline constexpr std::size_t staleness_workspace_bytes = 0;  ///< takes no workspace

/// Rejects each turn whose policy version lags by more than max_lag: the device version, with the same flags.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph: a replay judges by the
/// current version of the capture. One launch, no workspace.
/// @param[in]     policy_version  [S] of the weights that sampled the turn.
/// @param[in,out] reasons         [S] in which validity is settled; gains `stale`.
/// @param[in]     status          may be null; gains policy_version: a valid turn's version above the current one. The
///                                turn is rejected as stale.
/// @throws precondition_error  sizes that differ, options as on the host; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @par Complexity  O(S).
/// @see turnwise::rejection::staleness
inline void staleness(rollout_view const& batch, device_span<std::int64_t const> policy_version,
                      staleness_options const& options, device_span<reason_flags> reasons, status_record* status,
                      ::cuda::stream_ref stream) {
  check_sizes(batch, "staleness");
  expects_size("staleness", "policy_version", policy_version.size(), batch.turns, "turn");
  expects_size("staleness", "reasons", reasons.size(), batch.turns, "turn");
  turnwise::rejection::staleness({}, {}, options, {});  // of no turns: checks the options
  launch("staleness", detail::staleness_kernel, grid_blocks(batch.turns, 256), 256, 0, stream, policy_version, options,
         reasons, status);
}

}  // namespace turnwise::gpu::rejection
