#include "support/ragged.hpp"

#include <turnwise/reward/overlong_penalty.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

using doctest::Approx;
using doctest::Contains;
using turnwise::precondition_error;
using turnwise::reward::length_scope;
using turnwise::reward::overlong_penalty;
using turnwise::reward::overlong_penalty_options;
using turnwise::test::ragged_batch;

namespace {

using lengths = std::vector<std::int64_t>;
using numbers = std::vector<double>;

/// One trajectory a length.
template <typename T = double>
std::vector<T> penalties(lengths const& length, overlong_penalty_options const& options) {
  std::vector<turnwise::test::turn_values<double>> trajectories;
  for (std::size_t j = 0; j < length.size(); ++j)
    trajectories.push_back({.group = 1, .id = static_cast<std::int64_t>(j), .turns = {0}});
  ragged_batch<> const batch{trajectories};
  std::vector<T> penalty(length.size(), T{-77});
  overlong_penalty(batch.view(), length, options, std::span{penalty});
  return penalty;
}

}  // namespace

TEST_SUITE("reward/overlong_penalty") {
  TEST_CASE_TEMPLATE("linear over the buffer, whole at the end of it", T, float, double) {
    overlong_penalty_options const options{.max_length = 20, .buffer = 4};
    CHECK(penalties<T>({0, 15, 16, 17, 18, 19, 20, 21, 1000}, options) ==
          std::vector<T>{0, 0, 0, T{-0.25}, T{-0.5}, T{-0.75}, -1, -1, -1});
    CHECK(penalties<T>({18, 20, 24}, {.max_length = 20, .buffer = 4, .factor = 3}) == std::vector<T>{T{-1.5}, -3, -3});
    // Uncapped it goes on.
    CHECK(penalties<T>({16, 18, 20, 24}, {.max_length = 20, .buffer = 4, .capped = false}) ==
          std::vector<T>{0, T{-0.5}, -1, -2});
    CHECK(penalties<T>({18, 24}, {.max_length = 20, .buffer = 4, .factor = 0}) == std::vector<T>{0, 0});
  }

  TEST_CASE("DAPO's numbers: 16384 tokens and a buffer of 4096 before 20480") {
    auto const got = penalties({16384, 16385, 18432, 20480, 20481}, {.max_length = 20480, .buffer = 4096});
    CHECK(got == numbers{0, -0x1p-12, -0.5, -1, -1});
  }

  TEST_CASE("without a buffer: nothing up to the longest, then the whole penalty") {
    CHECK(penalties({0, 20, 21}, {.max_length = 20, .factor = 2}) == numbers{0, 0, -2});
    CHECK(penalties({0, 1, 20}, {.max_length = 20, .buffer = 20}) == numbers{0, -0.05, -1});
  }

  TEST_CASE_TEMPLATE("TL-03: tokens of all turns, empty ones among them, not the number of turns", T, float, double) {
    ragged_batch<> const batch{{{.group = 1, .id = 0, .turns = {0, 0, 0}}}};
    lengths const turns{4, 0, 5};
    std::vector<T> penalty(3, T{-77});
    overlong_penalty_options const options{.max_length = 10, .buffer = 4, .scope = length_scope::trajectory};
    overlong_penalty(batch.view(), turns, options, std::span{penalty});
    CHECK(penalty == std::vector<T>{0, 0, T{-0.75}});
    // By turn no single one is too long.
    overlong_penalty(batch.view(), turns, {.max_length = 10, .buffer = 4}, std::span{penalty});
    CHECK(penalty == std::vector<T>{0, 0, 0});
  }

  TEST_CASE("MP-03: lengths are raw, a turn that is flagged off keeps its own") {
    // The penalty goes to the last turn that is on; the one that is off still made the trajectory long.
    ragged_batch<> const batch{{{.group = 1, .id = 0, .turns = {0, 0, 0}, .valid = {1, 1, 0}},
                                {.group = 1, .id = 1, .turns = {0, 0}, .valid = {0, 0}},
                                {.group = 1, .id = 2},
                                {.group = 1, .id = 3, .turns = {0}}}};
    numbers penalty(6, -77);
    overlong_penalty(batch.view(), lengths{4, 4, 12, 50, 50, 18},
                     {.max_length = 20, .buffer = 4, .scope = length_scope::trajectory}, std::span{penalty});
    CHECK(penalty == numbers{0, -1, 0, 0, 0, -0.5});
    overlong_penalty(batch.view(), lengths{4, 4, 19, 50, 50, 18}, {.max_length = 20, .buffer = 4}, std::span{penalty});
    CHECK(penalty == numbers{0, 0, -0.75, -1, -1, -0.5});
  }

  TEST_CASE("lengths from the token ranges of the batch") {
    lengths const offsets{0, 2}, begin{100, 3}, end{118, 3}, group{1}, id{0};
    turnwise::rollout_view const batch{
        .turn_begin = begin, .turn_end = end, .trajectory_offsets = offsets, .group_id = group, .trajectory_id = id};
    numbers penalty(2, -77);
    overlong_penalty(batch, {}, {.max_length = 20, .buffer = 4}, std::span{penalty});
    CHECK(penalty == numbers{-0.5, 0});
  }

  TEST_CASE("no turns") {
    numbers none;
    overlong_penalty({}, {}, {.max_length = 1}, std::span{none});
  }

  TEST_CASE("errors by name, with nothing written") {
    ragged_batch<> batch{{{.group = 1, .id = 0, .turns = {0, 0}}}};
    lengths length{1, 2};
    numbers penalty(2, 9.0);
    overlong_penalty_options options{.max_length = 20, .buffer = 4};
    auto const refused = [&](char const* text) {
      auto const before = penalty;
      CHECK_THROWS_WITH_AS(overlong_penalty(batch.view(), length, options, std::span{penalty}), Contains(text),
                           precondition_error);
      CHECK(penalty == before);
    };
    length = {1};
    refused("overlong_penalty: length has 1 elements, expected 2");
    length.clear();
    refused("overlong_penalty: turn_begin has 0 elements, expected 2");
    for (std::int64_t const bad : {std::int64_t{-1}, std::int64_t{1} << 40}) {
      length = {1, bad};
      refused("overlong_penalty: length[1] = ");
    }
    length = {1, 2};
    penalty.push_back(9);
    refused("overlong_penalty: penalty has 3 elements, expected 2");
    penalty.pop_back();
    options = {};
    refused("overlong_penalty: max_length = 0");
    for (std::int64_t const bad : {-1, 21}) {
      options = {.max_length = 20, .buffer = bad};
      refused("overlong_penalty: buffer = ");
    }
    for (double const bad : {-1.0, turnwise::test::nan_value, turnwise::test::infinity}) {
      options = {.max_length = 20, .factor = bad};
      refused("overlong_penalty: factor = ");
    }
    options = {.max_length = 20, .capped = false};
    refused("overlong_penalty: without a buffer");
    options = {.max_length = 20};
    batch.offsets = {0, 3, 2};
    refused("overlong_penalty: trajectory_offsets[2] = 2");
  }

}  // TEST_SUITE
