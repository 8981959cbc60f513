/// @file
/// The task: plans for a kernel over three turns, and what trying a plan out gives.
#pragma once

#include <turnwise/core/philox.hpp>

#include <cstddef>
#include <cstdint>

namespace custom_loop {

inline constexpr std::size_t turns = 3;
inline constexpr std::size_t kinds = 3;

/// What a plan amounts to.
enum class plan : std::uint8_t { wrong, lazy, real };

struct task {
  double lazy = 0.45;          ///< probability under the untrained policy; the rest is wrong
  double real = 0.05;          ///< the same
  double context_full = 0.10;  ///< probability that a conversation ends before a later turn, whatever its plans
};

struct outcome {
  bool correct;
  double speedup;
  double profiling_ratio;  ///< share of device time in the plan's own kernels
};

/// A wrong plan fails. A lazy one leaves the work to the library: correct, and as fast as before. A real one is fast.
[[nodiscard]] constexpr outcome try_out(plan of, double u) {
  if (of == plan::wrong) return {false, 0.0, 0.0};
  return of == plan::lazy ? outcome{true, 1.0, 0.3 * u} : outcome{true, 3.0, 0.3 + 0.6 * u};
}

/// The random numbers of one turn, in [0, 1).
struct turn_draws {
  double action, profile, context;
};

/// The library's own draws have the high word of the group id in second place, 0 here: with 1 there, these are others.
[[nodiscard]] constexpr turn_draws draw(turnwise::draw_key key, std::size_t prompt, std::size_t trajectory,
                                        std::size_t turn) {
  auto const word = [](std::size_t index) { return static_cast<std::uint32_t>(index); };
  auto const words = turnwise::philox4x32_10({{word(prompt), 1, word(trajectory), word(turn)}}, key);
  return {0x1p-32 * words.word[0], 0x1p-32 * words.word[1], 0x1p-32 * words.word[2]};
}

}  // namespace custom_loop
