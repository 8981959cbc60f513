/// @file
/// What the recipes share: the order of a step. Statistics, rewards, validity, filters, baselines, token outputs.
#pragma once

#include <turnwise/advantage/per_token.hpp>
#include <turnwise/advantage/turn_return.hpp>
#include <turnwise/importance/log_ratio_statistics.hpp>
#include <turnwise/metrics/mismatch.hpp>
#include <turnwise/recipe/step.hpp>
#include <turnwise/rejection/profiling_filter.hpp>
#include <turnwise/rejection/ratio_band.hpp>
#include <turnwise/rejection/token_veto.hpp>
#include <turnwise/rejection/usable_tokens.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

namespace turnwise::recipe {
namespace detail {

inline void check_outputs(rollout_view const& batch, std::size_t tokens, step_outputs const& out,
                          std::string_view function) {
  auto const check = [&](auto span, std::string_view name, std::size_t size, std::string_view unit) {
    if (!span.empty()) expects_size(function, name, span.size(), size, unit);
  };
  check(out.reward, "reward", batch.turns(), "turn");
  check(out.turn_return, "turn_return", batch.turns(), "turn");
  check(out.advantage, "advantage", batch.turns(), "turn");
  check(out.reasons, "reasons", batch.turns(), "turn");
  check(out.statistics, "statistics", batch.turns(), "turn");
  check(out.token_advantage, "token_advantage", tokens, "token");
  check(out.token_mask, "token_mask", tokens, "token");
}

/// Runs a step. Turn results go to scratch first, so that an error in any part leaves the outputs as they were.
///
/// @param return_options  of discounted_return or turn_return: which one is called.
/// @param reward_of     writes the recipe's reward: (reasons, reward).
/// @param advantage_of  writes advantages: (turn_return, reasons, advantage).
template <logprob_value Old, logprob_value Rollout, real E, typename ReturnOptions, typename RewardOf,
          typename AdvantageOf>
void run_step(rollout_view const& batch, grouping const& groups, step_inputs<Old, Rollout, E> const& inputs,
              ReturnOptions const& return_options, filter_options const& filters,
              metrics::mismatch_options metrics_options, draw_key key, int threads, step_outputs const& out,
              std::string_view function, RewardOf reward_of, AdvantageOf advantage_of) {
  std::size_t const turns = batch.turns();
  std::size_t const tokens = inputs.tokens.old_logprob.size();
  check_outputs(batch, tokens, out, function);

  std::vector<reason_flags> reasons(turns);
  std::vector<double> reward(turns), turn_return(turns), advantage(turns);
  std::vector<importance::turn_statistics> statistics(turns);
  std::vector<importance::ratio_moments> moments(out.metrics != nullptr ? turns : 0);

  begin_reasons(batch, reasons);
  if (inputs.given_reward.empty()) {
    reward_of(std::span<reason_flags const>{reasons}, std::span{reward});
  } else {
    expects_size(function, "given_reward", inputs.given_reward.size(), turns, "turn");
    std::ranges::copy(inputs.given_reward, reward.begin());
  }
  if constexpr (std::same_as<ReturnOptions, advantage::discounted_return_options>)
    advantage::discounted_return(batch, reward, return_options, reasons, std::span{turn_return});
  else
    advantage::turn_return(batch, reward, return_options, reasons, std::span{turn_return});

  if (out.metrics != nullptr)
    importance::log_ratio_statistics(batch, inputs.tokens, statistics, moments, threads);
  else
    importance::log_ratio_statistics(batch, inputs.tokens, statistics, threads);
  rejection::usable_tokens(batch, statistics, filters.usable_tokens, reasons);
  if (filters.ratio_band) rejection::ratio_band(batch, statistics, *filters.ratio_band, reasons);
  if (filters.token_veto) rejection::token_veto(batch, statistics, *filters.token_veto, reasons);
  if (filters.profiling_filter)
    rejection::profiling_filter(batch, inputs.evaluation, *filters.profiling_filter, key, reasons);

  advantage_of(std::span<double const>{turn_return}, std::span<reason_flags const>{reasons}, std::span{advantage});

  metrics::mismatch_record record;
  if (out.metrics != nullptr) {
#if defined(__GNUC__) && !defined(__clang__)  // GCC 12 takes the guarded value of an optional for uninitialized
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
    if (filters.ratio_band) metrics_options.band = *filters.ratio_band;
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
    record = metrics::mismatch(batch, groups, statistics, moments, reasons, std::span<double const>{advantage},
                               inputs.evaluation, metrics_options);
  }
  // From here on nothing throws but per_token's own checks, which come before its first write.
  if (!out.token_advantage.empty() || !out.token_mask.empty())
    advantage::per_token(batch, inputs.tokens.mask, std::span<double const>{advantage}, reasons, out.token_advantage,
                         out.token_mask, threads);
  if (out.metrics != nullptr) *out.metrics = record;
  auto const publish = [](auto const& from, auto to) {
    if (!to.empty()) std::ranges::copy(from, to.begin());
  };
  publish(reward, out.reward);
  publish(turn_return, out.turn_return);
  publish(advantage, out.advantage);
  publish(reasons, out.reasons);
  publish(statistics, out.statistics);
}

}  // namespace detail
}  // namespace turnwise::recipe
