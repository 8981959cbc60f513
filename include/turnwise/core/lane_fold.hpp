/// @file
/// Adds up records in one fixed order that a warp can follow: the same bits on every backend, with any threads.
#pragma once

#include <turnwise/core/parallel_for.hpp>

#include <array>
#include <cstddef>
#include <vector>

namespace turnwise {

/// Records that lane_fold keeps beside each other: the lanes of a warp.
inline constexpr std::size_t fold_width = 32;

/// Elements that chunked_fold takes at a time.
inline constexpr std::size_t fold_chunk = 4096;

/// Adds the records item(i), i in [0, n), with += : element i to lane i mod 32, each lane in order, then lane
/// l += lane l + half for half = 16, 8, 4, 2, 1. `Record{}` is nothing.
template <typename Record, typename Item>
[[nodiscard]] Record lane_fold(std::size_t n, Item item) {
  std::array<Record, fold_width> lane{};
  for (std::size_t i = 0; i < n; ++i) lane[i % fold_width] += item(i);
  for (std::size_t half = fold_width / 2; half > 0; half /= 2)
    for (std::size_t l = 0; l < half; ++l) lane[l] += lane[l + half];
  return lane[0];
}

/// The same for many elements: a lane_fold of each 4096 of them, then one over these. item(i) is called once for each
/// i, by any thread; it must not throw.
/// @par Complexity  O(n) time, O(n / 4096) memory.
template <typename Record, typename Item>
[[nodiscard]] Record chunked_fold(std::size_t n, int threads, Item item) {
  std::vector<Record> chunk(n / fold_chunk + (n % fold_chunk != 0));
  parallel_for(chunk.size(), 64, threads, [&](std::size_t first, std::size_t last) {
    for (std::size_t c = first; c < last; ++c) {
      std::size_t const begin = c * fold_chunk;
      std::size_t const size = n - begin < fold_chunk ? n - begin : fold_chunk;
      chunk[c] = lane_fold<Record>(size, [&](std::size_t i) { return item(begin + i); });
    }
  });
  return lane_fold<Record>(chunk.size(), [&](std::size_t c) { return chunk[c]; });
}

}  // namespace turnwise
