/// @file
/// Log-probs over a vocabulary that is split over ranks, on the device.
#pragma once

#include <turnwise/gpu/logprob/detail/row_kernel.cuh>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace turnwise::gpu::logprob {

using turnwise::logprob::partial_tiles;

namespace detail {

struct merge_pass {
  device_span<logprob_partial<float> const> partials;
  std::int64_t rows;
  device_span<std::uint8_t const> mask;
  softmax_scale<float> scale;
  token_logprob_outputs out;
  status_record* status;
};

TURNWISE_KERNEL void merge_kernel(merge_pass pass) {
  gpu::detail::for_each_by_thread(pass.rows, [&](std::int64_t row) {
    auto const r = static_cast<std::size_t>(row);
    if (!pass.mask.empty() && pass.mask[r] == 0) {
      store_row(pass.out, row, {});
      return;
    }
    logprob_partial<float> total = pass.partials[r];
    auto const rows = static_cast<std::size_t>(pass.rows);
    for (std::size_t at = r + rows; at < pass.partials.size(); at += rows)
      total = merged(total, pass.partials[at], pass.scale.log2_scale);
    finish_and_store(pass.out, row, total, pass.scale.inverse, pass.status);
  });
}

}  // namespace detail

inline constexpr std::size_t logprob_partials_workspace_bytes = 0;        ///< takes no workspace
inline constexpr std::size_t merge_logprob_partials_workspace_bytes = 0;  ///< takes no workspace

/// What a rank's part of the vocabulary adds to each row: the device version of turnwise::logprob::logprob_partials.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch, no workspace.
/// @param[in]  logits    [rows, columns] of this rank; ids are those of the whole vocabulary.
/// @param[out] partials  [tiles, rows], tile by tile: partial_tiles(columns, options.tile) * rows.
/// @throws precondition_error  sizes, layout, shard or temperature that do not fit; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @note  Where first_id of every shard is a multiple of `tile`, merged results have the same bits for any number of
///        ranks, one included (token_logprob with that tile), for any alignment.
/// @par Complexity  one read of the logits of unmasked rows, 20 bytes a row and tile written.
/// @see turnwise::logprob::logprob_partials
template <logit T, token_id Id>
void logprob_partials(token_logits<T, Id> const& logits, vocabulary_shard const& shard,
                      token_logprob_options const& options, device_span<logprob_partial<float>> partials,
                      ::cuda::stream_ref stream) {
  constexpr std::string_view name = "logprob_partials";
  logit_layout const& layout = logits.layout;
  turnwise::logprob::detail::check_token_logits(logits, name);
  turnwise::logprob::detail::check_shard(shard, layout, name);
  expects_size(name, "partials", partials.size(), partial_tiles(layout.vocabulary, options.tile) * layout.rows,
               "tile and row");
  detail::enqueue_rows<detail::row_sums::squares>(
      name,
      detail::row_pass<T, Id>{.logits = logits,
                              .shard = shard,
                              .tile = detail::tile_columns(layout, options, name),
                              .scale = {options.temperature, name},
                              .out = {},
                              .partials = partials,
                              .status = nullptr},
      stream);
}

/// Joins the parts of each row from left to right: the device version of turnwise::logprob::merge_logprob_partials.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch, no workspace.
/// @param[in]  partials  [tiles, rows]: the arrays of logprob_partials of all ranks, in vocabulary order.
/// @param[in]  mask      [rows] as for the parts, or empty.
/// @param[out] out       [rows] each, or empty.
/// @param      status    may be null; gains the first bad row, as token_logprob's.
/// @throws precondition_error  sizes or temperature that do not fit; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @par Complexity  O(rows * tiles), a thread a row.
/// @see turnwise::logprob::merge_logprob_partials
inline void merge_logprob_partials(device_span<logprob_partial<float> const> partials, std::size_t rows,
                                   device_span<std::uint8_t const> mask, token_logprob_options const& options,
                                   token_logprob_outputs const& out, status_record* status, ::cuda::stream_ref stream) {
  constexpr std::string_view name = "merge_logprob_partials";
  turnwise::logprob::detail::check_merge(partials.size(), rows, mask.size(), out, name);
  launch(name, detail::merge_kernel, grid_blocks(rows, 256), 256, 0, stream,
         detail::merge_pass{partials, static_cast<std::int64_t>(rows), mask, {options.temperature, name}, out, status});
}

}  // namespace turnwise::gpu::logprob
