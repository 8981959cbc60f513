/// @file
/// Gradient of log-prob and entropy with respect to the logits, on the device: one read, one write.
#pragma once

#include <turnwise/gpu/logprob/detail/written_row.cuh>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace turnwise::gpu::logprob {

/// What token_logprob gave, and the gradient of the loss with respect to it.
struct logprob_gradients {
  device_span<log_normalizer<float> const> normalizer;  ///< [rows] of token_logprob
  device_span<float const> entropy{};                   ///< [rows] of token_logprob; needed with entropy_gradient
  device_span<float const> logprob_gradient{};          ///< [rows] d loss / d logprob; empty: 0
  device_span<float const> entropy_gradient{};          ///< [rows] d loss / d entropy; empty: 0
};

namespace detail {

template <logit T, token_id Id>
struct gradient_pass {
  token_logits<T, Id> logits;
  logprob_gradients from;
  std::size_t first_id;
  softmax_scale<float> scale;
  T* gradient;
  logit_layout layout;  ///< of gradient
  int width;            ///< threads of a row
  std::int64_t pieces;  ///< of a row, each by one group of threads
};

/// Vectors of a piece.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr int piece_vectors(int width) noexcept {
  return 2 * vectors_in_flight * width;
}

template <logit T, token_id Id>
TURNWISE_KERNEL void __launch_bounds__(row_threads) gradient_kernel(gradient_pass<T, Id> pass) {
  int const thread = static_cast<int>(threadIdx.x) % pass.width;
  int const block_rows = static_cast<int>(row_threads) / pass.width;
  auto const rows = static_cast<std::int64_t>(pass.layout.rows);
  auto const columns = static_cast<int>(pass.layout.vocabulary);
  std::int64_t const items = (rows + block_rows - 1) / block_rows * pass.pieces;
  for (std::int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    std::int64_t const row = item / pass.pieces * block_rows + static_cast<int>(threadIdx.x) / pass.width;
    if (row >= rows) continue;
    auto const r = static_cast<std::size_t>(row);
    written_row<T> const place{pass.logits.row(row), pass.gradient + pass.layout.offset(r), columns};
    int const begin = static_cast<int>(item % pass.pieces) * piece_vectors(pass.width);
    int const end = min(place.vectors(), begin + piece_vectors(pass.width));
    bool const masked = pass.logits.masked(row);
    auto const normalizer = masked ? log_normalizer<float>{} : pass.from.normalizer[r];
    float const of_logprob = masked || pass.from.logprob_gradient.empty() ? 0.0f : pass.from.logprob_gradient[r];
    float const of_entropy = masked || pass.from.entropy_gradient.empty() ? 0.0f : pass.from.entropy_gradient[r];
    if (turnwise::logprob::detail::is_zero_row(normalizer, of_logprob, of_entropy)) {
      clear_vectors(place, begin + thread, end, pass.width);
      continue;
    }
    float const entropy = of_entropy == 0 ? 0.0f : pass.from.entropy[r];
    row_gradient<float> const slope{normalizer, entropy, of_logprob, of_entropy, pass.scale.inverse};
    auto const target = static_cast<int>(
        turnwise::logprob::detail::column_of(pass.logits.ids[r], pass.first_id, pass.layout.vocabulary));
    write_vectors(place, slope, target, pass.scale.log2_scale, begin + thread, end, pass.width);
  }
}

}  // namespace detail

inline constexpr std::size_t token_logprob_backward_workspace_bytes = 0;  ///< takes no workspace

/// Gradient of a loss with respect to the logits: the device version of turnwise::logprob::token_logprob_backward.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch, no workspace.
/// @param[in]  logits    [rows, columns] as token_logprob saw them.
/// @param[out] gradient  every column of every row is written; may be the array of the logits with the same layout (in
///                       place), no other overlap.
/// @throws precondition_error  sizes, layouts or temperature that do not fit; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @note  With g and h the gradients of logprob and entropy, before it is rounded to T an element is off by at most
///        5e-6 (1 + |log p|) p (|g| + |h| (1 + entropy + |log p|)) / temperature, 2e-7 |g| / temperature at the token
///        and, as probabilities below 2^-126 count as 0, 2^-126 (|g| + |h| (entropy + 88)) / temperature. The first
///        is what token_logprob's errors and the rounding of log p amount to.
/// @note  Elementwise: the same bits on every run and for any alignment. Zero rows are written without a read of their
///        logits.
/// @par Complexity  one read and one write of rows * columns elements.
/// @see turnwise::logprob::token_logprob_backward
template <logit T, token_id Id>
void token_logprob_backward(token_logits<T, Id> const& logits, logprob_gradients const& from, double temperature,
                            std::size_t first_id, no_deduce<device_span<T>> gradient,
                            logit_layout const& gradient_layout, ::cuda::stream_ref stream) {
  constexpr std::string_view name = "token_logprob_backward";
  logit_layout const& layout = logits.layout;
  turnwise::logprob::detail::check_token_logits(logits, name);
  turnwise::logprob::detail::check_gradients(from, layout.rows, name);
  turnwise::logprob::detail::check_gradient_layout(gradient_layout, layout, gradient.size(), name);
  detail::softmax_scale<float> const scale{temperature, name};
  detail::check_columns(layout, name);
  std::size_t const vectors = layout.vocabulary / detail::vector_size<T> + 2;  // at most, for any alignment
  auto const width = static_cast<int>(
      std::min<std::size_t>(std::bit_ceil(ceil_div(vectors, detail::vectors_in_flight)), detail::row_threads));
  std::size_t const pieces = ceil_div(vectors, static_cast<std::size_t>(detail::piece_vectors(width)));
  std::size_t const items = ceil_div(layout.rows, detail::row_threads / static_cast<unsigned>(width)) * pieces;
  launch(name, detail::gradient_kernel<T, Id>, grid_blocks(items, 1), detail::row_threads, 0, stream,
         detail::gradient_pass<T, Id>{logits, from, first_id, scale, gradient.data(), gradient_layout, width,
                                      static_cast<std::int64_t>(pieces)});
}

}  // namespace turnwise::gpu::logprob
