/// @file
/// Advantages normalised over the whole batch, on the device.
#pragma once

#include <turnwise/advantage/reinforce_plus_plus.hpp>
#include <turnwise/gpu/advantage/group_relative.cuh>
#include <turnwise/gpu/advantage/whiten.cuh>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::advantage {

using turnwise::advantage::reinforce_plus_plus_options;

/// Scratch for reinforce_plus_plus, whatever the number of turns.
[[nodiscard]] inline std::size_t reinforce_plus_plus_workspace_bytes() { return whiten_workspace_bytes(); }

/// Returns, or their distance from the mean of their group, whitened over the batch: the device version, with the same
/// bits.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. Two memsets and three
/// launches, with group_baseline one more.
/// @param[in]  groups       of make_grouping; read with group_baseline alone.
/// @param[in]  turn_return  [S], at most 2^29.
/// @param[in]  weight, reasons  [S] each, or empty, as for whiten.
/// @param[out] advantage    [S]; with group_baseline not the same span as turn_return. 0 where the turn is invalid.
/// @param[in]  status       may be null; gains what group_relative and whiten report, with the same effect.
/// @param      scratch      at least reinforce_plus_plus_workspace_bytes.
/// @throws precondition_error  sizes that differ, options as on the host, a workspace too small; nothing is enqueued.
/// @throws cuda_error          a launch was refused.
/// @note  A turn of a bad weight is in its group's mean, which does not read weights.
/// @par Complexity  O(S) work.
/// @see turnwise::advantage::reinforce_plus_plus
template <real T>
void reinforce_plus_plus(grouping const& groups, no_deduce<device_span<T const>> turn_return,
                         device_span<std::int64_t const> weight, device_span<reason_flags const> reasons,
                         reinforce_plus_plus_options const& options, device_span<T> advantage, status_record* status,
                         workspace scratch, ::cuda::stream_ref stream) {
  detail::whiten_call<T> call{turn_return, turn_return, weight, reasons, options.whiten, status};
  call.check("reinforce_plus_plus");
  expects_size("reinforce_plus_plus", "turn_return", turn_return.size(), groups.turns, "turn");
  expects_size("reinforce_plus_plus", "advantage", advantage.size(), groups.turns, "turn");
  workspace needed = scratch;
  static_cast<void>(needed.take<detail::whiten_record>(1, "reinforce_plus_plus"));  // before anything is enqueued
  if (options.group_baseline) {
    group_relative(groups, turn_return, reasons, {.scale = false, .members = options.whiten.members}, advantage, status,
                   stream);
    call.turn_return = advantage;
  }
  detail::enqueue_whiten("reinforce_plus_plus", call, advantage, scratch, stream);
}

}  // namespace turnwise::gpu::advantage
