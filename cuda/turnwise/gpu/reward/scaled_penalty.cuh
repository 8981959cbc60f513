/// @file
/// Scales the reward of marked turns down, on the device.
#pragma once

#include <turnwise/gpu/reward/detail/each_turn.cuh>
#include <turnwise/reward/scaled_penalty.hpp>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::reward {

using turnwise::reward::scaled_penalty_options;

namespace detail {

/// A reward that is not flagged off, or NaN where it is infinite or beyond the limit, which is reported.
template <real T>
__device__ T judged_reward(T reward, std::int64_t turn, status_record* status) {
  if (within_limit(reward) || reward != reward) return reward;
  report(status, status_code::reward, turn);
  return static_cast<T>(unscored_value());
}

template <real T>
struct penalty_of_turn {
  device_span<T const> reward;
  device_span<std::uint8_t const> marked;
  scaled_penalty_options options;
  device_span<reason_flags const> reasons;
  device_span<T> out;
  status_record* status;

  __device__ void operator()(std::int64_t turn) const {
    auto const s = static_cast<std::size_t>(turn);
    T result = reward[s];
    if (!is_flagged_off(reasons, turn)) {
      result = judged_reward(result, turn, status);
      if (marked[s] != 0) result = narrowed<T>(turnwise::reward::penalised(static_cast<double>(result), options));
    }
    out[s] = result;
  }
};

}  // namespace detail

inline constexpr std::size_t scaled_penalty_workspace_bytes = 0;  ///< takes no workspace

/// Takes part of the reward from marked turns: the device version, with the same bits (of a NaN it is not told which
/// NaN).
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch.
/// @param[in]  reward   [S]; NaN = unscored.
/// @param[in]  marked   [S]; not 0: penalised.
/// @param[in]  reasons  [S] as begin_reasons wrote them, or empty; rewards of turns flagged off are not judged and
///                      stay.
/// @param[out] out      [S]; may be the same span as reward.
/// @param[in]  status   may be null; gains reward: an infinite reward of a turn that is not flagged off. It acts as
///                      NaN.
/// @throws precondition_error  sizes that differ, options as on the host; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @par Complexity  O(S).
/// @see turnwise::reward::scaled_penalty
template <real T>
void scaled_penalty(no_deduce<device_span<T const>> reward, device_span<std::uint8_t const> marked,
                    scaled_penalty_options const& options, device_span<reason_flags const> reasons, device_span<T> out,
                    status_record* status, ::cuda::stream_ref stream) {
  expects_size("scaled_penalty", "marked", marked.size(), reward.size(), "turn");
  if (!reasons.empty()) expects_size("scaled_penalty", "reasons", reasons.size(), reward.size(), "turn");
  expects_size("scaled_penalty", "out", out.size(), reward.size(), "turn");
  turnwise::reward::detail::check_scaled_penalty<T>(options);
  detail::enqueue_each_turn("scaled_penalty", reward.size(),
                            detail::penalty_of_turn<T>{reward, marked, options, reasons, out, status}, stream);
}

}  // namespace turnwise::gpu::reward
