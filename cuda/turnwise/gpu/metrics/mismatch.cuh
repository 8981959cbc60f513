/// @file
/// What a step did, on the device: one record in device memory.
#pragma once

#include <turnwise/gpu/metrics/detail/mismatch_kernels.cuh>

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace turnwise::gpu::metrics {

using turnwise::importance::ratio_moments;
using turnwise::importance::turn_statistics;
using turnwise::metrics::mismatch_options;
using turnwise::metrics::mismatch_record;

/// Bytes that mismatch needs: 80 a turn and what the sort takes. Depends on the current device.
[[nodiscard]] inline std::size_t mismatch_workspace_bytes(std::size_t turns) {
  workspace count;
  detail::mismatch_blocks{turns, count};
  return count.used();
}

/// The metrics of one step, from turn records alone: the device version of turnwise::metrics::mismatch.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. Three launches, a radix
/// sort of the turn lengths and two memsets.
/// @param[in]  groups      the grouping of the baseline.
/// @param[in]  statistics, moments  [S] from log_ratio_statistics.
/// @param[in]  reasons     [S] final.
/// @param[in]  advantage   [S].
/// @param[in]  evaluation  [S] each, or all empty: no counts by quality.
/// @param[out] out         [1], overwritten. Trajectory offsets that are wrong (make_grouping reports them): the record
///                         of an empty batch, `turns` 0 and `nothing_kept` set.
/// @param      scratch     at least mismatch_workspace_bytes; must stay alive until the stream has passed this work.
/// @throws precondition_error  sizes that differ, a bad band, a workspace too small; nothing is enqueued.
/// @throws cuda_error          a launch was refused.
/// @note  The same bits on every run and for any order of trajectories. The host's bits, but for what goes through exp:
///        old_ppl, rollout_ppl, ratio_min and ratio_max are within 2 ulp of the host's, chi2_turn + 1 within a relative
///        1e-13.
/// @par Complexity  O(S log S) work: a lane a turn, a warp a trajectory, 1024 partial sums.
/// @see turnwise::metrics::mismatch
template <real E, real T>
void mismatch(rollout_view const& batch, grouping const& groups, device_span<turn_statistics const> statistics,
              device_span<ratio_moments const> moments, device_span<reason_flags const> reasons,
              device_span<T const> advantage, reward::evaluation<E> const& evaluation, mismatch_options const& options,
              device_span<mismatch_record> out, workspace scratch, ::cuda::stream_ref stream) {
  constexpr std::string_view name = "mismatch";
  check_sizes(batch, name);
  expects_size(name, "groups", groups.turns, batch.turns, "turn");
  expects_size(name, "statistics", statistics.size(), batch.turns, "turn");
  expects_size(name, "moments", moments.size(), batch.turns, "turn");
  expects_size(name, "reasons", reasons.size(), batch.turns, "turn");
  expects_size(name, "advantage", advantage.size(), batch.turns, "turn");
  expects_size(name, "out", out.size(), 1, "step");
  if (!evaluation.correct.empty()) reward::check_evaluation(evaluation, batch.turns, name);
  auto const band = turnwise::rejection::make_log_band(options.band, name);
  detail::mismatch_blocks const blocks{batch.turns, scratch};

  check(cudaMemsetAsync(blocks.tally.data(), 0, sizeof(detail::mismatch_tally), stream.get()), "mismatch: tally");
  unsigned class_blocks = 0;
  if (batch.turns > 0) {
    constexpr unsigned most_blocks = 512;
    check(cudaMemsetAsync(blocks.groups.data(), 0, batch.turns * sizeof(detail::group_tally), stream.get()),
          "mismatch: groups");
    std::size_t const warps = std::max(ceil_div(batch.turns, gpu::detail::lanes), batch.trajectories());
    launch("mismatch: turns", detail::mismatch_turns_kernel<E, T>,
           std::min(most_blocks, grid_blocks(warps, detail::threads / gpu::detail::lanes)), detail::threads, 0, stream,
           detail::mismatch_call<E, T>{batch, groups, statistics, moments, reasons, advantage, evaluation, options,
                                       band, blocks});
    std::size_t bytes = blocks.sort.size();
    blocks.sort_lengths(blocks.sort.data(), bytes, stream.get());
    class_blocks = std::min(most_blocks, grid_blocks(batch.turns, detail::threads));
  }
  launch("mismatch: classes", detail::mismatch_classes_kernel, detail::sum_blocks + class_blocks, detail::threads, 0,
         stream, groups, reasons, blocks);
  launch("mismatch: record", detail::mismatch_finish_kernel, 1, detail::finish_threads, 0, stream, groups, options,
         blocks, out);
}

}  // namespace turnwise::gpu::metrics
