/// @file
/// Sums of doubles by a warp, in the order of turnwise/core/ordered_sum.hpp.
#pragma once

#include <turnwise/core/ordered_sum.hpp>
#include <turnwise/gpu/core/warp.cuh>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::detail {

/// What an element of a fold holds; elements that do not count leave the accumulator as it is.
struct fold_item {
  double value = 0;
  bool counts = false;
};

/// turnwise::ordered_fold by a whole warp: folds step(accumulator, value) over item(i), i in [0, n), in the same order.
/// item(i) is called by one lane, for its elements in increasing order. All lanes call this and get the result.
template <typename Item, typename Step>
__device__ __forceinline__ double ordered_fold(std::int64_t n, Item item, Step step) {
  int const lane = lane_id();
  std::size_t const partial_sums = fold_lanes(static_cast<std::size_t>(n));
  if (partial_sums == 1) {
    fold_item const mine = lane < n ? item(std::int64_t{lane}) : fold_item{};
    double sum = 0;
    for (unsigned left = __ballot_sync(all_lanes, mine.counts); left != 0; left &= left - 1)
      sum = step(sum, __shfl_sync(all_lanes, mine.value, lowest_lane(left)));
    return sum;
  }
  double sum = 0;
  if (partial_sums == lanes) {
#pragma unroll 4
    for (std::int64_t i = lane; i < n; i += lanes) {
      fold_item const one = item(i);
      if (one.counts) sum = step(sum, one.value);
    }
  } else {
    constexpr int each = 1024 / lanes;  // partial sum `lane + 32 a` is number a of this lane
    double part[each] = {};             // in local memory: such groups are too few to spend registers on
#pragma unroll 4
    for (std::int64_t i = lane; i < n; i += lanes) {
      fold_item const one = item(i);
      double& sum_of_i = part[i / lanes % each];
      if (one.counts) sum_of_i = step(sum_of_i, one.value);
    }
    for (int half = each / 2; half > 0; half /= 2)
      for (int a = 0; a < half; ++a) part[a] += part[a + half];
    sum = part[0];
  }
  for (int half = lanes / 2; half > 0; half /= 2) sum += __shfl_down_sync(all_lanes, sum, half);
  return __shfl_sync(all_lanes, sum, 0);
}

__device__ inline std::int64_t warp_sum(std::int64_t count) {
  for (int half = lanes / 2; half > 0; half /= 2) count += __shfl_xor_sync(all_lanes, count, half);
  return count;
}

}  // namespace turnwise::gpu::detail
