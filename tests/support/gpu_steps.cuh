/// Whole steps for GPU tests: batches with tokens and evaluations, on the host and in device memory.
#pragma once

#include "support/batches.hpp"
#include "support/gpu_batches.cuh"

#include <turnwise/gpu/recipe/dr_kernel.cuh>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <string>
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

  /// The trajectories `which` alone, with their tokens.
  [[nodiscard]] step_case picked(std::vector<std::size_t> const& which) const {
    step_case part;
    part.trajectory_offsets.push_back(0);
    for (std::size_t const j : which) {
      part.group.push_back(group[j]);
      part.trajectory.push_back(trajectory[j]);
      for (auto s = static_cast<std::size_t>(trajectory_offsets[j]);
           s < static_cast<std::size_t>(trajectory_offsets[j + 1]); ++s)
        part.add_turn(*this, s);
      part.trajectory_offsets.push_back(static_cast<std::int64_t>(part.begin.size()));
    }
    return part;
  }
  /// Adds the trajectories of another batch behind these.
  void append(step_case const& other) {
    for (std::size_t j = 0; j < other.group.size(); ++j) {
      group.push_back(other.group[j]);
      trajectory.push_back(other.trajectory[j]);
      trajectory_offsets.push_back(trajectory_offsets.back() + other.trajectory_offsets[j + 1] -
                                   other.trajectory_offsets[j]);
    }
    for (std::size_t s = 0; s < other.begin.size(); ++s) add_turn(other, s);
  }

 private:
  step_case() = default;
  void add_turn(step_case const& from, std::size_t s) {
    begin.push_back(static_cast<std::int64_t>(old_logprob.size()));
    auto const add = [](auto& to, auto const& values, std::size_t first, std::size_t last) {
      if (!values.empty())
        to.insert(to.end(), values.begin() + static_cast<std::ptrdiff_t>(first),
                  values.begin() + static_cast<std::ptrdiff_t>(last));
    };
    auto const first = static_cast<std::size_t>(from.begin[s]);
    auto const last = static_cast<std::size_t>(from.end[s]);
    add(old_logprob, from.old_logprob, first, last);
    add(rollout_logprob, from.rollout_logprob, first, last);
    add(mask, from.mask, first, last);
    end.push_back(static_cast<std::int64_t>(old_logprob.size()));
    add(turn_index, from.turn_index, s, s + 1);
    add(turn_valid, from.turn_valid, s, s + 1);
    add(compiled, from.compiled, s, s + 1);
    add(correct, from.correct, s, s + 1);
    add(decoy, from.decoy, s, s + 1);
    add(speedup, from.speedup, s, s + 1);
    add(generated_us, from.generated_us, s, s + 1);
    add(total_us, from.total_us, s, s + 1);
  }
};

/// The same in device memory; arrays are aligned to their elements alone when `shift` is odd.
class device_step {
 public:
  explicit device_step(step_case const& one, std::size_t shift = 0)
      : turns_(one.begin.size()),
        numbers_{{one.begin, shift}, {one.end, shift},        {one.trajectory_offsets, shift},
                 {one.group, shift}, {one.trajectory, shift}, {one.turn_index, shift}},
        flags_{{one.turn_valid, shift},
               {one.mask, shift},
               {one.compiled, shift},
               {one.correct, shift},
               {one.decoy, shift}},
        floats_{{one.old_logprob, shift},
                {one.rollout_logprob, shift},
                {one.speedup, shift},
                {one.generated_us, shift},
                {one.total_us, shift}} {}

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
  shifted_array<std::int64_t> numbers_[6];
  shifted_array<std::uint8_t> flags_[5];
  shifted_array<float> floats_[5];
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
  /// Those of the turns of the trajectories `which` of a batch with these outputs.
  [[nodiscard]] host_outputs picked(step_case const& batch, std::vector<std::size_t> const& which) const {
    host_outputs part{0, 0};
    for (std::size_t const j : which)
      for (auto s = static_cast<std::size_t>(batch.trajectory_offsets[j]);
           s < static_cast<std::size_t>(batch.trajectory_offsets[j + 1]); ++s) {
        part.reward.push_back(reward[s]);
        part.turn_return.push_back(turn_return[s]);
        part.advantage.push_back(advantage[s]);
        part.reasons.push_back(reasons[s]);
        part.statistics.push_back(statistics[s]);
      }
    return part;
  }
};

/// Outputs of a step in device memory, each `shift` elements past an aligned address.
class device_outputs {
 public:
  device_outputs(std::size_t turns, std::size_t tokens, std::size_t shift = 0)
      : shift_(shift),
        reward_(turns + shift),
        turn_return_(turns + shift),
        advantage_(turns + shift),
        reasons_(turns + shift),
        statistics_(turns + shift),
        token_advantage_(tokens + shift),
        token_mask_(tokens + shift) {}
  [[nodiscard]] gpu::recipe::step_outputs spans() const {
    auto const at = [this](auto const& memory) { return memory.span().subspan(shift_); };
    return {at(reward_),     at(turn_return_),     at(advantage_), at(reasons_),
            at(statistics_), at(token_advantage_), at(token_mask_)};
  }
  void clear() const {
    each([](auto const& memory) { fill_bytes(memory, fill); });
  }
  /// Whether every byte is as clear() left it.
  [[nodiscard]] bool untouched() const {
    bool all = true;
    each([&](auto const& memory) { all &= filled(memory, memory.span().size()); });
    return all;
  }
  [[nodiscard]] host_outputs host() const {
    host_outputs result{0, 0};
    auto const copy = [this](auto const& memory, auto& to) {
      auto const all = memory.host();
      to.assign(all.begin() + static_cast<std::ptrdiff_t>(shift_), all.end());
    };
    copy(reward_, result.reward);
    copy(turn_return_, result.turn_return);
    copy(advantage_, result.advantage);
    copy(reasons_, result.reasons);
    copy(statistics_, result.statistics);
    copy(token_advantage_, result.token_advantage);
    copy(token_mask_, result.token_mask);
    return result;
  }
  /// Names of the outputs whose bits differ, or that were written before their first element.
  [[nodiscard]] std::string differences(host_outputs const& expected) const {
    std::string names;
    auto const got = host();
    auto const compare = [&](char const* name, auto const& memory, bool same) {
      if (!same || !filled(memory, shift_)) names += std::string{" "} + name;
    };
    compare("reward", reward_, same_numbers(got.reward, expected.reward));
    compare("turn_return", turn_return_, same_bits(got.turn_return, expected.turn_return));
    compare("advantage", advantage_, same_bits(got.advantage, expected.advantage));
    compare("reasons", reasons_, same_bits(got.reasons, expected.reasons));
    compare("statistics", statistics_, same_bits(got.statistics, expected.statistics));
    compare("token_advantage", token_advantage_, same_bits(got.token_advantage, expected.token_advantage));
    compare("token_mask", token_mask_, same_bits(got.token_mask, expected.token_mask));
    return names;
  }

 private:
  static constexpr int fill = 0x5a;
  /// Whether the first `count` elements are as clear() left them.
  template <typename T>
  static bool filled(device_array<T> const& memory, std::size_t count) {
    auto const values = memory.host();
    auto const* const bytes = reinterpret_cast<unsigned char const*>(values.data());
    return std::all_of(bytes, bytes + count * sizeof(T), [](unsigned char byte) { return byte == fill; });
  }
  template <typename Visit>
  void each(Visit visit) const {
    visit(reward_);
    visit(turn_return_);
    visit(advantage_);
    visit(reasons_);
    visit(statistics_);
    visit(token_advantage_);
    visit(token_mask_);
  }

  std::size_t shift_;
  device_array<double> reward_, turn_return_, advantage_;
  device_array<reason_flags> reasons_;
  device_array<turn_statistics> statistics_;
  device_array<float> token_advantage_;
  device_array<std::uint8_t> token_mask_;
};

}  // namespace support
