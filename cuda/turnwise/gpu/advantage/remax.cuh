/// @file
/// Advantage over the return of a greedy rollout, on the device.
#pragma once

#include <turnwise/advantage/remax.hpp>
#include <turnwise/gpu/core/device_span.cuh>
#include <turnwise/gpu/core/status.cuh>
#include <turnwise/gpu/core/warp.cuh>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::advantage {
namespace detail {

inline constexpr unsigned remax_threads = 256;
inline constexpr unsigned remax_blocks = 4096;  ///< at most: more than fill a device

template <real T>
TURNWISE_KERNEL void remax_kernel(device_span<T const> turn_return, device_span<T const> greedy_return,
                                  device_span<reason_flags const> reasons, device_span<T> advantage,
                                  status_record* status) {
  gpu::detail::for_each_by_thread(static_cast<std::int64_t>(advantage.size()), [&](std::int64_t turn) {
    auto const s = static_cast<std::size_t>(turn);
    T const value = turn_return[s];
    T const greedy = greedy_return[s];
    bool const valid = reasons.empty() || is_valid(reasons[s]);
    bool const usable = within_limit(value) && within_limit(greedy);
    if (valid && !usable) report(status, status_code::turn_return, turn);
    advantage[s] = valid && usable ? turnwise::advantage::remax_advantage(value, greedy) : T{0};
  });
}

}  // namespace detail

inline constexpr std::size_t remax_workspace_bytes = 0;  ///< takes no workspace

/// Advantage of each valid turn over the return of a rollout with greedy decoding, which the caller ran: the device
/// version, with the same bits.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch, no workspace.
/// @param[in]  turn_return    [S].
/// @param[in]  greedy_return  [S].
/// @param[in]  reasons        [S], or empty: all valid.
/// @param[out] advantage      [S]; may be the same span as either input. 0 where invalid.
/// @param[in]  status         may be null; gains turn_return: a valid turn's return or greedy return that is not finite
///                            or beyond magnitude_limit. That turn gets 0; its reasons stay as they are.
/// @throws precondition_error  sizes that differ; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @note  Deterministic: one subtraction a turn.
/// @par Complexity  O(S) work.
/// @see turnwise::advantage::remax
template <real T>
void remax(no_deduce<device_span<T const>> turn_return, no_deduce<device_span<T const>> greedy_return,
           no_deduce<device_span<reason_flags const>> reasons, device_span<T> advantage, status_record* status,
           ::cuda::stream_ref stream) {
  std::size_t const turns = turn_return.size();
  expects_size("remax", "greedy_return", greedy_return.size(), turns, "turn");
  if (!reasons.empty()) expects_size("remax", "reasons", reasons.size(), turns, "turn");
  expects_size("remax", "advantage", advantage.size(), turns, "turn");
  launch("remax", detail::remax_kernel<T>, std::min(grid_blocks(turns, detail::remax_threads), detail::remax_blocks),
         detail::remax_threads, 0, stream, turn_return, greedy_return, reasons, advantage, status);
}

}  // namespace turnwise::gpu::advantage
