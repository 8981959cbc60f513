/// @file
/// Return of each turn inside its trajectory, on the device, and which turns a missing reward makes invalid.
#pragma once

#include <turnwise/advantage/discounted_return.hpp>
#include <turnwise/gpu/core/rollout.cuh>
#include <turnwise/gpu/core/status.cuh>
#include <turnwise/gpu/core/warp.cuh>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::advantage {

using turnwise::advantage::discounted_return_options;
using turnwise::advantage::unscored_policy;

namespace detail {

/// Returns of the turns of trajectory j, by one warp, from the last turn to the first.
///
/// @param reward_of  reward_of(s), called once by the lane of turn s, which is also the only one to touch reasons[s].
template <real T, typename RewardOf>
__device__ void return_of_trajectory(rollout_view const& batch, std::int64_t j, RewardOf reward_of,
                                     discounted_return_options const& options, device_span<reason_flags> reasons,
                                     device_span<T> turn_return, status_record* status) {
  using gpu::detail::all_lanes;
  using gpu::detail::lanes;
  std::int64_t const first = batch.first_turn(static_cast<std::size_t>(j));
  std::int64_t last = batch.first_turn(static_cast<std::size_t>(j) + 1);
  bool const spreads = options.gamma > 0 && options.unscored != unscored_policy::zero;
  int const lane = gpu::detail::lane_id();
  double later = 0;
  bool known = true;
  for (int count = 0; last > first; last -= count) {
    count = last - first < lanes ? static_cast<int>(last - first) : lanes;
    auto const s = static_cast<std::size_t>(last - count + lane);
    bool const active = lane < count;
    reason_flags flags = active ? reasons[s] : reason::invalid;
    T const reward = active ? reward_of(static_cast<std::int64_t>(s)) : T{0};
    bool const judged = (flags & reason::invalid) == 0;
    bool const missing = judged && !within_limit(reward);  // NaN, or an error that acts as NaN
    if (missing && reward == reward) report(status, status_code::reward, static_cast<std::int64_t>(s));
    if (missing && reward != reward && options.unscored == unscored_policy::error)
      report(status, status_code::unscored, static_cast<std::int64_t>(s));

    double const counted = turnwise::advantage::detail::counted_reward(reward, missing ? reason::invalid : flags);
    double mine = 0;
    for (int i = count - 1; i >= 0; --i) {
      later = turnwise::advantage::discounted_step(__shfl_sync(all_lanes, counted, i), options.gamma, later);
      if (i == lane) mine = later;
    }
    unsigned const gone = __ballot_sync(all_lanes, missing && spreads);
    bool const knows = known && gone >> lane >> 1 == 0;
    known = known && gone == 0;
    if (!active) continue;
    if (missing)
      reasons[s] = flags | reason::unscored;
    else if (judged && !knows)
      reasons[s] = flags | reason::unscored_future;
    T const result = static_cast<T>(mine);
    if (!within_limit(result)) report(status, status_code::turn_return, static_cast<std::int64_t>(s));
    turn_return[s] = result;
  }
}

template <real T>
TURNWISE_KERNEL void discounted_return_kernel(rollout_view batch, device_span<T const> reward,
                                              discounted_return_options options, device_span<reason_flags> reasons,
                                              device_span<T> turn_return, status_record* status) {
  gpu::detail::for_each_by_warp(static_cast<std::int64_t>(batch.trajectories()), [&](std::int64_t j) {
    return_of_trajectory(
        batch, j, [&](std::int64_t s) { return reward[static_cast<std::size_t>(s)]; }, options, reasons, turn_return,
        status);
  });
}

}  // namespace detail

inline constexpr std::size_t discounted_return_workspace_bytes = 0;  ///< takes no workspace

/// Discounted sum of the rewards of a turn and of the turns after it in its trajectory: the device version, with the
/// same bits.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch, no workspace.
/// @param[in]     batch        S turns.
/// @param[in]     reward       [S]; NaN = unscored.
/// @param[in,out] reasons      [S] as begin_reasons wrote them; gains `unscored` and `unscored_future`.
/// @param[out]    turn_return  [S]; may be the same span as reward.
/// @param[in]     status       may be null; gains reward (infinite or beyond magnitude_limit, of a turn not flagged
///                             off), unscored (NaN under unscored_policy::error) and turn_return (not finite or beyond
///                             the limit). Such a reward acts as NaN; `error` as `exclude`; such a return is written.
/// @throws precondition_error  sizes that differ, gamma outside [0, 1]; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @note  Turns in no trajectory, which only wrong offsets allow, are not written.
/// @note  Deterministic: one fused multiply-add a turn, the same bits everywhere.
/// @par Complexity  O(S) work, a warp a trajectory.
/// @see turnwise::advantage::discounted_return
template <real T>
void discounted_return(rollout_view const& batch, no_deduce<device_span<T const>> reward,
                       discounted_return_options const& options, device_span<reason_flags> reasons,
                       device_span<T> turn_return, status_record* status, ::cuda::stream_ref stream) {
  check_sizes(batch, "discounted_return");
  expects_size("discounted_return", "reward", reward.size(), batch.turns, "turn");
  expects_size("discounted_return", "reasons", reasons.size(), batch.turns, "turn");
  expects_size("discounted_return", "turn_return", turn_return.size(), batch.turns, "turn");
  turnwise::advantage::discounted_return<T>({}, {}, options, {}, {});  // of no turns: checks the options
  launch("discounted_return", detail::discounted_return_kernel<T>, gpu::detail::warp_blocks(batch.trajectories()),
         gpu::detail::warp_block_threads, 0, stream, batch, reward, options, reasons, turn_return, status);
}

}  // namespace turnwise::gpu::advantage
