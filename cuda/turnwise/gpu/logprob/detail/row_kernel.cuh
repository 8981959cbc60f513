/// @file
/// The pass over the logits: a group of threads a row.
#pragma once

#include <turnwise/gpu/core/status.cuh>
#include <turnwise/gpu/logprob/detail/row_sums.cuh>
#include <turnwise/gpu/logprob/token_logprob_outputs.cuh>
#include <turnwise/logprob/logprob_partials.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace turnwise::gpu::logprob {

using turnwise::logprob::token_logprob_options;

namespace detail {

using turnwise::logprob::detail::column_of;
using turnwise::logprob::detail::finish_row;
using turnwise::logprob::detail::merged;
using turnwise::logprob::detail::row_fault;
using turnwise::logprob::detail::row_result;

/// What a row with this fault sets the status to.
inline constexpr status_code bad_logits = status_code::logits;
inline constexpr status_code bad_id = status_code::token_id;

__device__ inline void store_row(token_logprob_outputs const& out, std::int64_t row, row_result<float> const& result) {
  auto const r = static_cast<std::size_t>(row);
  if (!out.logprob.empty()) out.logprob[r] = result.logprob;
  if (!out.entropy.empty()) out.entropy[r] = result.entropy;
  if (!out.sum_squares.empty()) out.sum_squares[r] = result.sum_squares;
  if (!out.normalizer.empty()) out.normalizer[r] = result.normalizer;
}

/// Finishes a row and reports what is wrong with it.
__device__ inline void finish_and_store(token_logprob_outputs const& out, std::int64_t row,
                                        logprob_partial<float> const& total, float inverse, status_record* status) {
  row_result<float> const result = finish_row(total, inverse);
  if (result.fault == row_fault::logits) report(status, bad_logits, row);
  if (result.fault == row_fault::id) report(status, bad_id, row);
  store_row(out, row, result);
}

inline constexpr int resident_row_blocks = 4;  ///< of a multiprocessor: the registers of its threads allow no more

/// One pass over the logits: either whole rows go to `out`, or parts of rows to `partials`.
template <logit T, token_id Id>
struct row_pass {
  token_logits<T, Id> logits;
  vocabulary_shard shard;
  int tile;  ///< nominal columns of a tile
  softmax_scale<float> scale;
  token_logprob_outputs out{};
  device_span<logprob_partial<float>> partials{};
  status_record* status = nullptr;
  int width = 0;  ///< threads of a row; this and the next are filled in by enqueue_rows
  int ahead = 0;  ///< rows from one to the one that takes its place, about

  /// The logit of a token as logprob_partial wants it of columns [begin, end) of a row.
  [[nodiscard]] __device__ float target_in(T const* row, Id id, int begin, int end) const {
    std::size_t const columns = logits.layout.vocabulary;
    std::size_t const column = column_of(id, shard.first_id, columns);
    if (column < columns) {
      bool const here = column >= static_cast<std::size_t>(begin) && column < static_cast<std::size_t>(end);
      return here ? static_cast<float>(row[column]) : 0.0f;
    }
    bool const elsewhere = column_of(id, 0, shard.vocabulary) < shard.vocabulary;
    return elsewhere ? 0.0f : turnwise::logprob::detail::not_a_number<float>;
  }
};

/// Brings a round of a block's loads to the L2 cache while the block joins the sums of a tile: of the row's next tile,
/// or of the row that is likely to follow on this multiprocessor.
template <logit T, token_id Id>
__device__ void prefetch_round(row_pass<T, Id> const& pass, std::int64_t row, int end) {
  constexpr int line = 128 / static_cast<int>(sizeof(T));
  constexpr int round = static_cast<int>(row_threads) * vectors_in_flight * vector_size<T>;
  auto const columns = static_cast<int>(pass.logits.layout.vocabulary);
  std::int64_t const next = end < columns ? row : row + pass.ahead;
  int const column = (end < columns ? end : 0) + static_cast<int>(threadIdx.x) * line;
  if (static_cast<int>(threadIdx.x) * line < round && column < columns &&
      next < static_cast<std::int64_t>(pass.logits.layout.rows))
    prefetch(pass.logits.row(next) + column);
}

/// WholeBlock: a block a row, else several rows a block.
template <bool WholeBlock, row_sums Sums, logit T, token_id Id>
TURNWISE_KERNEL void __launch_bounds__(row_threads, resident_row_blocks) row_kernel(row_pass<T, Id> pass) {
  __shared__ block_store<row_warps> store;
  int turn = 0;
  int const width = WholeBlock ? static_cast<int>(row_threads) : pass.width;
  int const thread = static_cast<int>(threadIdx.x) % width;
  int const block_rows = static_cast<int>(blockDim.x) / width;
  auto const rows = static_cast<std::int64_t>(pass.logits.layout.rows);
  auto const columns = static_cast<int>(pass.logits.layout.vocabulary);
  float const log2_scale = pass.scale.log2_scale;

  for (auto first = std::int64_t{blockIdx.x} * block_rows; first < rows;
       first += std::int64_t{gridDim.x} * block_rows) {
    std::int64_t const row = first + static_cast<int>(threadIdx.x) / width;
    bool const in_range = row < rows;
    bool const read = in_range && !pass.logits.masked(row);
    bool const leads = in_range && thread == 0;
    T const* const values = read ? pass.logits.row(row) : nullptr;
    Id const id = leads && read ? pass.logits.ids[static_cast<std::size_t>(row)] : Id{0};
    logprob_partial<float> total = empty_partial<float>();
    for (int begin = 0; begin < columns;) {
      int const end = columns - begin < pass.tile ? columns : begin + pass.tile;
      logprob_partial<float> part = empty_partial<float>();
      if (read)
        part = fold_thread<Sums>(values + begin, end - begin, thread, width, log2_scale, [](int, uint4 const&) {});
      float const target = leads && read ? pass.target_in(values, id, begin, end) : 0.0f;
      if constexpr (WholeBlock) {
        prefetch_round(pass, row, end);
        part = reduce_block<Sums>(part, store, turn, log2_scale);
        turn ^= 1;
      } else {
        part = reduce_lanes<Sums>(part, width, log2_scale);
      }
      if (leads) {
        part.target = target;
        total = begin == 0 ? part : merged(total, part, log2_scale);
        if (!pass.partials.empty()) pass.partials[static_cast<std::size_t>(begin / pass.tile * rows + row)] = part;
      }
      begin = end;
    }
    if (!leads || !pass.partials.empty()) continue;
    if (read)
      finish_and_store(pass.out, row, total, pass.scale.inverse, pass.status);
    else
      store_row(pass.out, row, {});
  }
}

/// Starts the pass; the threads of a row follow from its tile.
template <row_sums Sums, logit T, token_id Id>
void enqueue_rows(std::string_view name, row_pass<T, Id> pass, ::cuda::stream_ref stream) {
  logit_layout const& layout = pass.logits.layout;
  pass.width = threads_of_row<T>(static_cast<std::size_t>(pass.tile));
  int device = 0, processors = 0;
  check(cudaGetDevice(&device), name);
  check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), name);
  pass.ahead = resident_row_blocks * processors;
  if (pass.width == static_cast<int>(row_threads))
    launch(name, row_kernel<true, Sums, T, Id>, grid_blocks(layout.rows, 1), row_threads, 0, stream, pass);
  else
    launch(name, row_kernel<false, Sums, T, Id>,
           grid_blocks(layout.rows, gpu::detail::warp_block_threads / static_cast<unsigned>(pass.width)),
           gpu::detail::warp_block_threads, 0, stream, pass);
}

/// The nominal columns of a tile.
[[nodiscard]] inline int tile_columns(logit_layout const& layout, token_logprob_options const& options,
                                      std::string_view function) {
  check_columns(layout, function);
  return static_cast<int>(options.tile == 0 ? std::max<std::size_t>(layout.vocabulary, 1)
                                            : std::min(options.tile, most_columns));
}

}  // namespace detail
}  // namespace turnwise::gpu::logprob
