/// @file
/// The batch: where the tokens of each turn are, and which turns form a trajectory and a group.
#pragma once

#include <turnwise/core/concepts.hpp>
#include <turnwise/core/error.hpp>
#include <turnwise/core/reason.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace turnwise {

/// A batch of trajectories; owns nothing. S turns, J trajectories.
///
/// The turns of a trajectory are contiguous and in time order; trajectories stand in any order. Turn s holds the tokens
/// [turn_begin[s], turn_end[s]) of flat token arrays, so packed batches (offsets, offsets + 1) and padded ones
/// (row * width, row * width + length) look the same. Rows in any other order: see make_rollout.
struct rollout_view {
  std::span<std::int64_t const> turn_begin{};          ///< [S] first token
  std::span<std::int64_t const> turn_end{};            ///< [S] one past the last token; equal to begin: no tokens
  std::span<std::int64_t const> trajectory_offsets{};  ///< [J + 1] turns of trajectory j; empty: no trajectories
  std::span<std::int64_t const> group_id{};            ///< [J] the prompt; any 64-bit number
  std::span<std::int64_t const> trajectory_id{};       ///< [J] unique in its group
  std::span<std::int64_t const> turn_index{};          ///< [S] strictly increasing in a trajectory; empty: position
  std::span<std::uint8_t const> turn_valid{};          ///< [S] 0 = flagged off by the caller; empty: all on

  /// J.
  [[nodiscard]] constexpr std::size_t trajectories() const noexcept {
    return trajectory_offsets.empty() ? 0 : trajectory_offsets.size() - 1;
  }
  /// S.
  [[nodiscard]] constexpr std::size_t turns() const noexcept {
    return trajectory_offsets.empty() ? 0 : static_cast<std::size_t>(trajectory_offsets.back());
  }
  /// First turn of trajectory j (j = trajectories(): one past the last turn).
  [[nodiscard]] constexpr std::size_t first_turn(std::size_t j) const noexcept {
    return static_cast<std::size_t>(trajectory_offsets[j]);
  }
  /// Index in time of turn s, which belongs to trajectory j.
  [[nodiscard]] constexpr std::int64_t index_of(std::size_t j, std::size_t s) const noexcept {
    return turn_index.empty() ? static_cast<std::int64_t>(s - first_turn(j)) : turn_index[s];
  }
  /// Whether the caller flagged turn s off.
  [[nodiscard]] constexpr bool flagged_off(std::size_t s) const noexcept {
    return !turn_valid.empty() && turn_valid[s] == 0;
  }
};

/// The token arrays of a batch, N tokens each.
template <logprob_value Old, logprob_value Rollout>
struct token_logprobs {
  std::span<Old const> old_logprob{};          ///< [N] under the trainer's weights before the update, nats
  std::span<Rollout const> rollout_logprob{};  ///< [N] under the engine that sampled the token, nats
  std::span<std::uint8_t const> mask{};        ///< [N] 0 = not a generated token (an observation); empty: all on
};

/// Throws precondition_error unless offsets, ids and flags of the batch fit together. O(turns).
///
/// Token ranges are checked by check_token_ranges; that trajectory ids are unique in their group, by make_grouping.
inline void check_rollout(rollout_view const& batch, std::string_view function) {
  auto const& offsets = batch.trajectory_offsets;
  if (!offsets.empty()) {
    expects(offsets[0] == 0, function, ": trajectory_offsets[0] is ", offsets[0], ", expected 0");
    for (std::size_t j = 1; j < offsets.size(); ++j)
      expects(offsets[j] >= offsets[j - 1], function, ": trajectory_offsets[", j, "] = ", offsets[j],
              " is less than the offset before it, ", offsets[j - 1]);
    constexpr std::int64_t limit = std::int64_t{1} << 48;  // beyond it a wrong offset, for which nothing is allocated
    expects(offsets.back() <= limit, function, ": trajectory_offsets[", offsets.size() - 1, "] = ", offsets.back(),
            ", expected at most 2^48 turns");
  }
  expects_size(function, "group_id", batch.group_id.size(), batch.trajectories(), "trajectory");
  expects_size(function, "trajectory_id", batch.trajectory_id.size(), batch.trajectories(), "trajectory");
  if (!batch.turn_begin.empty()) expects_size(function, "turn_begin", batch.turn_begin.size(), batch.turns(), "turn");
  if (!batch.turn_end.empty()) expects_size(function, "turn_end", batch.turn_end.size(), batch.turns(), "turn");
  if (!batch.turn_valid.empty()) expects_size(function, "turn_valid", batch.turn_valid.size(), batch.turns(), "turn");
  if (batch.turn_index.empty()) return;
  expects_size(function, "turn_index", batch.turn_index.size(), batch.turns(), "turn");
  for (std::size_t j = 0; j < batch.trajectories(); ++j)
    for (std::size_t s = batch.first_turn(j) + 1; s < batch.first_turn(j + 1); ++s)
      expects(batch.turn_index[s] > batch.turn_index[s - 1], function, ": turn_index[", s, "] = ", batch.turn_index[s],
              " is not greater than that of the turn before it in the trajectory, ", batch.turn_index[s - 1]);
}

/// Throws precondition_error unless each turn's token range lies in an array of `tokens` elements. O(turns).
inline void check_token_ranges(rollout_view const& batch, std::size_t tokens, std::string_view function) {
  expects_size(function, "turn_begin", batch.turn_begin.size(), batch.turns(), "turn");
  expects_size(function, "turn_end", batch.turn_end.size(), batch.turns(), "turn");
  for (std::size_t s = 0; s < batch.turns(); ++s) {
    std::int64_t const begin = batch.turn_begin[s];
    std::int64_t const end = batch.turn_end[s];
    expects(begin >= 0 && begin <= end && static_cast<std::size_t>(end) <= tokens, function, ": turn ", s,
            " has tokens [", begin, ", ", end, "), expected a range within [0, ", tokens, ")");
  }
}

/// Throws precondition_error unless trajectory ids and turn indices fit the 32-bit words of the random counter.
inline void check_draw_ids(rollout_view const& batch, std::string_view function) {
  constexpr std::int64_t limit = std::int64_t{1} << 32;
  for (std::size_t j = 0; j < batch.trajectories(); ++j)
    expects(batch.trajectory_id[j] >= 0 && batch.trajectory_id[j] < limit, function, ": trajectory_id[", j,
            "] = ", batch.trajectory_id[j], " is outside [0, 2^32), which random draws need");
  for (std::size_t s = 0; s < batch.turn_index.size(); ++s)
    expects(batch.turn_index[s] >= 0 && batch.turn_index[s] < limit, function, ": turn_index[", s,
            "] = ", batch.turn_index[s], " is outside [0, 2^32), which random draws need");
}

/// Sets each turn's reasons to `invalid` where the caller flagged it off, else to none: the first step of a batch.
///
/// @param[out] reasons  [S], overwritten.
/// @throws precondition_error  an inconsistent batch or a wrong size.
/// @par Complexity  O(S), no allocation.
inline void begin_reasons(rollout_view const& batch, std::span<reason_flags> reasons) {
  check_rollout(batch, "begin_reasons");
  expects_size("begin_reasons", "reasons", reasons.size(), batch.turns(), "turn");
  for (std::size_t s = 0; s < reasons.size(); ++s) reasons[s] = batch.flagged_off(s) ? reason::invalid : 0;
}

}  // namespace turnwise
