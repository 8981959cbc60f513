/// @file
/// Logits in vectors of 16 bytes, wherever a row begins.
#pragma once

#include <turnwise/gpu/logprob/token_logits.cuh>
#include <turnwise/logprob/detail/softmax.hpp>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace turnwise::gpu::logprob::detail {

/// Columns of a row fit an int, with room for what a loop adds.
inline constexpr std::size_t most_columns = std::size_t{1} << 30;

inline void check_columns(logit_layout const& layout, std::string_view function) {
  expects(layout.vocabulary <= most_columns, function, ": the vocabulary is ", layout.vocabulary, ", expected at most ",
          most_columns);
}

/// Logits of a vector.
template <logit T>
inline constexpr int vector_size = 16 / static_cast<int>(sizeof(T));

/// Vectors that a thread has in flight.
inline constexpr int vectors_in_flight = 4;

template <typename T>
[[nodiscard]] __device__ bool is_aligned(T const* from) {
  return reinterpret_cast<std::uintptr_t>(from) % sizeof(uint4) == 0;
}

/// The vector that begins at an aligned element.
template <logit T>
[[nodiscard]] __device__ uint4 load_aligned(T const* from) {
  return *reinterpret_cast<uint4 const*>(from);
}

/// Writes the vector that begins at an aligned element. (As PTX: a plain store in an unrolled loop came out as four.)
template <logit T>
__device__ void store_aligned(T* to, uint4 const& words) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(to), "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
               : "memory");
}

/// Asks for the line of the L2 cache that holds an element, and waits for nothing.
template <logit T>
__device__ void prefetch(T const* at) {
  asm volatile("prefetch.global.L2 [%0];" : : "l"(__cvta_generic_to_global(at)));
}

/// The vector that begins at any element, from the two aligned ones around it, which must both be there to be read.
template <logit T>
[[nodiscard]] __device__ uint4 load_shifted(T const* from) {
  auto const address = reinterpret_cast<std::uintptr_t>(from);
  auto const* const around = reinterpret_cast<uint4 const*>(address / sizeof(uint4) * sizeof(uint4));
  uint4 const low = around[0];
  uint4 const high = around[1];
  auto const shift = static_cast<unsigned>(address % sizeof(uint4));
  unsigned words[8]{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < 6; ++i) words[i] = (shift & 8) != 0 ? words[i + 2] : words[i];
#pragma unroll
  for (int i = 0; i < 5; ++i) words[i] = (shift & 4) != 0 ? words[i + 1] : words[i];
  unsigned const bits = shift % 4 * 8;
  return {__funnelshift_r(words[0], words[1], bits), __funnelshift_r(words[1], words[2], bits),
          __funnelshift_r(words[2], words[3], bits), __funnelshift_r(words[3], words[4], bits)};
}

template <logit T>
__device__ void unpack(uint4 const& words, float (&values)[vector_size<T>]) {
  if constexpr (std::same_as<T, __nv_bfloat16>) {  // one instruction an element
    unsigned const pairs[]{words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[2 * i] = __uint_as_float(pairs[i] << 16);
      values[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
    }
  } else {
    T elements[vector_size<T>];
    __builtin_memcpy(elements, &words, sizeof words);
#pragma unroll
    for (int i = 0; i < vector_size<T>; ++i) values[i] = static_cast<float>(elements[i]);
  }
}

/// Two numbers of 16 bits in a word.
template <logit T>
[[nodiscard]] __device__ unsigned pack_pair(float low, float high) {
  unsigned word;
  if constexpr (std::same_as<T, __nv_bfloat16>) {
    __nv_bfloat162 const pair = __floats2bfloat162_rn(low, high);
    __builtin_memcpy(&word, &pair, sizeof word);
  } else if constexpr (std::same_as<T, __half>) {
    __half2 const pair = __floats2half2_rn(low, high);
    __builtin_memcpy(&word, &pair, sizeof word);
  } else {
    T const pair[]{static_cast<T>(low), static_cast<T>(high)};
    __builtin_memcpy(&word, pair, sizeof word);
  }
  return word;
}

template <logit T>
[[nodiscard]] __device__ uint4 pack(float const (&x)[vector_size<T>]) {
  if constexpr (sizeof(T) == 4)
    return {__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3])};
  else
    return {pack_pair<T>(x[0], x[1]), pack_pair<T>(x[2], x[3]), pack_pair<T>(x[4], x[5]), pack_pair<T>(x[6], x[7])};
}

/// The larger of each of two 16-bit numbers in a word; NaN if either is.
template <logit T>
[[nodiscard]] __device__ unsigned max_of_pairs(unsigned a, unsigned b) {
  unsigned result;
  if constexpr (std::same_as<T, __half>)
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  else
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}

/// The largest logit of some vectors; NaN if any is.
template <logit T>
[[nodiscard]] __device__ float max_of(uint4 const (&words)[vectors_in_flight]) {
  using turnwise::logprob::detail::max_or_nan;
  if constexpr (std::same_as<T, __half> || std::same_as<T, __nv_bfloat16>) {
    unsigned high[vectors_in_flight];
#pragma unroll
    for (int j = 0; j < vectors_in_flight; ++j)
      high[j] = max_of_pairs<T>(max_of_pairs<T>(words[j].x, words[j].y), max_of_pairs<T>(words[j].z, words[j].w));
    unsigned const most = max_of_pairs<T>(max_of_pairs<T>(high[0], high[1]), max_of_pairs<T>(high[2], high[3]));
    T pair[2];
    __builtin_memcpy(pair, &most, sizeof most);
    return max_or_nan(static_cast<float>(pair[0]), static_cast<float>(pair[1]));
  } else {
    float high[vectors_in_flight];
#pragma unroll
    for (int j = 0; j < vectors_in_flight; ++j) {
      float x[vector_size<T>];
      unpack<T>(words[j], x);
      high[j] = x[0];
#pragma unroll
      for (int i = 1; i < vector_size<T>; ++i) high[j] = max_or_nan(high[j], x[i]);
    }
    return max_or_nan(max_or_nan(high[0], high[1]), max_or_nan(high[2], high[3]));
  }
}

/// Vector k of `count` logits from `from` on; what lies beyond them is -inf.
template <logit T>
[[nodiscard]] __device__ uint4 load_edge(T const* from, int count, int k) {
  T elements[vector_size<T>];
#pragma unroll
  for (int i = 0; i < vector_size<T>; ++i) {
    int const column = k * vector_size<T> + i;
    elements[i] = column < count ? from[column] : static_cast<T>(-turnwise::logprob::detail::infinity<float>);
  }
  uint4 words;
  __builtin_memcpy(&words, elements, sizeof words);
  return words;
}

/// Vectors k, k + stride, ... of `count` logits from `from` on, all loads in flight together. What a vector holds does
/// not depend on the alignment, so neither does a sum over vectors.
template <logit T>
__device__ void load_vectors(T const* from, int count, bool aligned, int k, int stride,
                             uint4 (&words)[vectors_in_flight]) {
  int const whole = count / vector_size<T>;
  int const last = k + (vectors_in_flight - 1) * stride;
  T const* const begin = from + std::int64_t{k} * vector_size<T>;
  int const step = stride * vector_size<T>;
  if (aligned && last < whole) {
#pragma unroll
    for (int j = 0; j < vectors_in_flight; ++j) words[j] = load_aligned(begin + j * step);
  } else if (k > 0 && last + 1 < whole) {
#pragma unroll
    for (int j = 0; j < vectors_in_flight; ++j) words[j] = load_shifted(begin + j * step);
  } else {
#pragma unroll
    for (int j = 0; j < vectors_in_flight; ++j) {
      int const vector = k + j * stride;
      if (aligned && vector < whole)
        words[j] = load_aligned(begin + j * step);
      else if (!aligned && vector > 0 && vector + 1 < whole)
        words[j] = load_shifted(begin + j * step);
      else
        words[j] = load_edge(from, count, vector);
    }
  }
}

}  // namespace turnwise::gpu::logprob::detail
