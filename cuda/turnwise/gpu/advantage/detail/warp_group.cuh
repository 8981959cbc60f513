/// @file
/// What a policy of the group driver can ask a group on the device: turnwise::advantage::detail::group_values for a
/// warp, with the same bits.
#pragma once

#include <turnwise/advantage/detail/group_driver.hpp>
#include <turnwise/gpu/core/grouping_view.cuh>
#include <turnwise/gpu/core/ordered_sum.cuh>
#include <turnwise/gpu/core/rollout.cuh>
#include <turnwise/gpu/core/status.cuh>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::advantage::detail {

using gpu::detail::all_lanes;
using gpu::detail::fold_item;
using gpu::detail::lane_id;
using gpu::detail::lanes;
using gpu::detail::ordered_fold;
using gpu::detail::warp_sum;
using turnwise::advantage::baseline_members;
using turnwise::advantage::detail::every_member;
using turnwise::advantage::detail::group_member;
using turnwise::advantage::detail::group_total;
using turnwise::advantage::detail::member_split;
using turnwise::advantage::detail::member_total;
using turnwise::advantage::detail::ranked_members;

/// The arguments of a group-wise advantage.
template <real T>
struct group_call {
  grouping groups;
  device_span<T const> turn_return;
  device_span<reason_flags const> reasons;
  baseline_members members;
  device_span<T> advantage;
  status_record* status;
  device_span<double const> weight{};  ///< [S], or empty: the policy takes none
  device_span<double> scratch{};       ///< [2 S] for warp_group::ranked, or empty: the policy does not call it
};

/// A turn that a lane looks at.
struct lane_turn {
  std::int64_t turn = -1;
  std::int64_t trajectory = -1;
  double value = 0;
  double weight = 0;
  bool valid = false;
  bool counts = false;  ///< as a baseline member
};

/// What a policy sees of one group. All lanes of a warp hold the same group, and call its functions together.
///
/// A valid turn's return or weight that the host would refuse makes the turn invalid here.
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

  template <typename Step, typename Counts = every_member>
  [[nodiscard]] __device__ double fold(Step step, Counts counts = {}) const {
    return ordered_fold(
        size_,
        [&](std::int64_t k) {
          lane_turn const one = at(k);
          return fold_item{one.value, one.counts && counts(one.turn, one.trajectory)};
        },
        step);
  }

  template <typename Item>
  [[nodiscard]] __device__ double weighted_sum(Item item) const {
    return ordered_fold(
        size_,
        [&](std::int64_t k) {
          lane_turn const one = at(k);
          return fold_item{one.counts ? item(one.value, one.weight) : 0.0, one.counts};
        },
        [](double sum, double value) { return sum + value; });
  }

  template <typename Counts = every_member>
  [[nodiscard]] __device__ group_total total(Counts counts = {}) const {
    group_total result;
    std::int64_t smallest_at = size_;
    result.sum = ordered_fold(
        size_,
        [&](std::int64_t k) {
          lane_turn const turn = at(k);
          fold_item const one{turn.value, turn.counts && counts(turn.turn, turn.trajectory)};
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

  [[nodiscard]] __device__ group_total weighted_total() const {
    return total([this](std::int64_t turn, std::int64_t) { return call_.weight[static_cast<std::size_t>(turn)] > 0; });
  }

  template <typename Wanted>
  [[nodiscard]] __device__ std::int64_t count(Wanted wanted) const {
    std::int64_t result = 0;
    for (std::int64_t k = lane_id(); k < size_; k += lanes) {
      lane_turn const one = at(k);
      result += one.counts && wanted(one.value);
    }
    return warp_sum(result);
  }

  template <typename Function>
  [[nodiscard]] __device__ member_split split(Function f, double pivot) const {
    member_split result;
    for (std::int64_t k = lane_id(); k < size_; k += lanes) {
      lane_turn const one = at(k);
      if (one.counts) result.add(f(one.value), pivot);
    }
    result.not_above = warp_sum(result.not_above);
    for (int half = lanes / 2; half > 0; half /= 2) {
      double const largest = __shfl_xor_sync(all_lanes, result.largest, half);
      double const above = __shfl_xor_sync(all_lanes, result.smallest_above, half);
      result.largest = largest > result.largest ? largest : result.largest;
      result.smallest_above = above < result.smallest_above ? above : result.smallest_above;
    }
    return result;
  }

  /// Sorts by counting: n^2 / 32 steps of the warp, good up to a few thousand members.
  template <typename Weight>
  [[nodiscard]] __device__ ranked_members ranked(Weight weight) const {
    double* const values = call_.scratch.data() + first_;
    double* const sums = values + call_.groups.turns;
    std::int64_t const members = count([](double) { return true; });
    for (std::int64_t tile = 0; tile < size_; tile += lanes) {
      lane_turn const mine = at(tile + lane_id());
      std::int64_t const place = rank(tile + lane_id(), mine.value);
      if (mine.counts) values[place] = mine.value + 0.0;  // one zero, so that equal values have the same bits
    }
    __syncwarp();
    for (std::int64_t q = lane_id(); q < members; q += lanes)
      sums[q] = q > 0 && values[q] > values[q - 1] ? weight(q) : 0.0;
    __syncwarp();
    if (lane_id() == 0) turnwise::advantage::detail::sum_gaps(values, members, sums);
    __syncwarp();
    return {values, sums, members};
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
    auto const s = static_cast<std::size_t>(one.turn);
    T const value = call_.turn_return[s];
    reason_flags const flags = call_.reasons.empty() ? 0 : call_.reasons[s];
    one.value = static_cast<double>(value);
    one.valid = is_valid(flags) && within_limit(value);
    if (is_valid(flags) && !one.valid) report(call_.status, status_code::turn_return, one.turn);
    if (!call_.weight.empty()) {
      one.weight = call_.weight[s];
      bool const has_weight = one.weight >= 0 && within_limit(one.weight);
      if (is_valid(flags) && !has_weight) report(call_.status, status_code::weight, one.turn);
      one.valid = one.valid && has_weight;
    }
    one.counts = call_.members == baseline_members::valid ? one.valid : one.valid && is_kept(flags);
  }
  /// How many baseline members stand before element k, whose value is given: those with less, and of its equals those
  /// of a smaller k.
  [[nodiscard]] __device__ std::int64_t rank(std::int64_t k, double value) const {
    std::int64_t before = 0;
    for (std::int64_t tile = 0; tile < size_; tile += lanes) {
      lane_turn const other = at(tile + lane_id());
      for (unsigned left = __ballot_sync(all_lanes, other.counts); left != 0; left &= left - 1) {
        int const from = gpu::detail::lowest_lane(left);
        double const bound = __shfl_sync(all_lanes, other.value, from);
        before += bound < value || (bound == value && tile + from < k);
      }
    }
    return before;
  }
  __device__ static void add(member_total& own, lane_turn const& one, unsigned counting) {
    for (unsigned left = counting; left != 0; left &= left - 1)
      own.sum += __shfl_sync(all_lanes, one.value, gpu::detail::lowest_lane(left));
    own.count += __popc(counting);
  }

  group_call<T> const& call_;
  std::int64_t first_, size_;
};

}  // namespace turnwise::gpu::advantage::detail
