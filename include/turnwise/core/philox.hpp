/// @file
/// Counter-based random numbers: the same key and counter give the same draw on every machine, in any order.
#pragma once

#include <turnwise/core/config.hpp>

#include <cstdint>

namespace turnwise {

/// Four 32-bit words: the counter or the output of Philox4x32.
struct philox_words {
  std::uint32_t word[4];  ///< lowest first
  friend constexpr bool operator==(philox_words const&, philox_words const&) = default;
};

/// The key of every draw of one training step. `step` has no default on purpose: a trainer that forgets it would see
/// the same draws every step.
struct draw_key {
  std::uint32_t seed;  ///< of the run
  std::uint32_t step;  ///< of the training; another one each step
};

/// What a draw is for; picks the output word, so that draws of two purposes are independent.
enum class draw_purpose : std::uint8_t { profiling_filter = 0, down_sampling = 1 };

/// Philox4x32 with ten rounds.
///
/// @par Reference  Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3".
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr philox_words philox4x32_10(philox_words counter, draw_key key) noexcept {
  auto& c = counter.word;
  std::uint32_t k0 = key.seed;
  std::uint32_t k1 = key.step;
  for (int round = 0; round < 10; ++round) {
    std::uint64_t const p0 = std::uint64_t{0xD2511F53u} * c[0];
    std::uint64_t const p1 = std::uint64_t{0xCD9E8D57u} * c[2];
    std::uint32_t const c1 = c[1];
    std::uint32_t const c3 = c[3];
    c[0] = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c[1] = static_cast<std::uint32_t>(p1);
    c[2] = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c[3] = static_cast<std::uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return counter;
}

/// One uniform number in [0, 1) for one turn: a multiple of 2^-32.
///
///     u = 2^-32 * philox(counter = (group low, group high, trajectory, turn), key = (seed, step))[purpose]
///
/// @param trajectory_id, turn_index  in [0, 2^32); callers check (check_draw_ids).
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr double turn_uniform(draw_key key, std::int64_t group_id,
                                                                 std::int64_t trajectory_id, std::int64_t turn_index,
                                                                 draw_purpose purpose) noexcept {
  auto const group = static_cast<std::uint64_t>(group_id);
  philox_words const counter{{static_cast<std::uint32_t>(group), static_cast<std::uint32_t>(group >> 32),
                              static_cast<std::uint32_t>(trajectory_id), static_cast<std::uint32_t>(turn_index)}};
  return 0x1p-32 * philox4x32_10(counter, key).word[static_cast<int>(purpose)];
}

}  // namespace turnwise
