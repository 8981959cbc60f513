/// @file
/// The launches of mismatch: turns, then length classes, groups and sums, then the record.
#pragma once

#include <turnwise/gpu/core/grouping_view.cuh>
#include <turnwise/gpu/metrics/detail/mismatch_counts.cuh>
#include <turnwise/gpu/rejection/ratio_band.cuh>
#include <turnwise/gpu/reward/evaluation.cuh>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::metrics::detail {

using turnwise::importance::ratio_moments;
using turnwise::importance::turn_statistics;
using turnwise::metrics::mismatch_options;

template <real E, real T>
struct mismatch_call {
  rollout_view batch;
  grouping groups;
  device_span<turn_statistics const> statistics;
  device_span<ratio_moments const> moments;
  device_span<reason_flags const> reasons;
  device_span<T const> advantage;
  reward::evaluation<E> evaluation;
  mismatch_options options;
  rejection::log_band band;
  mismatch_blocks blocks;
};

/// Wrong offsets of trajectories: the grouping has no groups.
__device__ inline bool is_broken(grouping const& groups) { return groups.turns > 0 && groups.counts->broken != 0; }

/// Counts a turn, and writes its length and what it adds to the sums.
template <real E, real T>
__device__ __forceinline__ void count_turn(mismatch_call<E, T> const& call, std::size_t place, std::size_t s,
                                           thread_counts& mine) {
  reason_flags const flags = call.reasons[s];
  turn_statistics const statistics = call.statistics[s];
  turnwise::metrics::detail::add_turn(mine.record, mine.totals, flags, statistics);
  auto const& of = call.evaluation;
  if (is_valid(flags) && !of.correct.empty()) {
    bool const meaningless =
        !of.total_us.empty() &&
        !turnwise::reward::has_profile(static_cast<double>(of.generated_us[s]), static_cast<double>(of.total_us[s]));
    turnwise::metrics::detail::add_quality(mine.record, flags, of.counts_as_correct(s),
                                           static_cast<double>(of.speedup[s]), meaningless, call.options);
  }
  std::int64_t const length = is_valid(flags) ? turnwise::metrics::detail::length_of(statistics) : 0;
  mine.with_length += length > 0;
  call.blocks.lengths[s] = length > 0 ? length : no_length;

  record_totals adds;
  if (has_ratio(flags)) {
    adds.moments = call.moments[s];
    adds.squared_ratios = turnwise::metrics::detail::squared_ratio(statistics);
  }
  if (is_kept(flags)) adds.kept_advantage = static_cast<double>(call.advantage[s]);
  for_each_sum(adds, [&](int k, double value) {
    call.blocks.terms[static_cast<std::size_t>(k) * call.batch.turns + place] = value;
  });
}

/// The group that has a place of the canonical order.
__device__ inline std::int64_t group_of_place(grouping const& groups, std::int64_t place) {
  std::int64_t low = 0;  // the group is in [low, high)
  std::int64_t high = groups.counts->groups;
  while (high - low > 1) {
    std::int64_t const middle = low + (high - low) / 2;
    (groups.offsets[static_cast<std::size_t>(middle)] <= place ? low : high) = middle;
  }
  return low;
}

/// Turns at 32 places, a lane each; groups are runs of lanes, and the first lane of a run adds to its group.
template <real E, real T>
__device__ __forceinline__ void count_tile(mismatch_call<E, T> const& call, std::int64_t tile, thread_counts& mine) {
  int const lane = gpu::detail::lane_id();
  std::int64_t const place = tile * gpu::detail::lanes + lane;
  std::int64_t group = -1;
  bool valid = false, kept = false, negative = false;
  if (place < static_cast<std::int64_t>(call.batch.turns)) {
    auto const s = static_cast<std::size_t>(call.groups.members[static_cast<std::size_t>(place)]);
    group = group_of_place(call.groups, place);
    valid = is_valid(call.reasons[s]);
    kept = is_kept(call.reasons[s]);
    negative = kept && call.advantage[s] < 0;
    count_turn(call, static_cast<std::size_t>(place), s, mine);
  }
  std::int64_t const before = __shfl_up_sync(gpu::detail::all_lanes, group, 1);
  unsigned const heads = __ballot_sync(gpu::detail::all_lanes, lane == 0 || group != before);
  unsigned const valid_lanes = __ballot_sync(gpu::detail::all_lanes, valid);
  unsigned const kept_lanes = __ballot_sync(gpu::detail::all_lanes, kept);
  unsigned const negative_lanes = __ballot_sync(gpu::detail::all_lanes, negative);
  if (group < 0 || (heads >> lane & 1) == 0) return;
  unsigned const from_here = gpu::detail::all_lanes << lane;
  unsigned const later = heads & (from_here << 1);
  unsigned const run = from_here & (later == 0 ? gpu::detail::all_lanes : (later & -later) - 1);
  auto const add = [&](unsigned long long& count, unsigned lanes) {
    if ((lanes & run) != 0) atomicAdd(&count, static_cast<unsigned long long>(__popc(lanes & run)));
  };
  group_tally& tally = call.blocks.groups[static_cast<std::size_t>(group)];
  add(tally.turns, valid_lanes);
  add(tally.kept, kept_lanes);
  add(tally.negative, negative_lanes);
}

/// The ratio turns of trajectory j by their side of the band.
template <real E, real T>
__device__ __forceinline__ void count_sides(mismatch_call<E, T> const& call, std::int64_t j, thread_counts& mine) {
  bool const by_trajectory = call.options.band.level == rejection::scope::trajectory;
  reason_flags const of_trajectory =
      by_trajectory
          ? turnwise::rejection::band_reason(
                rejection::detail::trajectory_statistics(call.batch, j, call.statistics, call.reasons), call.band)
          : 0;
  rejection::detail::for_each_turn(call.batch, j, [&](std::size_t s) {
    if (!has_ratio(call.reasons[s])) return;
    turn_statistics const& own = call.statistics[s];
    turnwise::metrics::detail::add_side(
        mine.totals, by_trajectory ? of_trajectory : turnwise::rejection::band_reason(own, call.band), own.count);
  });
}

template <real E, real T>
TURNWISE_KERNEL void __launch_bounds__(threads, 2) mismatch_turns_kernel(mismatch_call<E, T> call) {
  auto const turns = static_cast<std::int64_t>(call.batch.turns);
  if (is_broken(call.groups)) {
    gpu::detail::for_each_by_thread(
        turns, [&](std::int64_t s) { call.blocks.lengths[static_cast<std::size_t>(s)] = no_length; });
    return;
  }
  thread_counts mine;
  constexpr std::int64_t lanes = gpu::detail::lanes;
  gpu::detail::for_each_by_warp((turns + lanes - 1) / lanes, [&](std::int64_t tile) { count_tile(call, tile, mine); });
  gpu::detail::for_each_by_warp(static_cast<std::int64_t>(call.batch.trajectories()),
                                [&](std::int64_t j) { count_sides(call, j, mine); });
  mismatch_tally& tally = *call.blocks.tally.data();
  add_extremes(mine.totals, tally);
  add_counts(
      mine, [](auto& counts, auto visit) { for_each_turn_count(counts, visit); }, tally.turn);
}

/// One partial sum a thread, in the order of turnwise::ordered_sum.
__device__ inline void add_terms(std::size_t turns, mismatch_blocks const& blocks) {
  std::size_t const number = std::size_t{blockIdx.x} * threads + threadIdx.x;
  std::size_t const lane = number % sum_lanes;
  std::size_t const stride = fold_lanes(turns);
  double const* const term = blocks.terms.data() + number / sum_lanes * turns;
  double sum = 0;
  if (lane < stride) {
#pragma unroll 16
    for (std::size_t i = lane; i < turns; i += stride) sum += term[i];
  }
  blocks.partial_sums[number] = sum;
}

inline constexpr unsigned sum_blocks = sums * sum_lanes / threads;

/// The first sum_blocks blocks add terms, the others count groups, and turns in length classes.
TURNWISE_KERNEL void __launch_bounds__(threads)
    mismatch_classes_kernel(grouping groups, device_span<reason_flags const> reasons, mismatch_blocks blocks) {
  if (is_broken(groups)) return;
  if (blockIdx.x < sum_blocks) return add_terms(groups.turns, blocks);
  std::size_t const first = std::size_t{blockIdx.x - sum_blocks} * threads + threadIdx.x;
  std::size_t const stride = std::size_t{gridDim.x - sum_blocks} * threads;
  mismatch_tally& tally = *blocks.tally.data();
  thread_counts mine;
  if (std::size_t const with_length = tally.turn[0]; with_length > 0) {  // for_each_turn_count begins with it
    turnwise::metrics::detail::quartile_edges const edges{blocks.sorted.data(), with_length};
    for (std::size_t s = first; s < groups.turns; s += stride) {
      std::int64_t const length = blocks.lengths[s];
      if (length == no_length) continue;
      int const quartile = edges.quartile(length);
#pragma unroll
      for (int q = 0; q < 4; ++q)
        if (q == quartile) turnwise::metrics::detail::add(elements(mine.record.by_length)[q].count, reasons[s]);
    }
  }
  for (std::size_t g = first; g < static_cast<std::size_t>(groups.counts->groups); g += stride) {
    group_tally const one = blocks.groups[g];
    turnwise::metrics::detail::add_group(mine.record,
                                         {static_cast<std::int64_t>(one.turns), static_cast<std::int64_t>(one.kept)},
                                         static_cast<std::int64_t>(one.negative));
  }
  add_counts(
      mine, [](auto& counts, auto visit) { for_each_class_count(counts, visit); }, tally.by_class);
}

inline constexpr unsigned finish_threads = sum_lanes / 2;

/// Adds the partial sums as a tree, by one block; sum[k][0] is for its first thread.
__device__ inline void add_partial_sums(mismatch_blocks const& blocks, double (&sum)[sums][finish_threads]) {
  unsigned const lane = threadIdx.x;
  for (unsigned k = 0; k < sums; ++k) {
    double const* const partial = blocks.partial_sums.data() + k * sum_lanes;
    sum[k][lane] = partial[lane] + partial[lane + finish_threads];
  }
  for (unsigned half = finish_threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half)
      for (auto& of : sum) of[lane] += of[lane + half];
  }
}

/// The counts and sums of all threads.
__device__ inline thread_counts all_counts(std::size_t turns, mismatch_blocks const& blocks,
                                           double const (&sum)[sums][finish_threads]) {
  mismatch_tally const& tally = *blocks.tally.data();
  thread_counts all;
  for_each_turn_count(all, [&](int i, std::int64_t& count) { count = static_cast<std::int64_t>(tally.turn[i]); });
  for_each_class_count(all, [&](int i, std::int64_t& count) { count = static_cast<std::int64_t>(tally.by_class[i]); });
  for_each_sum(all.totals, [&](int k, double& total) { total = sum[k][0]; });
  all.totals.ratio.min = from_ordered_bits(~tally.least);
  all.totals.ratio.max = from_ordered_bits(tally.greatest);
  all.record.turns = static_cast<std::int64_t>(turns);
  turnwise::metrics::detail::finish_lengths(all.record, blocks.sorted.data());
  return all;
}

/// One block adds the partial sums as a tree; its first thread writes the record.
TURNWISE_KERNEL void __launch_bounds__(finish_threads)
    mismatch_finish_kernel(grouping groups, mismatch_options options, mismatch_blocks blocks,
                           device_span<mismatch_record> out) {
  __shared__ double sum[sums][finish_threads];
  bool const broken = is_broken(groups);
  if (!broken) add_partial_sums(blocks, sum);
  if (threadIdx.x != 0) return;
  thread_counts all;
  if (!broken) all = all_counts(groups.turns, blocks, sum);
  turnwise::metrics::detail::finish(all.record, all.totals, options);
  out[0] = all.record;
}

}  // namespace turnwise::gpu::metrics::detail
