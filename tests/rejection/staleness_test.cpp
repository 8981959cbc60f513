#include "support/ragged.hpp"

#include <turnwise/rejection/staleness.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace {

using namespace turnwise;
using rejection::staleness_options;
using flags = std::vector<reason_flags>;

constexpr std::int64_t lowest = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t highest = std::numeric_limits<std::int64_t>::max();

/// One trajectory, one turn a version.
flags stale(std::vector<std::int64_t> const& version, staleness_options const& options,
            std::vector<std::uint8_t> const& valid = {}) {
  test::ragged_batch<> const batch{{{.turns = std::vector<double>(version.size()), .valid = valid}}};
  auto reasons = batch.reasons();
  rejection::staleness(batch.view(), version, options, reasons);
  return reasons;
}

}  // namespace

TEST_SUITE("rejection/staleness") {
  TEST_CASE("a lag of max_lag is kept, one more is stale") {
    CHECK(stale({10, 9, 8, 7, -3}, {.current_version = 10, .max_lag = 2}) ==
          flags{0, 0, 0, reason::stale, reason::stale});
    CHECK(stale({10, 9}, {.current_version = 10, .max_lag = 0}) == flags{0, reason::stale});
    CHECK(stale({-5, -7}, {.current_version = -5, .max_lag = 1}) == flags{0, reason::stale});
  }

  TEST_CASE("no difference overflows") {
    CHECK(stale({lowest, highest}, {.current_version = highest, .max_lag = highest}) == flags{reason::stale, 0});
    CHECK(stale({lowest, -1}, {.current_version = highest - 1, .max_lag = highest}) == flags{reason::stale, 0});
    CHECK(stale({lowest}, {.current_version = lowest, .max_lag = 0}) == flags{0});
    CHECK(stale({lowest}, {.current_version = -1, .max_lag = highest}) == flags{0});
  }

  TEST_CASE("only valid turns are judged; other reasons stay") {
    CHECK(stale({1, 99}, {.current_version = 10, .max_lag = 2}, {1, 0}) == flags{reason::stale, reason::invalid});
    test::ragged_batch<> const batch{{{.turns = {0, 0, 0}}}};
    std::vector<std::int64_t> const version{1, 1, 1};
    flags reasons{reason::unscored, reason::no_token, reason::ratio_high};
    rejection::staleness(batch.view(), version, {.current_version = 9}, reasons);
    CHECK(reasons == flags{reason::unscored, reason::no_token | reason::stale, reason::ratio_high | reason::stale});
  }

  TEST_CASE("a version of the future, a negative lag and wrong sizes throw and change nothing; no turns") {
    CHECK(stale({}, {}) == flags{});
    test::ragged_batch<> const batch{{{.turns = {0, 0}}}};
    std::vector<std::int64_t> const version{1, 11}, one{1};
    flags reasons{0, 0};
    CHECK_THROWS_WITH_AS(rejection::staleness(batch.view(), version, {.current_version = 10}, reasons),
                         "staleness: policy_version[1] = 11 is above current_version = 10", precondition_error);
    CHECK_THROWS_AS(rejection::staleness(batch.view(), version, {.current_version = 11, .max_lag = -1}, reasons),
                    precondition_error);
    CHECK_THROWS_AS(rejection::staleness(batch.view(), one, {.current_version = 11}, reasons), precondition_error);
    CHECK_THROWS_AS(rejection::staleness(batch.view(), version, {.current_version = 11}, std::span{reasons}.first(1)),
                    precondition_error);
    CHECK(reasons == flags{0, 0});
  }

}  // TEST_SUITE
