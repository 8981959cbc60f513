#include "support/ragged.hpp"

#include <turnwise/core/rollout.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

using doctest::Contains;
using turnwise::check_draw_ids;
using turnwise::check_rollout;
using turnwise::check_token_ranges;
using turnwise::precondition_error;
using turnwise::reason_flags;
using turnwise::rollout_view;

namespace {

/// Three trajectories of 2, 0 and 3 turns, on 20 tokens with a gap and an empty turn.
struct arrays {
  std::vector<std::int64_t> begin{0, 4, 4, 10, 18}, end{4, 4, 9, 18, 20}, offsets{0, 2, 2, 5}, group{5, -1, 5},
      id{0, 7, 9}, index{1, 4, 0, 2, 3};
  std::vector<std::uint8_t> valid{1, 0, 1, 1, 255};
  [[nodiscard]] rollout_view view() const { return {begin, end, offsets, group, id, index, valid}; }
};

void check(arrays const& batch) { check_rollout(batch.view(), "call"); }

}  // namespace

TEST_SUITE("core/rollout") {
  TEST_CASE("the view answers for sizes, positions, indices and flags") {
    arrays const batch;
    rollout_view view = batch.view();
    CHECK(view.turns() == 5);
    CHECK(view.trajectories() == 3);
    CHECK(view.first_turn(0) == 0);
    CHECK(view.first_turn(1) == 2);
    CHECK(view.first_turn(2) == 2);
    CHECK(view.first_turn(3) == 5);
    CHECK(view.index_of(2, 3) == 2);
    CHECK(!view.flagged_off(0));
    CHECK(view.flagged_off(1));
    CHECK(!view.flagged_off(4));
    view.turn_index = {};
    CHECK(view.index_of(0, 1) == 1);
    CHECK(view.index_of(2, 2) == 0);
    CHECK(view.index_of(2, 4) == 2);
    view.turn_valid = {};
    CHECK(!view.flagged_off(1));
  }

  TEST_CASE("an empty batch is a batch, with offsets or without") {
    CHECK_NOTHROW(check_rollout({}, "call"));
    CHECK_NOTHROW(check_token_ranges({}, 0, "call"));
    CHECK_NOTHROW(check_draw_ids({}, "call"));
    CHECK(rollout_view{}.turns() == 0);
    CHECK(rollout_view{}.trajectories() == 0);
    std::vector<std::int64_t> const zero{0};
    rollout_view const view{.trajectory_offsets = zero};
    CHECK_NOTHROW(check_rollout(view, "call"));
    CHECK(view.turns() == 0);
    CHECK(view.trajectories() == 0);
  }

  TEST_CASE("a batch of trajectories without turns is a batch") {
    std::vector<std::int64_t> const offsets{0, 0, 0}, ids{1, 2};
    rollout_view const view{.trajectory_offsets = offsets, .group_id = ids, .trajectory_id = ids};
    CHECK_NOTHROW(check_rollout(view, "call"));
    CHECK(view.trajectories() == 2);
    CHECK(view.turns() == 0);
  }

  TEST_CASE("check_rollout names the function, the argument and the first bad index") {
    arrays batch;
    CHECK_NOTHROW(check(batch));

    SUBCASE("offsets that do not start at 0") {
      batch.offsets[0] = 1;
      CHECK_THROWS_WITH_AS(check(batch), "call: trajectory_offsets[0] is 1, expected 0", precondition_error);
    }
    SUBCASE("offsets that decrease") {
      batch.offsets = {0, 3, 2, 5};
      CHECK_THROWS_WITH_AS(check(batch), Contains("call: trajectory_offsets[2] = 2"), precondition_error);
      batch.offsets = {0, -1, 2, 1};
      CHECK_THROWS_WITH_AS(check(batch), Contains("call: trajectory_offsets[1] = -1"), precondition_error);
    }
    SUBCASE("an offset that no memory holds") {
      std::vector<std::int64_t> const offsets{0, std::numeric_limits<std::int64_t>::max()}, id{1};
      CHECK_THROWS_WITH_AS(check_rollout({.trajectory_offsets = offsets, .group_id = id, .trajectory_id = id}, "call"),
                           "call: trajectory_offsets[1] = 9223372036854775807, expected at most 2^48 turns",
                           precondition_error);
    }
    SUBCASE("group ids for another number of trajectories") {
      batch.group.push_back(1);
      CHECK_THROWS_WITH_AS(check(batch), "call: group_id has 4 elements, expected 3 (one a trajectory)",
                           precondition_error);
    }
    SUBCASE("trajectory ids for another number of trajectories") {
      batch.id.pop_back();
      CHECK_THROWS_WITH_AS(check(batch), "call: trajectory_id has 2 elements, expected 3 (one a trajectory)",
                           precondition_error);
    }
    SUBCASE("ids without offsets") {
      batch.offsets.clear();
      CHECK_THROWS_WITH_AS(check(batch), Contains("group_id has 3 elements, expected 0"), precondition_error);
    }
    SUBCASE("flags for another number of turns") {
      batch.valid.push_back(1);
      CHECK_THROWS_WITH_AS(check(batch), "call: turn_valid has 6 elements, expected 5 (one a turn)",
                           precondition_error);
    }
    SUBCASE("indices for another number of turns") {
      batch.index.pop_back();
      CHECK_THROWS_WITH_AS(check(batch), "call: turn_index has 4 elements, expected 5 (one a turn)",
                           precondition_error);
    }
    SUBCASE("an index that repeats") {
      batch.index = {1, 4, 0, 2, 2};
      CHECK_THROWS_WITH_AS(check(batch), Contains("call: turn_index[4] = 2"), precondition_error);
    }
    SUBCASE("an index that goes back, the first of two") {
      batch.index = {4, 1, 5, 2, 3};
      CHECK_THROWS_WITH_AS(check(batch), Contains("call: turn_index[1] = 1"), precondition_error);
    }
  }

  TEST_CASE("turn indices start anew in each trajectory, and any 64-bit id is fine") {
    arrays batch;
    batch.index = {INT64_MIN, INT64_MAX, -3, 0, 1};
    batch.group = {INT64_MIN, INT64_MAX, 0};
    batch.id = {INT64_MIN, -1, INT64_MAX};
    CHECK_NOTHROW(check(batch));
  }

  TEST_CASE("check_token_ranges names the first turn outside the arrays") {
    arrays batch;
    auto const ranges = [&](std::size_t tokens) { check_token_ranges(batch.view(), tokens, "call"); };
    CHECK_NOTHROW(ranges(20));
    CHECK_NOTHROW(ranges(21));

    SUBCASE("too few tokens") {
      CHECK_THROWS_WITH_AS(ranges(19), "call: turn 4 has tokens [18, 20), expected a range within [0, 19)",
                           precondition_error);
      CHECK_THROWS_WITH_AS(ranges(0), Contains("turn 0 has tokens [0, 4)"), precondition_error);
    }
    SUBCASE("a negative begin") {
      batch.begin[2] = -1;
      CHECK_THROWS_WITH_AS(ranges(20), Contains("turn 2 has tokens [-1, 9)"), precondition_error);
    }
    SUBCASE("an end before its begin") {
      batch.end[3] = 9;
      batch.end[4] = 0;
      CHECK_THROWS_WITH_AS(ranges(20), Contains("turn 3 has tokens [10, 9)"), precondition_error);
    }
    SUBCASE("a huge end") {
      batch.end[0] = INT64_MAX;
      CHECK_THROWS_WITH_AS(ranges(20), Contains("turn 0 has tokens"), precondition_error);
    }
    SUBCASE("begins for another number of turns") {
      batch.begin.pop_back();
      CHECK_THROWS_WITH_AS(ranges(20), "call: turn_begin has 4 elements, expected 5 (one a turn)", precondition_error);
    }
    SUBCASE("ends for another number of turns") {
      batch.end.push_back(20);
      CHECK_THROWS_WITH_AS(ranges(20), "call: turn_end has 6 elements, expected 5 (one a turn)", precondition_error);
    }
  }

  TEST_CASE("check_draw_ids wants the last two counter words within 32 bits") {
    arrays batch;
    auto const ids = [&] { check_draw_ids(batch.view(), "call"); };
    constexpr std::int64_t too_large = std::int64_t{1} << 32;
    CHECK_NOTHROW(ids());
    batch.id = {0, too_large - 1, 1};
    batch.index = {0, too_large - 1, 0, 1, 2};
    CHECK_NOTHROW(ids());

    SUBCASE("a trajectory id that is negative or too large") {
      batch.id[2] = too_large;
      CHECK_THROWS_WITH_AS(ids(), Contains("call: trajectory_id[2] = 4294967296"), precondition_error);
      batch.id[1] = -1;
      CHECK_THROWS_WITH_AS(ids(), Contains("call: trajectory_id[1] = -1"), precondition_error);
    }
    SUBCASE("a turn index that is negative or too large") {
      batch.index[1] = too_large;
      CHECK_THROWS_WITH_AS(ids(), Contains("call: turn_index[1] = 4294967296"), precondition_error);
      batch.index[0] = -5;
      CHECK_THROWS_WITH_AS(ids(), Contains("call: turn_index[0] = -5"), precondition_error);
    }
    SUBCASE("groups may be anything") {
      batch.group = {INT64_MIN, INT64_MAX, -1};
      CHECK_NOTHROW(ids());
    }
  }

  TEST_CASE("begin_reasons overwrites: `invalid` where flagged off, else nothing") {
    arrays const batch;
    std::vector<reason_flags> reasons(5, 0xffffffff);
    turnwise::begin_reasons(batch.view(), reasons);
    CHECK(reasons == std::vector<reason_flags>{0, turnwise::reason::invalid, 0, 0, 0});
    std::vector<reason_flags> short_reasons(4, 99);
    CHECK_THROWS_WITH_AS(turnwise::begin_reasons(batch.view(), short_reasons),
                         Contains("reasons has 4 elements, expected 5"), precondition_error);
    CHECK(short_reasons == std::vector<reason_flags>(4, 99));
  }

}  // TEST_SUITE
