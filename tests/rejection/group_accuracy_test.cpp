#include "support/ragged.hpp"

#include <turnwise/rejection/group_accuracy.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <span>
#include <vector>

namespace {

using namespace turnwise;
using rejection::group_accuracy_options;
using rejection::scope;
using test::infinity;
using test::nan_value;
using test::ragged_batch;
using test::turn_values;
using flags = std::vector<reason_flags>;

constexpr reason_flags out = reason::group_accuracy;

template <typename T = double>
flags accuracy(std::vector<turn_values<T>> const& trajectories, group_accuracy_options const& options,
               group_by by = group_by::group) {
  ragged_batch<T> const batch{trajectories};
  auto reasons = batch.reasons();
  rejection::group_accuracy(make_grouping(batch.view(), by), std::span<T const>{batch.value}, options, reasons);
  return reasons;
}

/// One group of single turns, `solved` of `size`.
template <typename T = double>
std::vector<turn_values<T>> solved(int count, int size) {
  std::vector<turn_values<T>> result;
  for (int k = 0; k < size; ++k) result.push_back({.id = k, .turns = {static_cast<T>(k < count)}});
  return result;
}

}  // namespace

TEST_SUITE("rejection/group_accuracy") {
  TEST_CASE_TEMPLATE("inclusive at both ends, for shares written as decimals", T, float, double) {
    for (int size = 1; size <= 20; ++size)
      for (int count = 0; count <= size; ++count) {
        bool const kept = 10 * count >= 3 * size && 10 * count <= 7 * size;
        CHECK(accuracy<T>(solved<T>(count, size), {0.3, 0.7}) == flags(static_cast<std::size_t>(size), kept ? 0 : out));
      }
  }

  TEST_CASE("7 of 100 reach 0.07 and 29 of 100 do not pass 0.29, though products of these doubles are off") {
    REQUIRE(0.07 * 100 > 7);
    REQUIRE(0.29 * 100 < 29);
    CHECK(accuracy(solved(7, 100), {0.07, 1}) == flags(100, 0));
    CHECK(accuracy(solved(29, 100), {0, 0.29}) == flags(100, 0));
  }

  TEST_CASE("the default keeps neither unsolved nor solved groups") {
    CHECK(accuracy(solved(0, 4), {}) == flags(4, out));
    CHECK(accuracy(solved(4, 4), {}) == flags(4, out));
    CHECK(accuracy(solved(1, 4), {}) == flags(4, 0));
    CHECK(accuracy(solved(1, 1), {}) == flags{out});
    CHECK(accuracy(solved(1, 1), {0, 1}) == flags{0});
    CHECK(accuracy(solved(1, 4), {-infinity, infinity}) == flags(4, 0));
  }

  TEST_CASE("scores of any size: the mean alone counts") {
    std::vector<turn_values<>> const batch{{.id = 1, .turns = {-3}}, {.id = 2, .turns = {5}}};
    CHECK(accuracy(batch, {1, 1}) == flags{0, 0});
    CHECK(accuracy(batch, {1.01, 9}) == flags{out, out});
  }

  TEST_CASE("level trajectory counts each trajectory once, by its last valid turn") {
    // Turn level: 3 of 4 (a trajectory counted once a turn); trajectory level: 1 of 2.
    std::vector<turn_values<>> const batch{{.id = 1, .turns = {1, 1, 1}}, {.id = 2, .turns = {0}}};
    CHECK(accuracy(batch, {0.5, 0.5, scope::trajectory}) == flags(4, 0));
    CHECK(accuracy(batch, {0.75, 0.75, scope::turn}) == flags(4, 0));
    CHECK(accuracy(batch, {0.5, 0.5, scope::turn}) == flags(4, out));
    reason_flags const off = reason::invalid;
    std::vector<turn_values<>> const cut{{.id = 1, .turns = {1, 0}, .valid = {1, 0}}, {.id = 2, .turns = {1, 0}}};
    CHECK(accuracy(cut, {0.5, 0.5, scope::trajectory}) == flags{0, off, 0, 0});
    CHECK(accuracy(cut, {0.6, 1, scope::trajectory}) == flags{out, off, out, out});
  }

  TEST_CASE("groups are judged apart; by turn index too") {
    std::vector<turn_values<>> const batch{{.group = 1, .id = 1, .turns = {1, 1}},
                                           {.group = 1, .id = 2, .turns = {1, 0}},
                                           {.group = 2, .id = 1, .turns = {0}}};
    CHECK(accuracy(batch, {}) == flags{0, 0, 0, 0, out});
    CHECK(accuracy(batch, {}, group_by::turn) == flags{out, 0, out, 0, out});
    CHECK(accuracy(batch, {}, group_by::batch) == flags{0, 0, 0, 0, 0});
  }

  TEST_CASE("invalid turns are not read; turns rejected by other rules count and keep their reasons") {
    std::vector<turn_values<>> const batch{
        {.id = 1, .turns = {1}}, {.id = 2, .turns = {nan_value}, .valid = {0}}, {.id = 3, .turns = {0}}};
    CHECK(accuracy(batch, {0.5, 0.5}) == flags{0, reason::invalid, 0});
    ragged_batch<> const other{solved(1, 2)};
    flags reasons{reason::ratio_low, 0};
    rejection::group_accuracy(make_grouping(other.view(), group_by::group), std::span<double const>{other.value},
                              {0, 0.4}, reasons);
    CHECK(reasons == flags{reason::ratio_low | out, out});
    flags unscored(2, reason::unscored);
    rejection::group_accuracy(make_grouping(other.view(), group_by::group), std::span<double const>{other.value},
                              {2, 3}, unscored);
    CHECK(unscored == flags(2, reason::unscored));
  }

  TEST_CASE("bad bounds, outcomes and sizes throw and change nothing; no turns") {
    CHECK(accuracy<double>({}, {}) == flags{});
    ragged_batch<> const batch{solved(0, 2)};
    auto const groups = make_grouping(batch.view(), group_by::group);
    flags reasons{0, 0};
    auto const throws = [&](std::span<double const> outcomes, group_accuracy_options const& options,
                            std::span<reason_flags> in) {
      CHECK_THROWS_AS(rejection::group_accuracy(groups, outcomes, options, in), precondition_error);
    };
    throws(batch.value, {0.7, 0.3}, reasons);
    throws(batch.value, {nan_value, 1}, reasons);
    throws(batch.value, {0, nan_value}, reasons);
    throws(std::span{batch.value}.first(1), {}, reasons);
    throws(batch.value, {}, std::span{reasons}.first(1));
    for (double const bad : {nan_value, infinity, -1e300}) throws(std::vector{0.0, bad}, {}, reasons);
    CHECK(reasons == flags{0, 0});
  }

  TEST_CASE("outcomes that all equal a bound are inside it") {
    std::vector<std::int64_t> const ids(10, 7);
    std::vector<double> const outcome(10, 0.1);  // their sum over 10 is less than 0.1
    std::vector<turnwise::reason_flags> reasons(10);
    turnwise::rejection::group_accuracy(turnwise::make_grouping(ids), std::span<double const>{outcome}, {.low = 0.1},
                                        std::span{reasons});
    CHECK(reasons == std::vector<turnwise::reason_flags>(10));
  }

}  // TEST_SUITE
