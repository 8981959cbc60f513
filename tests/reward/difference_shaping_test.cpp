#include "support/ragged.hpp"

#include <turnwise/advantage/discounted_return.hpp>
#include <turnwise/reward/difference_shaping.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

using doctest::Contains;
using turnwise::precondition_error;
using turnwise::reason_flags;
using turnwise::reward::difference_shaping;
using turnwise::reward::difference_shaping_options;
using turnwise::test::bits_of;
using turnwise::test::infinity;
using turnwise::test::nan_value;
using turnwise::test::ragged_batch;

namespace {

using numbers = std::vector<double>;

template <typename T>
std::vector<T> shaped(ragged_batch<T> const& batch, difference_shaping_options const& options = {}) {
  std::vector<T> out(batch.turns(), T{-77});
  difference_shaping(batch.view(), batch.value, options, batch.reasons(), std::span{out});
  return out;
}

}  // namespace

TEST_SUITE("reward/difference_shaping") {
  TEST_CASE_TEMPLATE("hand numbers, trajectory by trajectory", T, float, double) {
    ragged_batch<T> const batch{{{.group = 1, .id = 0, .turns = {1, 3, 2}},
                                 {.group = 1, .id = 1},
                                 {.group = 1, .id = 2, .turns = {-4, -4}},
                                 {.group = 2, .id = 0, .turns = {8}}}};
    CHECK(shaped(batch) == std::vector<T>{1, 2, -1, -4, 0, 8});
    CHECK(shaped(batch, {.initial = 1}) == std::vector<T>{0, 2, -1, -5, 0, 7});
  }

  TEST_CASE_TEMPLATE("a missing reward stays missing and is stepped over", T, float, double) {
    T const nan = std::numeric_limits<T>::quiet_NaN();
    ragged_batch<T> const batch{{{.group = 1, .id = 0, .turns = {nan, 3, nan, nan, 10, nan}}}};
    CHECK(bits_of(shaped(batch, {.initial = 1})) == bits_of(std::vector<T>{nan, 2, nan, nan, 7, nan}));
  }

  TEST_CASE("a turn flagged off keeps what it has, and no turn is compared with it") {
    for (double const garbage : {5.0, nan_value, infinity, -infinity}) {
      ragged_batch<> const batch{{{.group = 1, .id = 0, .turns = {garbage, 3, garbage, 10}, .valid = {0, 1, 0, 1}}}};
      CHECK(bits_of(shaped(batch)) == bits_of(numbers{garbage, 3, garbage, 7}));
    }
  }

  TEST_CASE("differences add up to the last scored reward minus the initial one; returns lose what came before") {
    turnwise::test::integers random{3};
    std::vector<std::int64_t> const sizes{1, 3, 30};
    auto trajectories = turnwise::test::random_values<double>(random, sizes, 9);
    for (auto& one : trajectories)  // integers: sums are exact
      for (double& value : one.turns)
        value = std::isnan(value) ? value : static_cast<double>(random.below(2000)) - 1000;
    ragged_batch<> const batch{trajectories};
    auto const view = batch.view();
    auto const reasons = batch.reasons();
    for (double const initial : {0.0, 3.0}) {
      auto const got = shaped(batch, {.initial = initial});
      numbers turn_return(batch.turns());
      auto settled = reasons;
      turnwise::advantage::discounted_return(view, got, {.gamma = 1}, std::span{settled}, std::span{turn_return});
      for (std::size_t j = 0; j < view.trajectories(); ++j) {
        double sum = 0, last = initial, before = initial;
        for (std::size_t s = view.first_turn(j); s < view.first_turn(j + 1); ++s) {
          if (reasons[s] != 0 || std::isnan(batch.value[s])) continue;
          sum += got[s];
          last = batch.value[s];
        }
        CHECK(sum == last - initial);
        for (std::size_t s = view.first_turn(j); s < view.first_turn(j + 1); ++s) {
          if (reasons[s] != 0 || std::isnan(batch.value[s])) continue;
          CHECK(turn_return[s] == last - before);
          before = batch.value[s];
        }
      }
    }
  }

  TEST_CASE_TEMPLATE("in place", T, float, double) {
    turnwise::test::integers random{4};
    std::vector<std::int64_t> const sizes{5, 40};
    ragged_batch<T> const batch{turnwise::test::random_values<T>(random, sizes, 6)};
    auto in_place = batch.value;
    difference_shaping(batch.view(), in_place, {}, batch.reasons(), std::span{in_place});
    CHECK(bits_of(in_place) == bits_of(shaped(batch)));
    CHECK(shaped(ragged_batch<T>{{}}).empty());
  }

  TEST_CASE("errors by name, with nothing written") {
    ragged_batch<> batch{{{.group = 1, .id = 0, .turns = {1, 2, 3}}}};
    std::vector<reason_flags> reasons(3);
    numbers out(3, 9.0);
    difference_shaping_options options;
    auto const refused = [&](char const* text) {
      auto const before = out;
      CHECK_THROWS_WITH_AS(difference_shaping(batch.view(), batch.value, options, reasons, std::span{out}),
                           Contains(text), precondition_error);
      CHECK(out == before);
    };
    batch.value.push_back(0);
    refused("difference_shaping: reward has 4 elements, expected 3");
    batch.value.pop_back();
    reasons.pop_back();
    refused("difference_shaping: reasons has 2 elements, expected 3");
    reasons.push_back(0);
    out.pop_back();
    refused("difference_shaping: shaped has 2 elements, expected 3");
    out.push_back(9);
    for (double const bad : {nan_value, infinity, 0x1p501}) {
      options.initial = bad;
      refused("difference_shaping: initial = ");
    }
    ragged_batch<float> const floats{{{.turns = {1, 2}}}};
    std::vector<reason_flags> const two(2);
    std::vector<float> narrow(2);  // 2^101 is a double, and no float
    CHECK_THROWS_WITH_AS(difference_shaping(floats.view(), floats.value, {.initial = 0x1p101}, two, std::span{narrow}),
                         Contains("expected a number within +-2^100"), precondition_error);
    options = {};
    batch.value[1] = infinity;
    refused("difference_shaping: reward[1] = inf");
    batch.offsets = {1, 3};
    refused("difference_shaping: trajectory_offsets[0] is 1");
  }

}  // TEST_SUITE
