/// @file
/// Log-prob of the generated token, entropy and what the gradient needs, from raw logits on the device: one read.
#pragma once

#include <turnwise/gpu/logprob/detail/row_kernel.cuh>
#include <turnwise/gpu/logprob/token_logprob_outputs.cuh>

#include <cstddef>
#include <string_view>

namespace turnwise::gpu::logprob {

inline constexpr std::size_t token_logprob_workspace_bytes = 0;  ///< takes no workspace

/// Log-prob of each row's token, with entropy and sum of squared probabilities where asked: the device version of
/// turnwise::logprob::token_logprob, float inside and out.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch, no workspace.
/// @param[in]  logits  [rows, vocabulary], float or a 16-bit type; any row stride and alignment.
/// @param[out] out     [rows] each, or empty.
/// @param      status  may be null; gains the first row with a bad logit (NaN, +inf, nothing but -inf) or an id outside
///                     the vocabulary. Such rows get NaN in all outputs, masked rows 0.
/// @throws precondition_error  sizes, layout or temperature that do not fit; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @note  Off by at most: logprob 2e-6 + 4e-7 |logprob| (24 ulp of a float between -1 and -2, 11 between -4 and -8, 9
///        between -8 and -16), log_sum 2e-6, entropy 4e-6 (1 + entropy), sum_squares 4e-6 of itself (67 ulp at most).
///        No log-prob is positive.
/// @note  The same bits on every run, for any alignment of the row, whatever the other rows.
/// @par Complexity  one read of the logits of unmasked rows; a part of a warp, a warp or a block a row.
/// @see turnwise::logprob::token_logprob
template <logit T, token_id Id>
void token_logprob(token_logits<T, Id> const& logits, token_logprob_options const& options,
                   token_logprob_outputs const& out, status_record* status, ::cuda::stream_ref stream) {
  constexpr std::string_view name = "token_logprob";
  turnwise::logprob::detail::check_token_logits(logits, name);
  turnwise::logprob::detail::check_outputs(out, logits.layout.rows, name);
  detail::row_pass<T, Id> const pass{.logits = logits,
                                     .shard = {0, logits.layout.vocabulary},
                                     .tile = detail::tile_columns(logits.layout, options, name),
                                     .scale = {options.temperature, name},
                                     .out = out,
                                     .partials = {},
                                     .status = status};
  if (!out.sum_squares.empty())
    detail::enqueue_rows<detail::row_sums::squares>(name, pass, stream);
  else if (!out.entropy.empty())
    detail::enqueue_rows<detail::row_sums::entropy>(name, pass, stream);
  else
    detail::enqueue_rows<detail::row_sums::normalizer>(name, pass, stream);
}

}  // namespace turnwise::gpu::logprob
