/// The exactness programs' lines for methods on tokens.
#pragma once

#include "exactness/settled_turns.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace digest {

/// Tokens of trajectories, as gae and vtrace take them.
inline void token_advantages(std::string const& shape, sample_batch<double> const& batch) {
  using namespace advantage;
  auto const view = batch.view();
  std::vector<std::int64_t> offsets{0};
  std::vector<std::uint8_t> cut;
  for (std::size_t j = 0; j < view.trajectories(); ++j) {
    std::size_t const end = view.first_turn(j + 1);
    offsets.push_back(end == 0 ? 0 : batch.turn_end[end - 1]);
    cut.push_back(j % 3 == 0);
  }
  std::size_t const tokens = batch.mask.size();
  auto const reward = numbers(31, tokens, 3), value = numbers(32, tokens, 3);
  auto const next_value = numbers(33, cut.size(), 3);
  token_segments<double> const segments{offsets, cut, next_value, batch.mask};
  auto const line = [&](std::string const& name, auto call) {
    print_threads(shape, name, [&](int threads) {
      std::vector<double> result(tokens), target(tokens);
      call(threads, std::span{result}, std::span{target});
      return hash_of(result, target);
    });
  };
  line("gae", [&](int threads, std::span<double> result, std::span<double> target) {
    gae(segments, reward, value, {.gamma = 0.99, .lambda = 0.95, .threads = threads}, result, target);
  });
  // Off policy the last bit of the ratio is the compiler's; of equal policies it is 1.
  std::vector<double> const equal(tokens);
  for (auto const form : {vtrace_advantage::next_target, vtrace_advantage::mixed_target})
    line(form == vtrace_advantage::next_target ? "vtrace on policy" : "vtrace on policy, mixed",
         [&](int threads, std::span<double> result, std::span<double> target) {
           vtrace(segments, reward, value, equal,
                  {.gamma = 0.99, .lambda = 0.95, .advantage = form, .threads = threads}, result, target);
         });
}

inline void optimal_token_baselines(std::string const& shape, sample_batch<double> const& batch,
                                    settled_turns const& turns) {
  using advantage::lone_position;
  auto weight = numbers(34, batch.mask.size(), 0);
  for (double& w : weight) w = w < 0 ? -w : w;
  for (auto const by : {group_by::group, group_by::turn}) {
    auto const groups = make_grouping(batch.view(), by);
    print_threads(
        shape, by == group_by::group ? "optimal_token_baseline" : "optimal_token_baseline by turn", [&](int threads) {
          hash all;
          for (auto const lone : {lone_position::zero, lone_position::keep}) {
            std::vector<double> result(weight.size());
            advantage::optimal_token_baseline(batch.view(), groups, batch.mask, weight,
                                              std::span<double const>{turns.turn_return}, turns.reasons,
                                              {lone, lone, baseline_members::kept, threads}, std::span{result});
            all.add(result);
          }
          return all.value();
        });
  }
}

inline void token_masks(std::string const& shape, sample_batch<double> const& batch, settled_turns const& turns) {
  using namespace rejection;
  std::vector<std::uint8_t> begin(batch.mask.size());
  begin_token_mask(batch.view(), batch.mask, turns.reasons, begin);
  print(shape, "begin_token_mask", hash_of(begin));
  auto const line = [&](std::string const& name, auto rule) {
    auto keep = begin;
    double const result = rule(std::span{keep});
    print(shape, name, hash_of(keep, result));
  };
  for (token_mask_options const& options :
       {token_mask_options{token_measure::ratio, 0.9, 1.1}, token_mask_options{token_measure::k1, -0.1, 0.1},
        token_mask_options{token_measure::k2, 0, 0.01}, token_mask_options{token_measure::k3, 0, 0.01}})
    line("token_mask " + std::to_string(static_cast<int>(options.measure)), [&](std::span<std::uint8_t> keep) {
      token_mask(batch.tokens(), options, keep);
      return 0.0;
    });
  for (double const share : {0.2, 0.58})
    line("entropy_quantile " + std::to_string(share), [&](std::span<std::uint8_t> keep) {
      return entropy_quantile(std::span<double const>{batch.rollout_logprob}, {share}, keep);
    });
  auto const advantage = numbers(35, batch.turns(), 3);
  line("extreme_risk", [&](std::span<std::uint8_t> keep) {
    extreme_risk(batch.view(), std::span<double const>{advantage}, std::span<double const>{batch.old_logprob},
                 {.threshold = 0.2}, keep);
    return 0.0;
  });
}

/// What is masked and counted; the weights themselves go through exp.
inline void weight_masks(std::string const& shape, sample_batch<double> const& batch,
                         std::vector<importance::turn_statistics> const& statistics, settled_turns const& turns) {
  importance::weight_bounds const bounds{importance::weight_rule::mask, 0.9, 1.1};
  hash all;
  auto const add = [&](std::size_t size, auto weigh) {
    std::vector<double> weight(size);
    all.add(weigh(std::span{weight}));
    for (double const w : weight) all.add(w == 0);
  };
  add(batch.mask.size(), [&](std::span<double> weight) {
    return importance::importance_weight(batch.tokens(), importance::token_weight_options{.bounds = bounds}, weight);
  });
  for (auto const level : {rejection::scope::turn, rejection::scope::trajectory})
    for (auto const kind : {rejection::ratio_kind::product, rejection::ratio_kind::geometric})
      add(batch.turns(), [&](std::span<double> weight) {
        return importance::importance_weight(batch.view(), statistics, turns.reasons, {level, kind, bounds}, weight);
      });
  print(shape, "importance_weight masks", all.value());

  auto weight = numbers(36, batch.mask.size(), 2);
  for (double& w : weight) w = w < 0 ? -w : w;
  auto const sums = importance::sum_weights(std::span<double const>{weight}, batch.mask);
  importance::weight_normalisation(sums, {}, std::span{weight});
  print(shape, "weight_normalisation", hash_of(sums.weight, sums.count, weight));
}

/// The kinds that no exp enters, and a gradient that is one product.
inline void token_terms(std::string const& shape, sample_batch<double> const& batch, settled_turns const& turns) {
  std::size_t const tokens = batch.mask.size();
  using divergence::kl_kind;
  hash all;
  for (auto const kind : {kl_kind::k1, kl_kind::k2, kl_kind::absolute}) {
    std::vector<divergence::kl_sums> sums(batch.turns());
    std::vector<double> value(tokens), slope(tokens);
    divergence::kl_estimate(
        batch.view(), divergence::kl_logprobs<double, double>{batch.old_logprob, batch.rollout_logprob, batch.mask},
        {.kind = kind}, sums, divergence::kl_outputs<double>{value, slope});
    all.add(value), all.add(slope), all.add(sums);
  }
  print(shape, "kl_estimate k1, k2, absolute", all.value());

  divergence::kl_controller_state state;
  for (double const measured : numbers(40, batch.turns(), 4))
    divergence::kl_controller(state, measured, 7, {.error_clip = 0.9});
  print(shape, "kl_controller", hash_of(state.coefficient));

  std::vector<std::int64_t> count(batch.turns());
  std::vector<double> scale(batch.turns());
  loss::count_tokens(batch.view(), batch.mask, count);
  hash scales;
  for (auto const mean : {loss::loss_mean::token_mean, loss::loss_mean::sequence_mean_token_mean})
    for (auto const over : {loss::loss_scope::batch, loss::loss_scope::prompt}) {
      loss::aggregate(batch.view(), count, turns.reasons, {.mean = mean, .scope = over}, scale);
      scales.add(scale);
    }
  print(shape, "aggregate", scales.value());

  auto const value = numbers(37, tokens, 1), old_value = numbers(38, tokens, 1), target = numbers(39, tokens, 1);
  std::vector<double> gradient(tokens);
  loss::value_clip(batch.view(), loss::value_inputs<double>{value, old_value, target, batch.mask}, {}, scale,
                   std::span{gradient});
  print(shape, "value_clip gradient", hash_of(gradient));
}

inline void tokens(std::string const& shape, sample_batch<double> const& batch,
                   std::vector<importance::turn_statistics> const& statistics, settled_turns const& turns) {
  token_advantages(shape, batch);
  optimal_token_baselines(shape, batch, turns);
  token_masks(shape, batch, turns);
  weight_masks(shape, batch, statistics, turns);
  token_terms(shape, batch, turns);
}

}  // namespace digest
