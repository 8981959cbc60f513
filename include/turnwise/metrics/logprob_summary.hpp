/// @file
/// Mean negative log-prob and perplexity, by token and by turn.
#pragma once

#include <turnwise/core/grouping.hpp>
#include <turnwise/core/ordered_sum.hpp>
#include <turnwise/metrics/detail/mismatch_totals.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace turnwise::metrics {

/// Whose log-probs are summed up.
enum class logprob_source : std::uint8_t { rollout, old };

/// Options of `logprob_summary`.
struct logprob_summary_options {
  logprob_source source = logprob_source::rollout;  ///< whose log-probs
};

/// One batch; every number is finite. Over the turns with usable tokens (has_ratio) and their unmasked tokens with a
/// finite log ratio.
struct logprob_record {
  std::int64_t turns = 0;    ///< that count
  std::int64_t tokens = 0;   ///< of these turns, with a finite log ratio
  double token_mean = 0;     ///< mean over tokens of -log-prob, nats: an entropy estimate
  double turn_mean = 0;      ///< mean over turns of the turn's mean
  double turn_min = 0;       ///< smallest and largest mean of a turn
  double turn_max = 0;       ///< largest mean of a turn
  double token_ppl = 1;      ///< exp(token_mean), its argument clamped to +-64
  double turn_ppl = 1;       ///< exp(turn_mean), likewise
  double mean_turn_ppl = 1;  ///< mean over turns of exp of the turn's mean, likewise

  friend constexpr bool operator==(logprob_record const&, logprob_record const&) = default;
};

/// Sum of -log-probs of a turn's tokens, nats; never -0.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr double negative_logprob(importance::turn_statistics const& statistics,
                                                                     importance::ratio_moments const& moments,
                                                                     logprob_source source) noexcept {
  return 0.0 -
         (source == logprob_source::rollout ? moments.rollout_logprob : moments.rollout_logprob + statistics.log_sum());
}

namespace detail {

/// What one turn adds to a logprob_record; zeros unless it counts.
struct logprob_term {
  bool counts = false;
  double sum = 0;   ///< of -log-probs
  double mean = 0;  ///< a token
  double ppl = 0;
};

TURNWISE_HOST_DEVICE inline logprob_term logprob_term_of(importance::turn_statistics const& statistics,
                                                         importance::ratio_moments const& moments, reason_flags reasons,
                                                         logprob_source source) {
  if (!has_ratio(reasons) || statistics.count == 0) return {};
  double const sum = negative_logprob(statistics, moments, source);
  double const mean = sum / static_cast<double>(statistics.count);
  return {true, sum, mean, clamped_exp(mean)};
}

/// Turns the sums of a record into means.
TURNWISE_HOST_DEVICE inline void finish(logprob_record& record, double token_sum, double turn_sum, double ppl_sum) {
  if (record.turns == 0) {
    record = {};
    return;
  }
  record.token_mean = token_sum / static_cast<double>(record.tokens);
  record.turn_mean = turn_sum / static_cast<double>(record.turns);
  record.token_ppl = clamped_exp(record.token_mean);
  record.turn_ppl = clamped_exp(record.turn_mean);
  record.mean_turn_ppl = ppl_sum / static_cast<double>(record.turns);
}

inline void check_logprob_summary(std::size_t turns, std::size_t statistics, std::size_t moments, std::size_t reasons,
                                  std::size_t turn_mean) {
  expects_size("logprob_summary", "statistics", statistics, turns, "turn");
  expects_size("logprob_summary", "moments", moments, turns, "turn");
  if (reasons > 0) expects_size("logprob_summary", "reasons", reasons, turns, "turn");
  if (turn_mean > 0) expects_size("logprob_summary", "turn_mean", turn_mean, turns, "turn");
}

}  // namespace detail

/// Mean negative log-prob and perplexity of a batch and of each turn, from the records of log_ratio_statistics: no
/// token is read again.
///
///     turn mean = -sum of log-probs / n;   token_mean = -sum over all tokens / N;   ppl = exp of a mean
///     rollout: the sampler's log-probs;    old: the trainer's, = rollout + log ratio (clamped to +-64)
///
/// Also called: entropy (sampled estimate), log perplexity. Trainers differ in the mean: by token, by turn (then exp),
/// or the mean of the turns' perplexities (verl, Dr. Kernel); the record has all three.
/// @param[in]  groups      any grouping of the batch: for the order of the sums.
/// @param[in]  statistics, moments  [S] from log_ratio_statistics. With one array of log-probs only, give it as both.
/// @param[in]  reasons     [S], or empty: all valid. Rejected turns count; invalid, no_token and non_finite ones do
///                         not.
/// @param[out] turn_mean   [S], or empty; nats a token, 0 where the turn does not count.
/// @throws precondition_error  sizes that differ; nothing is written.
/// @note  No turn that counts: means 0, perplexities 1. Tokens whose log ratio is NaN or infinite are left out, of
///        turns that count (usable_tokens under `neutral`) as well.
/// @note  The same bits for any order of trajectories; exp is the platform's, so its last digit may differ.
/// @par Complexity  O(S), no allocation.
/// @par Reference   ours; the three means are those of verl and Dr. Kernel.
/// @see turnwise::gpu::metrics::logprob_summary
inline logprob_record logprob_summary(grouping const& groups, std::span<importance::turn_statistics const> statistics,
                                      std::span<importance::ratio_moments const> moments,
                                      std::span<reason_flags const> reasons, logprob_summary_options const& options,
                                      std::span<double> turn_mean = {}) {
  detail::check_logprob_summary(groups.turns(), statistics.size(), moments.size(), reasons.size(), turn_mean.size());
  logprob_record record;
  record.turn_min = std::numeric_limits<double>::infinity();
  record.turn_max = -record.turn_min;
  auto const term = [&](std::size_t i) {
    auto const s = static_cast<std::size_t>(groups.order()[i]);
    return detail::logprob_term_of(statistics[s], moments[s], reasons.empty() ? 0 : reasons[s], options.source);
  };
  for (std::size_t i = 0; i < groups.turns(); ++i) {
    auto const one = term(i);
    auto const s = static_cast<std::size_t>(groups.order()[i]);
    if (!turn_mean.empty()) turn_mean[s] = one.mean;
    if (!one.counts) continue;
    ++record.turns;
    record.tokens += statistics[s].count;
    record.turn_min = std::min(record.turn_min, one.mean);
    record.turn_max = std::max(record.turn_max, one.mean);
  }
  auto const sum = [&](double detail::logprob_term::*part) {
    return ordered_sum(groups.turns(), [&](std::size_t i) { return term(i).*part; });
  };
  detail::finish(record, sum(&detail::logprob_term::sum), sum(&detail::logprob_term::mean),
                 sum(&detail::logprob_term::ppl));
  return record;
}

}  // namespace turnwise::metrics
