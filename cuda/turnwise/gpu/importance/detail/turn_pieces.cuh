/// @file
/// A loop over all tokens with the turn that each belongs to: a warp a chunk, its lanes shared among the chunk's turns.
#pragma once

#include <turnwise/gpu/importance/detail/chunk_pass.cuh>

#include <cstdint>

namespace turnwise::gpu::importance::detail {

/// The tokens of one turn in one chunk, for the `width` lanes that share them.
struct turn_piece {
  std::int64_t turn = -1;  ///< -1: no turn is left for these lanes
  std::int64_t begin = 0;  ///< first token
  std::int64_t end = 0;    ///< one past the last token
  int width = 1;           ///< a power of two; the lanes are neighbours
  bool whole = false;      ///< the turn has no token elsewhere

  /// This lane's number among them.
  [[nodiscard]] __device__ int lane() const { return gpu::detail::lane_id() % width; }

  /// Calls body(i) for this lane's share of the tokens.
  template <typename Body>
  __device__ void for_each_token(Body body) const {
#pragma unroll 4
    for (std::int64_t i = begin + lane(); i < end; i += width) body(i);
  }
};

/// Calls body(piece) for the turns of each chunk; all lanes of a warp call it together. Turns without tokens have no
/// piece.
template <typename Body>
__device__ void for_each_piece(token_plan const& plan, Body body) {
  auto const tokens = static_cast<std::int64_t>(plan.tokens);
  gpu::detail::for_each_by_warp(static_cast<std::int64_t>(plan.chunks.size()), [&](std::int64_t chunk) {
    chunk_turns const turns = plan.chunks[static_cast<std::size_t>(chunk)];
    if (turns.count == 0) return;
    std::int64_t const chunk_begin = chunk * chunk_tokens;
    std::int64_t const chunk_end = chunk_begin + chunk_tokens < tokens ? chunk_begin + chunk_tokens : tokens;
    lane_turn mine{plan, turns, chunk_begin};
    int const at_once = static_cast<int>(warp_lanes) / mine.width;
    for (std::int64_t first = 0; first < turns.count; first += at_once) {
      if (first > 0) mine.read(plan, turns, first, chunk_begin);
      turn_piece piece;
      piece.width = mine.width;
      std::int64_t const place = first + gpu::detail::lane_id() / mine.width;
      if (place < turns.count) {
        piece.turn = plan.turn_at(turns.first + place);
        piece.begin = mine.begin > chunk_begin ? mine.begin : chunk_begin;
        piece.end = mine.end < chunk_end ? mine.end : chunk_end;
        piece.whole = piece.begin == mine.begin && piece.end == mine.end;
      }
      body(piece);
    }
  });
}

}  // namespace turnwise::gpu::importance::detail
