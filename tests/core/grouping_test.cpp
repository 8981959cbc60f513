#include "support/ragged.hpp"

#include <turnwise/core/grouping.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

using doctest::Contains;
using turnwise::group_by;
using turnwise::grouping;
using turnwise::make_grouping;
using turnwise::precondition_error;
using turnwise::test::ragged_batch;
using turnwise::test::turn_values;

namespace {

using numbers = std::vector<std::int64_t>;

std::vector<numbers> members_of(grouping const& groups) {
  std::vector<numbers> result;
  for (std::size_t g = 0; g < groups.groups(); ++g)
    result.emplace_back(groups.members(g).begin(), groups.members(g).end());
  return result;
}

numbers as_vector(std::span<std::int64_t const> values) { return {values.begin(), values.end()}; }

/// In memory: group 9 id 4 (turns 0..2: 0 1 2), group -5 id 2 (3), group 9 id 1 (4 5), group -5 id 0 (none).
ragged_batch<> mixed() {
  return ragged_batch<>{{{.group = 9, .id = 4, .turns = {0, 0, 0}},
                         {.group = -5, .id = 2, .turns = {0}},
                         {.group = 9, .id = 1, .turns = {0, 0}},
                         {.group = -5, .id = 0, .turns = {}}}};
}

}  // namespace

TEST_SUITE("core/grouping") {
  TEST_CASE("by group: members in the order of trajectory and turn, groups by id") {
    auto const batch = mixed();
    auto const groups = make_grouping(batch.view(), group_by::group);
    CHECK(groups.turns() == 6);
    CHECK(members_of(groups) == std::vector<numbers>{{3}, {4, 5, 0, 1, 2}});
    CHECK(as_vector(groups.order()) == numbers{3, 4, 5, 0, 1, 2});
    CHECK(as_vector(groups.trajectories(0)) == numbers{1});
    CHECK(as_vector(groups.trajectories(1)) == numbers{2, 2, 0, 0, 0});
    CHECK(as_vector(groups.pool(0)) == numbers{3, 1});
    CHECK(as_vector(groups.pool(1)) == numbers{2, 0});
    CHECK(groups.turns_of(0) == std::pair<std::size_t, std::size_t>{0, 3});
    CHECK(groups.turns_of(3) == std::pair<std::size_t, std::size_t>{6, 6});
  }

  TEST_CASE("by turn: one group for each prompt and turn index") {
    auto const batch = mixed();
    auto const groups = make_grouping(batch.view(), group_by::turn);
    CHECK(members_of(groups) == std::vector<numbers>{{3}, {4, 0}, {5, 1}, {2}});
    CHECK(as_vector(groups.trajectories(1)) == numbers{2, 0});
    CHECK(as_vector(groups.pool(0)) == numbers{3, 1});
    for (std::size_t g = 1; g < 4; ++g) CHECK(as_vector(groups.pool(g)) == numbers{2, 0});
  }

  TEST_CASE("by batch: one group, its pool all trajectories") {
    auto const batch = mixed();
    auto const groups = make_grouping(batch.view(), group_by::batch);
    CHECK(members_of(groups) == std::vector<numbers>{{3, 4, 5, 0, 1, 2}});
    CHECK(as_vector(groups.trajectories(0)) == numbers{1, 2, 2, 0, 0, 0});
    CHECK(as_vector(groups.pool(0)) == numbers{3, 1, 2, 0});
  }

  TEST_CASE("by turn compares given indices, which need not be contiguous, not positions") {
    ragged_batch<> const batch{{{.group = 1, .id = 0, .turns = {0, 0, 0}, .index = {0, 3, 10}},
                                {.group = 1, .id = 1, .turns = {0, 0}, .index = {3, 4}},
                                {.group = 0, .id = 0, .turns = {0}, .index = {-8}}}};
    CHECK(members_of(make_grouping(batch.view(), group_by::turn)) == std::vector<numbers>{{5}, {0}, {1, 3}, {4}, {2}});
    CHECK(members_of(make_grouping(batch.view(), group_by::group)) == std::vector<numbers>{{5}, {0, 1, 2, 3, 4}});
  }

  TEST_CASE("ids at the ends of 64 bits") {
    ragged_batch<> const batch{{{.group = INT64_MAX, .id = INT64_MIN, .turns = {0}},
                                {.group = INT64_MIN, .id = INT64_MAX, .turns = {0}},
                                {.group = INT64_MAX, .id = -1, .turns = {0}},
                                {.group = INT64_MIN, .id = INT64_MIN, .turns = {0}}}};
    CHECK(members_of(make_grouping(batch.view(), group_by::group)) == std::vector<numbers>{{3, 1}, {0, 2}});
    CHECK(members_of(make_grouping(batch.view(), group_by::turn)) == std::vector<numbers>{{3, 1}, {0, 2}});
  }

  TEST_CASE("nothing to group") {
    for (auto const by : {group_by::group, group_by::turn, group_by::batch}) {
      auto const empty = make_grouping(turnwise::rollout_view{}, by);
      CHECK(empty.groups() == 0);
      CHECK(empty.turns() == 0);
      CHECK(empty.order().empty());
      ragged_batch<> const no_turns{{{.group = 1, .id = 0}, {.group = 2, .id = 0}}};
      CHECK(make_grouping(no_turns.view(), by).groups() == 0);
    }
  }

  TEST_CASE("a trajectory id twice in a group is an error; in two groups it is not") {
    ragged_batch<> batch{{{.group = 3, .id = 5, .turns = {0}},
                          {.group = 2, .id = 5, .turns = {0}},
                          {.group = 3, .id = 5, .turns = {0}}}};
    for (auto const by : {group_by::group, group_by::turn, group_by::batch})
      CHECK_THROWS_WITH_AS(static_cast<void>(make_grouping(batch.view(), by)),
                           Contains("trajectory_id[2] = 5 occurs twice in group 3"), precondition_error);
    batch.group_id[2] = 4;
    CHECK_NOTHROW(static_cast<void>(make_grouping(batch.view(), group_by::group)));
  }

  TEST_CASE("of several duplicates the first in memory is named") {
    ragged_batch<> const batch{{{.group = 9, .id = 0, .turns = {0}},
                                {.group = 9, .id = 0, .turns = {0}},
                                {.group = 1, .id = 0, .turns = {0}},
                                {.group = 1, .id = 0, .turns = {0}}}};
    CHECK_THROWS_WITH_AS(static_cast<void>(make_grouping(batch.view(), group_by::group)),
                         Contains("trajectory_id[1] = 0 occurs twice in group 9"), precondition_error);
  }

  TEST_CASE("an inconsistent batch is refused in the name of make_grouping") {
    numbers const offsets{0, 2, 1}, ids{0, 1};
    CHECK_THROWS_WITH_AS(static_cast<void>(make_grouping(
                             {.trajectory_offsets = offsets, .group_id = ids, .trajectory_id = ids}, group_by::group)),
                         Contains("make_grouping: trajectory_offsets[2] = 1"), precondition_error);
  }

  TEST_CASE("single-turn samples are grouped by their ids alone, members in index order") {
    numbers const ids{7, 2, 2, INT64_MIN, 7, 2};
    auto const groups = make_grouping(ids);
    CHECK(members_of(groups) == std::vector<numbers>{{3}, {1, 2, 5}, {0, 4}});
    CHECK(as_vector(groups.pool(1)) == numbers{1, 2, 5});
    CHECK(make_grouping(numbers{}).groups() == 0);
  }

  TEST_CASE("members and groups do not depend on the order of trajectories in memory") {
    turnwise::test::integers random{5};
    numbers const sizes{1, 2, 3, 17, 40};
    auto const trajectories = turnwise::test::random_values<double>(random, sizes, 6);
    std::vector<std::size_t> plain_order(trajectories.size());
    for (std::size_t j = 0; j < plain_order.size(); ++j) plain_order[j] = j;
    ragged_batch<> const plain{trajectories};

    // What each kind must give, by sorting keys.
    auto const expected = [&](group_by by) {
      std::map<std::pair<std::int64_t, std::int64_t>,
               std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>>>
          groups;
      for (std::size_t j = 0; j < trajectories.size(); ++j)
        for (std::size_t s = plain.view().first_turn(j); s < plain.view().first_turn(j + 1); ++s) {
          auto const& one = trajectories[j];
          std::pair const key{by == group_by::batch ? 0 : one.group, by == group_by::turn ? plain.turn_index[s] : 0};
          groups[key].emplace_back(one.group, one.id, plain.turn_index[s], s);
        }
      std::vector<numbers> result;
      for (auto& [key, turns] : groups) {
        std::ranges::sort(turns);
        numbers members;
        for (auto const& turn : turns) members.push_back(std::get<3>(turn));
        result.push_back(members);
      }
      return result;
    };

    for (auto const by : {group_by::group, group_by::turn, group_by::batch}) {
      auto const wanted = expected(by);
      REQUIRE(members_of(make_grouping(plain.view(), by)) == wanted);
      for (int repeat = 0; repeat < 100; ++repeat) {
        auto const order = turnwise::test::random_order(trajectories.size(), random);
        auto const source = turnwise::test::source_turns(trajectories, order);
        ragged_batch<> const batch{turnwise::test::in_order(trajectories, order)};
        auto members = members_of(make_grouping(batch.view(), by));
        for (auto& group : members)
          for (auto& member : group) member = static_cast<std::int64_t>(source[static_cast<std::size_t>(member)]);
        REQUIRE(members == wanted);
      }
    }
  }

}  // TEST_SUITE
