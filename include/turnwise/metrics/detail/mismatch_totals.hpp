/// @file
/// The formulas by which both backends fill the record of mismatch.
#pragma once

#include <turnwise/core/reason.hpp>
#include <turnwise/importance/turn_statistics.hpp>
#include <turnwise/metrics/mismatch_record.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace turnwise::metrics {
namespace detail {

/// exp, its argument clamped to +-64.
TURNWISE_HOST_DEVICE inline double clamped_exp(double log) {
  constexpr double limit = importance::log_ratio_limit;
  using std::exp;
  return exp(log < -limit ? -limit : limit < log ? limit : log);
}

TURNWISE_HOST_DEVICE constexpr double share(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

/// The elements of a std::array, whose functions are not for the device.
template <typename T, std::size_t N>
TURNWISE_HOST_DEVICE auto elements(std::array<T, N>& array) -> T (&)[N] {
  static_assert(sizeof(array) == N * sizeof(T));
  return reinterpret_cast<T(&)[N]>(array);
}

struct side_count {
  std::int64_t turns = 0, tokens = 0;

  TURNWISE_HOST_DEVICE constexpr void operator+=(side_count const& other) noexcept {
    turns += other.turns;
    tokens += other.tokens;
  }
};

/// What the doubles of a record come from; the sums of doubles in canonical order.
struct record_totals {
  importance::turn_statistics ratio;  ///< over the ratio turns, as the next two
  importance::ratio_moments moments;
  double squared_ratios = 0;  ///< sum of squared_ratio
  double kept_advantage = 0;
  side_count low, high;  ///< ratio turns outside the band
};

TURNWISE_HOST_DEVICE inline void add(kept_count& count, reason_flags reasons) {
  ++count.turns;
  count.kept += is_kept(reasons) ? 1 : 0;
}

/// Counts a turn by its reasons and its tokens.
TURNWISE_HOST_DEVICE inline void add_turn(mismatch_record& record, record_totals& totals, reason_flags reasons,
                                          importance::turn_statistics const& statistics) {
  int bit = 0;
  for (auto& count : elements(record.reasons)) count += (reasons >> bit++) & 1;
  if (has_ratio(reasons)) {
    totals.ratio += statistics;
    ++record.ratio_turns;
  }
  if (!is_valid(reasons)) return;
  add(record.valid, reasons);
  record.non_finite_tokens += statistics.non_finite;
  if (is_kept(reasons)) record.kept_tokens += statistics.count;
}

/// Counts a ratio turn on its side of the band.
TURNWISE_HOST_DEVICE inline void add_side(record_totals& totals, reason_flags side, std::int64_t tokens) {
  totals.low += side == reason::ratio_low ? side_count{1, tokens} : side_count{};
  totals.high += side == reason::ratio_high ? side_count{1, tokens} : side_count{};
}

/// Counts a valid turn by its quality; `meaningless`: it has a profile without meaning.
TURNWISE_HOST_DEVICE inline void add_quality(mismatch_record& record, reason_flags reasons, bool correct,
                                             double speedup, bool meaningless, mismatch_options const& options) {
  if (!correct) return add(record.incorrect, reasons);
  add(record.correct, reasons);
  if (speedup > options.fast_speedup) add(record.fast, reasons);
  record.speedup_outliers += speedup > options.speedup_cap;
  record.meaningless_profiles += meaningless;
}

/// Counts a group by its valid turns, and those of its kept turns that have a negative advantage.
TURNWISE_HOST_DEVICE inline void add_group(mismatch_record& record, kept_count const& valid, std::int64_t negative) {
  record.negative_groups += valid.kept > 0 && negative == valid.kept;
  record.rejected_to_one += valid.kept == 1 && valid.turns > 1;
}

/// Length of a turn in length classes; a valid turn of length 0 is in none.
TURNWISE_HOST_DEVICE inline std::int64_t length_of(importance::turn_statistics const& statistics) {
  return statistics.count + statistics.non_finite;
}

/// Longest length of each of the first three quartiles of `count` sorted lengths, at least one.
struct quartile_edges {
  std::int64_t longest[3];

  TURNWISE_HOST_DEVICE quartile_edges(std::int64_t const* sorted, std::size_t count) {
    for (std::size_t q = 0; q < 3; ++q) longest[q] = sorted[((q + 1) * count + 3) / 4 - 1];
  }
  [[nodiscard]] TURNWISE_HOST_DEVICE int quartile(std::int64_t length) const {
    return (length > longest[0]) + (length > longest[1]) + (length > longest[2]);
  }
};

/// Shortest and longest of each class, whose turns follow each other in the sorted lengths.
TURNWISE_HOST_DEVICE inline void finish_lengths(mismatch_record& record, std::int64_t const* sorted) {
  for (auto& of_quartile : elements(record.by_length)) {
    if (of_quartile.count.turns == 0) continue;
    of_quartile.shortest = sorted[0];
    sorted += of_quartile.count.turns;
    of_quartile.longest = sorted[-1];
  }
}

/// Squared product ratio of a turn.
TURNWISE_HOST_DEVICE inline double squared_ratio(importance::turn_statistics const& statistics) {
  double const ratio = clamped_exp(statistics.log_sum());
  return statistics.count == 0 ? 1.0 : ratio * ratio;
}

/// Everything that follows from the counts and totals.
TURNWISE_HOST_DEVICE inline void finish(mismatch_record& record, record_totals const& totals,
                                        mismatch_options const& options) {
  auto const& [total, moments, squared_ratios, kept_advantage, low, high] = totals;
  record.nothing_kept = record.valid.kept == 0;
  record.low_keep = record.valid.turns > 0 && record.valid.rate() < options.low_keep_share;
  if (!record.nothing_kept) record.kept_advantage_mean = kept_advantage / static_cast<double>(record.valid.kept);
  record.profiler_suspect = 2 * record.meaningless_profiles > record.correct.turns;
  record.ratio_tokens = total.count;
  record.saturated_tokens = total.saturated;
  record.low_turn_share = share(low.turns, record.ratio_turns);
  record.high_turn_share = share(high.turns, record.ratio_turns);
  record.low_token_share = share(low.tokens, total.count);
  record.high_token_share = share(high.tokens, total.count);
  if (total.count == 0) return;

  double const n = static_cast<double>(total.count);
  double const log_sum = total.log_sum();
  record.kl = -log_sum / n;
  record.k3 = moments.k3 / n;
  record.rollout_log_ppl = -moments.rollout_logprob / n;
  record.log_ppl_difference = record.kl;
  record.old_log_ppl = record.rollout_log_ppl + record.kl;
  record.old_ppl = clamped_exp(record.old_log_ppl);
  record.rollout_ppl = clamped_exp(record.rollout_log_ppl);
  record.chi2_token = (2 * (log_sum + moments.k3) + moments.excess_squared) / n;
  double const ratios = n + (log_sum + moments.k3);
  double const squares = n + (2 * (log_sum + moments.k3) + moments.excess_squared);
  double const size = squares > 0 ? ratios / n * (ratios / squares) : 1.0;
  record.effective_sample_size = size < 1.0 ? size : 1.0;
  record.ratio_min = clamped_exp(total.min);
  record.ratio_max = clamped_exp(total.max);
  record.chi2_turn = squared_ratios / static_cast<double>(record.ratio_turns) - 1;
}

}  // namespace detail
}  // namespace turnwise::metrics
