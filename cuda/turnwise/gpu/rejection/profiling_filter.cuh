/// @file
/// Keeps a correct turn with a probability that grows with the share of device time in its own kernels, on the device.
#pragma once

#include <turnwise/gpu/core/detail/trajectory_of_turn.cuh>
#include <turnwise/gpu/core/rollout.cuh>
#include <turnwise/gpu/core/status.cuh>
#include <turnwise/gpu/core/warp.cuh>
#include <turnwise/gpu/reward/evaluation.cuh>
#include <turnwise/rejection/profiling_filter.hpp>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::rejection {

using turnwise::rejection::invalid_profile_policy;
using turnwise::rejection::profiling_filter_options;

namespace detail {

/// What the filter has against turn s of trajectory j, whose reasons so far are `reasons`.
template <real E>
__device__ reason_flags profiling_of_turn(rollout_view const& batch, reward::evaluation<E> const& evaluation,
                                          profiling_filter_options const& options, draw_key key, std::int64_t j,
                                          std::int64_t turn, reason_flags reasons, status_record* status) {
  auto const s = static_cast<std::size_t>(turn);
  constexpr std::int64_t limit = std::int64_t{1} << 32;
  std::int64_t const id = batch.trajectory_id[static_cast<std::size_t>(j)];
  std::int64_t const index = batch.index_of(static_cast<std::size_t>(j), turn);
  bool const has_draw = id >= 0 && id < limit && index >= 0 && index < limit;
  if (!has_draw) report(status, status_code::draw_id, turn);
  if (!is_valid(reasons)) return 0;

  bool const correct = evaluation.counts_as_correct(s);
  if (!correct && !options.all_turns) return 0;
  if (correct && static_cast<double>(evaluation.speedup[s]) >= options.keep_speedup) return 0;
  double ratio = 0;
  if (correct) {
    double const generated_us = static_cast<double>(evaluation.generated_us[s]);
    double const total_us = static_cast<double>(evaluation.total_us[s]);
    if (!turnwise::reward::has_profile(generated_us, total_us)) {
      if (options.invalid_profile == invalid_profile_policy::error) report(status, status_code::invalid_profile, turn);
      return options.invalid_profile == invalid_profile_policy::keep ? 0 : reason::invalid_profile;
    }
    ratio = turnwise::reward::profiling_ratio(generated_us, total_us);
  }
  if (!has_draw) return reason::profiling;
  double const u =
      turn_uniform(key, batch.group_id[static_cast<std::size_t>(j)], id, index, draw_purpose::profiling_filter);
  return u < turnwise::rejection::keep_probability(ratio, options.threshold, options.softness) ? 0 : reason::profiling;
}

template <real E>
TURNWISE_KERNEL void profiling_filter_kernel(rollout_view batch, reward::evaluation<E> evaluation,
                                             profiling_filter_options options, draw_key key,
                                             device_span<reason_flags> reasons, status_record* status) {
  gpu::detail::for_each_by_thread(static_cast<std::int64_t>(batch.turns), [&](std::int64_t turn) {
    std::int64_t const j = gpu::detail::trajectory_of_turn(batch, turn);
    if (j < 0) return;
    auto const s = static_cast<std::size_t>(turn);
    reason_flags const found = profiling_of_turn(batch, evaluation, options, key, j, turn, reasons[s], status);
    if (found != 0) reasons[s] |= found;
  });
}

}  // namespace detail

inline constexpr std::size_t profiling_filter_workspace_bytes = 0;  ///< takes no workspace

/// Rejects turns by a seeded draw on their profiling ratio: the device version, with the same draws and flags.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph: a replay draws under the
/// key of the capture. One launch, no workspace.
/// @param[in]     evaluation  [S] each; read only where C = 1.
/// @param[in]     key         seed and step of the draws.
/// @param[in,out] reasons     [S] in which validity is settled; gains `profiling` and `invalid_profile`.
/// @param[in]     status      may be null; gains draw_id (a turn whose trajectory id or index is outside [0, 2^32): it
///                            is rejected where it needs a draw) and, under invalid_profile = error, invalid_profile
///                            (which else acts as `reject`).
/// @throws precondition_error  sizes that differ, options as on the host; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @note  Exact: the same key gives the same mask in any order, split and backend.
/// @par Complexity  O(S log J).
/// @see turnwise::rejection::profiling_filter
template <real E>
void profiling_filter(rollout_view const& batch, reward::evaluation<E> const& evaluation,
                      profiling_filter_options const& options, draw_key key, device_span<reason_flags> reasons,
                      status_record* status, ::cuda::stream_ref stream) {
  check_sizes(batch, "profiling_filter");
  reward::check_evaluation(evaluation, batch.turns, "profiling_filter", true);
  expects_size("profiling_filter", "reasons", reasons.size(), batch.turns, "turn");
  turnwise::rejection::profiling_filter<E>({}, {}, options, key, {});  // of no turns: checks the options
  launch("profiling_filter", detail::profiling_filter_kernel<E>, grid_blocks(batch.turns, 256), 256, 0, stream, batch,
         evaluation, options, key, reasons, status);
}

}  // namespace turnwise::gpu::rejection
