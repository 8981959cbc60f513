/// @file
/// What the launches of mismatch hand on to each other, and how the counts of threads are joined.
#pragma once

#include <turnwise/gpu/core/ordered_sum.cuh>
#include <turnwise/gpu/core/warp.cuh>
#include <turnwise/gpu/core/workspace.cuh>
#include <turnwise/metrics/mismatch.hpp>

#include <cub/device/device_radix_sort.cuh>

#include <cstddef>
#include <cstdint>
#include <limits>

namespace turnwise::gpu::metrics::detail {

using turnwise::metrics::mismatch_record;
using turnwise::metrics::detail::elements;
using turnwise::metrics::detail::record_totals;

inline constexpr unsigned threads = 256;
inline constexpr int turn_counts = 21 + static_cast<int>(reason::names.size());
inline constexpr int class_counts = 10;
inline constexpr int sums = 5;                  ///< of doubles
inline constexpr std::size_t sum_lanes = 1024;  ///< partial sums of each; those that the order has no use for are 0

/// Length of a turn that is in no length class; sorts behind all others.
inline constexpr std::int64_t no_length = std::numeric_limits<std::int64_t>::max();

/// Counts of all threads; starts as zero bytes.
struct mismatch_tally {
  unsigned long long turn[turn_counts];
  unsigned long long by_class[class_counts];
  unsigned long long least, greatest;  ///< log ratio: ~ordered_bits, ordered_bits; 0 = none
};

/// Counts of one group; starts as zero bytes.
struct group_tally {
  unsigned long long turns, kept, negative;  ///< valid ones, kept ones, kept ones with a negative advantage
};

struct mismatch_blocks {
  device_span<mismatch_tally> tally;  ///< [1]
  device_span<group_tally> groups;    ///< [groups] of [S]
  device_span<double> terms;          ///< [sums][S] what each turn adds to each sum, in canonical order
  device_span<double> partial_sums;   ///< [sums][sum_lanes]
  device_span<std::int64_t> lengths;  ///< [S]
  device_span<std::int64_t> sorted;   ///< [S]
  device_span<std::byte> sort;

  mismatch_blocks(std::size_t turns, workspace& scratch)
      : tally(scratch.take<mismatch_tally>(1, "mismatch: tally")),
        groups(scratch.take<group_tally>(turns, "mismatch: groups")),
        terms(scratch.take<double>(sums * turns, "mismatch: terms")),
        partial_sums(scratch.take<double>(sums * sum_lanes, "mismatch: partial sums")),
        lengths(scratch.take<std::int64_t>(turns, "mismatch: lengths")),
        sorted(scratch.take<std::int64_t>(turns, "mismatch: sorted lengths")) {
    std::size_t bytes = 0;
    if (turns > 0) sort_lengths(nullptr, bytes, nullptr);
    sort = scratch.take<std::byte>(bytes, "mismatch: sort");
  }

  /// Sorts the lengths, or asks for the bytes that takes. Lengths are not negative.
  void sort_lengths(void* memory, std::size_t& bytes, cudaStream_t stream) const {
    check(cub::DeviceRadixSort::SortKeys(memory, bytes, static_cast<std::int64_t const*>(lengths.data()), sorted.data(),
                                         lengths.size(), 0, 63, stream),
          "mismatch: sort");
  }
};

/// What a thread has counted.
struct thread_counts {
  mismatch_record record;
  record_totals totals;
  std::int64_t with_length = 0;  ///< turns in length classes
};

template <int Expected, typename Visit, typename... Count>
__device__ __forceinline__ void visit_in_order(Visit visit, Count&... count) {
  static_assert(sizeof...(count) == Expected);
  int i = 0;
  (visit(i++, count), ...);
}

/// Calls visit(i, count) for the counts that turns and trajectories add to.
template <typename Visit>
__device__ __forceinline__ void for_each_turn_count(thread_counts& mine, Visit visit) {
  auto& [record, totals, with_length] = mine;
  constexpr int bits = sizeof(record.reasons) / sizeof(std::int64_t);
  constexpr int others = turn_counts - bits;
  visit_in_order<others>(visit, with_length, record.ratio_turns, record.non_finite_tokens, record.valid.turns,
                         record.valid.kept, record.kept_tokens, record.correct.turns, record.correct.kept,
                         record.incorrect.turns, record.incorrect.kept, record.fast.turns, record.fast.kept,
                         record.meaningless_profiles, record.speedup_outliers, totals.ratio.count, totals.ratio.sum,
                         totals.ratio.saturated, totals.low.turns, totals.low.tokens, totals.high.turns,
                         totals.high.tokens);
#pragma unroll
  for (int bit = 0; bit < bits; ++bit) visit(others + bit, elements(record.reasons)[bit]);
}

/// The same for the counts that length classes and groups add to.
template <typename Visit>
__device__ __forceinline__ void for_each_class_count(thread_counts& mine, Visit visit) {
  auto& [first, second, third, fourth] = elements(mine.record.by_length);
  visit_in_order<class_counts>(visit, mine.record.negative_groups, mine.record.rejected_to_one, first.count.turns,
                               first.count.kept, second.count.turns, second.count.kept, third.count.turns,
                               third.count.kept, fourth.count.turns, fourth.count.kept);
}

/// Calls visit(i, sum) for the sums of doubles.
template <typename Visit>
__device__ __forceinline__ void for_each_sum(record_totals& totals, Visit visit) {
  visit_in_order<sums>(visit, totals.moments.k3, totals.moments.excess_squared, totals.moments.rollout_logprob,
                       totals.squared_ratios, totals.kept_advantage);
}

/// Adds the counts of a block's threads to those of all. `for_each` is one of the two above.
template <int Count, typename ForEach>
__device__ void add_counts(thread_counts& mine, ForEach for_each, unsigned long long (&total)[Count]) {
  constexpr unsigned warps = threads / gpu::detail::lanes;
  __shared__ std::int64_t of_warp[warps][Count];
  unsigned const warp = threadIdx.x / gpu::detail::lanes;
  for_each(mine, [&](int i, std::int64_t count) {
    std::int64_t const sum = gpu::detail::warp_sum(count);
    if (gpu::detail::lane_id() == 0) of_warp[warp][i] = sum;
  });
  __syncthreads();
  if (threadIdx.x >= Count) return;
  std::int64_t sum = 0;
  for (unsigned w = 0; w < warps; ++w) sum += of_warp[w][threadIdx.x];
  if (sum != 0) atomicAdd(&total[threadIdx.x], static_cast<unsigned long long>(sum));
}

/// Integers in the order of doubles; never 0.
__device__ inline unsigned long long ordered_bits(double value) {
  auto const bits = static_cast<unsigned long long>(__double_as_longlong(value));
  return bits >> 63 != 0 ? ~bits : bits | 1ull << 63;
}
__device__ inline double from_ordered_bits(unsigned long long bits) {
  return __longlong_as_double(static_cast<long long>(bits >> 63 != 0 ? bits & ~(1ull << 63) : ~bits));
}

/// Joins the extreme log ratios of a warp with those of all.
__device__ inline void add_extremes(record_totals const& mine, mismatch_tally& tally) {
  unsigned long long least = ~ordered_bits(mine.ratio.min);
  unsigned long long greatest = ordered_bits(mine.ratio.max);
  for (int half = gpu::detail::lanes / 2; half > 0; half /= 2) {
    auto const of_other_lane = [half](auto value) { return __shfl_xor_sync(gpu::detail::all_lanes, value, half); };
    least = max(least, of_other_lane(least));
    greatest = max(greatest, of_other_lane(greatest));
  }
  if (gpu::detail::lane_id() != 0) return;
  atomicMax(&tally.least, least);
  atomicMax(&tally.greatest, greatest);
}

}  // namespace turnwise::gpu::metrics::detail
