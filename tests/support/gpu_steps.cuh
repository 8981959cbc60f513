/// Whole steps for GPU tests: batches with tokens and evaluations, on the host and in device memory.
#pragma once

#include "support/batches.hpp"
#include "support/gpu_batches.cuh"

#include <turnwise/gpu/core/grouping.cuh>
#include <turnwise/gpu/core/token_plan.cuh>
#include <turnwise/gpu/recipe/dr_kernel.cuh>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <vector>

namespace support {

using turnwise::importance::turn_statistics;

/// What a step reads, in turn order.
struct step_case {
  std::vector<std::int64_t> begin, end, trajectory_offsets, group, trajectory, turn_index;
  std::vector<std::uint8_t> turn_valid, mask, compiled, correct, decoy;
  std::vector<float> old_logprob, rollout_logprob, speedup, generated_us, total_us;

  [[nodiscard]] turnwise::rollout_view view() const {
    return {begin, end, trajectory_offsets, group, trajectory, turn_index, turn_valid};
  }
  [[nodiscard]] turnwise::recipe::step_inputs<float, float, float> inputs() const {
    return {.tokens = {old_logprob, rollout_logprob, mask},
            .evaluation = {.compiled = compiled,
                           .correct = correct,
                           .decoy = decoy,
                           .speedup = speedup,
                           .generated_us = generated_us,
                           .total_us = total_us},
            .given_reward = {}};
  }

  /// A recorded batch.
  explicit step_case(turnwise::test::recorded_batch const& batch)
      : begin(batch.turns.turn_begin),
        end(batch.turns.turn_end),
        trajectory_offsets(batch.turns.trajectory_offsets),
        group(batch.turns.group_id),
        trajectory(batch.turns.trajectory_id),
        turn_index(batch.turns.turn_index),
        turn_valid(batch.turns.turn_valid),
        compiled(batch.compiled),
        correct(batch.correct),
        decoy(batch.decoy),
        old_logprob(batch.old_logprob),
        rollout_logprob(batch.rollout_logprob),
        speedup(batch.speedup),
        generated_us(batch.generated_us),
        total_us(batch.total_us) {}

  /// A random ragged one: groups of 1 to `most` trajectories in shuffled order, log-normal turn lengths, and now and then
  /// a NaN, an infinity, a huge or a clamped value, an invalid turn, a missing speedup, a profile without meaning.
  step_case(unsigned seed, std::int64_t most, double mean_tokens) {
    std::mt19937_64 random{seed};
    auto const one_in = [&](unsigned n) { return random() % n == 0; };
    std::lognormal_distribution<double> length{std::log(mean_tokens), 1.2};
    std::normal_distribution<float> noise{0.0f, 0.002f};
    struct key {
      std::int64_t group, trajectory;
    };
    std::vector<key> keys;
    for (std::int64_t g = 0; g < 6; ++g) {
      auto const id = static_cast<std::int64_t>(random());
      for (std::int64_t j = 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most)); j-- > 0;)
        keys.push_back({id, j * 3});
    }
    std::shuffle(keys.begin(), keys.end(), random);
    trajectory_offsets.push_back(0);
    std::int64_t tokens = 0;
    float const strange[]{
        std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -3e38f, 70.0f, -0.0f, -20.0f};
    for (key const& one : keys) {
      group.push_back(one.group);
      trajectory.push_back(one.trajectory);
      std::int64_t index = 0;
      for (std::uint64_t t = random() % 5; t-- > 0;) {
        begin.push_back(tokens);
        tokens += one_in(9) ? 0 : static_cast<std::int64_t>(std::min(100000.0, length(random)));
        end.push_back(tokens);
        if (one_in(5)) tokens += static_cast<std::int64_t>(random() % 40);
        turn_index.push_back(index);
        index += 1 + (one_in(4) ? 2 : 0);
        turn_valid.push_back(!one_in(12));
        compiled.push_back(!one_in(10));
        correct.push_back(one_in(2));
        decoy.push_back(one_in(11));
        speedup.push_back(one_in(20) ? std::numeric_limits<float>::quiet_NaN()
                                     : static_cast<float>(random() % 500) * 0.01f);
        total_us.push_back(one_in(15) ? 0.0f : 50.0f);
        generated_us.push_back(static_cast<float>(random() % 55));
      }
      trajectory_offsets.push_back(static_cast<std::int64_t>(begin.size()));
    }
    for (std::int64_t i = 0; i < tokens; ++i) {
      rollout_logprob.push_back(-std::abs(noise(random)) * 100);
      old_logprob.push_back(one_in(4000) ? strange[random() % 6] : rollout_logprob.back() + noise(random));
      mask.push_back(!one_in(6));
    }
    if (seed % 2 == 0) mask.clear();
  }
};

/// The same in device memory.
class device_step {
 public:
  explicit device_step(step_case const& one)
      : turns_(one.begin.size()),
        numbers_{on_device(one.begin), on_device(one.end),        on_device(one.trajectory_offsets),
                 on_device(one.group), on_device(one.trajectory), on_device(one.turn_index)},
        flags_{on_device(one.turn_valid), on_device(one.mask), on_device(one.compiled), on_device(one.correct),
               on_device(one.decoy)},
        floats_{on_device(one.old_logprob), on_device(one.rollout_logprob), on_device(one.speedup),
                on_device(one.generated_us), on_device(one.total_us)} {}

  [[nodiscard]] gpu::rollout_view view() const {
    return {.turns = turns_,
            .turn_begin = numbers_[0].view(),
            .turn_end = numbers_[1].view(),
            .trajectory_offsets = numbers_[2].view(),
            .group_id = numbers_[3].view(),
            .trajectory_id = numbers_[4].view(),
            .turn_index = numbers_[5].view(),
            .turn_valid = flags_[0].view()};
  }
  [[nodiscard]] gpu::recipe::step_inputs<float, float, float> inputs() const {
    return {.tokens = {floats_[0].view(), floats_[1].view(), flags_[1].view()},
            .evaluation = {.compiled = flags_[2].view(),
                           .correct = flags_[3].view(),
                           .decoy = flags_[4].view(),
                           .speedup = floats_[2].view(),
                           .generated_us = floats_[3].view(),
                           .total_us = floats_[4].view()},
            .given_reward = {}};
  }
  [[nodiscard]] std::size_t tokens() const { return floats_[0].view().size(); }

 private:
  std::size_t turns_;
  device_array<std::int64_t> numbers_[6];
  device_array<std::uint8_t> flags_[5];
  device_array<float> floats_[5];
};

/// Outputs of a step in host memory.
struct host_outputs {
  std::vector<double> reward, turn_return, advantage;
  std::vector<reason_flags> reasons;
  std::vector<turn_statistics> statistics;
  std::vector<float> token_advantage;
  std::vector<std::uint8_t> token_mask;

  host_outputs(std::size_t turns, std::size_t tokens)
      : reward(turns),
        turn_return(turns),
        advantage(turns),
        reasons(turns),
        statistics(turns),
        token_advantage(tokens),
        token_mask(tokens) {}
  [[nodiscard]] turnwise::recipe::step_outputs spans() {
    return {reward, turn_return, advantage, reasons, statistics, token_advantage, token_mask, nullptr};
  }
};

/// Outputs of a step in device memory.
class device_outputs {
 public:
  device_outputs(std::size_t turns, std::size_t tokens)
      : reward_(turns),
        turn_return_(turns),
        advantage_(turns),
        reasons_(turns),
        statistics_(turns),
        token_advantage_(tokens),
        token_mask_(tokens) {}
  [[nodiscard]] gpu::recipe::step_outputs spans() const {
    return {reward_.span(),     turn_return_.span(),     advantage_.span(), reasons_.span(),
            statistics_.span(), token_advantage_.span(), token_mask_.span()};
  }
  void clear() const {
    fill_bytes(reward_, 0x5a);
    fill_bytes(turn_return_, 0x5a);
    fill_bytes(advantage_, 0x5a);
    fill_bytes(reasons_, 0x5a);
    fill_bytes(statistics_, 0x5a);
    fill_bytes(token_advantage_, 0x5a);
    fill_bytes(token_mask_, 0x5a);
  }
  /// Whether every byte is as clear() left it.
  [[nodiscard]] bool untouched() const {
    auto const holds = [](auto const& memory) {
      auto const values = memory.host();
      auto const* const bytes = reinterpret_cast<unsigned char const*>(values.data());
      return std::all_of(bytes, bytes + values.size() * sizeof values[0],
                         [](unsigned char byte) { return byte == 0x5a; });
    };
    return holds(reward_) && holds(turn_return_) && holds(advantage_) && holds(reasons_) && holds(statistics_) &&
           holds(token_advantage_) && holds(token_mask_);
  }
  /// Names of the outputs whose bits differ.
  [[nodiscard]] std::string differences(host_outputs const& expected) const {
    std::string names;
    if (!same_numbers(reward_.host(), expected.reward)) names += " reward";
    if (!same_bits(turn_return_.host(), expected.turn_return)) names += " turn_return";
    if (!same_bits(advantage_.host(), expected.advantage)) names += " advantage";
    if (!same_bits(reasons_.host(), expected.reasons)) names += " reasons";
    if (!same_bits(statistics_.host(), expected.statistics)) names += " statistics";
    if (!same_bits(token_advantage_.host(), expected.token_advantage)) names += " token_advantage";
    if (!same_bits(token_mask_.host(), expected.token_mask)) names += " token_mask";
    return names;
  }

 private:
  device_array<double> reward_, turn_return_, advantage_;
  device_array<reason_flags> reasons_;
  device_array<turn_statistics> statistics_;
  device_array<float> token_advantage_;
  device_array<std::uint8_t> token_mask_;
};

}  // namespace support
