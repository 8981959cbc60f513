/// @file
/// The loop that every group-wise advantage runs in on the device: a warp a group, under the policies of the host
/// (turnwise/advantage/detail/group_driver.hpp), with sums in the host's order.
#pragma once

#include <turnwise/advantage/detail/group_driver.hpp>
#include <turnwise/gpu/core/grouping.cuh>
#include <turnwise/gpu/core/ordered_sum.cuh>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace turnwise::gpu::advantage::detail {

using gpu::detail::all_lanes;
using gpu::detail::fold_item;
using gpu::detail::lane_id;
using gpu::detail::lanes;
using gpu::detail::ordered_fold;
using gpu::detail::warp_sum;
using turnwise::advantage::baseline_members;
using turnwise::advantage::detail::group_member;
using turnwise::advantage::detail::group_total;
using turnwise::advantage::detail::member_total;

/// The arguments of a group-wise advantage.
template <real T>
struct group_call {
  grouping groups;
  device_span<T const> turn_return;
  device_span<reason_flags const> reasons;
  baseline_members members;
  device_span<T> advantage;
  status_record* status;
};

/// A turn that a lane looks at.
struct lane_turn {
  std::int64_t turn = -1;
  std::int64_t trajectory = -1;
  double value = 0;
  bool valid = false;
  bool counts = false;  ///< as a baseline member
};

/// What a policy sees of one group: the device's turnwise::advantage::detail::group_values. All lanes of a warp hold
/// the same group, and call its functions together.
///
/// A valid turn's return that is not finite or beyond the magnitude limit makes the turn invalid here.
template <real T>
class warp_group {
 public:
  __device__ warp_group(group_call<T> const& call, std::int64_t group)
      : call_(call),
        first_(call.groups.offsets[static_cast<std::size_t>(group)]),
        size_(call.groups.offsets[static_cast<std::size_t>(group) + 1] - first_) {}

  [[nodiscard]] __device__ std::int64_t size() const { return size_; }
  [[nodiscard]] __device__ std::int64_t trajectory(std::int64_t k) const {
    return call_.groups.turn_trajectory[call_.groups.members[first_ + k]];
  }
  [[nodiscard]] __device__ lane_turn at(std::int64_t k) const {
    lane_turn one;
    if (k >= size_) return one;
    one.turn = call_.groups.members[first_ + k];
    one.trajectory = call_.groups.turn_trajectory[one.turn];
    read(one);
    return one;
  }

  template <typename Step>
  [[nodiscard]] __device__ double fold(Step step) const {
    return ordered_fold(
        size_, [&](std::int64_t k) { return item(k); }, step);
  }

  [[nodiscard]] __device__ group_total total() const {
    group_total result;
    std::int64_t smallest_at = size_;
    result.sum = ordered_fold(
        size_,
        [&](std::int64_t k) {
          fold_item const one = item(k);
          if (!one.counts) return one;
          ++result.count;
          if (one.value < result.min) {
            result.min = one.value;
            smallest_at = k;
          }
          result.max = one.value > result.max ? one.value : result.max;
          return one;
        },
        [](double sum, double value) { return sum + value; });
    result.count = warp_sum(result.count);
    // Of equal minima the first, as on the host: they may be zeros of both signs.
    for (int half = lanes / 2; half > 0; half /= 2) {
      double const min = __shfl_xor_sync(all_lanes, result.min, half);
      std::int64_t const at = __shfl_xor_sync(all_lanes, smallest_at, half);
      if (min < result.min || (min == result.min && at < smallest_at)) {
        result.min = min;
        smallest_at = at;
      }
      double const max = __shfl_xor_sync(all_lanes, result.max, half);
      result.max = max > result.max ? max : result.max;
    }
    return result;
  }

  /// First member turn of each trajectory of the pool but one, in canonical order.
  [[nodiscard]] __device__ member_total first_turns_of_others(std::int64_t trajectory_left_out) const {
    auto const& groups = call_.groups;
    auto const pool = static_cast<std::size_t>(groups.prompt[trajectory(0)]);
    std::int64_t const first = groups.prompt_offsets[pool];
    member_total result;
    result.sum = ordered_fold(
        groups.prompt_offsets[pool + 1] - first,
        [&](std::int64_t k) {
          lane_turn one;
          std::int64_t const j = groups.trajectory_order[first + k];
          if (j == trajectory_left_out) return fold_item{};
          std::int64_t const last = groups.trajectory_offsets[j + 1];
          for (one.turn = groups.trajectory_offsets[j]; one.turn < last; ++one.turn) {
            read(one);
            if (!one.counts) continue;
            ++result.count;
            return fold_item{one.value, true};
          }
          return fold_item{};
        },
        [](double sum, double value) { return sum + value; });
    result.count = warp_sum(result.count);
    return result;
  }

  /// Members of the trajectory whose run of turns begins at `first`; sets `last` to its end.
  [[nodiscard]] __device__ member_total run(std::int64_t first, std::int64_t& last) const {
    member_total own;
    std::int64_t const j = trajectory(first);
    for (std::int64_t tile = first;; tile += lanes) {
      lane_turn const one = at(tile + lane_id());
      unsigned const in_run = __ballot_sync(all_lanes, one.trajectory == j);
      add(own, one, in_run & __ballot_sync(all_lanes, one.counts));
      last = tile + __popc(in_run);
      if (in_run != all_lanes) return own;
    }
  }

  /// The same for the runs of a tile: each lane gets the total of the run it is in, whose first lanes are `heads`.
  [[nodiscard]] __device__ member_total runs_of_tile(lane_turn const& one, unsigned heads) const {
    int const lane = lane_id();
    unsigned const up_to_here = all_lanes >> (lanes - 1 - lane);
    unsigned const later = heads & ~up_to_here;
    // The head's lane up to the one before the next head.
    unsigned const before_next = later == 0 ? all_lanes : (later & -later) - 1;
    unsigned const run = before_next & ~((1u << gpu::detail::highest_lane(heads & up_to_here)) - 1);
    unsigned const counting = __ballot_sync(all_lanes, one.counts);
    member_total own;
    for (unsigned left = counting; left != 0; left &= left - 1) {
      double const value = __shfl_sync(all_lanes, one.value, gpu::detail::lowest_lane(left));
      if ((left & -left & run) != 0) own.sum += value;
    }
    own.count = __popc(counting & run);
    return own;
  }

 private:
  __device__ void read(lane_turn& one) const {
    T const value = call_.turn_return[static_cast<std::size_t>(one.turn)];
    reason_flags const flags = call_.reasons.empty() ? 0 : call_.reasons[static_cast<std::size_t>(one.turn)];
    one.value = static_cast<double>(value);
    one.valid = is_valid(flags) && within_limit(value);
    one.counts = call_.members == baseline_members::valid ? one.valid : one.valid && is_kept(flags);
    if (is_valid(flags) && !one.valid) report(call_.status, status_code::turn_return, one.turn);
  }
  [[nodiscard]] __device__ fold_item item(std::int64_t k) const {
    lane_turn const one = at(k);
    return {one.value, one.counts};
  }
  __device__ static void add(member_total& own, lane_turn const& one, unsigned counting) {
    for (unsigned left = counting; left != 0; left &= left - 1)
      own.sum += __shfl_sync(all_lanes, one.value, gpu::detail::lowest_lane(left));
    own.count += __popc(counting);
  }

  group_call<T> const& call_;
  std::int64_t first_, size_;
};

/// Writes the advantages of the turns that the lanes look at.
template <real T, typename Policy, typename State>
__device__ void write_advantages(group_call<T> const& call, warp_group<T> const& group, Policy const& policy,
                                 State const& state, lane_turn const& turn, bool active, member_total const& own) {
  group_member const one{turn.value, turn.counts, own};
  bool const looks = active && turn.valid && policy.needs_others(state, one);
  member_total others;
  for (unsigned left = __ballot_sync(all_lanes, looks); left != 0; left &= left - 1) {
    int const asking = gpu::detail::lowest_lane(left);
    member_total const found = group.first_turns_of_others(__shfl_sync(all_lanes, turn.trajectory, asking));
    if (lane_id() == asking) others = found;
  }
  if (!active) return;
  double const result = turn.valid ? policy.advantage(state, one, others) : 0.0;
  call.advantage[static_cast<std::size_t>(turn.turn)] = narrowed<T>(result);
}

/// The advantages of one group, by one warp.
template <real T, typename Policy>
__device__ void advantages_of_group(group_call<T> const& call, Policy const& policy, std::int64_t g) {
  warp_group<T> const group{call, g};
  auto const state = policy.prepare(group);
  int const lane = lane_id();
  // The turns of a trajectory are a run: tiles end where a run ends, and a run of more than a tile goes alone.
  for (std::int64_t first = 0, last = 0; first < group.size(); first = last) {
    lane_turn const one = group.at(first + lane);
    std::int64_t const before = __shfl_up_sync(all_lanes, one.trajectory, 1);
    unsigned const heads = __ballot_sync(all_lanes, lane == 0 || one.trajectory != before);
    bool const goes_on = first + lanes < group.size() &&
                         group.trajectory(first + lanes) == __shfl_sync(all_lanes, one.trajectory, lanes - 1);
    int const whole = goes_on ? gpu::detail::highest_lane(heads) : lanes;
    if (whole > 0) {
      last = first + whole < group.size() ? first + whole : group.size();
      write_advantages(call, group, policy, state, one, first + lane < last, group.runs_of_tile(one, heads));
    } else {
      member_total const own = group.run(first, last);
      for (std::int64_t tile = first; tile < last; tile += lanes)
        write_advantages(call, group, policy, state, group.at(tile + lane), tile + lane < last, own);
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
    group_kernel(group_call<T> call, Policy policy) {
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
