#include "support/ragged.hpp"

#include <turnwise/core/ordered_sum.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <vector>

using turnwise::ordered_fold;
using turnwise::ordered_sum;

namespace {

/// The documented order, as a recursion: the sum of the lanes l, l + stride, l + 2 stride, ...
double of_lanes(std::vector<double> const& values, std::size_t lanes, std::size_t lane, std::size_t stride) {
  if (stride == lanes) {
    double sum = 0;
    for (std::size_t i = lane; i < values.size(); i += lanes) sum += values[i];
    return sum;
  }
  return of_lanes(values, lanes, lane, 2 * stride) + of_lanes(values, lanes, lane + stride, 2 * stride);
}

double by_definition(std::vector<double> const& values) {
  std::size_t const lanes = values.size() <= 32 ? 1 : values.size() <= 4096 ? 32 : 1024;
  return of_lanes(values, lanes, 0, 1);
}

double of_library(std::vector<double> const& values) {
  return ordered_sum(values.size(), [&](std::size_t i) { return values[i]; });
}

std::vector<double> uneven_numbers(std::size_t count) {
  turnwise::test::integers random{count + 1};
  std::vector<double> values(count);
  for (double& value : values) value = turnwise::test::uneven_number(random);
  return values;
}

}  // namespace

TEST_SUITE("core/ordered_sum") {
  TEST_CASE("the number of partial sums is 1, then 32, then 1024") {
    CHECK(turnwise::fold_lanes(0) == 1);
    CHECK(turnwise::fold_lanes(1) == 1);
    CHECK(turnwise::fold_lanes(32) == 1);
    CHECK(turnwise::fold_lanes(33) == 32);
    CHECK(turnwise::fold_lanes(4096) == 32);
    CHECK(turnwise::fold_lanes(4097) == 1024);
    CHECK(turnwise::fold_lanes(std::size_t{1} << 40) == 1024);
  }

  TEST_CASE("the bits are those of the documented order") {
    std::vector<std::size_t> counts{4095, 4096, 4097, 5000, 70000};
    for (std::size_t n = 0; n <= 70; ++n) counts.push_back(n);
    for (std::size_t const n : counts) {
      CAPTURE(n);
      auto const values = uneven_numbers(n);
      CHECK(of_library(values) == by_definition(values));
    }
  }

  TEST_CASE("the order shows: the plain loop differs somewhere above 32 numbers") {
    bool differs = false;
    for (std::size_t n = 33; n <= 100; ++n) {
      auto const values = uneven_numbers(n);
      double plain = 0;
      for (double const value : values) plain += value;
      differs |= plain != of_library(values);
    }
    CHECK(differs);
  }

  TEST_CASE("integers add up exactly and an empty sum is 0") {
    CHECK(ordered_sum(0, [](std::size_t) { return 1.0; }) == 0.0);
    for (std::size_t const n : {std::size_t{1}, std::size_t{33}, std::size_t{4097}, std::size_t{70000}}) {
      auto const last = static_cast<double>(n - 1);
      CHECK(ordered_sum(n, [](std::size_t i) { return static_cast<double>(i); }) == last * (last + 1) / 2);
    }
  }

  TEST_CASE("a fold visits each element once, in order within its lane, from 0") {
    for (std::size_t const n : {std::size_t{32}, std::size_t{40}, std::size_t{4096}, std::size_t{4100}}) {
      CAPTURE(n);
      std::size_t const lanes = n <= 32 ? 1 : n <= 4096 ? 32 : 1024;
      std::vector<int> visits(n);
      bool in_order = true;
      double const count = ordered_fold(n, [&](double accumulator, std::size_t i) {
        ++visits[i];
        in_order &= accumulator == static_cast<double>(i / lanes);
        return accumulator + 1;
      });
      CHECK(count == static_cast<double>(n));
      CHECK(in_order);
      CHECK(visits == std::vector<int>(n, 1));
    }
  }

  TEST_CASE("a fold with a fused multiply-add is the sum of squares") {
    CHECK(ordered_fold(100, [](double sum, std::size_t i) {
            auto const value = static_cast<double>(i);
            return std::fma(value, value, sum);
          }) == 328350.0);  // 99 * 100 * 199 / 6
  }

}  // TEST_SUITE
