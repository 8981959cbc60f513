/// @file
/// The critic's loss with a clipped value, on the device.
#pragma once

#include <turnwise/gpu/core/lane_fold.cuh>
#include <turnwise/gpu/core/rollout.cuh>
#include <turnwise/gpu/core/status.cuh>
#include <turnwise/gpu/core/workspace.cuh>
#include <turnwise/loss/value_clip.hpp>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::loss {

using turnwise::loss::value_clip_options;
using turnwise::loss::value_record;

/// The arrays of a value loss in device memory; as turnwise::loss::value_inputs.
template <real T>
struct value_inputs {
  device_span<T const> value{};            ///< [N]
  device_span<T const> old_value{};        ///< [N], or empty when clip is infinite
  device_span<T const> target{};           ///< [N]
  device_span<std::uint8_t const> mask{};  ///< [N], or empty: all on
};

namespace detail {

template <real T>
TURNWISE_KERNEL void value_clip_kernel(rollout_view batch, value_inputs<T> in, value_clip_options options,
                                       device_span<double const> turn_scale, device_span<T> gradient,
                                       device_span<value_record> of_turn, status_record* status) {
  gpu::detail::for_each_by_warp(static_cast<std::int64_t>(batch.turns), [&](std::int64_t turn) {
    auto const s = static_cast<std::size_t>(turn);
    std::int64_t const begin = batch.turn_begin[s];
    std::int64_t const end = batch.turn_end[s];
    double const scale = turn_scale[s];
    bool const fits = begin >= 0 && begin <= end && end <= static_cast<std::int64_t>(in.value.size());
    bool const finite = turnwise::importance::is_finite(scale);
    if (!fits) report(status, status_code::token_range, turn);
    if (!finite) report(status, status_code::weight, turn);
    bool const counts = fits && finite && scale != 0;
    value_record const sum = gpu::detail::lane_fold<value_record>(counts ? end - begin : 0, [&](std::int64_t k) {
      auto const i = static_cast<std::size_t>(begin + k);
      if (!in.mask.empty() && in.mask[i] == 0) return value_record{};
      return turnwise::loss::value_of_token(in.value[i], in.old_value.empty() ? T{0} : in.old_value[i], in.target[i],
                                            scale, options, gradient[i]);
    });
    if (gpu::detail::lane_id() == 0) of_turn[s] = sum;
  });
}

}  // namespace detail

/// Scratch for value_clip over `turns` turns.
[[nodiscard]] inline std::size_t value_clip_workspace_bytes(std::size_t turns) {
  workspace scratch;
  static_cast<void>(scratch.take<value_record>(turns, "value_clip: turns"));
  return scratch.used();
}

/// Clipped value loss and its gradient: the device version. Gradient and counts are the host's to the bit, the loss to
/// a relative 1e-12; run-to-run the same bits, for any launch shape.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. A memset and two launches.
/// @param[in]  in          [N] each.
/// @param[in]  turn_scale  [S].
/// @param[out] gradient    [N]; 0 for tokens that are not in the loss.
/// @param[out] record      in device memory.
/// @param[in]  status      may be null; gains token_range, and weight for a scale that is NaN or infinite. Such a turn
///                         is not in the loss.
/// @throws precondition_error  sizes that differ, options as on the host, a workspace too small; nothing is enqueued.
/// @throws cuda_error          a launch was refused.
/// @par Complexity  one read and two writes of the tokens, a warp a turn.
/// @see turnwise::loss::value_clip
template <real T>
void value_clip(rollout_view const& batch, value_inputs<T> const& in, value_clip_options const& options,
                device_span<double const> turn_scale, no_deduce<device_span<T>> gradient, value_record* record,
                workspace scratch, status_record* status, ::cuda::stream_ref stream) {
  turnwise::loss::detail::check_value_sizes(in, options, batch.turns, turn_scale.size(), gradient.size());
  expects_size("value_clip", "turn_begin", batch.turn_begin.size(), batch.turns, "turn");
  expects_size("value_clip", "turn_end", batch.turn_end.size(), batch.turns, "turn");
  auto const of_turn = scratch.take<value_record>(batch.turns, "value_clip: turns");
  if (!gradient.empty())
    check(cudaMemsetAsync(gradient.data(), 0, gradient.size() * sizeof(T), stream.get()), "value_clip: gradient");
  launch("value_clip", detail::value_clip_kernel<T>, gpu::detail::warp_blocks(batch.turns),
         gpu::detail::warp_block_threads, 0, stream, batch, in, options, turn_scale, gradient, of_turn, status);
  gpu::detail::enqueue_fold<value_record>("value_clip: record", of_turn, record, stream);
}

}  // namespace turnwise::gpu::loss
