/// @file
/// Reward in steps, on the device: a value for each speedup that is reached.
#pragma once

#include <turnwise/gpu/reward/detail/each_turn.cuh>
#include <turnwise/gpu/reward/kernel_reward.cuh>
#include <turnwise/reward/speedup_ladder.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::reward {

using turnwise::reward::speedup_ladder_options;

namespace detail {

template <real E, real T>
struct ladder_of_turn {
  evaluation<E> turns;
  device_span<E const> baseline_speedup;
  speedup_ladder_options options;
  device_span<reason_flags const> reasons;
  device_span<T> reward;
  status_record* status;

  __device__ void operator()(std::int64_t turn) const {
    reward[static_cast<std::size_t>(turn)] = static_cast<T>(value(turn));
  }

 private:
  __device__ double value(std::int64_t turn) const {
    auto const s = static_cast<std::size_t>(turn);
    if (!turns.counts_as_correct(s))
      return turnwise::reward::ladder_penalty(turns.is_compiled(s), turns.is_decoy(s), turns.breaks_rule(s), options);
    double const speedup = static_cast<double>(turns.speedup[s]);
    double const baseline = options.asks_baseline() ? static_cast<double>(baseline_speedup[s]) : 0.0;
    if (!is_flagged_off(reasons, turn) && (std::isinf(speedup) || std::isinf(baseline))) {
      report(status, status_code::infinite_ingredient, turn);
      return unscored_value();
    }
    return turnwise::reward::ladder_value(speedup, baseline, options);
  }
};

}  // namespace detail

inline constexpr std::size_t speedup_ladder_workspace_bytes = 0;  ///< takes no workspace

/// Reward of each turn by the highest rung that its speedup reaches: the device version, with the same bits (of a NaN
/// it is not told which NaN).
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch.
/// @param[in]  turns             evaluation arrays, [S] each; the profile is not used and may be empty.
/// @param[in]  baseline_speedup  [S], or empty where no rung asks for it.
/// @param[in]  reasons           [S] as begin_reasons wrote them, or empty; turns flagged off are not judged.
/// @param[out] reward            [S].
/// @param[in]  status            may be null; gains infinite_ingredient: an infinite speedup, that a rung asks for, of
///                               a turn with C = 1 that is not flagged off. Its reward is NaN.
/// @throws precondition_error  sizes that differ, options as on the host; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @par Complexity  O(S).
/// @see turnwise::reward::speedup_ladder
template <real E, real T>
void speedup_ladder(evaluation<E> const& turns, no_deduce<device_span<E const>> baseline_speedup,
                    speedup_ladder_options const& options, device_span<reason_flags const> reasons,
                    device_span<T> reward, status_record* status, ::cuda::stream_ref stream) {
  check_evaluation(turns, reward.size(), "speedup_ladder");
  turnwise::reward::detail::check_speedup_ladder<T>(options);
  if (options.asks_baseline() || !baseline_speedup.empty())
    expects_size("speedup_ladder", "baseline_speedup", baseline_speedup.size(), reward.size(), "turn");
  if (!reasons.empty()) expects_size("speedup_ladder", "reasons", reasons.size(), reward.size(), "turn");
  detail::enqueue_each_turn("speedup_ladder", reward.size(),
                            detail::ladder_of_turn<E, T>{turns, baseline_speedup, options, reasons, reward, status},
                            stream);
}

}  // namespace turnwise::gpu::reward
