/// @file
/// Lets a shaping term count only where the outcome is good, on the device.
#pragma once

#include <turnwise/gpu/reward/kernel_reward.cuh>
#include <turnwise/gpu/reward/scaled_penalty.cuh>
#include <turnwise/reward/outcome_gate.hpp>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::reward {

using turnwise::reward::outcome_gate_options;

namespace detail {

template <real T>
struct gated_reward_of_turn {
  device_span<T const> outcome;
  device_span<T const> shaping;
  outcome_gate_options options;
  device_span<reason_flags const> reasons;
  device_span<T> reward;
  status_record* status;

  __device__ void operator()(std::int64_t turn) const {
    auto const s = static_cast<std::size_t>(turn);
    T result = outcome[s];
    if (!is_flagged_off(reasons, turn)) {
      result = judged_reward(result, turn, status);
      T term = shaping[s];
      if (static_cast<double>(result) > options.threshold) term = judged_reward(term, turn, status);
      result = written_reward<T>(
          turnwise::reward::gated_reward(static_cast<double>(result), static_cast<double>(term), options), false, turn,
          status);
    }
    reward[s] = result;
  }
};

}  // namespace detail

inline constexpr std::size_t outcome_gate_workspace_bytes = 0;  ///< takes no workspace

/// Adds a shaping term to the outcome where the outcome is above a threshold: the device version, with the same bits
/// (of a NaN it is not told which NaN).
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch.
/// @param[in]  outcome  [S]; NaN = unscored.
/// @param[in]  shaping  [S]; not used where the gate is closed.
/// @param[in]  reasons  [S] as begin_reasons wrote them, or empty; outcomes of turns flagged off are not judged and
///                      stay.
/// @param[out] reward   [S]; may be the same span as outcome or shaping.
/// @param[in]  status   may be null; gains reward: an infinite outcome, or shaping term behind an open gate, of a turn
///                      that is not flagged off, which acts as NaN; a reward beyond magnitude_limit, which is NaN.
/// @throws precondition_error  sizes that differ, options as on the host; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @par Complexity  O(S).
/// @see turnwise::reward::outcome_gate
template <real T>
void outcome_gate(no_deduce<device_span<T const>> outcome, no_deduce<device_span<T const>> shaping,
                  outcome_gate_options const& options, device_span<reason_flags const> reasons, device_span<T> reward,
                  status_record* status, ::cuda::stream_ref stream) {
  expects_size("outcome_gate", "shaping", shaping.size(), outcome.size(), "turn");
  if (!reasons.empty()) expects_size("outcome_gate", "reasons", reasons.size(), outcome.size(), "turn");
  expects_size("outcome_gate", "reward", reward.size(), outcome.size(), "turn");
  turnwise::reward::detail::check_outcome_gate(options);
  detail::enqueue_each_turn("outcome_gate", outcome.size(),
                            detail::gated_reward_of_turn<T>{outcome, shaping, options, reasons, reward, status},
                            stream);
}

}  // namespace turnwise::gpu::reward
