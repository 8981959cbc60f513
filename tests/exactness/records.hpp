/// The exactness programs' lines for metrics and for the choice of turns; mismatch is in the lines of the recipes.
#pragma once

#include "exactness/settled_turns.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace digest {

inline void sample_records(std::string const& shape, sample_batch<double> const& batch, settled_turns const& turns) {
  using namespace metrics;
  auto const view = batch.view();
  auto const& reasons = turns.reasons;
  auto const groups = make_grouping(view, group_by::group);
  std::vector<double> speedup(batch.turns());
  kernel_score(batch.evaluation(), reasons, {}, std::span{speedup});
  std::span<double const> const score{speedup};
  std::vector<group_estimate> each(groups.groups());
  hash fast, pass, best;
  for (std::int64_t const k : {1, 3})
    for (auto const too_few : {too_few_policy::exclude, too_few_policy::all}) {
      fast.add(fast_p(view, batch.evaluation(), reasons, {.threshold = 1.1, .k = k, .too_few = too_few}));
      pass.add(metrics::pass_at_k(groups, batch.correct, reasons, {k, too_few}, each)), pass.add(each);
      best.add(best_at_k(groups, score, reasons, {k, too_few}, each)), best.add(each);
    }
  print(shape, "kernel_score", hash_of(speedup));
  print(shape, "fast_p", fast.value());
  print(shape, "metrics pass_at_k", pass.value());
  print(shape, "best_at_k", best.value());
  print(shape, "solve_rate", hash_of(solve_rate(view, score, reasons, {.solved_at = 1.1})));
  print(shape, "equal_budget", hash_of(equal_budget(view, score, reasons, {.budget = 6}).splits));

  std::vector<std::int64_t> chosen(view.trajectories()), length(batch.turns());
  refinement::choose_turn(view, score, reasons, {}, chosen);
  print(shape, "choose_turn", hash_of(chosen));
  for (std::size_t s = 0; s < length.size(); ++s) length[s] = batch.turn_end[s] - batch.turn_begin[s];
  print(shape, "history_selection",
        hash_of(refinement::history_selection(score, length, reasons,
                                              {.rule = refinement::history_rule::best_window, .token_budget = 150})
                    .turns));
}

inline void token_records(std::string const& shape, sample_batch<double> const& batch, settled_turns const& turns) {
  using namespace metrics;
  auto const view = batch.view();
  auto const groups = make_grouping(view, group_by::group);
  std::vector<importance::turn_statistics> statistics(batch.turns());
  std::vector<importance::ratio_moments> moments(batch.turns());
  importance::log_ratio_statistics(view, batch.tokens(), statistics, moments);
  hash logprobs;
  for (auto const source : {logprob_source::rollout, logprob_source::old}) {
    std::vector<double> mean(batch.turns());
    logprobs.add(logprob_summary(groups, statistics, moments, turns.reasons, {source}, mean)), logprobs.add(mean);
  }
  print(shape, "logprob_summary", logprobs.value());
  print(shape, "length_statistics", hash_of(length_statistics(view, batch.correct, {}, {})));

  std::vector<std::int32_t> token(batch.mask.size());
  for (std::size_t i = 0; i < token.size(); ++i) token[i] = static_cast<std::int32_t>(i * i % 3);
  std::vector<std::int32_t> const prefix{0, 1};
  print(shape, "opening_deviation",
        hash_of(opening_deviation(view, std::span<std::int32_t const>{token}, batch.mask, prefix, turns.reasons, {})));

  // All in one lane of the sums, where every rounding shows.
  auto const number = numbers(token.size(), 16, 3);
  std::vector<double> gradient(16 * metrics::detail::gradient_lanes);
  for (std::size_t i = 0; i < number.size(); ++i) gradient[i * metrics::detail::gradient_lanes] = number[i];
  std::vector<float> const narrow(gradient.begin(), gradient.end());
  std::span<double const> const doubles[]{gradient};
  std::span<float const> const floats[]{narrow};
  print(shape, "gradient_norm",
        hash_of(gradient_norm<double>(doubles, {.max_norm = 1}), gradient_norm<float>(floats, {.max_norm = 1})));
}

inline void records(std::string const& shape, sample_batch<double> const& batch, settled_turns const& turns) {
  sample_records(shape, batch, turns);
  token_records(shape, batch, turns);
}

}  // namespace digest
