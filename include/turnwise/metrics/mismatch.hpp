/// @file
/// What a step did: how far the sampler and the trainer disagree, and what was kept.
#pragma once

#include <turnwise/core/grouping.hpp>
#include <turnwise/core/ordered_sum.hpp>
#include <turnwise/importance/turn_statistics.hpp>
#include <turnwise/rejection/ratio_band.hpp>
#include <turnwise/reward/kernel_reward.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace turnwise::metrics {

/// Number of turns in a class, and how many of them are kept.
struct kept_count {
  std::int64_t turns = 0;
  std::int64_t kept = 0;

  /// Share kept; 0 without turns.
  [[nodiscard]] constexpr double rate() const noexcept {
    return turns == 0 ? 0.0 : static_cast<double>(kept) / static_cast<double>(turns);
  }
};

/// Keep counts of the turns whose number of unmasked tokens lies in [shortest, longest].
struct length_class {
  std::int64_t shortest = 0;
  std::int64_t longest = 0;
  kept_count count;
};

struct mismatch_options {
  /// Band by which turns count as low or high. Its level and kind are those of the filter.
  rejection::ratio_band_options band{};
  double low_keep_share = 0.1;  ///< kept share of valid turns below which `low_keep` is raised
  double fast_speedup = 1.0;    ///< correct turns above it count as fast
  double speedup_cap = std::numeric_limits<double>::infinity();  ///< correct turns above it are outliers
};

/// One record a step; every number is finite. "Ratio turns" are the valid turns with usable tokens (has_ratio); token
/// sums run over their unmasked tokens with a finite log ratio.
struct mismatch_record {
  std::int64_t turns = 0;              ///< S
  std::int64_t ratio_turns = 0;        ///< turns that the mismatch is taken over
  std::int64_t ratio_tokens = 0;       ///< their tokens
  std::int64_t non_finite_tokens = 0;  ///< tokens of valid turns whose log ratio is NaN or infinite
  std::int64_t saturated_tokens = 0;   ///< tokens of ratio turns clamped to +-64

  double kl = 0;                  ///< k1: mean of rollout - old, nats
  double k3 = 0;                  ///< mean of e^d - 1 - d
  double old_log_ppl = 0;         ///< minus the mean old log-prob, = rollout_log_ppl + kl
  double rollout_log_ppl = 0;     ///< minus the mean rollout log-prob
  double log_ppl_difference = 0;  ///< old - rollout, = kl
  double old_ppl = 1;             ///< exp, its argument clamped to +-64
  double rollout_ppl = 1;
  double chi2_token = 0;             ///< mean squared token ratio - 1
  double chi2_turn = 0;              ///< mean squared product ratio of a turn - 1, its log clamped to +-64
  double effective_sample_size = 1;  ///< (sum w)^2 / (n sum w^2) over token ratios, in (0, 1]
  double ratio_min = 1;              ///< smallest token ratio, its log clamped to +-64
  double ratio_max = 1;
  double low_turn_share = 0;    ///< share of ratio turns below the band
  double high_turn_share = 0;   ///< above it
  double low_token_share = 0;   ///< share of ratio tokens in turns below the band
  double high_token_share = 0;  ///< above it

  kept_count valid;                                          ///< valid turns
  std::int64_t kept_tokens = 0;                              ///< tokens of kept turns
  std::array<std::int64_t, reason::names.size()> reasons{};  ///< turns that carry each reason, in bit order
  std::array<length_class, 4> by_length{};                   ///< valid turns with tokens, by quartile of length
  kept_count correct;                                        ///< valid turns with C = 1
  kept_count incorrect;                                      ///< the other valid turns
  kept_count fast;                                           ///< correct turns faster than fast_speedup
  double kept_advantage_mean = 0;                            ///< mean advantage of kept turns
  std::int64_t negative_groups = 0;                          ///< groups whose kept turns all have a negative advantage
  std::int64_t rejected_to_one = 0;                          ///< groups of two or more valid turns with one left
  std::int64_t meaningless_profiles = 0;                     ///< valid correct turns whose profile has no meaning
  std::int64_t speedup_outliers = 0;                         ///< valid correct turns above the cap

  bool low_keep = false;          ///< kept share of valid turns below low_keep_share
  bool nothing_kept = false;      ///< no turn is kept
  bool profiler_suspect = false;  ///< over half of the valid correct turns lack a meaningful profile
};

namespace detail {

inline double clamped_exp(double log) {
  return std::exp(std::clamp(log, -importance::log_ratio_limit, importance::log_ratio_limit));
}

inline double share(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

inline void add(kept_count& count, reason_flags reasons) {
  ++count.turns;
  count.kept += is_kept(reasons) ? 1 : 0;
}

/// Everything that comes from log ratios, over the ratio turns in canonical order.
inline void add_ratios(mismatch_record& record, grouping const& groups,
                       std::span<importance::turn_statistics const> statistics,
                       std::span<importance::ratio_moments const> moments, std::span<reason_flags const> reasons) {
  auto const order = groups.order();
  auto const turn_sum = [&](auto value) {
    return ordered_sum(order.size(), [&](std::size_t i) {
      auto const s = static_cast<std::size_t>(order[i]);
      return has_ratio(reasons[s]) ? value(s) : 0.0;
    });
  };
  importance::turn_statistics total;
  for (std::int64_t const turn : order)
    if (auto const s = static_cast<std::size_t>(turn); has_ratio(reasons[s])) {
      total += statistics[s];
      ++record.ratio_turns;
    }
  record.ratio_tokens = total.count;
  record.saturated_tokens = total.saturated;
  if (total.count == 0) return;

  double const n = static_cast<double>(total.count);
  double const log_sum = total.log_sum();
  double const k3 = turn_sum([&](std::size_t s) { return moments[s].k3; });
  double const excess_squared = turn_sum([&](std::size_t s) { return moments[s].excess_squared; });
  record.kl = -log_sum / n;
  record.k3 = k3 / n;
  record.rollout_log_ppl = -turn_sum([&](std::size_t s) { return moments[s].rollout_logprob; }) / n;
  record.log_ppl_difference = record.kl;
  record.old_log_ppl = record.rollout_log_ppl + record.kl;
  record.old_ppl = clamped_exp(record.old_log_ppl);
  record.rollout_ppl = clamped_exp(record.rollout_log_ppl);
  record.chi2_token = (2 * (log_sum + k3) + excess_squared) / n;
  double const ratios = n + (log_sum + k3);
  double const squares = n + (2 * (log_sum + k3) + excess_squared);
  record.effective_sample_size = squares > 0 ? std::min(1.0, ratios / n * (ratios / squares)) : 1.0;
  record.ratio_min = clamped_exp(total.min);
  record.ratio_max = clamped_exp(total.max);
  record.chi2_turn = turn_sum([&](std::size_t s) {
                       double const ratio = clamped_exp(statistics[s].log_sum());
                       return statistics[s].count == 0 ? 1.0 : ratio * ratio;
                     }) / static_cast<double>(record.ratio_turns) -
                     1;
}

inline void add_band_shares(mismatch_record& record, rollout_view const& batch,
                            std::span<importance::turn_statistics const> statistics,
                            std::span<reason_flags const> reasons, rejection::ratio_band_options const& options) {
  auto const band = rejection::make_log_band(options, "mismatch");
  std::vector<reason_flags> sides(batch.turns());
  for (std::size_t s = 0; s < sides.size(); ++s) sides[s] = has_ratio(reasons[s]) ? 0 : reason::invalid;
  rejection::detail::apply_ratio_rule(batch, statistics, options.level, sides,
                                      [&](auto const& of_turns) { return rejection::band_reason(of_turns, band); });
  std::int64_t low_turns = 0, high_turns = 0, low_tokens = 0, high_tokens = 0;
  for (std::size_t s = 0; s < sides.size(); ++s) {
    bool const low = (sides[s] & reason::ratio_low) != 0;
    bool const high = (sides[s] & reason::ratio_high) != 0;
    low_turns += low;
    high_turns += high;
    low_tokens += low ? statistics[s].count : 0;
    high_tokens += high ? statistics[s].count : 0;
  }
  record.low_turn_share = share(low_turns, record.ratio_turns);
  record.high_turn_share = share(high_turns, record.ratio_turns);
  record.low_token_share = share(low_tokens, record.ratio_tokens);
  record.high_token_share = share(high_tokens, record.ratio_tokens);
}

inline void add_lengths(mismatch_record& record, std::span<importance::turn_statistics const> statistics,
                        std::span<reason_flags const> reasons) {
  auto const length = [&](std::size_t s) { return statistics[s].count + statistics[s].non_finite; };
  std::vector<std::int64_t> sorted;
  for (std::size_t s = 0; s < reasons.size(); ++s)
    if (is_valid(reasons[s]) && length(s) > 0) sorted.push_back(length(s));
  if (sorted.empty()) return;
  std::ranges::sort(sorted);
  std::array<std::int64_t, 4> edge;
  for (std::size_t q = 0; q < 4; ++q) edge[q] = sorted[((q + 1) * sorted.size() + 3) / 4 - 1];
  for (std::size_t s = 0; s < reasons.size(); ++s) {
    if (!is_valid(reasons[s]) || length(s) == 0) continue;
    std::size_t q = 0;
    while (length(s) > edge[q]) ++q;
    auto& of_quartile = record.by_length[q];
    of_quartile.shortest = of_quartile.count.turns == 0 ? length(s) : std::min(of_quartile.shortest, length(s));
    of_quartile.longest = std::max(of_quartile.longest, length(s));
    add(of_quartile.count, reasons[s]);
  }
}

template <real T>
void add_groups(mismatch_record& record, grouping const& groups, std::span<reason_flags const> reasons,
                std::span<T const> advantage) {
  double const sum = ordered_sum(groups.turns(), [&](std::size_t i) {
    auto const s = static_cast<std::size_t>(groups.order()[i]);
    return is_kept(reasons[s]) ? static_cast<double>(advantage[s]) : 0.0;
  });
  record.kept_advantage_mean = record.valid.kept == 0 ? 0.0 : sum / static_cast<double>(record.valid.kept);
  for (std::size_t g = 0; g < groups.groups(); ++g) {
    kept_count count;
    bool all_negative = true;
    for (std::int64_t const turn : groups.members(g)) {
      auto const s = static_cast<std::size_t>(turn);
      if (!is_valid(reasons[s])) continue;
      add(count, reasons[s]);
      if (is_kept(reasons[s])) all_negative = all_negative && advantage[s] < 0;
    }
    record.negative_groups += count.kept > 0 && all_negative;
    record.rejected_to_one += count.kept == 1 && count.turns > 1;
  }
}

template <real E>
void add_quality(mismatch_record& record, reward::evaluation<E> const& evaluation, mismatch_options const& options,
                 std::span<reason_flags const> reasons) {
  for (std::size_t s = 0; s < reasons.size(); ++s) {
    if (!is_valid(reasons[s])) continue;
    bool const correct = evaluation.counts_as_correct(s);
    add(correct ? record.correct : record.incorrect, reasons[s]);
    if (!correct) continue;
    double const speedup = static_cast<double>(evaluation.speedup[s]);
    if (speedup > options.fast_speedup) add(record.fast, reasons[s]);
    record.speedup_outliers += speedup > options.speedup_cap;
    if (!evaluation.total_us.empty())
      record.meaningless_profiles += !reward::has_profile(evaluation.generated_us[s], evaluation.total_us[s]);
  }
  record.profiler_suspect = 2 * record.meaningless_profiles > record.correct.turns;
}

}  // namespace detail

/// The metrics of one step, from turn records alone.
///
/// @param[in] groups      the grouping of the baseline.
/// @param[in] statistics, moments  [S] from log_ratio_statistics.
/// @param[in] reasons     [S] final.
/// @param[in] advantage   [S].
/// @param[in] evaluation  [S] each, or all empty: no counts by quality.
/// @throws precondition_error  sizes that differ, a bad band.
/// @note  Finite for any input. Everything rejected: rates 0, `nothing_kept` set. An empty batch: `nothing_kept`.
/// @note  The same bits for any order of trajectories and thread count; exp is the platform's, so its last digit may
///        differ between platforms.
/// @par Complexity  O(S log S), O(S) memory.
/// @par Reference   KL estimators: Schulman 2020. The set of metrics follows Dr. Kernel, arXiv:2602.05885, and verl.
template <real E, real T>
[[nodiscard]] mismatch_record mismatch(rollout_view const& batch, grouping const& groups,
                                       std::span<importance::turn_statistics const> statistics,
                                       std::span<importance::ratio_moments const> moments,
                                       std::span<reason_flags const> reasons, std::span<T const> advantage,
                                       reward::evaluation<E> const& evaluation, mismatch_options const& options) {
  check_rollout(batch, "mismatch");
  expects_size("mismatch", "groups", groups.turns(), batch.turns(), "turn");
  expects_size("mismatch", "statistics", statistics.size(), batch.turns(), "turn");
  expects_size("mismatch", "moments", moments.size(), batch.turns(), "turn");
  expects_size("mismatch", "reasons", reasons.size(), batch.turns(), "turn");
  expects_size("mismatch", "advantage", advantage.size(), batch.turns(), "turn");
  bool const evaluated = !evaluation.correct.empty();
  if (evaluated) reward::check_evaluation(evaluation, batch.turns(), "mismatch");

  mismatch_record record;
  record.turns = static_cast<std::int64_t>(batch.turns());
  for (std::size_t s = 0; s < reasons.size(); ++s) {
    for (std::size_t bit = 0; bit < record.reasons.size(); ++bit) record.reasons[bit] += (reasons[s] >> bit) & 1;
    if (!is_valid(reasons[s])) continue;
    detail::add(record.valid, reasons[s]);
    record.non_finite_tokens += statistics[s].non_finite;
    if (is_kept(reasons[s])) record.kept_tokens += statistics[s].count;
  }
  record.nothing_kept = record.valid.kept == 0;
  record.low_keep = record.valid.turns > 0 && record.valid.rate() < options.low_keep_share;
  detail::add_ratios(record, groups, statistics, moments, reasons);
  detail::add_band_shares(record, batch, statistics, reasons, options.band);
  detail::add_lengths(record, statistics, reasons);
  detail::add_groups(record, groups, reasons, advantage);
  if (evaluated) detail::add_quality(record, evaluation, options, reasons);
  return record;
}

}  // namespace turnwise::metrics
