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
/// @param to  of count + word_elements elements, at a multiple of 16 bytes. Filled once __pipeline_wait_prior has seen
///            the block's copies and the block has synchronised.
template <typename T>
__device__ int stage(T const* from, std::int64_t size, std::int64_t first, int count, T* to) {
  constexpr int each = word_elements<T>;
  int const phase = word_phase(from + first);
  for (int i = static_cast<int>(threadIdx.x) * each; i < phase + count; i += static_cast<int>(blockDim.x) * each) {
    std::int64_t const begin = first - phase + i;
    if (begin >= 0 && begin + each <= size) {
      __pipeline_memcpy_async(to + i, from + begin, 16);
      continue;
    }
    for (int e = 0; e < each; ++e)
      if (begin + e >= 0 && begin + e < size) to[i + e] = from[begin + e];
  }
  return phase;
}

/// Copies what stands at from[phase + i] in shared memory to to[first + i], for i in [0, count), and nothing else.
template <typename T>
__device__ void unstage(T const* from, int phase, std::int64_t first, int count, T* to) {
  constexpr int each = word_elements<T>;
  int const target_phase = word_phase(to + first);
  for (int i = static_cast<int>(threadIdx.x) * each - target_phase; i < count;
       i += static_cast<int>(blockDim.x) * each) {
    if (i < 0 || i + each > count) {
      for (int e = 0; e < each; ++e)
        if (i + e >= 0 && i + e < count) to[first + i + e] = from[phase + i + e];
      continue;
    }
    uint4 word;
    if (target_phase == phase) {
      word = *reinterpret_cast<uint4 const*>(from + phase + i);
    } else {
      T elements[each];
      for (int e = 0; e < each; ++e) elements[e] = from[phase + i + e];
      __builtin_memcpy(&word, elements, sizeof word);
    }
    *reinterpret_cast<uint4*>(to + first + i) = word;
  }
}

}  // namespace turnwise::gpu::advantage::detail
