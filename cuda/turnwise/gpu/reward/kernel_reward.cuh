/// @file
/// Reward of a written kernel, on the device.
#pragma once

#include <turnwise/gpu/core/device_span.cuh>
#include <turnwise/gpu/core/status.cuh>
#include <turnwise/gpu/core/warp.cuh>
#include <turnwise/gpu/reward/evaluation.cuh>
#include <turnwise/reward/kernel_reward.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::reward {

using turnwise::reward::kernel_reward_options;

namespace detail {

__device__ inline double missing_reward() { return __longlong_as_double(0x7ff8000000000000ll); }

/// A reward as T. One beyond the magnitude limit is reported, and NaN, unless the turn is flagged off.
template <real T>
__device__ T written_reward(double value, bool flagged_off, std::int64_t turn, status_record* status) {
  if (flagged_off || turnwise::reward::detail::is_reward<T>(value)) return static_cast<T>(value);
  report(status, status_code::reward, turn);
  return static_cast<T>(missing_reward());
}

/// Reward of turn s. An infinite ingredient is reported unless the turn is flagged off; it makes the reward NaN.
template <real E>
__device__ double reward_of_turn(evaluation<E> const& turns, kernel_reward_options const& options, bool flagged_off,
                                 std::int64_t turn, status_record* status) {
  auto const s = static_cast<std::size_t>(turn);
  if (!turns.counts_as_correct(s))
    return turnwise::reward::kernel_penalty(turns.is_compiled(s), turns.is_decoy(s), turns.breaks_rule(s), options);
  double const speedup = static_cast<double>(turns.speedup[s]);
  double const generated_us = static_cast<double>(turns.generated_us[s]);
  double const total_us = static_cast<double>(turns.total_us[s]);
  if (!flagged_off && (std::isinf(speedup) || std::isinf(generated_us) || std::isinf(total_us))) {
    report(status, status_code::infinite_ingredient, turn);
    return missing_reward();
  }
  return turnwise::reward::correct_kernel_reward(speedup, generated_us, total_us, options);
}

template <real E, real T>
TURNWISE_KERNEL void kernel_reward_kernel(evaluation<E> turns, kernel_reward_options options,
                                          device_span<reason_flags const> reasons, device_span<T> reward,
                                          status_record* status) {
  gpu::detail::for_each_by_thread(static_cast<std::int64_t>(reward.size()), [&](std::int64_t turn) {
    auto const s = static_cast<std::size_t>(turn);
    bool const flagged_off = !reasons.empty() && (reasons[s] & reason::invalid) != 0;
    reward[s] = written_reward<T>(reward_of_turn(turns, options, flagged_off, turn, status), flagged_off, turn, status);
  });
}

}  // namespace detail

inline constexpr std::size_t kernel_reward_workspace_bytes = 0;  ///< takes no workspace

/// Reward of each turn from its correctness, speedup and profiling ratio: the device version, with the same bits (of a
/// NaN reward it is not told which NaN).
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch, no workspace.
/// @param[in]  turns    evaluation arrays, [S] each; read only where C = 1.
/// @param[in]  reasons  [S] as begin_reasons wrote them, or empty; turns flagged off are not judged.
/// @param[out] reward   [S]; NaN (unscored) where C = 1 and the speedup is NaN.
/// @param[in]  status   may be null; gains infinite_ingredient: an infinite speedup or time of a turn with C = 1 that
///                      is not flagged off; reward: one that comes out beyond magnitude_limit. Its reward is NaN.
/// @throws precondition_error  sizes that differ, options as on the host; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @par Complexity  O(S).
/// @see turnwise::reward::kernel_reward
template <real E, real T>
void kernel_reward(evaluation<E> const& turns, kernel_reward_options const& options,
                   device_span<reason_flags const> reasons, device_span<T> reward, status_record* status,
                   ::cuda::stream_ref stream) {
  check_evaluation(turns, reward.size(), "kernel_reward", true);
  if (!reasons.empty()) expects_size("kernel_reward", "reasons", reasons.size(), reward.size(), "turn");
  turnwise::reward::detail::check_kernel_reward<T>(options);
  launch("kernel_reward", detail::kernel_reward_kernel<E, T>, grid_blocks(reward.size(), 256), 256, 0, stream, turns,
         options, reasons, reward, status);
}

}  // namespace turnwise::gpu::reward
