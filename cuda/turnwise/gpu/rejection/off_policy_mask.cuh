/// @file
/// Rejects turns that did badly and were sampled far from the policy, on the device.
#pragma once

#include <turnwise/gpu/rejection/usable_tokens.cuh>
#include <turnwise/rejection/off_policy_mask.hpp>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::rejection {

using turnwise::rejection::off_policy_mask_options;

namespace detail {

template <real T>
TURNWISE_KERNEL void off_policy_kernel(rollout_view batch, device_span<turn_statistics const> statistics,
                                       device_span<T const> advantage, off_policy_mask_options options,
                                       device_span<reason_flags> reasons) {
  gpu::detail::for_each_by_warp(static_cast<std::int64_t>(batch.trajectories()), [&](std::int64_t j) {
    apply_ratio_rule(
        batch, j, options.level, reasons, [&](std::size_t s) { return statistics[s]; },
        [&](turn_statistics const& total, std::size_t s) {
          return turnwise::rejection::off_policy_reason(total, static_cast<double>(advantage[s]), options.delta);
        });
  });
}

}  // namespace detail

inline constexpr std::size_t off_policy_mask_workspace_bytes = 0;  ///< takes no workspace

/// Rejects each turn of negative advantage whose tokens, or whose trajectory's, the policy has come to find less likely
/// than the sampler did: the device version, with the same flags.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch, no workspace.
/// @param[in]     statistics  [S] from log_ratio_statistics.
/// @param[in]     advantage   [S]; a NaN is not negative.
/// @param[in,out] reasons     [S] after usable_tokens; gains `off_policy`.
/// @throws precondition_error  sizes that differ, options as on the host; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @note  Exact: integer sums, one product and comparisons of doubles.
/// @par Complexity  O(S) work, a warp a trajectory.
/// @see turnwise::rejection::off_policy_mask
template <real T>
void off_policy_mask(rollout_view const& batch, device_span<turn_statistics const> statistics,
                     device_span<T const> advantage, off_policy_mask_options const& options,
                     device_span<reason_flags> reasons, ::cuda::stream_ref stream) {
  detail::check_ratio_rule(batch, statistics.size(), reasons.size(), "off_policy_mask");
  expects_size("off_policy_mask", "advantage", advantage.size(), batch.turns, "turn");
  turnwise::rejection::detail::check_off_policy_options(options, "off_policy_mask");
  launch("off_policy_mask", detail::off_policy_kernel<T>, gpu::detail::warp_blocks(batch.trajectories()),
         gpu::detail::warp_block_threads, 0, stream, batch, statistics, advantage, options, reasons);
}

}  // namespace turnwise::gpu::rejection
