/// @file
/// Batches for tests: the recorded ones of tests/data, ones written down by hand, and random ragged ones.
#pragma once

#include "support/npy.hpp"

#include <turnwise/core/rollout.hpp>
#include <turnwise/core/rollout_builder.hpp>
#include <turnwise/reward/kernel_reward.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace turnwise::test {

inline constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();
inline constexpr double infinity = std::numeric_limits<double>::infinity();

/// The bits of each number, so that NaN equals NaN and -0 differs from 0.
template <typename T>
std::vector<std::uint64_t> bits_of(std::vector<T> const& values) {
  std::vector<std::uint64_t> bits;
  for (T const value : values) bits.push_back(std::bit_cast<std::uint64_t>(static_cast<double>(value)));
  return bits;
}

/// A recorded batch; everything in the turn order of `turns`.
struct recorded_batch {
  std::filesystem::path expected_folder;
  rollout turns;
  std::vector<float> old_logprob, rollout_logprob;
  std::vector<std::uint8_t> compiled, correct, decoy;
  std::vector<float> speedup, generated_us, total_us;

  [[nodiscard]] token_logprobs<float, float> tokens() const { return {old_logprob, rollout_logprob, {}}; }
  [[nodiscard]] reward::evaluation<float> evaluation() const {
    return {.compiled = compiled,
            .correct = correct,
            .decoy = decoy,
            .speedup = speedup,
            .generated_us = generated_us,
            .total_us = total_us};
  }
  /// A published array with one number a turn.
  template <typename T>
  [[nodiscard]] std::vector<T> expected(std::string const& name) const {
    auto const rows = load_npy<T>(expected_folder / (name + ".npy"));
    std::vector<T> values(rows.size());
    turns.gather(rows, std::span<T>{values});
    return values;
  }
  /// A published number of metrics.json.
  [[nodiscard]] double metric(std::string const& name) const {
    std::ifstream file(expected_folder / "metrics.json");
    std::string const text{std::istreambuf_iterator<char>(file), {}};
    std::string const key = "\"" + name + "\": ";
    std::size_t const at = text.find(key);
    if (at == std::string::npos) throw std::runtime_error("metrics.json has no " + name);
    return std::stod(text.substr(at + key.size()));
  }
};

#ifdef TURNWISE_TEST_DATA
#ifndef TURNWISE_DEMO_DATA  // the inputs of kernel_rollouts_a are shipped with the demo
#define TURNWISE_DEMO_DATA TURNWISE_TEST_DATA "/../../examples/data"
#endif
/// Loads kernel_rollouts_a, kernel_rollouts_b or stress.
inline recorded_batch load_batch(std::string const& name) {
  std::filesystem::path const tests{TURNWISE_TEST_DATA};
  std::filesystem::path const demo{TURNWISE_DEMO_DATA};
  std::filesystem::path const folder = name == "kernel_rollouts_a" ? demo / name : tests / name;

  auto const wide = [&](char const* file) {
    auto const narrow = load_npy<std::int32_t>(folder / file);
    return std::vector<std::int64_t>(narrow.begin(), narrow.end());
  };
  auto const group = wide("turn_group.npy");
  auto const trajectory = wide("turn_trajectory.npy");
  auto const index = wide("turn_index.npy");
  auto const offsets = load_npy<std::int64_t>(folder / "turn_offsets.npy");
  std::vector<std::uint8_t> valid;
  if (std::filesystem::exists(folder / "turn_valid.npy")) valid = load_npy<std::uint8_t>(folder / "turn_valid.npy");
  std::span<std::int64_t const> const all{offsets};

  recorded_batch batch;
  batch.expected_folder = tests / name / "expected";
  batch.turns = make_rollout({.group_id = group,
                              .trajectory_id = trajectory,
                              .turn_index = index,
                              .turn_begin = all.first(group.size()),
                              .turn_end = all.last(group.size()),
                              .turn_valid = valid},
                             trajectory_scope::batch);
  batch.old_logprob = load_npy<float>(folder / "old_logprob.npy");
  batch.rollout_logprob = load_npy<float>(folder / "rollout_logprob.npy");
  auto const gathered = [&]<typename T>(char const* file, std::vector<T>& values) {
    auto const rows = load_npy<T>(folder / file);
    values.resize(rows.size());
    batch.turns.gather(rows, std::span<T>{values});
  };
  gathered("compiled.npy", batch.compiled);
  gathered("correct.npy", batch.correct);
  gathered("decoy.npy", batch.decoy);
  gathered("speedup.npy", batch.speedup);
  gathered("generated_us.npy", batch.generated_us);
  gathered("total_us.npy", batch.total_us);
  return batch;
}
#endif

/// A turn as a test writes it down.
struct sample_turn {
  std::vector<double> log_ratio{0};  ///< old - rollout of each token
  std::vector<std::uint8_t> mask{};  ///< empty: all on
  bool correct = false;
  double speedup = 0, generated_us = 0, total_us = 0;
  bool decoy = false, compiled = true, valid = true;
  std::int64_t index = -1;                ///< given turn index; negative: the position
  std::vector<double> rollout_logprob{};  ///< empty: 0, so that old is the log ratio to the last bit
};

struct sample_trajectory {
  std::int64_t group = 0, id = 0;
  std::vector<sample_turn> turns{};
};

enum class layout { packed, padded };

/// The arrays of a batch that a test wrote down, trajectories in the order given, log-probs of type P. Padding and the
/// gaps between rows are filled with NaN.
template <typename P = double>
struct sample_batch {
  std::vector<std::int64_t> turn_begin, turn_end, trajectory_offsets{0}, group_id, trajectory_id, turn_index;
  std::vector<std::uint8_t> turn_valid, mask, compiled, correct, decoy;
  std::vector<P> old_logprob, rollout_logprob;
  std::vector<double> speedup, generated_us, total_us;

  explicit sample_batch(std::span<sample_trajectory const> trajectories, layout form = layout::packed) {
    std::size_t width = 0;
    for (auto const& trajectory : trajectories)
      for (auto const& turn : trajectory.turns) width = std::max(width, turn.log_ratio.size() + 3);
    bool given_index = false;
    for (auto const& trajectory : trajectories) {
      group_id.push_back(trajectory.group);
      trajectory_id.push_back(trajectory.id);
      std::int64_t position = 0;
      for (auto const& turn : trajectory.turns) {
        given_index |= turn.index >= 0;
        turn_index.push_back(turn.index >= 0 ? turn.index : position);
        ++position;
        add(turn, form == layout::padded ? width : 0);
      }
      trajectory_offsets.push_back(static_cast<std::int64_t>(turn_begin.size()));
    }
    if (!given_index) turn_index.clear();
  }

  [[nodiscard]] std::size_t turns() const { return turn_begin.size(); }
  [[nodiscard]] rollout_view view() const {
    return {turn_begin, turn_end, trajectory_offsets, group_id, trajectory_id, turn_index, turn_valid};
  }
  [[nodiscard]] token_logprobs<P, P> tokens() const { return {old_logprob, rollout_logprob, mask}; }
  [[nodiscard]] reward::evaluation<double> evaluation() const {
    return {.compiled = compiled,
            .correct = correct,
            .decoy = decoy,
            .speedup = speedup,
            .generated_us = generated_us,
            .total_us = total_us};
  }

 private:
  void add(sample_turn const& turn, std::size_t width) {
    turn_begin.push_back(static_cast<std::int64_t>(mask.size()));
    turn_end.push_back(static_cast<std::int64_t>(mask.size() + turn.log_ratio.size()));
    for (std::size_t i = 0; i < turn.log_ratio.size(); ++i) {
      double const rollout = turn.rollout_logprob.empty() ? 0.0 : turn.rollout_logprob[i];
      rollout_logprob.push_back(static_cast<P>(rollout));
      old_logprob.push_back(static_cast<P>(turn.log_ratio[i] + rollout));
      mask.push_back(turn.mask.empty() ? 1 : turn.mask[i]);
    }
    for (std::size_t i = turn.log_ratio.size(); i < width; ++i) {
      rollout_logprob.push_back(static_cast<P>(nan_value));
      old_logprob.push_back(static_cast<P>(nan_value));
      mask.push_back(1);
    }
    turn_valid.push_back(turn.valid);
    compiled.push_back(turn.compiled);
    correct.push_back(turn.correct);
    decoy.push_back(turn.decoy);
    speedup.push_back(turn.speedup);
    generated_us.push_back(turn.generated_us);
    total_us.push_back(turn.total_us);
  }
};

/// SplitMix64: integers that are the same with every compiler and standard library.
class integers {
 public:
  explicit integers(std::uint64_t seed) : state_(seed) {}
  std::uint64_t operator()() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  /// An integer in [0, count).
  std::int64_t below(std::int64_t count) { return static_cast<std::int64_t>((*this)() >> 33) % count; }

 private:
  std::uint64_t state_;
};

/// A random order of [0, count).
inline std::vector<std::size_t> random_order(std::size_t count, integers& random) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::size_t i = count; i > 1; --i)
    std::swap(order[i - 1], order[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i)))]);
  return order;
}

/// Ragged trajectories with everything that can happen to a turn: no tokens, masks, invalid turns, decoys, profiles
/// without meaning, NaN speedups and log ratios, vetoes. Log-probs are multiples of 2^-14 below 32: they and their
/// differences are exact in float as in double.
inline std::vector<sample_trajectory> random_trajectories(std::uint64_t seed, std::int64_t groups,
                                                          std::int64_t most_trajectories, std::int64_t most_tokens) {
  integers random{seed};
  std::vector<sample_trajectory> result;
  for (std::int64_t g = 0; g < groups; ++g) {
    std::int64_t const group = g % 3 == 0 ? -(g << 33) : 1000003 * g;
    std::int64_t const members = 1 + random.below(most_trajectories);
    for (std::int64_t k = 0; k < members; ++k) {
      sample_trajectory trajectory{.group = group, .id = 17 * k + 5};
      std::int64_t const turns = random.below(5);
      for (std::int64_t t = 0; t < turns; ++t) {
        sample_turn turn;
        turn.log_ratio.clear();
        std::int64_t const tokens = random.below(8) == 0 ? 0 : random.below(most_tokens);
        std::int64_t const spread = std::int64_t{1} << random.below(13);
        for (std::int64_t i = 0; i < tokens; ++i) {
          std::int64_t numerator = random.below(2 * spread + 1) - spread;
          if (random.below(400) == 0) numerator = -170000;  // about -10.4 nats: a veto
          turn.log_ratio.push_back(random.below(600) == 0 ? nan_value : static_cast<double>(numerator) * 0x1p-14);
          turn.rollout_logprob.push_back(static_cast<double>(-random.below(8 << 14)) * 0x1p-14);
          turn.mask.push_back(random.below(5) != 0);
        }
        if (random.below(3) == 0) std::ranges::fill(turn.mask, std::uint8_t{1});
        turn.correct = random.below(3) != 0;
        turn.compiled = random.below(12) != 0;
        turn.decoy = random.below(9) == 0;
        turn.valid = random.below(10) != 0;
        turn.speedup = random.below(40) == 0 ? nan_value : static_cast<double>(random.below(5000)) * 0x1p-10;
        turn.total_us = static_cast<double>(random.below(1000));
        turn.generated_us = static_cast<double>(random.below(1000)) * 0.5;
        turn.index = 2 * t + (t > 1 ? 1 : 0);
        trajectory.turns.push_back(std::move(turn));
      }
      result.push_back(std::move(trajectory));
    }
  }
  return result;
}

}  // namespace turnwise::test
