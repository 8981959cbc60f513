/// @file
/// The loop that every group-wise advantage runs in on the device: a warp a group, under the policies of the host
/// (turnwise/advantage/detail/group_driver.hpp), with sums in the host's order.
#pragma once

#include <turnwise/gpu/advantage/detail/warp_group.cuh>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace turnwise::gpu::advantage::detail {

/// One lane's value for all lanes.
template <typename V>
__device__ V from_lane(V const& value, int lane) {
  static_assert(std::is_trivially_copyable_v<V> && sizeof(V) % sizeof(unsigned) == 0);
  unsigned words[sizeof(V) / sizeof(unsigned)];
  __builtin_memcpy(words, &value, sizeof value);
  for (unsigned& word : words) word = __shfl_sync(all_lanes, word, lane);
  V result = value;
  __builtin_memcpy(&result, words, sizeof result);
  return result;
}

/// Writes the advantages of the turns that the lanes look at.
template <real T, typename Policy, typename State>
__device__ void write_advantages(group_call<T> const& call, warp_group<T> const& group, Policy const& policy,
                                 State const& state, lane_turn const& turn, bool active, member_total const& own) {
  group_member const one{turn.value, turn.counts, own, turn.turn, turn.trajectory};
  bool const judged = active && turn.valid;
  double result = 0;
  if constexpr (turnwise::advantage::detail::looks_at_others<Policy, State>) {
    decltype(policy.others(group, state, one)) others{};
    for (unsigned left = __ballot_sync(all_lanes, judged && policy.needs_others(state, one)); left != 0;
         left &= left - 1) {
      int const asking = gpu::detail::lowest_lane(left);
      auto const found = policy.others(group, state, from_lane(one, asking));
      if (lane_id() == asking) others = found;
    }
    if (judged) result = policy.advantage(state, one, others);
  } else {
    if (judged) result = policy.advantage(state, one);
  }
  if (active) call.advantage[static_cast<std::size_t>(turn.turn)] = narrowed<T>(result);
}

/// The advantages of one group, by one warp.
template <real T, typename Policy>
__device__ void advantages_of_group(group_call<T> const& call, Policy const& policy, std::int64_t g) {
  warp_group<T> const group{call, g};
  auto const state = policy.prepare(group);
  int const lane = lane_id();
  // The turns of a trajectory are a run: tiles end where a run ends, and a run of more than a tile goes alone.
  for (std::int64_t first = 0, last = 0; first < group.size(); first = last) {
    lane_turn one = group.at(first + lane);
    std::int64_t const before = __shfl_up_sync(all_lanes, one.trajectory, 1);
    unsigned const heads = __ballot_sync(all_lanes, lane == 0 || one.trajectory != before);
    bool const goes_on = first + lanes < group.size() &&
                         group.trajectory(first + lanes) == __shfl_sync(all_lanes, one.trajectory, lanes - 1);
    int const whole = goes_on ? gpu::detail::highest_lane(heads) : lanes;
    member_total own;
    if (whole > 0) {
      last = first + whole < group.size() ? first + whole : group.size();
      own = group.runs_of_tile(one, heads);
    } else {
      own = group.run(first, last);
    }
    for (std::int64_t tile = first;;) {
      write_advantages(call, group, policy, state, one, tile + lane < last, own);
      tile += lanes;
      if (tile >= last) break;
      one = group.at(tile + lane);
    }
  }
}

/// Turns in no group get 0: there are some only where the offsets of trajectories are wrong.
template <real T>
__device__ void clear_if_broken(group_call<T> const& call) {
  if (call.groups.counts->broken == 0) return;
  gpu::detail::for_each_by_thread(static_cast<std::int64_t>(call.groups.turns),
                                  [&](std::int64_t s) { call.advantage[static_cast<std::size_t>(s)] = T{0}; });
}

template <real T, typename Policy>
TURNWISE_KERNEL void __launch_bounds__(gpu::detail::warp_block_threads)
    group_kernel(__grid_constant__ group_call<T> const call, __grid_constant__ Policy const policy) {
  clear_if_broken(call);
  gpu::detail::for_each_by_warp(call.groups.counts->groups,
                                [&](std::int64_t g) { advantages_of_group(call, policy, g); });
}

template <real T>
void check_group_call(group_call<T> const& call, std::string_view function) {
  expects_size(function, "turn_return", call.turn_return.size(), call.groups.turns, "turn");
  if (!call.reasons.empty()) expects_size(function, "reasons", call.reasons.size(), call.groups.turns, "turn");
  expects_size(function, "advantage", call.advantage.size(), call.groups.turns, "turn");
  expects(call.advantage.empty() || call.advantage.data() != call.turn_return.data(), function,
          ": advantage must not be the same span as turn_return");
  expects(call.advantage.empty() || static_cast<void const*>(call.advantage.data()) != call.weight.data(), function,
          ": advantage must not be the same span as weight");
}

/// Enqueues a policy over all groups.
template <real T, typename Policy>
void for_each_group(group_call<T> const& call, Policy const& policy, std::string_view function,
                    ::cuda::stream_ref stream) {
  check_group_call(call, function);
  launch(function, group_kernel<T, Policy>, gpu::detail::warp_blocks(call.groups.turns),
         gpu::detail::warp_block_threads, 0, stream, call, policy);
}

}  // namespace turnwise::gpu::advantage::detail
