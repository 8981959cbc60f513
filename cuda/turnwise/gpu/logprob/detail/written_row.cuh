/// @file
/// A row of gradients, written in vectors of 16 bytes wherever the row begins.
#pragma once

#include <turnwise/gpu/logprob/detail/row_sums.cuh>
#include <turnwise/logprob/token_logprob_backward.hpp>

#include <cstdint>

namespace turnwise::gpu::logprob::detail {

using turnwise::logprob::detail::row_gradient;

/// A row that is written in vectors: those are aligned where they are written, so the first begins before the row.
template <logit T>
struct written_row {
  T const* from;
  T* to;
  int columns;
  int before;    ///< elements from the first vector's begin to the row's
  bool aligned;  ///< where vectors are read too

  __device__ written_row(T const* source, T* target, int count)
      : from(source),
        to(target),
        columns(count),
        before(static_cast<int>(reinterpret_cast<std::uintptr_t>(target) % sizeof(uint4) / sizeof(T))),
        aligned((reinterpret_cast<std::uintptr_t>(source) - reinterpret_cast<std::uintptr_t>(target)) % sizeof(uint4) ==
                0) {}

  [[nodiscard]] __device__ int column(int k) const { return k * vector_size<T> - before; }
  [[nodiscard]] __device__ int vectors() const { return (columns + before - 1) / vector_size<T> + 1; }
  /// Whether vectors [k, last] lie in the row, `margin` elements from its ends.
  [[nodiscard]] __device__ bool whole(int k, int last, int margin) const {
    return column(k) >= margin && column(last) + vector_size<T> + margin <= columns;
  }
};

/// Zeros to vectors k, k + stride, ... below `end`.
template <logit T>
__device__ void clear_vectors(written_row<T> const& row, int k, int end, int stride) {
  for (; k < end; k += stride) {
    int const column = row.column(k);
    if (row.whole(k, k, 0))
      store_aligned(row.to + column, uint4{0, 0, 0, 0});
    else
      for (int i = 0; i < vector_size<T>; ++i)
        if (column + i >= 0 && column + i < row.columns) row.to[column + i] = static_cast<T>(0.0f);
  }
}

/// The gradient of the vector at a column, from its logits.
template <logit T>
__device__ void write_vector(written_row<T> const& row, row_gradient<float> const& slope, int target, float log2_scale,
                             int column, uint4 const& words) {
  float x[vector_size<T>];
  unpack<T>(words, x);
#pragma unroll
  for (int i = 0; i < vector_size<T>; ++i) x[i] = slope(x[i], log2_scale, target - column == i);
  store_aligned(row.to + column, pack<T>(x));
}

/// Gradients to vectors k, k + stride, ... below `end`, all loads of a round in flight together.
template <logit T>
__device__ void write_vectors(written_row<T> const& row, row_gradient<float> const& slope, int target, float log2_scale,
                              int k, int end, int stride) {
  constexpr int size = vector_size<T>;
  int const margin = row.aligned ? 0 : size;  // to read the aligned vectors around
  int const step = stride * size;
  for (; k < end; k += vectors_in_flight * stride) {
    int const first = row.column(k);
    int const last = k + (vectors_in_flight - 1) * stride;
    if (last < end && row.whole(k, last, margin)) {
      uint4 words[vectors_in_flight];
      if (row.aligned) {
#pragma unroll
        for (int j = 0; j < vectors_in_flight; ++j) words[j] = load_aligned(row.from + first + j * step);
      } else {
#pragma unroll
        for (int j = 0; j < vectors_in_flight; ++j) words[j] = load_shifted(row.from + first + j * step);
      }
#pragma unroll
      for (int j = 0; j < vectors_in_flight; ++j)
        write_vector(row, slope, target, log2_scale, first + j * step, words[j]);
      continue;
    }
    for (int vector = k; vector <= last && vector < end; vector += stride) {
      int const column = row.column(vector);
      if (row.whole(vector, vector, margin)) {
        T const* const at = row.from + column;
        write_vector(row, slope, target, log2_scale, column, row.aligned ? load_aligned(at) : load_shifted(at));
        continue;
      }
      for (int i = 0; i < size; ++i) {
        int const one = column + i;
        if (one < 0 || one >= row.columns) continue;
        row.to[one] = static_cast<T>(slope(static_cast<float>(row.from[one]), log2_scale, one == target));
      }
    }
  }
}

}  // namespace turnwise::gpu::logprob::detail
