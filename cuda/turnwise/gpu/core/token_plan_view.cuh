/// @file
/// How the tokens of a batch are shared among warps: what passes over tokens read. make_token_plan builds it.
#pragma once

#include <turnwise/gpu/core/device_span.cuh>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu {

/// Tokens that one warp takes.
inline constexpr std::int64_t chunk_tokens = 1024;

/// Whether the caller knows that turns stand in token order: turn_begin[s] >= turn_end[s - 1] for all s.
enum class turn_order : std::uint8_t { unknown, by_tokens };

/// Chunks over arrays of `tokens` tokens: one more than are full, so that a turn without tokens at the very end is in one.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr std::size_t chunk_count(std::size_t tokens) noexcept {
  return tokens / static_cast<std::size_t>(chunk_tokens) + 1;
}

/// The turns that have tokens in one chunk.
struct alignas(16) chunk_turns {
  std::int64_t first;   ///< place of the first of them
  std::int64_t count;   ///< how many
  std::int32_t before;  ///< the first began before the chunk
  std::int32_t after;   ///< the last goes on after the chunk
  std::int32_t whole;   ///< one turn has all tokens of the chunk
  std::int32_t unused;  ///< 0, so that whole words can be read
};

/// Turns in the order of their tokens, and the turns of each chunk of chunk_tokens tokens. Views of the workspace (and,
/// in token order, of the batch).
struct token_plan {
  std::size_t tokens = 0;                    ///< N
  std::size_t turns = 0;                     ///< S
  device_span<std::int64_t const> begin{};   ///< [S] in token order
  device_span<std::int64_t const> end{};     ///< [S] in token order
  device_span<std::int64_t const> order{};   ///< [S] turn at each place; empty: the place
  device_span<std::int64_t const> active{};  ///< [1] places that are in token order; turns without tokens follow
  device_span<chunk_turns const> chunks{};   ///< [chunk_count(N)]

  /// The turn at a place of the order.
  [[nodiscard]] __device__ std::int64_t turn_at(std::int64_t place) const noexcept {
    return order.empty() ? place : order[static_cast<std::size_t>(place)];
  }
};

namespace detail {

/// Place of a token in the chunk that begins at token `first`, cut to the chunk: turns that were reported as bad may
/// begin or end anywhere.
[[nodiscard]] __device__ inline int place_in_chunk(std::int64_t token, std::int64_t first) {
  if (token <= first) return 0;
  return static_cast<int>(token - first < chunk_tokens ? token - first : chunk_tokens);
}

}  // namespace detail

}  // namespace turnwise::gpu
