/// @file
/// Brings rows in any order into the form of rollout_view.
#pragma once

#include <turnwise/core/rollout.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <tuple>
#include <vector>

namespace turnwise {

/// One row a turn, in any order.
struct turn_rows {
  std::span<std::int64_t const> group_id{};       ///< [S]
  std::span<std::int64_t const> trajectory_id{};  ///< [S]
  std::span<std::int64_t const> turn_index{};     ///< [S] not negative; need not be contiguous
  std::span<std::int64_t const> turn_begin{};     ///< [S] first token; both empty: a batch without tokens
  std::span<std::int64_t const> turn_end{};       ///< [S] one past the last token
  std::span<std::uint8_t const> turn_valid{};     ///< [S] or empty
};

/// Where a trajectory id must be unique: in its group (the same id in two groups is two trajectories), or in the batch
/// (the same id in two groups is an error).
enum class trajectory_scope : std::uint8_t { group, batch };

/// An owning batch, its turns sorted by (group, trajectory, turn), and the permutation back to the rows.
struct rollout {
  std::vector<std::int64_t> turn_begin,  ///< [S], as all of these in rollout_view
      turn_end,                          ///< [S]
      trajectory_offsets,                ///< [J + 1]
      group_id,                          ///< [J]
      trajectory_id,                     ///< [J]
      turn_index;                        ///< [S]
  std::vector<std::uint8_t> turn_valid;  ///< [S] or empty
  std::vector<std::size_t> row;          ///< [S] the input row of each turn

  /// The batch as all functions take it; valid as long as this object is.
  [[nodiscard]] rollout_view view() const noexcept {
    return {turn_begin, turn_end, trajectory_offsets, group_id, trajectory_id, turn_index, turn_valid};
  }

  /// out[s] = values[row[s]]: from row order to turn order. Spans of S elements that do not overlap.
  template <typename T>
  void gather(no_deduce<std::span<T const>> values, std::span<T> out) const {
    expects_size("gather", "values", values.size(), row.size(), "turn");
    expects_size("gather", "out", out.size(), row.size(), "turn");
    for (std::size_t s = 0; s < row.size(); ++s) out[s] = values[row[s]];
  }

  /// out[row[s]] = values[s]: from turn order to row order. Spans of S elements that do not overlap.
  template <typename T>
  void scatter(no_deduce<std::span<T const>> values, std::span<T> out) const {
    expects_size("scatter", "values", values.size(), row.size(), "turn");
    expects_size("scatter", "out", out.size(), row.size(), "turn");
    for (std::size_t s = 0; s < row.size(); ++s) out[row[s]] = values[s];
  }
};

namespace detail {

/// Throws if two rows are one turn or, with trajectory_scope::batch, if a trajectory is in two groups. `sorted`: rows by
/// (group, trajectory, turn).
inline void check_row_order(turn_rows const& rows, std::vector<std::size_t> sorted, trajectory_scope scope) {
  // Sorted neighbours show what is wrong; the first bad row in input order is the one to name.
  std::size_t const turns = sorted.size();
  std::size_t bad = turns;
  for (std::size_t s = 1; s < turns; ++s) {
    std::size_t const earlier = sorted[s - 1];
    std::size_t const later = sorted[s];
    if (rows.group_id[later] == rows.group_id[earlier] && rows.trajectory_id[later] == rows.trajectory_id[earlier] &&
        rows.turn_index[later] == rows.turn_index[earlier])
      bad = std::min(bad, later);
  }
  expects(bad == turns, "make_rollout: row ", bad, " repeats turn ", bad < turns ? rows.turn_index[bad] : 0,
          " of trajectory ", bad < turns ? rows.trajectory_id[bad] : 0);
  if (scope == trajectory_scope::group) return;
  std::ranges::sort(sorted, {}, [&](std::size_t r) { return std::pair{rows.trajectory_id[r], r}; });
  for (std::size_t s = 1; s < turns; ++s) {
    std::size_t const earlier = sorted[s - 1];
    std::size_t const later = sorted[s];
    if (rows.trajectory_id[later] == rows.trajectory_id[earlier] && rows.group_id[later] != rows.group_id[earlier])
      bad = std::min(bad, later);
  }
  expects(bad == turns, "make_rollout: row ", bad, " puts trajectory ", bad < turns ? rows.trajectory_id[bad] : 0,
          " into a second group, ", bad < turns ? rows.group_id[bad] : 0);
}

}  // namespace detail

/// Sorts rows by (group, trajectory, turn) and cuts them into trajectories.
///
/// @throws precondition_error  sizes that differ, a negative trajectory id or turn index, the same (group, trajectory,
///         turn) twice, or, with trajectory_scope::batch, a trajectory in two groups; the message names the first bad
///         row in input order.
/// @note  Empty rows give an empty batch. Token ranges are checked where tokens are read.
/// @par Complexity  O(S log S) time, O(S) memory.
[[nodiscard]] inline rollout make_rollout(turn_rows const& rows, trajectory_scope scope = trajectory_scope::group) {
  std::size_t const turns = rows.group_id.size();
  expects_size("make_rollout", "trajectory_id", rows.trajectory_id.size(), turns, "turn");
  expects_size("make_rollout", "turn_index", rows.turn_index.size(), turns, "turn");
  if (!rows.turn_begin.empty() || !rows.turn_end.empty()) {
    expects_size("make_rollout", "turn_begin", rows.turn_begin.size(), turns, "turn");
    expects_size("make_rollout", "turn_end", rows.turn_end.size(), turns, "turn");
  }
  if (!rows.turn_valid.empty()) expects_size("make_rollout", "turn_valid", rows.turn_valid.size(), turns, "turn");
  for (std::size_t r = 0; r < turns; ++r) {
    expects(rows.trajectory_id[r] >= 0, "make_rollout: trajectory_id[", r, "] = ", rows.trajectory_id[r],
            " is negative");
    expects(rows.turn_index[r] >= 0, "make_rollout: turn_index[", r, "] = ", rows.turn_index[r], " is negative");
  }

  rollout batch;
  batch.row.resize(turns);
  std::iota(batch.row.begin(), batch.row.end(), std::size_t{0});
  auto const key = [&](std::size_t r) {
    return std::tuple{rows.group_id[r], rows.trajectory_id[r], rows.turn_index[r], r};
  };
  std::ranges::sort(batch.row, {}, key);

  detail::check_row_order(rows, batch.row, scope);
  for (std::size_t s = 0; s < turns; ++s) {
    std::size_t const r = batch.row[s];
    bool const starts =
        s == 0 || rows.group_id[r] != batch.group_id.back() || rows.trajectory_id[r] != batch.trajectory_id.back();
    if (starts) {
      batch.trajectory_offsets.push_back(static_cast<std::int64_t>(s));
      batch.group_id.push_back(rows.group_id[r]);
      batch.trajectory_id.push_back(rows.trajectory_id[r]);
    }
    batch.turn_index.push_back(rows.turn_index[r]);
    if (!rows.turn_begin.empty()) {
      batch.turn_begin.push_back(rows.turn_begin[r]);
      batch.turn_end.push_back(rows.turn_end[r]);
    }
    if (!rows.turn_valid.empty()) batch.turn_valid.push_back(rows.turn_valid[r]);
  }
  batch.trajectory_offsets.push_back(static_cast<std::int64_t>(turns));
  return batch;
}

}  // namespace turnwise
