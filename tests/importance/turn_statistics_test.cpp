#include <turnwise/importance/turn_statistics.hpp>

#include <doctest/doctest.h>

#include <limits>

using namespace turnwise::importance;

TEST_SUITE("importance/turn_statistics") {
  TEST_CASE("records of parts merge to the record of the whole, in any order") {
    // Log ratios 0.5 and -0.25, then 70 (clamped to 64) and a NaN.
    turn_statistics const first{2, (std::int64_t{1} << 24) / 4, -0.25, 0.5, 0, 0};
    turn_statistics const second{1, std::int64_t{64} << 24, 70, 70, 1, 1};
    turn_statistics const whole{3, (std::int64_t{1} << 24) / 4 + (std::int64_t{64} << 24), -0.25, 70, 1, 1};
    turn_statistics forwards = first;
    forwards += second;
    turn_statistics backwards = second;
    backwards += first;
    CHECK(forwards == whole);
    CHECK(backwards == whole);
    CHECK(whole.log_sum() == 64.25);
    CHECK(whole.log_mean() == 64.25 / 3);
  }

  TEST_CASE("the empty record is neutral") {
    turn_statistics const empty;
    CHECK(empty.count == 0);
    CHECK(empty.log_mean() == 0);
    CHECK(empty.min == std::numeric_limits<double>::infinity());
    CHECK(empty.max == -std::numeric_limits<double>::infinity());
    turn_statistics const one{1, 3, 0.125, 0.125, 0, 0};
    turn_statistics sum = empty;
    sum += one;
    CHECK(sum == one);
    sum += empty;
    CHECK(sum == one);
  }

  TEST_CASE("moments add up") {
    ratio_moments sum{1, 2, -3};
    sum += ratio_moments{0.5, 0.25, -1};
    CHECK(sum == ratio_moments{1.5, 2.25, -4});
  }
}
