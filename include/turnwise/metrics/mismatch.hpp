/// @file
/// What a step did: how far the sampler and the trainer disagree, and what was kept.
#pragma once

#include <turnwise/core/grouping.hpp>
#include <turnwise/core/ordered_sum.hpp>
#include <turnwise/metrics/detail/mismatch_totals.hpp>
#include <turnwise/metrics/mismatch_record.hpp>
#include <turnwise/reward/evaluation.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace turnwise::metrics {
namespace detail {

inline void count_sides(record_totals& totals, rollout_view const& batch,
                        std::span<importance::turn_statistics const> statistics, std::span<reason_flags const> reasons,
                        rejection::ratio_band_options const& options) {
  auto const band = rejection::make_log_band(options, "mismatch");
  bool const by_trajectory = options.level == rejection::scope::trajectory;
  for (std::size_t j = 0; j < batch.trajectories(); ++j) {
    reason_flags const of_trajectory =
        by_trajectory
            ? rejection::band_reason(rejection::detail::trajectory_statistics(batch, statistics, reasons, j), band)
            : 0;
    for (std::size_t s = batch.first_turn(j); s < batch.first_turn(j + 1); ++s)
      if (has_ratio(reasons[s]))
        add_side(totals, by_trajectory ? of_trajectory : rejection::band_reason(statistics[s], band),
                 statistics[s].count);
  }
}

inline void count_lengths(mismatch_record& record, std::span<importance::turn_statistics const> statistics,
                          std::span<reason_flags const> reasons) {
  std::vector<std::int64_t> sorted;
  auto const has_length = [&](std::size_t s) { return is_valid(reasons[s]) && length_of(statistics[s]) > 0; };
  for (std::size_t s = 0; s < reasons.size(); ++s)
    if (has_length(s)) sorted.push_back(length_of(statistics[s]));
  if (sorted.empty()) return;
  std::ranges::sort(sorted);
  quartile_edges const edges{sorted.data(), sorted.size()};
  for (std::size_t s = 0; s < reasons.size(); ++s)
    if (has_length(s))
      add(record.by_length[static_cast<std::size_t>(edges.quartile(length_of(statistics[s])))].count, reasons[s]);
  finish_lengths(record, sorted.data());
}

template <real T>
void count_groups(mismatch_record& record, grouping const& groups, std::span<reason_flags const> reasons,
                  std::span<T const> advantage) {
  for (std::size_t g = 0; g < groups.groups(); ++g) {
    kept_count valid;
    std::int64_t negative = 0;
    for (std::int64_t const turn : groups.members(g)) {
      auto const s = static_cast<std::size_t>(turn);
      if (is_valid(reasons[s])) add(valid, reasons[s]);
      negative += is_kept(reasons[s]) && advantage[s] < 0;
    }
    add_group(record, valid, negative);
  }
}

template <real E>
void count_quality(mismatch_record& record, reward::evaluation<E> const& evaluation, mismatch_options const& options,
                   std::span<reason_flags const> reasons) {
  for (std::size_t s = 0; s < reasons.size(); ++s)
    if (is_valid(reasons[s]))
      add_quality(
          record, reasons[s], evaluation.counts_as_correct(s), static_cast<double>(evaluation.speedup[s]),
          !evaluation.total_us.empty() && !reward::has_profile(evaluation.generated_us[s], evaluation.total_us[s]),
          options);
}

/// The sums of doubles, over all turns in canonical order.
template <real T>
void sum_turns(record_totals& totals, grouping const& groups, std::span<importance::turn_statistics const> statistics,
               std::span<importance::ratio_moments const> moments, std::span<reason_flags const> reasons,
               std::span<T const> advantage) {
  auto const sum = [&](auto takes, auto value) {
    return ordered_sum(groups.turns(), [&](std::size_t i) {
      auto const s = static_cast<std::size_t>(groups.order()[i]);
      return takes(reasons[s]) ? value(s) : 0.0;
    });
  };
  totals.kept_advantage = sum(is_kept, [&](std::size_t s) { return static_cast<double>(advantage[s]); });
  if (totals.ratio.count == 0) return;
  totals.moments.k3 = sum(has_ratio, [&](std::size_t s) { return moments[s].k3; });
  totals.moments.excess_squared = sum(has_ratio, [&](std::size_t s) { return moments[s].excess_squared; });
  totals.moments.rollout_logprob = sum(has_ratio, [&](std::size_t s) { return moments[s].rollout_logprob; });
  totals.squared_ratios = sum(has_ratio, [&](std::size_t s) { return squared_ratio(statistics[s]); });
}

}  // namespace detail

/// The metrics of one step, from turn records alone.
///
/// @param[in] groups      the grouping of the baseline.
/// @param[in] statistics, moments  [S] from log_ratio_statistics.
/// @param[in] reasons     [S] final.
/// @param[in] advantage   [S], as leave_one_out or group_relative writes it.
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
  detail::record_totals totals;
  record.turns = static_cast<std::int64_t>(batch.turns());
  for (std::size_t s = 0; s < reasons.size(); ++s) detail::add_turn(record, totals, reasons[s], statistics[s]);
  detail::count_sides(totals, batch, statistics, reasons, options.band);
  detail::count_lengths(record, statistics, reasons);
  detail::count_groups(record, groups, reasons, advantage);
  if (evaluated) detail::count_quality(record, evaluation, options, reasons);
  detail::sum_turns(totals, groups, statistics, moments, reasons, advantage);
  detail::finish(record, totals, options);
  return record;
}

}  // namespace turnwise::metrics
