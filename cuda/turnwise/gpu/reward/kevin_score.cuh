/// @file
/// Score of a written kernel, on the device: a constant for correctness, and the speedup.
#pragma once

#include <turnwise/gpu/reward/detail/each_turn.cuh>
#include <turnwise/gpu/reward/kernel_reward.cuh>
#include <turnwise/reward/kevin_score.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::reward {

using turnwise::reward::kevin_score_options;

namespace detail {

/// Score of turn s. An infinite speedup is reported unless the turn is flagged off; it makes the score NaN.
template <real E>
__device__ double reward_of_turn(evaluation<E> const& turns, kevin_score_options const& options, bool flagged_off,
                                 std::int64_t turn, status_record* status) {
  auto const s = static_cast<std::size_t>(turn);
  if (!turns.counts_as_correct(s)) return options.failure_penalty;
  double const speedup = static_cast<double>(turns.speedup[s]);
  if (!flagged_off && std::isinf(speedup)) {
    report(status, status_code::infinite_ingredient, turn);
    return unscored_value();
  }
  return turnwise::reward::correct_kernel_reward(speedup, 0, 0, options.as_kernel_reward());
}

template <real E, real T>
struct kevin_score_of_turn {
  evaluation<E> turns;
  kevin_score_options options;
  device_span<reason_flags const> reasons;
  device_span<T> reward;
  status_record* status;

  __device__ void operator()(std::int64_t turn) const {
    bool const flagged_off = is_flagged_off(reasons, turn);
    reward[static_cast<std::size_t>(turn)] =
        written_reward<T>(reward_of_turn(turns, options, flagged_off, turn, status), flagged_off, turn, status);
  }
};

}  // namespace detail

inline constexpr std::size_t kevin_score_workspace_bytes = 0;  ///< takes no workspace

/// Score of each turn from its correctness and speedup: the device version, with the same bits (of a NaN it is not told
/// which NaN).
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch.
/// @param[in]  turns    evaluation arrays, [S] each; the profile is not used and may be empty.
/// @param[in]  reasons  [S] as begin_reasons wrote them, or empty; turns flagged off are not judged.
/// @param[out] reward   [S]; NaN (unscored) where C = 1 and the speedup is NaN.
/// @param[in]  status   may be null; gains infinite_ingredient: an infinite speedup of a turn with C = 1 that is not
///                      flagged off; reward: a score that comes out beyond magnitude_limit. Its score is NaN.
/// @throws precondition_error  sizes that differ, options as on the host; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @par Complexity  O(S).
/// @see turnwise::reward::kevin_score
template <real E, real T>
void kevin_score(evaluation<E> const& turns, kevin_score_options const& options,
                 device_span<reason_flags const> reasons, device_span<T> reward, status_record* status,
                 ::cuda::stream_ref stream) {
  check_evaluation(turns, reward.size(), "kevin_score");
  if (!reasons.empty()) expects_size("kevin_score", "reasons", reasons.size(), reward.size(), "turn");
  turnwise::reward::detail::check_kevin_score<T>(options);
  detail::enqueue_each_turn("kevin_score", reward.size(),
                            detail::kevin_score_of_turn<E, T>{turns, options, reasons, reward, status}, stream);
}

}  // namespace turnwise::gpu::reward
