#include "support/ragged.hpp"

#include <turnwise/core/rollout_builder.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <tuple>
#include <vector>

using doctest::Contains;
using turnwise::make_rollout;
using turnwise::precondition_error;
using turnwise::rollout;
using turnwise::trajectory_scope;
using turnwise::turn_rows;

namespace {

struct rows {
  std::vector<std::int64_t> group{}, trajectory{}, index{}, begin{}, end{};
  std::vector<std::uint8_t> valid{};
  [[nodiscard]] turn_rows view() const { return {group, trajectory, index, begin, end, valid}; }
};

/// Six rows, mixed up: group -3 has trajectories 1 (turns 0, 2) and 8 (turn 0), group 4 has trajectory 1 (0, 1, 5).
rows six_rows() {
  return {.group = {4, -3, 4, -3, 4, -3},
          .trajectory = {1, 8, 1, 1, 1, 1},
          .index = {5, 0, 0, 2, 1, 0},
          .begin = {50, 10, 0, 32, 11, 40},
          .end = {60, 11, 10, 32, 30, 50},
          .valid = {1, 1, 0, 1, 1, 0}};
}

}  // namespace

TEST_SUITE("core/rollout_builder") {
  TEST_CASE("sorts rows by group, trajectory and turn, and remembers where they came from") {
    rollout const batch = make_rollout(six_rows().view());
    CHECK(batch.row == std::vector<std::size_t>{5, 3, 1, 2, 4, 0});
    CHECK(batch.trajectory_offsets == std::vector<std::int64_t>{0, 2, 3, 6});
    CHECK(batch.group_id == std::vector<std::int64_t>{-3, -3, 4});
    CHECK(batch.trajectory_id == std::vector<std::int64_t>{1, 8, 1});
    CHECK(batch.turn_index == std::vector<std::int64_t>{0, 2, 0, 0, 1, 5});
    CHECK(batch.turn_begin == std::vector<std::int64_t>{40, 32, 10, 0, 11, 50});
    CHECK(batch.turn_end == std::vector<std::int64_t>{50, 32, 11, 10, 30, 60});
    CHECK(batch.turn_valid == std::vector<std::uint8_t>{0, 1, 1, 0, 1, 1});
    CHECK_NOTHROW(turnwise::check_rollout(batch.view(), "call"));
    CHECK_NOTHROW(turnwise::check_token_ranges(batch.view(), 60, "call"));
    CHECK(batch.view().index_of(2, 5) == 5);
  }

  TEST_CASE("gather brings row values into turn order, scatter brings them back") {
    rollout const batch = make_rollout(six_rows().view());
    std::vector<double> const values{0, 10, 20, 30, 40, 50};
    std::vector<double> turns(6), back(6, -1);
    batch.gather(values, std::span{turns});
    CHECK(turns == std::vector<double>{50, 30, 10, 20, 40, 0});
    batch.scatter(turns, std::span{back});
    CHECK(back == values);

    std::vector<double> short_values(5), short_out(5, 7.0);
    CHECK_THROWS_WITH_AS(batch.gather(short_values, std::span{turns}), Contains("values has 5 elements, expected 6"),
                         precondition_error);
    CHECK_THROWS_WITH_AS(batch.gather(values, std::span{short_out}), Contains("out has 5 elements, expected 6"),
                         precondition_error);
    CHECK_THROWS_WITH_AS(batch.scatter(short_values, std::span{back}), Contains("values has 5 elements, expected 6"),
                         precondition_error);
    CHECK_THROWS_WITH_AS(batch.scatter(values, std::span{short_out}), Contains("out has 5 elements, expected 6"),
                         precondition_error);
    CHECK(short_out == std::vector<double>(5, 7.0));
  }

  TEST_CASE("any row order gives the same batch") {
    turnwise::test::integers random{11};
    rows sorted;
    std::set<std::tuple<std::int64_t, std::int64_t, std::int64_t>> keys;
    while (keys.size() < 200) keys.emplace(random.below(6) - 3, random.below(9), random.below(12));
    for (auto const& [group, trajectory, index] : keys) {
      sorted.group.push_back(group);
      sorted.trajectory.push_back(trajectory);
      sorted.index.push_back(index);
      sorted.begin.push_back(static_cast<std::int64_t>(sorted.begin.size()) * 3);
      sorted.end.push_back(sorted.begin.back() + random.below(4));
      sorted.valid.push_back(random.below(2) != 0);
    }
    rollout const expected = make_rollout(sorted.view());
    CHECK(expected.turn_begin == sorted.begin);
    CHECK(expected.turn_index == sorted.index);
    for (int repeat = 0; repeat < 100; ++repeat) {
      auto const order = turnwise::test::random_order(200, random);
      rows mixed;
      for (std::size_t const r : order) {
        mixed.group.push_back(sorted.group[r]);
        mixed.trajectory.push_back(sorted.trajectory[r]);
        mixed.index.push_back(sorted.index[r]);
        mixed.begin.push_back(sorted.begin[r]);
        mixed.end.push_back(sorted.end[r]);
        mixed.valid.push_back(sorted.valid[r]);
      }
      rollout const batch = make_rollout(mixed.view());
      REQUIRE(batch.trajectory_offsets == expected.trajectory_offsets);
      REQUIRE(batch.group_id == expected.group_id);
      REQUIRE(batch.trajectory_id == expected.trajectory_id);
      REQUIRE(batch.turn_index == expected.turn_index);
      REQUIRE(batch.turn_begin == expected.turn_begin);
      REQUIRE(batch.turn_end == expected.turn_end);
      REQUIRE(batch.turn_valid == expected.turn_valid);
      for (std::size_t s = 0; s < 200; ++s) REQUIRE(order[batch.row[s]] == s);
    }
  }

  TEST_CASE("no rows: an empty batch") {
    rollout const batch = make_rollout({});
    CHECK(batch.view().turns() == 0);
    CHECK(batch.view().trajectories() == 0);
    CHECK(batch.row.empty());
    CHECK_NOTHROW(turnwise::check_rollout(batch.view(), "call"));
  }

  TEST_CASE("flags and tokens may be absent") {
    rows input = six_rows();
    input.valid.clear();
    input.begin.clear();
    input.end.clear();
    rollout const batch = make_rollout(input.view());
    CHECK(batch.view().turns() == 6);
    CHECK(batch.turn_begin.empty());
    CHECK(batch.turn_end.empty());
    CHECK(!batch.view().flagged_off(0));
  }

  TEST_CASE("the extremes of 64 bits are group ids like any other") {
    rows const input{.group = {INT64_MAX, INT64_MIN, 0, INT64_MAX, -1},
                     .trajectory = {0, 0, INT64_MAX, 0, 3},
                     .index = {INT64_MAX, 0, 0, 0, 0}};
    rollout const batch = make_rollout(input.view());
    CHECK(batch.group_id == std::vector<std::int64_t>{INT64_MIN, -1, 0, INT64_MAX});
    CHECK(batch.trajectory_id == std::vector<std::int64_t>{0, 3, INT64_MAX, 0});
    CHECK(batch.row == std::vector<std::size_t>{1, 4, 2, 3, 0});
  }

  TEST_CASE("a trajectory id in two groups: two trajectories, or an error at the first row of the second group") {
    rows input = six_rows();
    CHECK(make_rollout(input.view(), trajectory_scope::group).view().trajectories() == 3);
    CHECK_THROWS_WITH_AS(static_cast<void>(make_rollout(input.view(), trajectory_scope::batch)),
                         Contains("row 3 puts trajectory 1 into a second group, -3"), precondition_error);
    // Neighbours in the sorted order are told apart by their group alone.
    rollout const neighbours = make_rollout(rows{.group = {1, 0}, .trajectory = {5, 5}, .index = {0, 1}}.view());
    CHECK(neighbours.trajectory_offsets == std::vector<std::int64_t>{0, 1, 2});
    CHECK(neighbours.group_id == std::vector<std::int64_t>{0, 1});
    // Two offenders: the earlier row is named, also when its trajectory has the larger id.
    input = {.group = {0, 0, 1, 1}, .trajectory = {9, 2, 9, 2}, .index = {0, 0, 0, 0}};
    CHECK_THROWS_WITH_AS(static_cast<void>(make_rollout(input.view(), trajectory_scope::batch)),
                         Contains("row 2 puts trajectory 9 into a second group, 1"), precondition_error);
    input = {.group = {3, 3, 4, 4}, .trajectory = {1, 1, 2, 2}, .index = {0, 1, 0, 1}};
    CHECK(make_rollout(input.view(), trajectory_scope::batch).view().trajectories() == 2);
  }

  TEST_CASE("every error of make_rollout") {
    rows input = six_rows();
    auto const build = [&] { static_cast<void>(make_rollout(input.view())); };

    SUBCASE("sizes that differ") {
      input.trajectory.pop_back();
      CHECK_THROWS_WITH_AS(build(), "make_rollout: trajectory_id has 5 elements, expected 6 (one a turn)",
                           precondition_error);
    }
    SUBCASE("turn indices") {
      input.index.push_back(0);
      CHECK_THROWS_WITH_AS(build(), Contains("turn_index has 7 elements, expected 6"), precondition_error);
    }
    SUBCASE("begins") {
      input.begin.pop_back();
      CHECK_THROWS_WITH_AS(build(), Contains("turn_begin has 5 elements, expected 6"), precondition_error);
    }
    SUBCASE("ends without begins") {
      input.begin.clear();
      CHECK_THROWS_WITH_AS(build(), Contains("turn_begin has 0 elements, expected 6"), precondition_error);
    }
    SUBCASE("begins without ends") {
      input.end.clear();
      CHECK_THROWS_WITH_AS(build(), Contains("turn_end has 0 elements, expected 6"), precondition_error);
    }
    SUBCASE("flags") {
      input.valid.pop_back();
      CHECK_THROWS_WITH_AS(build(), Contains("turn_valid has 5 elements, expected 6"), precondition_error);
    }
    SUBCASE("a negative trajectory id") {
      input.trajectory[4] = -1;
      input.trajectory[2] = -2;
      CHECK_THROWS_WITH_AS(build(), Contains("trajectory_id[2] = -2 is negative"), precondition_error);
    }
    SUBCASE("a negative turn index") {
      input.index[3] = -1;
      CHECK_THROWS_WITH_AS(build(), Contains("turn_index[3] = -1 is negative"), precondition_error);
    }
    SUBCASE("the same turn twice: the second row in input order is named") {
      input.index[0] = 1;  // as row 4
      CHECK_THROWS_WITH_AS(build(), Contains("row 4 repeats turn 1 of trajectory 1"), precondition_error);
    }
    SUBCASE("several duplicates: the first of them in input order") {
      input = {.group = {9, 9, 0, 0, 9}, .trajectory = {1, 1, 1, 1, 1}, .index = {2, 2, 0, 0, 2}};
      CHECK_THROWS_WITH_AS(build(), Contains("row 1 repeats turn 2 of trajectory 1"), precondition_error);
    }
  }

}  // TEST_SUITE
