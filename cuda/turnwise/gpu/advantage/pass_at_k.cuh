/// @file
/// What a sample adds to the best of k, on the device.
#pragma once

#include <turnwise/advantage/pass_at_k.hpp>
#include <turnwise/gpu/advantage/detail/group_driver.cuh>
#include <turnwise/gpu/core/workspace.cuh>

#include <cstddef>

namespace turnwise::gpu::advantage {
namespace detail {

/// The members in order, and running sums over them.
inline device_span<double> take_ranks(std::size_t turns, workspace& scratch) {
  return scratch.take<double>(2 * turns, "ranks");
}

}  // namespace detail

/// Bytes that pass_at_k needs.
[[nodiscard]] inline std::size_t pass_at_k_workspace_bytes(std::size_t turns) {
  workspace count;
  static_cast<void>(detail::take_ranks(turns, count));
  return count.used();
}

/// What each valid turn adds to the best of k samples: the device version, with the same bits.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch.
/// @param[in]  groups       of make_grouping.
/// @param[in]  turn_return  [S].
/// @param[in]  reasons      [S], or empty: all valid and kept.
/// @param[in]  options      as the host's; `threads` is not used.
/// @param[out] advantage    [S]; not the same span as turn_return. 0 where the turn is invalid or in no group.
/// @param[in]  status       may be null; gains turn_return: a valid turn's return that is not finite or beyond
///                          magnitude_limit. That turn gets 0 and is in no baseline; its reasons stay as they are.
/// @throws precondition_error  sizes that differ, options as on the host, a workspace too small; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @note  Deterministic: the same bits for any launch shape and order of trajectories.
/// @par Complexity  a warp a group; of n members: n^2 / 32 steps to sort by counting and n min(k, n - k) / 32 products,
///                  good up to a few thousand.
/// @see turnwise::advantage::pass_at_k
template <real T>
void pass_at_k(grouping const& groups, no_deduce<device_span<T const>> turn_return,
               no_deduce<device_span<reason_flags const>> reasons,
               turnwise::advantage::pass_at_k_options const& options, device_span<T> advantage, status_record* status,
               workspace scratch, ::cuda::stream_ref stream) {
  turnwise::advantage::pass_at_k<T>(turnwise::grouping{}, {}, {}, options, {});  // of no turns: checks the options
  detail::group_call<T> call{groups, turn_return, reasons, options.members, advantage, status};
  call.scratch = detail::take_ranks(groups.turns, scratch);
  detail::for_each_group(call, turnwise::advantage::detail::pass_at_k_policy{options}, "pass_at_k", stream);
}

}  // namespace turnwise::gpu::advantage
