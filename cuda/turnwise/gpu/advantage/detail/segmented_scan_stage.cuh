/// @file
/// How a block moves its tokens between global and shared memory: 16 bytes at a time, wherever the arrays begin.
#pragma once

#include <turnwise/gpu/core/config.cuh>

#include <cuda_pipeline.h>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::advantage::detail {

/// Elements of a 16-byte word.
template <typename T>
inline constexpr int word_elements = 16 / static_cast<int>(sizeof(T));

/// How many elements past a multiple of 16 bytes an address is.
template <typename T>
__device__ int word_phase(T const* address) {
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(address) / sizeof(T) % word_elements<T>);
}

/// Starts to copy elements [first, first + count) of `from` to shared memory; element first + i lands at to[phase + i].
/// Returns the phase. Whole words are copied, and so neighbours of the range, but nothing outside [0, size).
/// @tparam threads, most  threads of the block; the largest count
/// @param to  of most + word_elements elements, at a multiple of 16 bytes. Filled once __pipeline_wait_prior has seen
///            the block's copies and the block has synchronised.
template <int threads, int most, typename T>
__device__ int stage(T const* from, std::int64_t size, std::int64_t first, int count, T* to) {
  constexpr int each = word_elements<T>;
  int const thread = static_cast<int>(threadIdx.x);
  int const phase = word_phase(from + first);
  if (first < phase || size - first < count + each) {  // the ends of the array
#pragma unroll 1
    for (int i = thread; i < count; i += threads) to[phase + i] = from[first + i];
    return phase;
  }
  T const* const source = from + (first - phase) + thread * each;
#pragma unroll
  for (int i = 0; i < most + each; i += threads * each)
    if (i + thread * each < phase + count) __pipeline_memcpy_async(to + i + thread * each, source + i, 16);
  return phase;
}

/// Copies what stands at from[phase + i] in shared memory to to[first + i], for i in [0, count), and nothing else.
template <int threads, int most, typename T>
__device__ void unstage(T const* from, int phase, std::int64_t first, int count, T* to) {
  constexpr int each = word_elements<T>;
  int const thread = static_cast<int>(threadIdx.x);
  int const target_phase = word_phase(to + first);
  int const begin = thread * each - target_phase;
  T const* const source = from + phase + begin;
  T* const target = to + first + begin;
#pragma unroll
  for (int i = 0; i < most + each; i += threads * each) {
    if (begin + i < 0 || begin + i + each > count) continue;
    uint4 word;
    if (target_phase == phase) {
      word = *reinterpret_cast<uint4 const*>(source + i);
    } else {
      T elements[each];
      for (int e = 0; e < each; ++e) elements[e] = source[i + e];
      __builtin_memcpy(&word, elements, sizeof word);
    }
    *reinterpret_cast<uint4*>(target + i) = word;
  }
  if (thread >= each) return;  // what lies before the first whole word, and behind the last
  int const head = target_phase == 0 ? 0 : each - target_phase;
  int const tail = count - (target_phase + count) % each + thread;
  if (thread < head && thread < count) to[first + thread] = from[phase + thread];
  if (tail >= head && tail < count) to[first + tail] = from[phase + tail];
}

}  // namespace turnwise::gpu::advantage::detail
