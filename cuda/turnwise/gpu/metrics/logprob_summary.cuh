/// @file
/// Mean negative log-prob and perplexity, by token and by turn, on the device.
#pragma once

#include <turnwise/gpu/core/grouping_view.cuh>
#include <turnwise/gpu/core/warp.cuh>
#include <turnwise/gpu/core/workspace.cuh>
#include <turnwise/metrics/logprob_summary.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

namespace turnwise::gpu::metrics {

using turnwise::importance::ratio_moments;
using turnwise::importance::turn_statistics;
using turnwise::metrics::logprob_record;
using turnwise::metrics::logprob_summary_options;

namespace detail {

inline constexpr unsigned logprob_threads = 1024;  // one for each partial sum of an ordered_sum
inline constexpr double no_mean = std::numeric_limits<double>::infinity();

/// What each turn adds, in canonical order.
struct logprob_blocks {
  device_span<double> sum, mean, ppl;
  device_span<std::int64_t> tokens;  ///< 0: the turn does not count

  logprob_blocks(std::size_t turns, workspace& scratch)
      : sum(scratch.take<double>(turns, "logprob_summary: sums")),
        mean(scratch.take<double>(turns, "logprob_summary: means")),
        ppl(scratch.take<double>(turns, "logprob_summary: perplexities")),
        tokens(scratch.take<std::int64_t>(turns, "logprob_summary: tokens")) {}
};

/// How many turns have a place in the canonical order: none when the trajectory offsets are wrong.
__device__ inline std::size_t ordered_turns(grouping const& groups) {
  return groups.turns > 0 && groups.counts->broken != 0 ? 0 : groups.turns;
}

TURNWISE_KERNEL void logprob_terms_kernel(grouping groups, device_span<turn_statistics const> statistics,
                                          device_span<ratio_moments const> moments,
                                          device_span<reason_flags const> reasons, logprob_summary_options options,
                                          device_span<double> turn_mean, logprob_blocks out) {
  std::size_t const ordered = ordered_turns(groups);
  gpu::detail::for_each_by_thread(static_cast<std::int64_t>(groups.turns), [&](std::int64_t place) {
    auto const i = static_cast<std::size_t>(place);
    if (ordered == 0) {
      if (!turn_mean.empty()) turn_mean[i] = 0;
      return;
    }
    auto const s = static_cast<std::size_t>(groups.members[i]);
    auto const one = turnwise::metrics::detail::logprob_term_of(statistics[s], moments[s],
                                                                reasons.empty() ? 0 : reasons[s], options.source);
    out.sum[i] = one.sum;
    out.mean[i] = one.mean;
    out.ppl[i] = one.ppl;
    out.tokens[i] = one.counts ? statistics[s].count : 0;
    if (!turn_mean.empty()) turn_mean[s] = one.mean;
  });
}

/// Joins the values of the first `count` threads (a power of two) as a tree, value l with value l + half; by one block.
template <typename T, typename Join>
__device__ T join_threads(T value, unsigned count, Join join) {
  __shared__ T buffer[logprob_threads];
  __syncthreads();  // the buffer may still be read
  buffer[threadIdx.x] = value;
  for (unsigned half = count / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) buffer[threadIdx.x] = join(buffer[threadIdx.x], buffer[threadIdx.x + half]);
  }
  __syncthreads();
  return buffer[0];
}

/// turnwise::ordered_sum by one block.
__device__ inline double ordered_block_sum(double const* term, std::size_t n) {
  std::size_t const lanes = fold_lanes(n);
  double sum = 0;
  if (threadIdx.x < lanes) {
#pragma unroll 8
    for (std::size_t i = threadIdx.x; i < n; i += lanes) sum += term[i];
  }
  return join_threads(sum, static_cast<unsigned>(lanes), [](double a, double b) { return a + b; });
}

TURNWISE_KERNEL void __launch_bounds__(logprob_threads)
    logprob_record_kernel(grouping groups, logprob_blocks terms, device_span<logprob_record> out) {
  std::size_t const n = ordered_turns(groups);
  std::int64_t turns = 0;
  std::int64_t tokens = 0;
  double least = no_mean;
  double greatest = -no_mean;
  for (std::size_t i = threadIdx.x; i < n; i += logprob_threads) {
    if (terms.tokens[i] == 0) continue;
    ++turns;
    tokens += terms.tokens[i];
    double const mean = terms.mean[i];
    least = mean < least ? mean : least;
    greatest = mean > greatest ? mean : greatest;
  }
  auto const add = [](std::int64_t a, std::int64_t b) { return a + b; };
  logprob_record record;
  record.turns = join_threads(turns, logprob_threads, add);
  record.tokens = join_threads(tokens, logprob_threads, add);
  record.turn_min = join_threads(least, logprob_threads, [](double a, double b) { return b < a ? b : a; });
  record.turn_max = join_threads(greatest, logprob_threads, [](double a, double b) { return b > a ? b : a; });
  double const token_sum = ordered_block_sum(terms.sum.data(), n);
  double const turn_sum = ordered_block_sum(terms.mean.data(), n);
  double const ppl_sum = ordered_block_sum(terms.ppl.data(), n);
  if (threadIdx.x != 0) return;
  turnwise::metrics::detail::finish(record, token_sum, turn_sum, ppl_sum);
  out[0] = record;
}

}  // namespace detail

/// Bytes that logprob_summary needs: 32 a turn.
[[nodiscard]] inline std::size_t logprob_summary_workspace_bytes(std::size_t turns) {
  workspace count;
  detail::logprob_blocks{turns, count};
  return count.used();
}

/// Mean negative log-prob and perplexity of a batch and of each turn, from turn records: the device version.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. Two launches: each turn,
/// then one block for the record.
/// @param[in]  groups      any grouping of the batch: for the order of the sums.
/// @param[in]  statistics, moments  [S] from log_ratio_statistics.
/// @param[in]  reasons     [S], or empty: all valid.
/// @param[out] turn_mean   [S], or empty; 0 where the turn does not count.
/// @param[out] out         [1], overwritten. Trajectory offsets that are wrong (make_grouping reports them): the record
///                         of an empty batch, and turn_mean 0.
/// @param      scratch     at least logprob_summary_workspace_bytes; must stay alive until the stream has passed this
///                         work.
/// @throws precondition_error  sizes that differ, a workspace too small; nothing is enqueued.
/// @throws cuda_error          a launch was refused.
/// @note  From the same records the host's bits, but for what goes through exp: token_ppl and turn_ppl are within 2 ulp
///        of the host's, mean_turn_ppl within a relative 1e-13.
/// @par Complexity  O(S) work, 1024 partial sums.
/// @see turnwise::metrics::logprob_summary
inline void logprob_summary(grouping const& groups, device_span<turn_statistics const> statistics,
                            device_span<ratio_moments const> moments, device_span<reason_flags const> reasons,
                            logprob_summary_options const& options, device_span<double> turn_mean,
                            device_span<logprob_record> out, workspace scratch, ::cuda::stream_ref stream) {
  turnwise::metrics::detail::check_logprob_summary(groups.turns, statistics.size(), moments.size(), reasons.size(),
                                                   turn_mean.size());
  expects_size("logprob_summary", "out", out.size(), 1, "batch");
  detail::logprob_blocks const blocks{groups.turns, scratch};
  launch("logprob_summary: turns", detail::logprob_terms_kernel, grid_blocks(groups.turns, 256), 256, 0, stream, groups,
         statistics, moments, reasons, options, turn_mean, blocks);
  launch("logprob_summary: record", detail::logprob_record_kernel, 1, detail::logprob_threads, 0, stream, groups,
         blocks, out);
}

}  // namespace turnwise::gpu::metrics
