/// @file
/// The kernels of policy_loss: a warp a chunk; the turns' ratios; sums in a fixed order.
#pragma once

#include <turnwise/core/concepts.hpp>
#include <turnwise/gpu/core/status.cuh>
#include <turnwise/gpu/core/token_plan.cuh>
#include <turnwise/gpu/loss/detail/token_rows.cuh>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::loss::detail {

inline constexpr unsigned loss_warps = TURNWISE_GPU_BLOCK_WARPS;
inline constexpr unsigned loss_lanes = gpu::detail::lanes;

/// A warp leaves one record of so many chunks in a row that there are at most 2^16 records.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr std::size_t chunks_of_record(std::size_t tokens) noexcept {
  return ceil_div(chunk_count(tokens), std::size_t{1} << 16);
}
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr std::size_t record_count(std::size_t tokens) noexcept {
  return ceil_div(chunk_count(tokens), chunks_of_record(tokens));
}

/// All that the kernels read and write.
template <typename Policy, typename Inputs, typename Outputs>
struct loss_work {
  using F = typename Inputs::number;

  token_plan plan;
  Inputs in;
  Policy policy;
  host::loss_options options;
  device_span<double const> turn_scale;
  device_span<F> turn_ratio;  ///< [S] of a turn-level policy, else empty
  Outputs out;
  device_span<host::loss_record> records;
  status_record* status;
  bool vectors;  ///< whole rows of the arrays are aligned

  /// What a turn's tokens share; bad numbers are reported, and the turn is then not in the loss.
  [[nodiscard]] __device__ turn_values<F> turn(std::int64_t place) const {
    auto const s = static_cast<std::size_t>(plan.turn_at(place));
    turn_values<F> values;
    double const scale = turn_scale[s];
    if (!(scale >= 0 && within_limit(scale))) {
      report(status, status_code::weight, static_cast<std::int64_t>(s));
      return values;
    }
    if (scale == 0) return values;
    if (!in.turn_advantage.empty()) {
      auto const advantage = in.turn_advantage[s];
      if (!within_limit(advantage)) {
        report(status, status_code::turn_return, static_cast<std::int64_t>(s));
        return values;
      }
      values.advantage = static_cast<F>(advantage);
    }
    values.scale = static_cast<F>(scale);
    if (!turn_ratio.empty()) values.ratio = turn_ratio[s];
    return values;
  }
};

/// exp of the mean of a turn's log ratios as the policy wants them: a block a turn, lanes in a fixed order.
template <unsigned Threads, typename Work>
TURNWISE_KERNEL void __launch_bounds__(Threads) turn_ratio_kernel(Work work) {
  using F = typename Work::F;
  __shared__ double sums[Threads];
  __shared__ int counts[Threads];
  for (auto place = std::int64_t{blockIdx.x}; place < static_cast<std::int64_t>(work.plan.turns); place += gridDim.x) {
    auto const s = static_cast<std::size_t>(work.plan.turn_at(place));
    double const scale = work.turn_scale[s];
    bool const wanted = scale > 0;
    double sum = 0;
    int count = 0;
    std::int64_t const begin = work.plan.begin[static_cast<std::size_t>(place)];  // a bad range is cut to the arrays
    std::int64_t const end = wanted ? work.plan.end[static_cast<std::size_t>(place)] : 0;
    auto const tokens = static_cast<std::int64_t>(work.plan.tokens);
    std::int64_t const last = end < tokens ? end : tokens;
    for (std::int64_t i = (begin > 0 ? begin : 0) + threadIdx.x; i < last; i += Threads) {
      auto const n = static_cast<std::size_t>(i);
      if (!work.in.mask.empty() && work.in.mask[n] == 0) continue;
      F const advantage =
          static_cast<F>(work.in.token_advantage.empty() ? work.in.turn_advantage[s] : work.in.token_advantage[n]);
      host::detail::clamped_log_ratio<F> const d{static_cast<F>(work.in.current_logprob[n]),
                                                 static_cast<F>(work.in.old_logprob[n]),
                                                 static_cast<F>(work.options.log_ratio_limit)};
      if (!d.finite) continue;
      sum += static_cast<double>(work.policy.turn_log_ratio(d.value, advantage));
      ++count;
    }
    sums[threadIdx.x] = sum;
    counts[threadIdx.x] = count;
    for (unsigned half = Threads / 2; half > 0; half /= 2) {
      __syncthreads();
      if (threadIdx.x >= half) continue;
      sums[threadIdx.x] += sums[threadIdx.x + half];
      counts[threadIdx.x] += counts[threadIdx.x + half];
    }
    if (threadIdx.x == 0)
      work.turn_ratio[s] = counts[0] == 0 ? F{1} : ieee_exp(static_cast<F>(sums[0] / static_cast<double>(counts[0])));
    __syncthreads();
  }
}

/// A record as words, for shuffles and for shared memory, which takes no constructors.
inline constexpr std::size_t record_words = sizeof(host::loss_record) / sizeof(double);
static_assert(sizeof(host::loss_record) == record_words * sizeof(double));

/// The sum of the lanes' records, in a fixed order, in lane 0.
__device__ inline host::loss_record warp_sum(host::loss_record record) {
  for (int offset = static_cast<int>(loss_lanes) / 2; offset > 0; offset /= 2) {
    double words[record_words];
    __builtin_memcpy(words, &record, sizeof record);
#pragma unroll
    for (double& word : words) word = __shfl_down_sync(gpu::detail::all_lanes, word, static_cast<unsigned>(offset));
    host::loss_record other;
    __builtin_memcpy(&other, words, sizeof record);
    record += other;
  }
  return record;
}

/// Tokens of a row, and rows in flight together: 64 bytes a lane.
inline constexpr int row_tokens = 4;
template <typename Current, typename Old>
inline constexpr int rows_at_once = sizeof(Current) + sizeof(Old) > 4 ? 2 : 4;

/// One chunk of `count` tokens from `first` on; turn_of(place) gives the values of the token at a place in the chunk.
template <bool Extras, typename Work, typename TurnOf>
__device__ void chunk_tokens_of(Work const& work, std::int64_t first, int count, TurnOf turn_of,
                                lane_record<typename Work::F>& sums) {
  using current_type = std::remove_const_t<typename decltype(work.in.current_logprob)::element_type>;
  using old_type = std::remove_const_t<typename decltype(work.in.old_logprob)::element_type>;
  using inputs = decltype(work.in);
  using outputs = decltype(work.out);
  using policy = decltype(work.policy);
  int const lane = gpu::detail::lane_id();
  constexpr int lanes = static_cast<int>(loss_lanes);
  if constexpr (!Extras) {
    constexpr int row = row_tokens;
    constexpr int rows = rows_at_once<current_type, old_type>;
    constexpr int step = rows * lanes * row;
    static_assert(chunk_tokens % step == 0);
    if (work.vectors && count == static_cast<int>(chunk_tokens)) {
      token_row<row, false, policy, inputs, outputs> const evaluate{work.in, work.out, work.policy, work.options};
#pragma unroll 1
      for (int begin = lane * row; begin < static_cast<int>(chunk_tokens); begin += step) {
        current_type current[rows][row];
        old_type old[rows][row];
#pragma unroll
        for (int r = 0; r < rows; ++r) {
          load_row(work.in.current_logprob.data() + first + begin + r * lanes * row, current[r]);
          load_row(work.in.old_logprob.data() + first + begin + r * lanes * row, old[r]);
        }
#pragma unroll
        for (int r = 0; r < rows; ++r) {
          int const place = begin + r * lanes * row;
          evaluate(
              first + place, current[r], old[r], [&](int v) { return turn_of(place + v); }, sums);
        }
      }
      return;
    }
  }
  token_row<1, Extras, policy, inputs, outputs> const evaluate{work.in, work.out, work.policy, work.options};
  for (int place = lane; place < count; place += lanes) {
    auto const n = static_cast<std::size_t>(first + place);
    current_type const current[1]{work.in.current_logprob[n]};
    old_type const old[1]{work.in.old_logprob[n]};
    evaluate(
        first + place, current, old, [&](int) { return turn_of(place); }, sums);
  }
}

/// Gradients 0.
template <typename Gradient>
__device__ void clear(device_span<Gradient> to, std::int64_t first, int count) {
  for (int i = gpu::detail::lane_id(); i < count && !to.empty(); i += static_cast<int>(loss_lanes))
    to[static_cast<std::size_t>(first + i)] = static_cast<Gradient>(0.0f);
}

/// Blocks that a multiprocessor shall hold: enough loads in flight, and few spills.
template <typename F>
inline constexpr unsigned loss_blocks_resident = sizeof(F) == 4 ? 5 : 3;

template <bool Extras, typename Work>
TURNWISE_KERNEL void __launch_bounds__(loss_warps* loss_lanes, loss_blocks_resident<typename Work::F>)
    policy_loss_kernel(Work work) {
  using F = typename Work::F;
  __shared__ std::int32_t shared_turn[loss_warps][chunk_tokens];  // place of a token's turn among the chunk's; -1: none
  std::int32_t* const turn_at = shared_turn[threadIdx.x / loss_lanes];
  int const lane = gpu::detail::lane_id();
  auto const chunks = static_cast<std::int64_t>(work.plan.chunks.size());
  auto const together = static_cast<std::int64_t>(chunks_of_record(work.plan.tokens));

  gpu::detail::for_each_by_warp(static_cast<std::int64_t>(work.records.size()), [&](std::int64_t r) {
    lane_record<F> sums;
    for (std::int64_t chunk = r * together; chunk < (r + 1) * together && chunk < chunks; ++chunk) {
      std::int64_t const first = chunk * chunk_tokens;
      auto const rest = static_cast<std::int64_t>(work.plan.tokens) - first;
      int const count = static_cast<int>(rest < chunk_tokens ? rest : chunk_tokens);
      chunk_turns const turns = work.plan.chunks[static_cast<std::size_t>(chunk)];
      turn_values<F> one;
      if (turns.whole) one = work.turn(turns.first);
      if (turns.whole && turns.before == 0 && lane == 0) sums.turns += one.scale != 0;
      if (turns.count == 0 || (turns.whole && one.scale == 0)) {
        clear(work.out.gradient, first, count);
        clear(work.out.entropy_gradient, first, count);
        continue;
      }
      if (turns.whole) {
        chunk_tokens_of<Extras>(
            work, first, count, [&](int) { return one; }, sums);
        continue;
      }
      for (int i = lane; i < static_cast<int>(chunk_tokens); i += static_cast<int>(loss_lanes)) turn_at[i] = -1;
      __syncwarp();
      int width = static_cast<int>(loss_lanes);
      while (width > 1 && static_cast<int>(loss_lanes) / width < turns.count) width /= 2;
      for (std::int64_t turn = lane / width; turn < turns.count; turn += static_cast<int>(loss_lanes) / width) {
        std::int64_t const begin = work.plan.begin[static_cast<std::size_t>(turns.first + turn)];
        std::int64_t const end = work.plan.end[static_cast<std::size_t>(turns.first + turn)];
        if (lane % width == 0 && begin >= first && end > begin) sums.turns += work.turn(turns.first + turn).scale != 0;
        int const stop = gpu::detail::place_in_chunk(end, first);
        for (int i = gpu::detail::place_in_chunk(begin, first) + lane % width; i < stop; i += width)
          turn_at[i] = static_cast<std::int32_t>(turn);
      }
      __syncwarp();
      std::int32_t last = -1;  // neighbours mostly share a turn
      chunk_tokens_of<Extras>(
          work, first, count,
          [&](int place) {
            std::int32_t const turn = turn_at[place];
            if (turn != last) one = turn < 0 ? turn_values<F>{} : work.turn(turns.first + turn);
            last = turn;
            return one;
          },
          sums);
      __syncwarp();
    }
    host::loss_record const total = warp_sum(sums.record());
    if (lane == 0) work.records[static_cast<std::size_t>(r)] = total;
  });
}

inline constexpr unsigned sum_threads = 512;
inline constexpr std::size_t sum_share = 4096;  ///< records that one block takes at most

/// Block b adds up records [b * share, (b + 1) * share), always in the same order.
TURNWISE_KERNEL void __launch_bounds__(sum_threads)
    sum_records_kernel(device_span<host::loss_record const> records, std::size_t share,
                       device_span<host::loss_record> sums) {
  constexpr unsigned warps = sum_threads / loss_lanes;
  __shared__ double of_warp[warps][record_words];
  for (std::size_t b = blockIdx.x; b < sums.size(); b += gridDim.x) {
    std::size_t const last = (b + 1) * share < records.size() ? (b + 1) * share : records.size();
    host::loss_record sum;
    for (std::size_t i = b * share + threadIdx.x; i < last; i += sum_threads) sum += records[i];
    sum = warp_sum(sum);
    if (threadIdx.x % loss_lanes == 0) __builtin_memcpy(of_warp[threadIdx.x / loss_lanes], &sum, sizeof sum);
    __syncthreads();
    if (threadIdx.x < loss_lanes) {
      sum = {};  // lanes without a warp add nothing
      if (threadIdx.x < warps) __builtin_memcpy(&sum, of_warp[threadIdx.x], sizeof sum);
      sum = warp_sum(sum);
      if (threadIdx.x == 0) sums[b] = sum;
    }
    __syncthreads();
  }
}

}  // namespace turnwise::gpu::loss::detail
