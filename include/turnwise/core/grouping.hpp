/// @file
/// Which turns are compared with each other. Built once a batch; every baseline takes one.
#pragma once

#include <turnwise/core/rollout.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace turnwise {

/// What makes a group: the prompt, the prompt and the turn index (a turn group), or the whole batch.
enum class group_by : std::uint8_t { group, turn, batch };

/// Groups of turns (CSR), members in canonical order: by group id, trajectory id, turn. The order of trajectories in
/// memory does not show. Groups stand in the order of (group id, turn index).
///
/// Each group has a pool: the trajectories it was drawn from (those of its prompt, or of the batch), which is where
/// leave_one_out looks for others when a member is alone.
class grouping {
 public:
  /// Turns of the batch.
  [[nodiscard]] std::size_t turns() const noexcept { return members_.size(); }
  /// Number of groups.
  [[nodiscard]] std::size_t groups() const noexcept { return offsets_.size() - 1; }
  /// Trajectories of the batch.
  [[nodiscard]] std::size_t trajectories() const noexcept {
    return trajectory_offsets_.empty() ? 0 : trajectory_offsets_.size() - 1;
  }
  /// All turns, group after group, in canonical order.
  [[nodiscard]] std::span<std::int64_t const> order() const noexcept { return members_; }
  /// Turns of group g.
  [[nodiscard]] std::span<std::int64_t const> members(std::size_t g) const noexcept {
    return slice(members_, offsets_, g);
  }
  /// Trajectory of each member of group g; members of one trajectory are adjacent.
  [[nodiscard]] std::span<std::int64_t const> trajectories(std::size_t g) const noexcept {
    return slice(trajectories_, offsets_, g);
  }
  /// Trajectories of the pool of group g, in canonical order.
  [[nodiscard]] std::span<std::int64_t const> pool(std::size_t g) const noexcept {
    return slice(pool_members_, pool_offsets_, static_cast<std::size_t>(pool_[g]));
  }
  /// Turns [first, last) of trajectory j.
  [[nodiscard]] std::pair<std::size_t, std::size_t> turns_of(std::int64_t j) const noexcept {
    auto const index = static_cast<std::size_t>(j);
    return {static_cast<std::size_t>(trajectory_offsets_[index]),
            static_cast<std::size_t>(trajectory_offsets_[index + 1])};
  }

 private:
  using indices = std::vector<std::int64_t>;
  static std::span<std::int64_t const> slice(indices const& values, indices const& offsets, std::size_t i) noexcept {
    auto const first = static_cast<std::size_t>(offsets[i]);
    return {values.data() + first, static_cast<std::size_t>(offsets[i + 1]) - first};
  }
  void add(std::int64_t turn, std::int64_t trajectory) {
    members_.push_back(turn);
    trajectories_.push_back(trajectory);
  }
  void close_group() {
    if (static_cast<std::int64_t>(members_.size()) == offsets_.back()) return;
    offsets_.push_back(static_cast<std::int64_t>(members_.size()));
    pool_.push_back(static_cast<std::int64_t>(pool_offsets_.size()) - 1);
  }

  indices offsets_{0}, members_, trajectories_, pool_, pool_offsets_{0}, pool_members_, trajectory_offsets_;

  friend grouping make_grouping(rollout_view const&, group_by);
};

/// Builds a grouping of all turns of the batch, valid or not.
///
/// @throws precondition_error  an inconsistent batch, or a trajectory id twice in a group.
/// @note  No trajectories: no groups. Trajectories without turns belong to a pool and to no group.
/// @par Complexity  O(S + J log J), for group_by::turn O(S log S) at worst; memory O(S + J).
[[nodiscard]] inline grouping make_grouping(rollout_view const& batch, group_by by) {
  check_rollout(batch, "make_grouping");
  std::vector<std::int64_t> order(batch.trajectories());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  auto const key = [&](std::int64_t j) {
    auto const index = static_cast<std::size_t>(j);
    return std::pair{batch.group_id[index], batch.trajectory_id[index]};
  };
  std::ranges::stable_sort(order, {}, key);
  std::int64_t bad = static_cast<std::int64_t>(order.size());
  for (std::size_t i = 1; i < order.size(); ++i)
    if (key(order[i - 1]) == key(order[i])) bad = std::min(bad, std::max(order[i - 1], order[i]));
  if (bad < static_cast<std::int64_t>(order.size()))
    fail("make_grouping: trajectory_id[", bad, "] = ", key(bad).second, " occurs twice in group ", key(bad).first);

  grouping result;
  result.trajectory_offsets_.assign(batch.trajectory_offsets.begin(), batch.trajectory_offsets.end());
  result.members_.reserve(batch.turns());
  result.trajectories_.reserve(batch.turns());
  result.pool_members_ = order;

  struct indexed_turn {
    std::int64_t index, turn, trajectory;
  };
  std::vector<indexed_turn> turns_of_group;
  std::size_t next = 0;
  while (next < order.size()) {
    std::int64_t const group = key(order[next]).first;
    turns_of_group.clear();
    for (; next < order.size() && (by == group_by::batch || key(order[next]).first == group); ++next) {
      auto const j = static_cast<std::size_t>(order[next]);
      for (std::size_t s = batch.first_turn(j); s < batch.first_turn(j + 1); ++s)
        turns_of_group.push_back({batch.index_of(j, s), static_cast<std::int64_t>(s), order[next]});
    }
    if (by == group_by::turn) std::ranges::stable_sort(turns_of_group, {}, &indexed_turn::index);
    for (std::size_t i = 0; i < turns_of_group.size(); ++i) {
      if (by == group_by::turn && i > 0 && turns_of_group[i].index != turns_of_group[i - 1].index) result.close_group();
      result.add(turns_of_group[i].turn, turns_of_group[i].trajectory);
    }
    result.close_group();
    result.pool_offsets_.push_back(static_cast<std::int64_t>(next));
  }
  return result;
}

/// Groups single-turn samples by their group id: sample i is a trajectory of one turn, members in index order.
[[nodiscard]] inline grouping make_grouping(std::span<std::int64_t const> group_id) {
  std::vector<std::int64_t> offsets(group_id.size() + 1);
  std::iota(offsets.begin(), offsets.end(), std::int64_t{0});
  std::span<std::int64_t const> const all{offsets};
  return make_grouping({.trajectory_offsets = all, .group_id = group_id, .trajectory_id = all.first(group_id.size())},
                       group_by::group);
}

}  // namespace turnwise
