/// @file
/// What rules on whole groups share on the device: a warp a group, under the rules of the host
/// (turnwise/rejection/detail/group_rule.hpp), with sums in the host's order.
#pragma once

#include <turnwise/gpu/core/grouping_view.cuh>
#include <turnwise/gpu/core/ordered_sum.cuh>
#include <turnwise/gpu/core/rollout.cuh>
#include <turnwise/gpu/core/status.cuh>
#include <turnwise/rejection/detail/group_rule.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace turnwise::gpu::rejection {

using turnwise::rejection::scope;

namespace detail {

using gpu::detail::fold_item;
using turnwise::rejection::detail::judged_total;

/// The arguments of a rule on groups.
template <real T>
struct group_rule_call {
  grouping groups;
  device_span<T const> value;
  scope level;
  device_span<reason_flags> reasons;
  status_record* status;
};

/// The values of one group that a rule looks at: the device's turnwise::rejection::detail::judged_values. All lanes of
/// a warp hold the same group, and call its functions together.
///
/// A valid turn's value that is not finite or beyond the magnitude limit makes the turn invalid here.
template <real T>
class warp_judged {
 public:
  __device__ warp_judged(group_rule_call<T> const& call, std::int64_t group)
      : call_(call),
        first_(call.groups.offsets[static_cast<std::size_t>(group)]),
        size_(call.groups.offsets[static_cast<std::size_t>(group) + 1] - first_) {}

  template <typename Step>
  [[nodiscard]] __device__ double fold(Step step) const {
    return gpu::detail::ordered_fold(
        size_, [&](std::int64_t k) { return item(k); }, step);
  }

  [[nodiscard]] __device__ judged_total total() const {
    judged_total result;
    result.sum = gpu::detail::ordered_fold(
        size_,
        [&](std::int64_t k) {
          fold_item const one = item(k);
          if (!one.counts) return one;
          ++result.count;
          result.min = one.value < result.min ? one.value : result.min;
          result.max = one.value > result.max ? one.value : result.max;
          return one;
        },
        [](double sum, double value) { return sum + value; });
    result.count = gpu::detail::warp_sum(result.count);
    for (int half = gpu::detail::lanes / 2; half > 0; half /= 2) {
      double const min = __shfl_xor_sync(gpu::detail::all_lanes, result.min, half);
      double const max = __shfl_xor_sync(gpu::detail::all_lanes, result.max, half);
      result.min = min < result.min ? min : result.min;
      result.max = max > result.max ? max : result.max;
    }
    return result;
  }

  /// Gives the valid turns of the group a reason.
  __device__ void reject(reason_flags found) const {
    for (std::int64_t k = gpu::detail::lane_id(); k < size_; k += gpu::detail::lanes)
      if (is_valid(call_.reasons[turn(k)])) call_.reasons[turn(k)] |= found;
  }

 private:
  [[nodiscard]] __device__ std::size_t turn(std::int64_t k) const {
    return static_cast<std::size_t>(call_.groups.members[static_cast<std::size_t>(first_ + k)]);
  }
  [[nodiscard]] __device__ bool valid(std::size_t s) const {
    if (!is_valid(call_.reasons[s])) return false;
    if (within_limit(call_.value[s])) return true;
    report(call_.status, status_code::turn_return, static_cast<std::int64_t>(s));
    return false;
  }
  [[nodiscard]] __device__ fold_item item(std::int64_t k) const {
    std::size_t const s = turn(k);
    if (!valid(s)) return {};
    if (call_.level == scope::trajectory)
      for (std::int64_t later = k + 1; later < size_; ++later) {
        if (call_.groups.turn_trajectory[turn(later)] != call_.groups.turn_trajectory[s]) break;
        if (valid(turn(later))) return {};
      }
    return {static_cast<double>(call_.value[s]), true};
  }

  group_rule_call<T> const& call_;
  std::int64_t first_, size_;
};

template <real T, typename Rule>
TURNWISE_KERNEL void __launch_bounds__(gpu::detail::warp_block_threads)
    group_rule_kernel(group_rule_call<T> call, Rule rule) {
  gpu::detail::for_each_by_warp(call.groups.counts->groups, [&](std::int64_t g) {
    warp_judged<T> const group{call, g};
    reason_flags const found = rule(group);
    if (found != 0) group.reject(found);
  });
}

/// Enqueues a rule over all groups.
template <real T, typename Rule>
void apply_group_rule(group_rule_call<T> const& call, Rule rule, std::string_view function, std::string_view argument,
                      ::cuda::stream_ref stream) {
  expects_size(function, argument, call.value.size(), call.groups.turns, "turn");
  expects_size(function, "reasons", call.reasons.size(), call.groups.turns, "turn");
  launch(function, group_rule_kernel<T, Rule>, gpu::detail::warp_blocks(call.groups.turns),
         gpu::detail::warp_block_threads, 0, stream, call, rule);
}

}  // namespace detail
}  // namespace turnwise::gpu::rejection
