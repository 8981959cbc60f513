/// @file
/// Which turns have log ratios that ratio rules can use, on the device; and what the ratio rules share.
#pragma once

#include <turnwise/gpu/core/rollout.cuh>
#include <turnwise/gpu/core/status.cuh>
#include <turnwise/gpu/core/warp.cuh>
#include <turnwise/rejection/usable_tokens.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace turnwise::gpu::rejection {

using turnwise::importance::turn_statistics;
using turnwise::rejection::non_finite_policy;
using turnwise::rejection::scope;
using turnwise::rejection::usable_tokens_options;

namespace detail {

/// Calls body(s) for the turns of trajectory j, the lanes of a warp sharing them. A lane gets the same turns every
/// time, so rules that follow each other need no barrier.
template <typename Body>
__device__ void for_each_turn(rollout_view const& batch, std::int64_t j, Body body) {
  std::int64_t const last = batch.first_turn(static_cast<std::size_t>(j) + 1);
  for (std::int64_t s = batch.first_turn(static_cast<std::size_t>(j)) + gpu::detail::lane_id(); s < last;
       s += gpu::detail::lanes)
    body(static_cast<std::size_t>(s));
}

/// usable_tokens in one trajectory, by one warp.
__device__ inline void mark_usable(rollout_view const& batch, std::int64_t j,
                                   device_span<turn_statistics const> statistics, usable_tokens_options const& options,
                                   device_span<reason_flags> reasons, status_record* status) {
  bool any = false;
  for_each_turn(batch, j, [&](std::size_t s) {
    if (!is_valid(reasons[s])) return;
    bool const broken = options.non_finite != non_finite_policy::neutral && statistics[s].non_finite > 0;
    any |= broken;
    if (broken && options.non_finite == non_finite_policy::error)
      report(status, status_code::non_finite, static_cast<std::int64_t>(s));
    if (broken)
      reasons[s] |= reason::non_finite;
    else if (statistics[s].count == 0)
      reasons[s] |= reason::no_token;
  });
  if (options.non_finite_scope == scope::turn || !__any_sync(gpu::detail::all_lanes, any)) return;
  for_each_turn(batch, j, [&](std::size_t s) {
    if (has_ratio(reasons[s])) reasons[s] |= reason::non_finite;
  });
}

/// Statistics of the turns of trajectory j that have a ratio, for all lanes of the warp.
__device__ inline turn_statistics trajectory_statistics(rollout_view const& batch, std::int64_t j,
                                                        device_span<turn_statistics const> statistics,
                                                        device_span<reason_flags const> reasons) {
  turn_statistics total;
  for_each_turn(batch, j, [&](std::size_t s) {
    if (has_ratio(reasons[s])) total += statistics[s];
  });
  for (int half = gpu::detail::lanes / 2; half > 0; half /= 2) {
    auto const of_other_lane = [half](auto value) { return __shfl_xor_sync(gpu::detail::all_lanes, value, half); };
    total +=
        turn_statistics{of_other_lane(total.count), of_other_lane(total.sum),        of_other_lane(total.min),
                        of_other_lane(total.max),   of_other_lane(total.non_finite), of_other_lane(total.saturated)};
  }
  return total;
}

/// Gives every turn of trajectory j that has a ratio the reasons that `rule` finds in its statistics, or in the
/// trajectory's.
template <typename Rule>
__device__ void apply_ratio_rule(rollout_view const& batch, std::int64_t j,
                                 device_span<turn_statistics const> statistics, scope level,
                                 device_span<reason_flags> reasons, Rule rule) {
  reason_flags const of_trajectory =
      level == scope::trajectory ? rule(trajectory_statistics(batch, j, statistics, reasons)) : 0;
  for_each_turn(batch, j, [&](std::size_t s) {
    if (!has_ratio(reasons[s])) return;
    reason_flags const found = level == scope::trajectory ? of_trajectory : rule(statistics[s]);
    if (found != 0) reasons[s] |= found;
  });
}

TURNWISE_KERNEL void usable_tokens_kernel(rollout_view batch, device_span<turn_statistics const> statistics,
                                          usable_tokens_options options, device_span<reason_flags> reasons,
                                          status_record* status) {
  gpu::detail::for_each_by_warp(static_cast<std::int64_t>(batch.trajectories()),
                                [&](std::int64_t j) { mark_usable(batch, j, statistics, options, reasons, status); });
}

inline void check_ratio_rule(rollout_view const& batch, std::size_t statistics, std::size_t reasons,
                             std::string_view function) {
  check_sizes(batch, function);
  expects_size(function, "statistics", statistics, batch.turns, "turn");
  expects_size(function, "reasons", reasons, batch.turns, "turn");
}

}  // namespace detail

/// Marks valid turns without tokens (`no_token`) or with log ratios that are not finite (`non_finite`): the device
/// version, with the same flags.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch, no workspace.
/// @param[in]     statistics  [S] from log_ratio_statistics.
/// @param[in,out] reasons     [S] in which validity is settled (begin_reasons, discounted_return).
/// @param[in]     status      may be null; gains non_finite under non_finite_policy::error, else the same as `reject`.
/// @throws precondition_error  sizes that differ; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @par Complexity  O(S) work, a warp a trajectory.
/// @see turnwise::rejection::usable_tokens
inline void usable_tokens(rollout_view const& batch, device_span<turn_statistics const> statistics,
                          usable_tokens_options const& options, device_span<reason_flags> reasons,
                          status_record* status, ::cuda::stream_ref stream) {
  detail::check_ratio_rule(batch, statistics.size(), reasons.size(), "usable_tokens");
  launch("usable_tokens", detail::usable_tokens_kernel, gpu::detail::warp_blocks(batch.trajectories()),
         gpu::detail::warp_block_threads, 0, stream, batch, statistics, options, reasons, status);
}

}  // namespace turnwise::gpu::rejection
