/// @file
/// The segments of gae and vtrace.
#pragma once

#include <turnwise/core/concepts.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace turnwise::advantage {

/// N packed tokens cut into K segments: the tokens of one trajectory each, in time order. The same works turn by turn:
/// tokens = turns, offsets = trajectory_offsets, with one reward and value a turn.
template <real T>
struct token_segments {
  std::span<std::int64_t const> offsets{};  ///< [K + 1] from 0 to N; equal neighbours: a segment without tokens
  std::span<std::uint8_t const> cut{};      ///< [K] not 0: the episode was cut off, not ended; empty: all ended
  std::span<T const> next_value{};          ///< [K] value of what follows, read only where cut; empty where cut is
  std::span<std::uint8_t const> mask{};     ///< [N] 0 = an observation, passed over; empty: all on

  /// K.
  [[nodiscard]] constexpr std::size_t segments() const noexcept { return offsets.empty() ? 0 : offsets.size() - 1; }
};

}  // namespace turnwise::advantage
