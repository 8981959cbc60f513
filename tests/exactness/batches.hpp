/// The batches of the exactness programs: the same numbers with every compiler and standard library.
#pragma once

#include "support/batches.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace digest {

using turnwise::test::infinity;
using turnwise::test::integers;
using turnwise::test::nan_value;
using turnwise::test::sample_batch;
using turnwise::test::sample_trajectory;
using turnwise::test::sample_turn;

/// A fraction of 2^-bits, in [0, 1).
inline double fraction(integers& random, int bits) {
  return std::ldexp(static_cast<double>(random() >> (64 - bits)), -bits);
}

/// A fraction times a power of two up to 2^highest, of which `powers` are possible.
inline double spread(integers& random, int bits, int highest, std::int64_t powers) {
  double const value = fraction(random, bits);  // arguments of one call are evaluated in any order
  return std::ldexp(value, highest - static_cast<int>(random.below(powers)));
}

/// Numbers of many magnitudes below 2^highest with all their bits, so that every rounding shows.
inline std::vector<double> numbers(std::uint64_t seed, std::size_t count, int highest) {
  integers random{seed};
  std::vector<double> result;
  for (std::size_t i = 0; i < count; ++i) {
    double const size = spread(random, 52, highest, 8);
    result.push_back(random.below(2) == 0 ? size : -size);
  }
  return result;
}

inline void evaluate(sample_turn& turn, integers& random) {
  turn.correct = random.below(4) != 0;
  turn.compiled = random.below(12) != 0;
  turn.decoy = random.below(9) == 0;
  turn.valid = random.below(12) != 0;
  turn.speedup = spread(random, 40, 5, 7);
  turn.total_us = std::ldexp(fraction(random, 30), 12);
  turn.generated_us = std::ldexp(fraction(random, 30), 12);
}

/// Log-probs with all their bits, turns up to a length.
inline std::vector<sample_trajectory> full_precision(std::uint64_t seed, std::int64_t groups, std::int64_t members,
                                                     std::int64_t most_turns, std::int64_t most_tokens, int scale) {
  integers random{seed};
  std::vector<sample_trajectory> result;
  for (std::int64_t g = 0; g < groups; ++g)
    for (std::int64_t k = 0; k < members; ++k) {
      sample_trajectory trajectory{.group = 7 - 5 * g, .id = 3 * k};
      std::int64_t const turns = random.below(most_turns + 1);
      for (std::int64_t t = 0; t < turns; ++t) {
        sample_turn turn;
        turn.log_ratio.clear();
        std::int64_t const tokens = random.below(most_tokens + 1);
        for (std::int64_t i = 0; i < tokens; ++i) {
          double const size = spread(random, 52, scale, 8);
          turn.log_ratio.push_back(random.below(2) == 0 ? size : -size);
          turn.rollout_logprob.push_back(-spread(random, 52, 5, 6));
          turn.mask.push_back(random.below(6) != 0);
        }
        evaluate(turn, random);
        trajectory.turns.push_back(std::move(turn));
      }
      result.push_back(std::move(trajectory));
    }
  return result;
}

/// NaN, infinities, saturation, subnormals and zeros of both signs among ordinary tokens.
inline std::vector<sample_trajectory> garbage() {
  integers random{77};
  std::vector<double> const values{0.0,  -0.0,  nan_value, -nan_value, infinity, -infinity, 64,      -64, 64.01, -64.01,
                                   1e30, -1e30, 1e-42,     -1e-320,    0x1p-24,  -0x1p-25,  0x3p-25, 700, -700,  1e300};
  std::vector<sample_trajectory> result;
  for (std::int64_t k = 0; k < 60; ++k) {
    sample_trajectory trajectory{.group = k / 4, .id = k};
    for (std::int64_t t = 0; t < 3; ++t) {
      sample_turn turn;
      turn.log_ratio.clear();
      std::int64_t const tokens = random.below(40);
      std::int64_t const rare = k < 20 ? 2 : 60;
      for (std::int64_t i = 0; i < tokens; ++i) {
        bool const odd = random.below(rare) == 0;
        auto const pick = static_cast<std::size_t>(random.below(static_cast<std::int64_t>(values.size())));
        turn.log_ratio.push_back(odd ? values[pick] : std::ldexp(fraction(random, 50), -6));
        turn.rollout_logprob.push_back(random.below(90) == 0 ? -infinity : odd ? 0.0 : -fraction(random, 50));
        turn.mask.push_back(random.below(7) != 0);
      }
      evaluate(turn, random);
      if (random.below(8) == 0) turn.speedup = nan_value;
      if (random.below(5) == 0) turn.total_us = nan_value;
      if (random.below(9) == 0) turn.generated_us = -1;
      trajectory.turns.push_back(std::move(turn));
    }
    result.push_back(std::move(trajectory));
  }
  return result;
}

/// Everything at its edge: log ratios at log(1e-4) and its neighbours, means at the band, profiling ratios at the ends
/// of the ramp, lone members, equal returns, decoys, invalid turns.
inline std::vector<sample_trajectory> edges() {
  integers random{5};
  double const veto = -9.210340371976184;
  std::vector<double> const tokens{veto,
                                   std::nextafter(veto, 0.0),
                                   std::nextafter(veto, -10.0),
                                   -9.2,
                                   -9.23,
                                   -0.0010005003335835344,
                                   0.0009995003330834232,
                                   0.001,
                                   -0.001,
                                   0,
                                   -30};
  std::vector<double> const shares{0, 0.3, 0.304, 0.35, 0.4, 1, 1.25, -0.5};
  std::vector<double> const speedups{0, 0.5, 1, 3, 3.3, 50};
  std::vector<sample_trajectory> result;
  for (std::int64_t k = 0; k < 120; ++k) {
    sample_trajectory trajectory{.group = k % 5 < 3 ? 97 * (k / 5) : -k, .id = k};
    std::int64_t const turns = 1 + random.below(3);
    for (std::int64_t t = 0; t < turns; ++t) {
      auto const pick = [&](auto const& of) {
        return of[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(of.size())))];
      };
      double const token = pick(tokens);
      std::int64_t const count = 1 + random.below(70);
      sample_turn turn{.log_ratio = std::vector<double>(static_cast<std::size_t>(count), token)};
      if (random.below(2) == 0) turn.log_ratio[0] = 0;
      turn.correct = random.below(3) != 0;
      turn.decoy = random.below(6) == 0;
      turn.valid = random.below(12) != 0;
      turn.speedup = pick(speedups);
      turn.total_us = random.below(9) == 0 ? 0.0 : 512;
      turn.generated_us = 512 * pick(shares);
      turn.index = 3 * t + 1;
      trajectory.turns.push_back(std::move(turn));
    }
    result.push_back(std::move(trajectory));
  }
  return result;
}

/// A batch with log-probs of two types.
template <typename Old, typename Rollout>
struct typed_batch {
  sample_batch<double> arrays;
  std::vector<Old> old_logprob;
  std::vector<Rollout> rollout_logprob;
  bool masked;

  typed_batch(std::vector<sample_trajectory> const& trajectories, bool with_mask)
      : arrays(trajectories), masked(with_mask) {
    for (double const value : arrays.old_logprob) old_logprob.push_back(static_cast<Old>(value));
    for (double const value : arrays.rollout_logprob) rollout_logprob.push_back(static_cast<Rollout>(value));
  }
  [[nodiscard]] turnwise::token_logprobs<Old, Rollout> tokens() const {
    return {old_logprob, rollout_logprob,
            masked ? std::span<std::uint8_t const>{arrays.mask} : std::span<std::uint8_t const>{}};
  }
};

}  // namespace digest
