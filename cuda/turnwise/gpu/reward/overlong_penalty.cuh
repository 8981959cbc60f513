/// @file
/// Penalty that grows as a response nears the longest that is allowed, on the device.
#pragma once

#include <turnwise/gpu/core/ordered_sum.cuh>
#include <turnwise/gpu/core/rollout.cuh>
#include <turnwise/gpu/core/status.cuh>
#include <turnwise/gpu/core/warp.cuh>
#include <turnwise/reward/overlong_penalty.hpp>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::reward {

using turnwise::reward::length_scope;
using turnwise::reward::overlong_penalty_options;

namespace detail {

/// Tokens of a turn; a count out of range is reported and acts as 0.
__device__ inline std::int64_t length_of_turn(rollout_view const& batch, device_span<std::int64_t const> length,
                                              std::int64_t turn, status_record* status) {
  auto const s = static_cast<std::size_t>(turn);
  std::int64_t const tokens = length.empty() ? batch.turn_end[s] - batch.turn_begin[s] : length[s];
  if (tokens >= 0 && tokens < std::int64_t{1} << 40) return tokens;
  report(status, status_code::token_range, turn);
  return 0;
}

template <real T>
TURNWISE_KERNEL void overlong_penalty_kernel(rollout_view batch, device_span<std::int64_t const> length,
                                             overlong_penalty_options options, device_span<T> penalty,
                                             status_record* status) {
  using gpu::detail::all_lanes;
  using gpu::detail::lanes;
  gpu::detail::for_each_by_warp(static_cast<std::int64_t>(batch.trajectories()), [&](std::int64_t j) {
    std::int64_t const first = batch.first_turn(static_cast<std::size_t>(j));
    std::int64_t const last = batch.first_turn(static_cast<std::size_t>(j) + 1);
    bool const of_turn = options.scope == length_scope::turn;
    std::int64_t total = 0;
    std::int64_t payer = -1;
    for (std::int64_t s = first + gpu::detail::lane_id(); s < last; s += lanes) {
      std::int64_t const tokens = length_of_turn(batch, length, s, status);
      total += tokens;
      if (!batch.flagged_off(s)) payer = s;
      penalty[static_cast<std::size_t>(s)] =
          narrowed<T>(of_turn ? turnwise::reward::overlong_term(tokens, options) : 0.0);
    }
    if (of_turn) return;
    total = gpu::detail::warp_sum(total);
    std::int64_t latest = payer;
    for (int half = lanes / 2; half > 0; half /= 2) {
      std::int64_t const other = __shfl_xor_sync(all_lanes, latest, half);
      latest = other > latest ? other : latest;
    }
    // By the lane that wrote the turn's 0.
    if (latest >= 0 && latest == payer)
      penalty[static_cast<std::size_t>(latest)] = narrowed<T>(turnwise::reward::overlong_term(total, options));
  });
}

}  // namespace detail

inline constexpr std::size_t overlong_penalty_workspace_bytes = 0;  ///< takes no workspace

/// What each turn, or each trajectory, pays for its length: the device version, with the same bits.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch.
/// @param[in]  length   [S] raw tokens of each turn; empty: turn_end - turn_begin of the batch.
/// @param[out] penalty  [S].
/// @param[in]  status   may be null; gains token_range: a length that is negative or 2^40 and more. It acts as 0.
/// @throws precondition_error  sizes that differ, options as on the host; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @note  Turns in no trajectory, which only wrong offsets allow, are not written.
/// @par Complexity  O(S) work, a warp a trajectory.
/// @see turnwise::reward::overlong_penalty
template <real T>
void overlong_penalty(rollout_view const& batch, device_span<std::int64_t const> length,
                      overlong_penalty_options const& options, device_span<T> penalty, status_record* status,
                      ::cuda::stream_ref stream) {
  check_sizes(batch, "overlong_penalty");
  turnwise::reward::detail::check_overlong_penalty(options);
  expects_size("overlong_penalty", "penalty", penalty.size(), batch.turns, "turn");
  if (length.empty()) {
    expects_size("overlong_penalty", "turn_begin", batch.turn_begin.size(), batch.turns, "turn");
    expects_size("overlong_penalty", "turn_end", batch.turn_end.size(), batch.turns, "turn");
  } else {
    expects_size("overlong_penalty", "length", length.size(), batch.turns, "turn");
  }
  launch("overlong_penalty", detail::overlong_penalty_kernel<T>, gpu::detail::warp_blocks(batch.trajectories()),
         gpu::detail::warp_block_threads, 0, stream, batch, length, options, penalty, status);
}

}  // namespace turnwise::gpu::reward
