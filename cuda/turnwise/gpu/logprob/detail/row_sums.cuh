/// @file
/// Sums over a row of logits by a group of threads, in an order that depends on the vocabulary alone.
#pragma once

#include <turnwise/gpu/core/warp.cuh>
#include <turnwise/gpu/logprob/detail/vectors.cuh>
#include <turnwise/logprob/detail/softmax.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::logprob {

using turnwise::logprob::log_normalizer;
using turnwise::logprob::logprob_partial;

namespace detail {

using gpu::detail::all_lanes;
using gpu::detail::lanes;
using turnwise::logprob::detail::empty_partial;
using turnwise::logprob::detail::exp2_of;
using turnwise::logprob::detail::exponent_of;
using turnwise::logprob::detail::max_or_nan;
using turnwise::logprob::detail::rescale;
using turnwise::logprob::detail::softmax_scale;

/// Threads of a block that works on one row.
inline constexpr unsigned row_threads = 256;
inline constexpr int row_warps = row_threads / lanes;

/// Threads that share a row, or a tile of it, of `columns` logits: a part of a warp, a warp, or a block. Decided by the
/// nominal tile, so that no result depends on where a tile stands.
template <logit T>
[[nodiscard]] constexpr int threads_of_row(std::size_t columns) noexcept {
  std::size_t const vectors = ceil_div(columns, vector_size<T>);
  if (vectors > std::size_t{row_threads} * vectors_in_flight) return row_threads;
  std::size_t const needed = std::max<std::size_t>(ceil_div(vectors, vectors_in_flight), 1);
  return static_cast<int>(std::min(std::bit_ceil(needed), std::size_t{lanes}));
}

/// Which sums a pass needs; each takes the ones before it too.
enum class row_sums : std::uint8_t { normalizer, entropy, squares };

/// Adds some vectors to a thread's sums. The maximum is brought up to date once for all of them.
template <row_sums Sums, logit T>
__device__ void add_vectors(logprob_partial<float>& part, uint4 const (&words)[vectors_in_flight], float log2_scale) {
  rescale(part, max_or_nan(part.maximum, max_of<T>(words)), log2_scale);
  float sum[vectors_in_flight]{}, e_log_e[vectors_in_flight]{}, squares[vectors_in_flight]{};
#pragma unroll
  for (int j = 0; j < vectors_in_flight; ++j) {
    float x[vector_size<T>];
    unpack<T>(words[j], x);
#pragma unroll
    for (int i = 0; i < vector_size<T>; ++i) {
      float const difference = x[i] - part.maximum;
      float const exponent =
          Sums == row_sums::normalizer ? difference * log2_scale : exponent_of(difference, log2_scale);
      float const e = exp2_of(exponent);
      sum[j] += e;
      if constexpr (Sums >= row_sums::entropy) e_log_e[j] = fmaf(exponent, e, e_log_e[j]);
      if constexpr (Sums >= row_sums::squares) squares[j] = fmaf(e, e, squares[j]);
    }
  }
  part.sum += (sum[0] + sum[1]) + (sum[2] + sum[3]);
  part.e_log_e += (e_log_e[0] + e_log_e[1]) + (e_log_e[2] + e_log_e[3]);
  part.squares += (squares[0] + squares[1]) + (squares[2] + squares[3]);
}

/// Sums of one of `width` threads over `count` logits. Calls keep(k, vector) with each vector of logits.
template <row_sums Sums, logit T, typename Keep>
[[nodiscard]] __device__ logprob_partial<float> fold_thread(T const* from, int count, int thread, int width,
                                                            float log2_scale, Keep keep) {
  logprob_partial<float> part = empty_partial<float>();
  bool const aligned = is_aligned(from);
  int const vectors = (count - 1) / vector_size<T> + 1;
  for (int k = thread; k < vectors; k += vectors_in_flight * width) {
    uint4 words[vectors_in_flight];
    load_vectors(from, count, aligned, k, width, words);
#pragma unroll
    for (int j = 0; j < vectors_in_flight; ++j) keep(k + j * width, words[j]);
    add_vectors<Sums, T>(part, words, log2_scale);
  }
  return part;
}

/// The sums of each `width` neighbouring lanes, in all of them. All lanes call this.
template <row_sums Sums>
[[nodiscard]] __device__ logprob_partial<float> reduce_lanes(logprob_partial<float> part, int width, float log2_scale) {
  float maximum = part.maximum;
  for (int half = width / 2; half > 0; half /= 2)
    maximum = max_or_nan(maximum, __shfl_xor_sync(all_lanes, maximum, half));
  rescale(part, maximum, log2_scale);
  for (int half = width / 2; half > 0; half /= 2) {
    part.sum += __shfl_xor_sync(all_lanes, part.sum, half);
    if constexpr (Sums >= row_sums::entropy) part.e_log_e += __shfl_xor_sync(all_lanes, part.e_log_e, half);
    if constexpr (Sums >= row_sums::squares) part.squares += __shfl_xor_sync(all_lanes, part.squares, half);
  }
  return part;
}

/// What the warps of a block tell each other; two slots, so that one barrier a reduction is enough.
template <int Warps>
struct block_store {
  logprob_partial<float> warp[2][Warps];
};

/// The sums of a block of a power of two of warps, at most Warps, in its first warp. All threads call this, with `turn`
/// 0, 1, 0, ... in turn.
template <row_sums Sums, int Warps>
[[nodiscard]] __device__ logprob_partial<float> reduce_block(logprob_partial<float> part, block_store<Warps>& store,
                                                             int turn, float log2_scale) {
  part = reduce_lanes<Sums>(part, lanes, log2_scale);
  if (threadIdx.x % lanes == 0) store.warp[turn][threadIdx.x / lanes] = part;
  __syncthreads();
  if (threadIdx.x >= lanes) return part;
  int const warps = static_cast<int>(blockDim.x) / lanes;
  return reduce_lanes<Sums>(store.warp[turn][static_cast<int>(threadIdx.x) % warps], warps, log2_scale);
}

}  // namespace detail
}  // namespace turnwise::gpu::logprob
