/// @file
/// How long turns and trajectories are, and how many were cut.
#pragma once

#include <turnwise/core/rollout.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

namespace turnwise::metrics {

/// Options of `length_statistics`.
struct length_statistics_options {
  std::array<double, 5> quantiles{0.25, 0.5, 0.75, 0.9, 0.99};  ///< in [0, 1]
};

/// Distribution of a count; all 0 when nothing was counted.
struct length_summary {
  std::int64_t count = 0;                   ///< how many lengths
  std::int64_t total = 0;                   ///< their sum
  std::int64_t min = 0;                     ///< shortest
  std::int64_t max = 0;                     ///< longest
  double mean = 0;                          ///< total / count
  std::array<std::int64_t, 5> quantiles{};  ///< of the options, in their order

  friend constexpr bool operator==(length_summary const&, length_summary const&) = default;
};

/// Lengths of a batch; every number is finite.
struct length_record {
  length_summary turn_tokens;               ///< tokens of a turn
  length_summary trajectory_turns;          ///< turns of a trajectory
  length_summary trajectory_tokens;         ///< tokens of a trajectory
  std::int64_t empty_trajectories = 0;      ///< without a turn that is not flagged off: in no distribution
  std::int64_t truncated_turns = 0;         ///< turns that were cut
  std::int64_t truncated_trajectories = 0;  ///< trajectories that were cut

  /// Share of turns that were cut; 0 without turns.
  [[nodiscard]] constexpr double turn_truncation_rate() const noexcept {
    return turn_tokens.count == 0 ? 0.0 : static_cast<double>(truncated_turns) / static_cast<double>(turn_tokens.count);
  }
  /// Share of trajectories that were cut; 0 without trajectories.
  [[nodiscard]] constexpr double trajectory_truncation_rate() const noexcept {
    return trajectory_turns.count == 0
               ? 0.0
               : static_cast<double>(truncated_trajectories) / static_cast<double>(trajectory_turns.count);
  }
  friend constexpr bool operator==(length_record const&, length_record const&) = default;
};

/// Rank of quantile q among n values, from 1: the smallest r with r / n >= q, at least 1; n >= 1 and q in [0, 1].
[[nodiscard]] inline std::int64_t quantile_rank(double q, std::int64_t n) noexcept {
  auto const reaches = [&](std::int64_t r) { return static_cast<double>(r) / static_cast<double>(n) >= q; };
  // The product may round to either side of a whole number; the quotient decides.
  double const product = std::ceil(q * static_cast<double>(n));
  auto rank = product < static_cast<double>(n) ? std::max<std::int64_t>(static_cast<std::int64_t>(product), 1) : n;
  while (rank > 1 && reaches(rank - 1)) --rank;
  while (rank < n && !reaches(rank)) ++rank;
  return rank;
}

namespace detail {

/// Sorts the lengths and sums them up.
inline length_summary summary_of(std::vector<std::int64_t>& lengths, length_statistics_options const& options) {
  length_summary result;
  if (lengths.empty()) return result;
  std::ranges::sort(lengths);
  result.count = static_cast<std::int64_t>(lengths.size());
  for (std::int64_t const length : lengths) result.total += length;
  result.min = lengths.front();
  result.max = lengths.back();
  result.mean = static_cast<double>(result.total) / static_cast<double>(result.count);
  for (std::size_t i = 0; i < options.quantiles.size(); ++i)
    result.quantiles[i] = lengths[static_cast<std::size_t>(quantile_rank(options.quantiles[i], result.count) - 1)];
  return result;
}

inline void check_lengths(rollout_view const& batch, std::span<std::uint8_t const> turn_truncated,
                          std::span<std::uint8_t const> trajectory_truncated,
                          length_statistics_options const& options) {
  constexpr std::string_view name = "length_statistics";
  check_rollout(batch, name);
  expects_size(name, "turn_begin", batch.turn_begin.size(), batch.turns(), "turn");
  expects_size(name, "turn_end", batch.turn_end.size(), batch.turns(), "turn");
  if (!turn_truncated.empty()) expects_size(name, "turn_truncated", turn_truncated.size(), batch.turns(), "turn");
  if (!trajectory_truncated.empty())
    expects_size(name, "trajectory_truncated", trajectory_truncated.size(), batch.trajectories(), "trajectory");
  std::int64_t left = std::numeric_limits<std::int64_t>::max();
  for (std::size_t s = 0; s < batch.turns(); ++s) {
    expects(batch.turn_begin[s] >= 0 && batch.turn_begin[s] <= batch.turn_end[s], name, ": turn ", s, " has tokens [",
            batch.turn_begin[s], ", ", batch.turn_end[s], "), expected a range");
    std::int64_t const length = batch.flagged_off(s) ? 0 : batch.turn_end[s] - batch.turn_begin[s];
    expects(length <= left, name, ": turn ", s, " has ", length,
            " tokens, which makes more than 2^63 - 1 of the batch");
    left -= length;
  }
  for (std::size_t i = 0; i < options.quantiles.size(); ++i)
    expects(options.quantiles[i] >= 0 && options.quantiles[i] <= 1, name, ": quantiles[", i,
            "] = ", options.quantiles[i], ", expected [0, 1]");
}

}  // namespace detail

/// Distributions of lengths, from the raw lengths: turn_end - turn_begin. No mask and no reason enters: an answer that
/// the loss leaves out is as long as it is.
///
///     quantile q = the r-th smallest of n lengths, r the smallest with r / n >= q (nearest rank, no interpolation)
///
/// @param[in] batch                 S turns with their token ranges. Turns flagged off were not sampled and count
///                                  nowhere; turns without tokens count with length 0.
/// @param[in] turn_truncated        [S] 1 = cut at a limit, or empty: none.
/// @param[in] trajectory_truncated  [J] likewise, or empty: a trajectory is cut if one of its turns is.
/// @throws precondition_error  sizes that differ, an inconsistent batch, a token range that is none, more than 2^63 - 1
///         tokens together, a quantile outside [0, 1].
/// @note  A trajectory without a turn that counts is in no distribution and no rate; empty_trajectories tells how many.
/// @note  Deterministic: integers but for the means and rates, one division each; the same bits for any order of
///        trajectories and any compiler.
/// @par Complexity  O(S log S) time, O(S) memory.
/// @par Reference   ours.
[[nodiscard]] inline length_record length_statistics(rollout_view const& batch,
                                                     std::span<std::uint8_t const> turn_truncated,
                                                     std::span<std::uint8_t const> trajectory_truncated,
                                                     length_statistics_options const& options) {
  detail::check_lengths(batch, turn_truncated, trajectory_truncated, options);
  length_record record;
  std::vector<std::int64_t> of_turns, turns, tokens;
  for (std::size_t j = 0; j < batch.trajectories(); ++j) {
    std::int64_t number = 0;
    std::int64_t sum = 0;
    bool cut = false;
    for (std::size_t s = batch.first_turn(j); s < batch.first_turn(j + 1); ++s) {
      if (batch.flagged_off(s)) continue;
      std::int64_t const length = batch.turn_end[s] - batch.turn_begin[s];
      bool const turn_cut = !turn_truncated.empty() && turn_truncated[s] != 0;
      of_turns.push_back(length);
      record.truncated_turns += turn_cut;
      ++number;
      sum += length;
      cut |= turn_cut;
    }
    if (number == 0) {
      ++record.empty_trajectories;
      continue;
    }
    turns.push_back(number);
    tokens.push_back(sum);
    record.truncated_trajectories += trajectory_truncated.empty() ? cut : trajectory_truncated[j] != 0;
  }
  record.turn_tokens = detail::summary_of(of_turns, options);
  record.trajectory_turns = detail::summary_of(turns, options);
  record.trajectory_tokens = detail::summary_of(tokens, options);
  return record;
}

}  // namespace turnwise::metrics
