/// @file
/// Reward that pays for speed only once enough of the group is correct, on the device.
#pragma once

#include <turnwise/gpu/core/grouping_view.cuh>
#include <turnwise/gpu/reward/kernel_reward.cuh>
#include <turnwise/reward/group_gate.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::reward {

using turnwise::reward::group_gate_options;

namespace detail {

/// The arguments of group_gate.
template <real E, real T>
struct gate_call {
  grouping groups;
  evaluation<E> turns;
  group_gate_options options;
  device_span<reason_flags const> reasons;
  device_span<T> reward;
  status_record* status;
};

/// A turn as the gate sees it.
struct gate_turn {
  bool correct;
  bool flagged_off;
  double speedup;  ///< 0 where C = 0; NaN: unscored
};

template <real E, real T>
__device__ gate_turn gate_turn_at(gate_call<E, T> const& call, std::int64_t turn) {
  auto const s = static_cast<std::size_t>(turn);
  gate_turn one{call.turns.counts_as_correct(s), !call.reasons.empty() && (call.reasons[s] & reason::invalid) != 0,
                0.0};
  if (!one.correct) return one;
  one.speedup = static_cast<double>(call.turns.speedup[s]);
  if (!one.flagged_off && !std::isnan(one.speedup) && !within_limit(call.turns.speedup[s])) {
    report(call.status, status_code::infinite_ingredient, turn);
    one.speedup = missing_reward();
  }
  return one;
}

/// Rewards of the turns of one group, by one warp. Minima, maxima and counts do not depend on order.
template <real E, real T>
__device__ void gate_of_group(gate_call<E, T> const& call, std::int64_t g) {
  using gpu::detail::all_lanes;
  using gpu::detail::lanes;
  std::int64_t const first = call.groups.offsets[static_cast<std::size_t>(g)] + gpu::detail::lane_id();
  std::int64_t const last = call.groups.offsets[static_cast<std::size_t>(g) + 1];
  std::int64_t scored = 0;
  std::int64_t correct = 0;
  double slowest = __longlong_as_double(0x7ff0000000000000ll);
  double fastest = -slowest;
  for (std::int64_t k = first; k < last; k += lanes) {
    gate_turn const one = gate_turn_at(call, call.groups.members[static_cast<std::size_t>(k)]);
    if (one.flagged_off || one.speedup != one.speedup) continue;
    ++scored;
    if (!one.correct) continue;
    ++correct;
    slowest = one.speedup < slowest ? one.speedup : slowest;
    fastest = one.speedup > fastest ? one.speedup : fastest;
  }
  for (int half = lanes / 2; half > 0; half /= 2) {
    scored += __shfl_xor_sync(all_lanes, scored, half);
    correct += __shfl_xor_sync(all_lanes, correct, half);
    double const slow = __shfl_xor_sync(all_lanes, slowest, half);
    double const fast = __shfl_xor_sync(all_lanes, fastest, half);
    slowest = slow < slowest ? slow : slowest;
    fastest = fast > fastest ? fast : fastest;
  }
  double const bonus = turnwise::reward::gate_is_open(correct, scored, call.options.alpha) ? call.options.beta : 0.0;
  for (std::int64_t k = first; k < last; k += lanes) {
    std::int64_t const turn = call.groups.members[static_cast<std::size_t>(k)];
    gate_turn const one = gate_turn_at(call, turn);
    double value = one.correct ? 1.0 : 0.0;
    if (one.correct && !one.flagged_off)
      value =
          one.speedup != one.speedup
              ? one.speedup
              : fma(bonus, turnwise::reward::speed_score(one.speedup, slowest, fastest, call.options.min_spread), 1.0);
    call.reward[static_cast<std::size_t>(turn)] = static_cast<T>(value);
  }
}

template <real E, real T>
TURNWISE_KERNEL void group_gate_kernel(gate_call<E, T> call) {
  if (call.groups.counts->broken != 0)
    gpu::detail::for_each_by_thread(static_cast<std::int64_t>(call.groups.turns), [&](std::int64_t s) {
      call.reward[static_cast<std::size_t>(s)] = static_cast<T>(missing_reward());
    });
  gpu::detail::for_each_by_warp(call.groups.counts->groups, [&](std::int64_t g) { gate_of_group(call, g); });
}

}  // namespace detail

inline constexpr std::size_t group_gate_workspace_bytes = 0;  ///< takes no workspace

/// Correctness reward plus a speed bonus that is min-max normalised in the group and gated on the group's accuracy: the
/// device version, with the same bits (of a NaN reward it is not told which NaN).
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch, no workspace.
/// @param[in]  groups   of make_grouping.
/// @param[in]  turns    evaluation arrays, [S] each; the profile is not used and may be empty.
/// @param[in]  options  as the host's; `threads` is not used.
/// @param[in]  reasons  [S] as begin_reasons wrote them, or empty.
/// @param[out] reward   [S]; NaN (unscored) where C = 1 and the speedup is NaN, and in no group.
/// @param[in]  status   may be null; gains infinite_ingredient: an infinite speedup of a turn with C = 1 that is not
///                      flagged off. It acts as NaN.
/// @throws precondition_error  sizes that differ, options as on the host; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @note  Deterministic: the same bits for any launch shape and order of trajectories.
/// @par Complexity  O(S) work, a warp a group.
/// @see turnwise::reward::group_gate
template <real E, real T>
void group_gate(grouping const& groups, evaluation<E> const& turns, group_gate_options const& options,
                device_span<reason_flags const> reasons, device_span<T> reward, status_record* status,
                ::cuda::stream_ref stream) {
  expects_size("group_gate", "reward", reward.size(), groups.turns, "turn");
  check_evaluation(turns, groups.turns, "group_gate");
  if (!reasons.empty()) expects_size("group_gate", "reasons", reasons.size(), groups.turns, "turn");
  turnwise::reward::group_gate<E, T>(turnwise::grouping{}, {}, options, {}, {});  // of no turns: checks the options
  launch("group_gate", detail::group_gate_kernel<E, T>, gpu::detail::warp_blocks(groups.turns),
         gpu::detail::warp_block_threads, 0, stream,
         detail::gate_call<E, T>{groups, turns, options, reasons, reward, status});
}

}  // namespace turnwise::gpu::reward
