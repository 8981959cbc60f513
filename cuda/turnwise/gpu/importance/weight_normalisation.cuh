/// @file
/// Divides importance weights by their mean over the batch, on the device.
#pragma once

#include <turnwise/core/reason.hpp>
#include <turnwise/gpu/core/lane_fold.cuh>
#include <turnwise/gpu/core/workspace.cuh>
#include <turnwise/importance/weight_normalisation.hpp>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::importance {

using turnwise::importance::weight_normalisation_options;
using turnwise::importance::weight_sums;

namespace detail {

/// An item of a fold: the weight of element i if it counts. Flag: a keep byte, or the reasons of a turn.
template <real W, typename Flag>
struct weight_item {
  device_span<W const> weight;
  device_span<Flag const> flags;
  __device__ weight_sums operator()(std::int64_t element) const {
    auto const i = static_cast<std::size_t>(element);
    bool counts = true;
    if constexpr (sizeof(Flag) == 1)
      counts = flags.empty() || flags[i] != 0;
    else
      counts = is_kept(flags[i]);
    return counts ? turnwise::importance::sum_of_weight(weight[i]) : weight_sums{};
  }
};

template <real W, typename Flag>
void enqueue_sums(weight_item<W, Flag> const& item, weight_sums* total, workspace& scratch, ::cuda::stream_ref stream) {
  auto const chunk = scratch.take<weight_sums>(gpu::detail::fold_chunks(item.weight.size()), "sum_weights: chunks");
  gpu::detail::enqueue_chunked_fold("sum_weights", item.weight.size(), item, chunk, total, stream);
}

template <real W>
TURNWISE_KERNEL void normalise_kernel(weight_sums const* total, weight_normalisation_options options,
                                      device_span<W> weight) {
  double const divisor = turnwise::importance::weight_divisor(*total, options);
  if (divisor == 1.0) return;
  gpu::detail::for_each_by_thread(static_cast<std::int64_t>(weight.size()), [&](std::int64_t element) {
    auto const i = static_cast<std::size_t>(element);
    weight[i] = turnwise::importance::normalised_weight(weight[i], divisor);
  });
}

}  // namespace detail

inline constexpr std::size_t weight_normalisation_workspace_bytes = 0;  ///< takes no workspace

/// Scratch for sum_weights over `count` weights.
[[nodiscard]] inline std::size_t sum_weights_workspace_bytes(std::size_t count) {
  workspace scratch;
  static_cast<void>(scratch.take<weight_sums>(gpu::detail::fold_chunks(count), "sum_weights: chunks"));
  return scratch.used();
}

/// Sums the weights of the tokens that are kept: the device version, with the same bits.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. Two launches.
/// @param[in]  weight, keep  [N]; keep may be empty: all count.
/// @param[out] total         a record in device memory.
/// @throws precondition_error  sizes that differ, a workspace too small; nothing is enqueued.
/// @throws cuda_error          a launch was refused.
/// @par Complexity  one read, a warp every 4096 tokens.
/// @see turnwise::importance::sum_weights
template <real W>
void sum_weights(device_span<W const> weight, device_span<std::uint8_t const> keep, weight_sums* total,
                 workspace scratch, ::cuda::stream_ref stream) {
  if (!keep.empty()) expects_size("sum_weights", "keep", keep.size(), weight.size(), "token, as weight");
  detail::enqueue_sums(detail::weight_item<W, std::uint8_t>{weight, keep}, total, scratch, stream);
}

/// Sums the weights of the turns that are kept: likewise.
template <real W>
void sum_weights(device_span<W const> weight, device_span<reason_flags const> reasons, weight_sums* total,
                 workspace scratch, ::cuda::stream_ref stream) {
  expects_size("sum_weights", "reasons", reasons.size(), weight.size(), "turn, as weight");
  detail::enqueue_sums(detail::weight_item<W, reason_flags>{weight, reasons}, total, scratch, stream);
}

/// Divides weights by the mean that `total` holds: the device version, with the same bits. Between ranks, add up the
/// two sums of `total` first.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch, no workspace.
/// @param[in]     total   in device memory, of sum_weights.
/// @param[in,out] weight  [N] or [S].
/// @throws precondition_error  a floor that is negative or not finite; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @par Complexity  one read and write.
/// @see turnwise::importance::weight_normalisation
template <real W>
void weight_normalisation(weight_sums const* total, weight_normalisation_options const& options, device_span<W> weight,
                          ::cuda::stream_ref stream) {
  turnwise::importance::check_weight_normalisation(options);
  launch("weight_normalisation", detail::normalise_kernel<W>, grid_blocks(weight.size(), 256), 256, 0, stream, total,
         options, weight);
}

}  // namespace turnwise::gpu::importance
