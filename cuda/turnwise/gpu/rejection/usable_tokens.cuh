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
#include <type_traits>

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

/// The record, of numbers of 8 bytes, of the lane whose number differs in bit `half`.
template <typename Record>
__device__ Record of_other_lane(Record const& own, int half) {
  unsigned long long words[sizeof(Record) / sizeof(unsigned long long)];
  static_assert(sizeof words == sizeof own && std::is_trivially_copyable_v<Record>);
  __builtin_memcpy(words, &own, sizeof own);
  for (auto& word : words) word = __shfl_xor_sync(gpu::detail::all_lanes, word, half);
  Record other;
  __builtin_memcpy(&other, words, sizeof other);
  return other;
}

/// Total of record(s) over the turns of trajectory j that have a ratio, for all lanes of the warp.
template <typename Record>
__device__ auto trajectory_total(rollout_view const& batch, std::int64_t j, device_span<reason_flags const> reasons,
                                 Record record) {
  decltype(record(std::size_t{0})) total{};
  for_each_turn(batch, j, [&](std::size_t s) {
    if (has_ratio(reasons[s])) total += record(s);
  });
  for (int half = gpu::detail::lanes / 2; half > 0; half /= 2) total += of_other_lane(total, half);
  return total;
}

/// Statistics of the turns of trajectory j that have a ratio, for all lanes of the warp.
__device__ inline turn_statistics trajectory_statistics(rollout_view const& batch, std::int64_t j,
                                                        device_span<turn_statistics const> statistics,
                                                        device_span<reason_flags const> reasons) {
  return trajectory_total(batch, j, reasons, [&](std::size_t s) { return statistics[s]; });
}

/// Gives every turn s of trajectory j that has a ratio the reasons rule(total, s): the total is record(s), or the
/// trajectory's.
template <typename Record, typename Rule>
__device__ void apply_ratio_rule(rollout_view const& batch, std::int64_t j, scope level,
                                 device_span<reason_flags> reasons, Record record, Rule rule) {
  decltype(record(std::size_t{0})) of_trajectory{};
  if (level == scope::trajectory) of_trajectory = trajectory_total(batch, j, reasons, record);
  for_each_turn(batch, j, [&](std::size_t s) {
    if (!has_ratio(reasons[s])) return;
    reason_flags const found = rule(level == scope::trajectory ? of_trajectory : record(s), s);
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

inline constexpr std::size_t usable_tokens_workspace_bytes = 0;  ///< takes no workspace

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
