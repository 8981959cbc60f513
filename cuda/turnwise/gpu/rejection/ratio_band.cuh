/// @file
/// Rejects turns whose importance ratio leaves a band around 1, on the device.
#pragma once

#include <turnwise/gpu/rejection/usable_tokens.cuh>
#include <turnwise/rejection/ratio_band.hpp>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::rejection {

using turnwise::rejection::log_band;
using turnwise::rejection::ratio_band_options;

namespace detail {

/// ratio_band in one trajectory, by one warp.
__device__ inline void band_of_trajectory(rollout_view const& batch, std::int64_t j,
                                          device_span<turn_statistics const> statistics, log_band const& band,
                                          scope level, device_span<reason_flags> reasons) {
  apply_ratio_rule(
      batch, j, level, reasons, [&](std::size_t s) { return statistics[s]; },
      [&](turn_statistics const& total, std::size_t) { return turnwise::rejection::band_reason(total, band); });
}

/// geometric_ratio in one trajectory, by one warp.
__device__ inline void ratio_of_trajectory(rollout_view const& batch, std::int64_t j,
                                           device_span<turn_statistics const> statistics,
                                           device_span<reason_flags const> reasons, scope level,
                                           device_span<double> ratio) {
  double const of_trajectory =
      level == scope::trajectory ? exp(trajectory_statistics(batch, j, statistics, reasons).log_mean()) : 1.0;
  for_each_turn(batch, j, [&](std::size_t s) {
    ratio[s] = level == scope::trajectory ? of_trajectory : has_ratio(reasons[s]) ? exp(statistics[s].log_mean()) : 1.0;
  });
}

TURNWISE_KERNEL void ratio_band_kernel(rollout_view batch, device_span<turn_statistics const> statistics, log_band band,
                                       scope level, device_span<reason_flags> reasons) {
  gpu::detail::for_each_by_warp(static_cast<std::int64_t>(batch.trajectories()), [&](std::int64_t j) {
    band_of_trajectory(batch, j, statistics, band, level, reasons);
  });
}

TURNWISE_KERNEL void geometric_ratio_kernel(rollout_view batch, device_span<turn_statistics const> statistics,
                                            device_span<reason_flags const> reasons, scope level,
                                            device_span<double> ratio) {
  gpu::detail::for_each_by_warp(static_cast<std::int64_t>(batch.trajectories()), [&](std::int64_t j) {
    ratio_of_trajectory(batch, j, statistics, reasons, level, ratio);
  });
}

}  // namespace detail

inline constexpr std::size_t ratio_band_workspace_bytes = 0;  ///< takes no workspace

/// Rejects each turn whose ratio, or whose trajectory's ratio, is outside [low, high]: the device version, with the
/// same flags.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch, no workspace.
/// @param[in]     statistics  [S] from log_ratio_statistics.
/// @param[in]     options     the logs of the band are taken on the host.
/// @param[in,out] reasons     [S] after usable_tokens; gains ratio_low or ratio_high.
/// @throws precondition_error  sizes that differ, options as on the host; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @note  Exact: integer sums, one product and one comparison of doubles.
/// @par Complexity  O(S) work, a warp a trajectory.
/// @see turnwise::rejection::ratio_band
inline void ratio_band(rollout_view const& batch, device_span<turn_statistics const> statistics,
                       ratio_band_options const& options, device_span<reason_flags> reasons,
                       ::cuda::stream_ref stream) {
  detail::check_ratio_rule(batch, statistics.size(), reasons.size(), "ratio_band");
  log_band const band = turnwise::rejection::make_log_band(options, "ratio_band");
  launch("ratio_band", detail::ratio_band_kernel, gpu::detail::warp_blocks(batch.trajectories()),
         gpu::detail::warp_block_threads, 0, stream, batch, statistics, band, options.level, reasons);
}

inline constexpr std::size_t geometric_ratio_workspace_bytes = 0;  ///< takes no workspace

/// exp of the mean log ratio at a level, for each turn: the device version. The exponential is the device's: within 2
/// ulp of the host's.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch, no workspace.
/// @param[out] ratio  [S]; 1 where nothing enters the mean.
/// @throws precondition_error  sizes that differ; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @par Complexity  O(S) work, a warp a trajectory.
/// @see turnwise::rejection::geometric_ratio
inline void geometric_ratio(rollout_view const& batch, device_span<turn_statistics const> statistics,
                            device_span<reason_flags const> reasons, scope level, device_span<double> ratio,
                            ::cuda::stream_ref stream) {
  detail::check_ratio_rule(batch, statistics.size(), reasons.size(), "geometric_ratio");
  expects_size("geometric_ratio", "ratio", ratio.size(), batch.turns, "turn");
  launch("geometric_ratio", detail::geometric_ratio_kernel, gpu::detail::warp_blocks(batch.trajectories()),
         gpu::detail::warp_block_threads, 0, stream, batch, statistics, reasons, level, ratio);
}

}  // namespace turnwise::gpu::rejection
