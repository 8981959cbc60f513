#include "support/ragged.hpp"

#include <turnwise/advantage/group_relative.hpp>
#include <turnwise/rejection/group_spread.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace {

using namespace turnwise;
using rejection::group_spread_options;
using rejection::scope;
using rejection::spread_measure;
using test::infinity;
using test::nan_value;
using test::ragged_batch;
using test::turn_values;
using flags = std::vector<reason_flags>;

constexpr reason_flags out = reason::group_spread;

template <typename T = double>
flags spread(std::vector<turn_values<T>> const& trajectories, group_spread_options const& options,
             group_by by = group_by::group) {
  ragged_batch<T> const batch{trajectories};
  auto reasons = batch.reasons();
  rejection::group_spread(make_grouping(batch.view(), by), std::span<T const>{batch.value}, options, reasons);
  return reasons;
}

/// One group of single turns.
std::vector<turn_values<>> group_of(std::vector<double> const& values) {
  std::vector<turn_values<>> result;
  for (double const value : values)
    result.push_back({.id = static_cast<std::int64_t>(result.size()), .turns = {value}});
  return result;
}

}  // namespace

TEST_SUITE("rejection/group_spread") {
  TEST_CASE("RG-01: a group with one outcome value only gives 0 for all, a mixed group uses the shaped rewards") {
    std::vector<std::int64_t> const group{0, 0, 0, 1, 1, 1};
    std::vector<double> const outcome{0, 0, 0, 1, 0, 1}, shaped{0.1, 0.05, 0, 1.1, 0.1, 0.8};
    auto const groups = make_grouping(group);
    flags reasons(6);
    rejection::group_spread(groups, std::span<double const>{outcome}, {}, reasons);
    CHECK(reasons == flags{out, out, out, 0, 0, 0});
    std::vector<double> advantage(6);
    advantage::group_relative(groups, shaped, reasons, {}, std::span{advantage});
    double const expected[]{0, 0, 0, 0.8444390976337066, -1.1042665122902318, 0.25982741465652515};
    for (std::size_t s = 0; s < 6; ++s)
      CHECK((is_kept(reasons[s]) ? advantage[s] : 0.0) == doctest::Approx(expected[s]).epsilon(1e-6));
    // The gate by the deviation of the shaped reward would have let the first group pass.
    flags by_shaped(6);
    rejection::group_spread(groups, std::span<double const>{shaped}, {.measure = spread_measure::deviation}, by_shaped);
    CHECK(by_shaped == flags(6, 0));
  }

  TEST_CASE_TEMPLATE("a range up to the threshold rejects, inclusive", T, float, double) {
    std::vector<turn_values<T>> const batch{
        {.id = 0, .turns = {1}}, {.id = 1, .turns = {T{1.5}}}, {.id = 2, .turns = {1}}};
    CHECK(spread<T>(batch, {.threshold = 0.5}) == flags{out, out, out});
    CHECK(spread<T>(batch, {.threshold = 0.49999}) == flags{0, 0, 0});
    CHECK(spread<T>(batch, {}) == flags{0, 0, 0});
  }

  TEST_CASE("deviation: n - 1, by hand; equal values are exactly 0") {
    group_spread_options options{.measure = spread_measure::deviation, .threshold = 2};
    CHECK(spread(group_of({1, 3, 5}), options) == flags{out, out, out});  // (4 + 0 + 4) / 2 = 4
    options.threshold = std::nextafter(2.0, 0.0);
    CHECK(spread(group_of({1, 3, 5}), options) == flags{0, 0, 0});
    options.threshold = 0;
    CHECK(spread(group_of({0.1, 0.1, 0.1}), options) == flags{out, out, out});
    CHECK(spread(group_of({0.1, 0.1, 0.1 + 0x1p-50}), options) == flags{0, 0, 0});
    CHECK(spread(group_of({-0.0, 0.0}), options) == flags{out, out});
  }

  TEST_CASE("a lone value: kept, or rejected") {
    CHECK(spread(group_of({3}), {}) == flags{0});
    CHECK(spread(group_of({3}), {.threshold = 9}) == flags{0});
    CHECK(spread(group_of({3}), {.keep_lone = false}) == flags{out});
    // One trajectory of two turns: two values, or one.
    std::vector<turn_values<>> const one{{.turns = {1, 2}}};
    CHECK(spread(one, {.keep_lone = false}) == flags{0, 0});
    CHECK(spread(one, {.level = scope::trajectory}) == flags{0, 0});
    CHECK(spread(one, {.level = scope::trajectory, .keep_lone = false}) == flags{out, out});
  }

  TEST_CASE("level trajectory looks at each trajectory's last valid turn and rejects all of its turns") {
    std::vector<turn_values<>> const batch{{.id = 1, .turns = {0, 1}},
                                           {.id = 2, .turns = {1, 1, 0}, .valid = {1, 1, 0}},
                                           {.id = 3, .turns = {0, 0}, .valid = {0, 0}},
                                           {.id = 4, .turns = {}},
                                           {.group = 7, .id = 1, .turns = {1, 0}},
                                           {.group = 7, .id = 2, .turns = {1}}};
    reason_flags const off = reason::invalid;
    CHECK(spread(batch, {.level = scope::trajectory}) == flags{out, out, out, out, off, off, off, 0, 0, 0});
    CHECK(spread(batch, {.level = scope::turn}) == flags{0, 0, 0, 0, off, off, off, 0, 0, 0});
  }

  TEST_CASE("by turn index, each turn group on its own") {
    std::vector<turn_values<>> const batch{{.id = 1, .turns = {0, 1}}, {.id = 2, .turns = {0, 0}}};
    CHECK(spread(batch, {}, group_by::turn) == flags{out, 0, out, 0});
    CHECK(spread(batch, {}, group_by::batch) == flags{0, 0, 0, 0});
  }

  TEST_CASE("invalid turns are not read; turns rejected by other rules count and keep their reasons") {
    auto batch = group_of({1, nan_value, 1, 2});
    batch[1].valid = {0};
    CHECK(spread(batch, {}) == flags{0, reason::invalid, 0, 0});
    batch[3].valid = {0};
    CHECK(spread(batch, {}) == flags{out, reason::invalid, out, reason::invalid});
    ragged_batch<> const other{group_of({1, 1, 2})};
    flags reasons{0, 0, reason::stale};
    auto const groups = make_grouping(other.view(), group_by::group);
    rejection::group_spread(groups, std::span<double const>{other.value}, {}, reasons);
    CHECK(reasons == flags{0, 0, reason::stale});
    rejection::group_spread(groups, std::span<double const>{other.value}, {.threshold = 1}, reasons);
    CHECK(reasons == flags{out, out, reason::stale | out});
  }

  TEST_CASE("everything invalid, no turns") {
    auto batch = group_of({1, 1});
    batch[0].valid = batch[1].valid = {0};
    CHECK(spread(batch, {.keep_lone = false}) == flags(2, reason::invalid));
    CHECK(spread<double>({}, {}) == flags{});
  }

  TEST_CASE("the same decisions in any order and with any number of threads") {
    test::integers random{77};
    std::vector<std::int64_t> const sizes{1, 2, 5, 40, 700, 3, 3, 3, 8};
    auto const trajectories = [&] {
      auto all = test::random_values<double>(random, sizes, 9);
      for (auto& one : all)
        for (double& value : one.turns)
          if (std::isnan(value)) value = 0;
      return all;
    }();
    for (auto const level : {scope::turn, scope::trajectory})
      for (auto const measure : {spread_measure::range, spread_measure::deviation}) {
        group_spread_options options{measure, 20, level};
        auto const expected = spread(trajectories, options);
        auto const order = test::random_order(trajectories.size(), random);
        options.threads = 4;
        auto const shuffled = spread(test::in_order(trajectories, order), options);
        auto const source = test::source_turns(trajectories, order);
        for (std::size_t s = 0; s < source.size(); ++s) CHECK(shuffled[s] == expected[source[s]]);
      }
  }

  TEST_CASE("bad options, values and sizes throw and change nothing") {
    ragged_batch<> const batch{group_of({1, 1})};
    auto const groups = make_grouping(batch.view(), group_by::group);
    flags reasons{0, 0};
    auto const throws = [&](std::span<double const> values, group_spread_options const& options,
                            std::span<reason_flags> in) {
      CHECK_THROWS_AS(rejection::group_spread(groups, values, options, in), precondition_error);
    };
    for (double const threshold : {-1e-9, nan_value, infinity}) throws(batch.value, {.threshold = threshold}, reasons);
    throws(std::span{batch.value}.first(1), {}, reasons);
    throws(batch.value, {}, std::span{reasons}.first(1));
    for (double const bad : {nan_value, infinity, 1e300}) throws(std::vector{1.0, bad}, {}, reasons);
    CHECK(reasons == flags{0, 0});
  }

}  // TEST_SUITE
