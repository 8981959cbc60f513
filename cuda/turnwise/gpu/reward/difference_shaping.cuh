/// @file
/// Pays each turn for what it changes, on the device.
#pragma once

#include <turnwise/gpu/core/rollout.cuh>
#include <turnwise/gpu/reward/scaled_penalty.cuh>
#include <turnwise/reward/difference_shaping.hpp>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::reward {

using turnwise::reward::difference_shaping_options;

namespace detail {

/// The differences of one trajectory, by one warp, a tile of turns at a time.
template <real T>
__device__ void differences_of_trajectory(rollout_view const& batch, std::int64_t j, device_span<T const> reward,
                                          double initial, device_span<reason_flags const> reasons,
                                          device_span<T> shaped, status_record* status) {
  using gpu::detail::all_lanes;
  using gpu::detail::highest_lane;
  int const lane = gpu::detail::lane_id();
  std::int64_t const last = batch.first_turn(static_cast<std::size_t>(j) + 1);
  double previous = initial;
  for (std::int64_t tile = batch.first_turn(static_cast<std::size_t>(j)); tile < last; tile += gpu::detail::lanes) {
    std::int64_t const turn = tile + lane;
    auto const s = static_cast<std::size_t>(turn);
    bool const active = turn < last;
    bool const judged = active && !is_flagged_off(reasons, turn);
    T const own = active ? reward[s] : T{0};
    T const result = judged ? judged_reward(own, turn, status) : own;
    bool const scored = judged && result == result;
    double const value = static_cast<double>(result);

    unsigned const all = __ballot_sync(all_lanes, scored);
    unsigned const before = all & ((1u << lane) - 1);
    double const neighbour = __shfl_sync(all_lanes, value, before == 0 ? 0 : highest_lane(before));
    double const latest = __shfl_sync(all_lanes, value, all == 0 ? 0 : highest_lane(all));
    if (active) shaped[s] = scored ? narrowed<T>(value - (before == 0 ? previous : neighbour)) : result;
    if (all != 0) previous = latest;
  }
}

template <real T>
TURNWISE_KERNEL void difference_shaping_kernel(rollout_view batch, device_span<T const> reward, double initial,
                                               device_span<reason_flags const> reasons, device_span<T> shaped,
                                               status_record* status) {
  gpu::detail::for_each_by_warp(static_cast<std::int64_t>(batch.trajectories()), [&](std::int64_t j) {
    differences_of_trajectory(batch, j, reward, initial, reasons, shaped, status);
  });
}

}  // namespace detail

inline constexpr std::size_t difference_shaping_workspace_bytes = 0;  ///< takes no workspace

/// Replaces each reward by its difference from the last scored one before it in the trajectory: the device version,
/// with the same bits (of a NaN it is not told which NaN).
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch.
/// @param[in]  reward   [S]; NaN = unscored.
/// @param[in]  reasons  [S] as begin_reasons wrote them.
/// @param[out] shaped   [S]; may be the same span as reward.
/// @param[in]  status   may be null; gains reward: an infinite reward of a turn that is not flagged off. It acts as
///                      NaN.
/// @throws precondition_error  sizes that differ, options as on the host; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @note  Turns in no trajectory, which only wrong offsets allow, are not written.
/// @par Complexity  O(S) work, a warp a trajectory.
/// @see turnwise::reward::difference_shaping
template <real T>
void difference_shaping(rollout_view const& batch, no_deduce<device_span<T const>> reward,
                        difference_shaping_options const& options, device_span<reason_flags const> reasons,
                        device_span<T> shaped, status_record* status, ::cuda::stream_ref stream) {
  check_sizes(batch, "difference_shaping");
  expects_size("difference_shaping", "reward", reward.size(), batch.turns, "turn");
  expects_size("difference_shaping", "reasons", reasons.size(), batch.turns, "turn");
  expects_size("difference_shaping", "shaped", shaped.size(), batch.turns, "turn");
  turnwise::reward::difference_shaping<T>({}, {}, options, {}, {});  // of no turns: checks the options
  launch("difference_shaping", detail::difference_shaping_kernel<T>, gpu::detail::warp_blocks(batch.trajectories()),
         gpu::detail::warp_block_threads, 0, stream, batch, reward, options.initial, reasons, shaped, status);
}

}  // namespace turnwise::gpu::reward
