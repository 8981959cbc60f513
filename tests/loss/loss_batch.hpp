/// @file
/// Small batches for the tests of losses, and gradients by central differences.
#pragma once

#include <turnwise/loss/aggregate.hpp>
#include <turnwise/loss/policy_loss.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace turnwise::test {

/// Every token's loss is its advantage: what tests of sums and means need.
struct advantage_is_loss {
  template <typename F>
  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr loss::loss_terms<F> operator()(loss::loss_token<F> const& token) const {
    loss::flag<F> const none = F{} < F{};
    return {token.advantage, token.advantage, none, none};
  }
};

/// What a loss gives.
template <typename G>
struct loss_result {
  loss::loss_record record;
  std::vector<G> gradient, entropy_gradient;
};

/// Turns written down by their log ratios, each a trajectory of its own and of the group given; packed.
template <typename T>
struct loss_batch {
  std::vector<std::int64_t> begin, end, trajectory_offsets{0}, group, trajectory;
  std::vector<T> current, old, reference;
  std::vector<double> advantage, token_advantage, scale;
  std::vector<float> weight, entropy;
  std::vector<std::uint8_t> mask, selected;

  /// One advantage a turn; scale 1.
  loss_batch(std::vector<std::vector<double>> const& log_ratio, std::vector<double> turn_advantage)
      : advantage(std::move(turn_advantage)) {
    for (auto const& turn : log_ratio) {
      begin.push_back(static_cast<std::int64_t>(current.size()));
      for (double const d : turn) {
        double const of_old = -0.25 - 0.125 * static_cast<double>(current.size() % 7);
        old.push_back(static_cast<T>(of_old));
        current.push_back(static_cast<T>(of_old + d));
      }
      end.push_back(static_cast<std::int64_t>(current.size()));
      group.push_back(0);
      trajectory.push_back(static_cast<std::int64_t>(trajectory.size()));
      trajectory_offsets.push_back(static_cast<std::int64_t>(trajectory.size()));
      scale.push_back(1);
    }
  }

  [[nodiscard]] std::size_t tokens() const { return current.size(); }
  [[nodiscard]] rollout_view view() const {
    return {.turn_begin = begin,
            .turn_end = end,
            .trajectory_offsets = trajectory_offsets,
            .group_id = group,
            .trajectory_id = trajectory};
  }
  [[nodiscard]] loss::loss_inputs<T> inputs() const {
    loss::loss_inputs<T> in{.current_logprob = current, .old_logprob = old, .mask = mask};
    if (token_advantage.empty())
      in.turn_advantage = advantage;
    else
      in.token_advantage = token_advantage;
    in.reference_logprob = reference;
    in.weight = weight;
    in.entropy = entropy;
    in.selected = selected;
    return in;
  }
  template <typename G = T, typename Policy>
  loss_result<G> run(Policy const& policy, loss::loss_options const& options = {}, int threads = 1) const {
    loss_result<G> result{{}, std::vector<G>(tokens(), static_cast<G>(7.0f)), {}};
    if (!entropy.empty()) result.entropy_gradient.assign(tokens(), static_cast<G>(7.0f));
    result.record = loss::policy_loss(view(), inputs(), policy, options, scale,
                                      loss::loss_outputs<G>{result.gradient, result.entropy_gradient}, threads);
    return result;
  }
};

/// Compares each token's gradient with a central difference of the loss. `weight_held`: the ratio is a constant weight,
/// so current and old are moved together.
template <typename Policy>
void check_gradient(loss_batch<double> batch, Policy const& policy, loss::loss_options const& options = {},
                    bool weight_held = false) {
  auto const result = batch.run(policy, options);
  constexpr double step = 1e-6;
  for (std::size_t i = 0; i < batch.tokens(); ++i) {
    double loss[2];
    for (int side : {0, 1}) {
      auto moved = batch;
      moved.current[i] += side == 0 ? -step : step;
      if (weight_held) moved.old[i] += side == 0 ? -step : step;
      loss[side] = moved.run(policy, options).record.loss();
    }
    double const slope = (loss[1] - loss[0]) / (2 * step);
    CAPTURE(i);
    CAPTURE(batch.current[i] - batch.old[i]);
    CHECK(result.gradient[i] == doctest::Approx(slope).epsilon(1e-6).scale(1));
  }
}

/// Log ratios close to and far from each of the given ratios, on both sides.
inline std::vector<double> around(std::vector<double> const& ratios) {
  std::vector<double> result{0, 0.05, -0.05, 1, -1};
  for (double const ratio : ratios)
    for (double const distance : {-0.3, -1e-4, 1e-4, 0.3}) result.push_back(std::log(ratio) + distance);
  return result;
}

/// Each log ratio in turns of advantage 1.5, -0.75 and 0; one token a turn, or all in one.
inline loss_batch<double> all_signs(std::vector<double> const& log_ratio, bool one_token) {
  std::vector<std::vector<double>> turns;
  std::vector<double> advantage;
  for (double const a : {1.5, -0.75, 0.0}) {
    if (!one_token) {
      turns.push_back(log_ratio);
      advantage.push_back(a);
      continue;
    }
    for (double const d : log_ratio) {
      turns.push_back({d});
      advantage.push_back(a);
    }
  }
  return {turns, advantage};
}

}  // namespace turnwise::test
