/// @file
/// What a turn is credited with of the rewards of its trajectory, on the device.
#pragma once

#include <turnwise/advantage/turn_return.hpp>
#include <turnwise/gpu/advantage/discounted_return.cuh>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::advantage {

using turnwise::advantage::return_kind;
using turnwise::advantage::turn_return_options;

namespace detail {

/// Returns of the turns of trajectory j, by one warp; reward_of as for the discounted sum.
template <real T, typename RewardOf>
__device__ void return_of_trajectory(rollout_view const& batch, std::int64_t j, RewardOf reward_of,
                                     turn_return_options const& options, device_span<reason_flags> reasons,
                                     device_span<T> turn_return, status_record* status) {
  using gpu::detail::all_lanes;
  using gpu::detail::lanes;
  if (options.kind == return_kind::discounted_sum)
    return return_of_trajectory(batch, j, reward_of, discounted_return_options{options.gamma, options.unscored},
                                reasons, turn_return, status);
  std::int64_t const first = batch.first_turn(static_cast<std::size_t>(j));
  std::int64_t const turns = batch.first_turn(static_cast<std::size_t>(j) + 1) - first;
  bool const back = turnwise::advantage::looks_back(options.kind);
  bool const spreads = options.unscored != unscored_policy::zero;
  int const lane = gpu::detail::lane_id();
  turnwise::advantage::carried_return carried;
  for (std::int64_t tile = 0; tile < turns; tile += lanes) {
    // Lane by lane in the order in which returns are carried.
    int const count = turns - tile < lanes ? static_cast<int>(turns - tile) : lanes;
    bool const active = lane < count;
    std::int64_t const turn = first + (back ? tile + lane : turns - 1 - tile - lane);
    auto const s = static_cast<std::size_t>(turn);
    reason_flags const flags = active ? reasons[s] : reason::invalid;
    T const reward = active ? reward_of(turn) : T{0};
    bool const judged = (flags & reason::invalid) == 0;
    bool const missing = judged && !within_limit(reward);  // NaN, or an error that acts as NaN
    if (missing && reward == reward) report(status, status_code::reward, turn);
    if (missing && reward != reward && options.unscored == unscored_policy::error)
      report(status, status_code::unscored, turn);

    unsigned const all_judged = __ballot_sync(all_lanes, judged);
    unsigned const all_missing = __ballot_sync(all_lanes, missing);
    turnwise::advantage::carried_return mine;
    for (int i = 0; i < count; ++i) {
      double const of_lane = __shfl_sync(all_lanes, static_cast<double>(reward), i);
      carried = turnwise::advantage::return_step(options.kind, options.gamma, of_lane, (all_judged >> i & 1) != 0,
                                                 (all_missing >> i & 1) != 0, carried);
      if (i == lane) mine = carried;
    }
    if (!active) continue;
    if (missing)
      reasons[s] = flags | reason::unscored;
    else if (judged && spreads && !mine.known)
      reasons[s] = flags | reason::unscored_future;
    turn_return[s] = static_cast<T>(mine.value);
  }
}

template <real T>
TURNWISE_KERNEL void turn_return_kernel(rollout_view batch, device_span<T const> reward, turn_return_options options,
                                        device_span<reason_flags> reasons, device_span<T> turn_return,
                                        status_record* status) {
  gpu::detail::for_each_by_warp(static_cast<std::int64_t>(batch.trajectories()), [&](std::int64_t j) {
    return_of_trajectory(
        batch, j, [&](std::int64_t s) { return reward[static_cast<std::size_t>(s)]; }, options, reasons, turn_return,
        status);
  });
}

}  // namespace detail

inline constexpr std::size_t turn_return_workspace_bytes = 0;  ///< takes no workspace

/// Return of each turn of its trajectory, of the kind that is asked for: the device version, with the same bits.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch.
/// @param[in]     batch        S turns.
/// @param[in]     reward       [S]; NaN = unscored.
/// @param[in,out] reasons      [S] as begin_reasons wrote them; gains `unscored` and `unscored_future`.
/// @param[out]    turn_return  [S]; may be the same span as reward.
/// @param[in]     status       may be null; gains what discounted_return reports, with the same effect.
/// @throws precondition_error  sizes that differ, gamma outside [0, 1], or not 1 for current and best_so_far; nothing
///         is enqueued.
/// @throws cuda_error          the launch was refused.
/// @note  Turns in no trajectory, which only wrong offsets allow, are not written.
/// @par Complexity  O(S) work, a warp a trajectory.
/// @see turnwise::advantage::turn_return
template <real T>
void turn_return(rollout_view const& batch, no_deduce<device_span<T const>> reward, turn_return_options const& options,
                 device_span<reason_flags> reasons, device_span<T> turn_return, status_record* status,
                 ::cuda::stream_ref stream) {
  check_sizes(batch, "turn_return");
  expects_size("turn_return", "reward", reward.size(), batch.turns, "turn");
  expects_size("turn_return", "reasons", reasons.size(), batch.turns, "turn");
  expects_size("turn_return", "turn_return", turn_return.size(), batch.turns, "turn");
  turnwise::advantage::turn_return<T>({}, {}, options, {}, {});  // of no turns: checks the options
  launch("turn_return", detail::turn_return_kernel<T>, gpu::detail::warp_blocks(batch.trajectories()),
         gpu::detail::warp_block_threads, 0, stream, batch, reward, options, reasons, turn_return, status);
}

}  // namespace turnwise::gpu::advantage
