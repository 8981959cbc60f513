#include <turnwise/core/philox.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <vector>

using turnwise::draw_key;
using turnwise::draw_purpose;
using turnwise::philox4x32_10;
using turnwise::philox_words;
using turnwise::turn_uniform;

namespace {

constexpr double unit = 1.0 / 4294967296.0;
constexpr std::int64_t largest_word = 4294967295;

double correlation(std::vector<double> const& a, std::vector<double> const& b) {
  double sum_a = 0, sum_b = 0, aa = 0, bb = 0, ab = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum_a += a[i];
    sum_b += b[i];
    aa += a[i] * a[i];
    bb += b[i] * b[i];
    ab += a[i] * b[i];
  }
  auto const n = static_cast<double>(a.size());
  return (ab - sum_a * sum_b / n) / std::sqrt((aa - sum_a * sum_a / n) * (bb - sum_b * sum_b / n));
}

/// A million turns: 1000 groups (half of them negative ids), 100 trajectories, 10 turns.
std::vector<double> million_draws(draw_key key, draw_purpose purpose) {
  std::vector<double> draws;
  draws.reserve(1'000'000);
  for (std::int64_t group = -500; group < 500; ++group)
    for (std::int64_t trajectory = 0; trajectory < 100; ++trajectory)
      for (std::int64_t turn = 0; turn < 10; ++turn)
        draws.push_back(turn_uniform(key, group, trajectory, turn, purpose));
  return draws;
}

}  // namespace

TEST_SUITE("core/philox") {
  TEST_CASE("known-answer vectors of Random123") {
    static_assert(philox4x32_10({{0, 0, 0, 0}}, {0, 0}) ==
                  philox_words{{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
    static_assert(philox4x32_10({{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}}, {0xffffffff, 0xffffffff}) ==
                  philox_words{{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
    static_assert(philox4x32_10({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, {0xa4093822, 0x299f31d0}) ==
                  philox_words{{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
    // Again at run time.
    philox_words counter{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}};
    CHECK(philox4x32_10(counter, {0xa4093822, 0x299f31d0}) ==
          philox_words{{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
  }

  TEST_CASE("the draw of a turn is the known answer of its counter and key") {
    CHECK(turn_uniform({0, 0}, 0, 0, 0, draw_purpose::profiling_filter) == 0x6627e8d5p0 * unit);
    CHECK(turn_uniform({0, 0}, 0, 0, 0, draw_purpose::down_sampling) == 0xe169c58dp0 * unit);
    // Group words are low, then high: this id has both, and is negative.
    auto const group = static_cast<std::int64_t>(0x85a308d3243f6a88);
    REQUIRE(group < 0);
    CHECK(turn_uniform({0xa4093822, 0x299f31d0}, group, 0x13198a2e, 0x03707344, draw_purpose::profiling_filter) ==
          0xd16cfe09p0 * unit);
    CHECK(turn_uniform({0xa4093822, 0x299f31d0}, group, 0x13198a2e, 0x03707344, draw_purpose::down_sampling) ==
          0x94fdccebp0 * unit);
  }

  TEST_CASE("the ends of the id ranges: group -1, largest trajectory and turn") {
    CHECK(turn_uniform({0xffffffff, 0xffffffff}, -1, largest_word, largest_word, draw_purpose::profiling_filter) ==
          0x408f276dp0 * unit);
    auto const of_counter = [](std::uint32_t low, std::uint32_t high) {
      return unit * philox4x32_10({{low, high, 7, 2}}, {5, 6}).word[0];
    };
    auto const of_group = [](std::int64_t group) {
      return turn_uniform({5, 6}, group, 7, 2, draw_purpose::profiling_filter);
    };
    CHECK(of_group(std::numeric_limits<std::int64_t>::min()) == of_counter(0, 0x80000000));
    CHECK(of_group(std::numeric_limits<std::int64_t>::max()) == of_counter(0xffffffff, 0x7fffffff));
    CHECK(of_group(-2) == of_counter(0xfffffffe, 0xffffffff));
  }

  TEST_CASE("purposes have frozen word numbers") {
    static_assert(static_cast<int>(draw_purpose::profiling_filter) == 0);
    static_assert(static_cast<int>(draw_purpose::down_sampling) == 1);
  }

  TEST_CASE("every part of the key and of the counter changes the draw") {
    auto const draw = [](std::uint32_t seed, std::uint32_t step, std::int64_t group, std::int64_t trajectory,
                         std::int64_t turn) {
      return turn_uniform({seed, step}, group, trajectory, turn, draw_purpose::profiling_filter);
    };
    std::set<double> const draws{draw(0, 0, 0, 0, 0), draw(1, 0, 0, 0, 0),  draw(0, 1, 0, 0, 0),
                                 draw(0, 0, 1, 0, 0), draw(0, 0, -1, 0, 0), draw(0, 0, std::int64_t{1} << 32, 0, 0),
                                 draw(0, 0, 0, 1, 0), draw(0, 0, 0, 0, 1)};
    CHECK(draws.size() == 8);
  }

  TEST_CASE("a million draws are uniform in [0, 1)") {
    auto const draws = million_draws({1, 2}, draw_purpose::profiling_filter);
    double sum = 0, squares = 0;
    for (double const u : draws) {
      REQUIRE(u >= 0);
      REQUIRE(u < 1);
      sum += u;
      squares += u * u;
    }
    // Five standard errors: sqrt(1/12) and sqrt(4/45), over 1000.
    CHECK(std::abs(sum / 1e6 - 1.0 / 2) < 5 * 0.000289);
    CHECK(std::abs(squares / 1e6 - 1.0 / 3) < 5 * 0.000299);
  }

  TEST_CASE("draws of two purposes, two steps and two seeds are uncorrelated") {
    auto const draws = million_draws({1, 2}, draw_purpose::profiling_filter);
    CHECK(std::abs(correlation(draws, million_draws({1, 2}, draw_purpose::down_sampling))) < 0.01);
    CHECK(std::abs(correlation(draws, million_draws({1, 3}, draw_purpose::profiling_filter))) < 0.01);
    CHECK(std::abs(correlation(draws, million_draws({2, 2}, draw_purpose::profiling_filter))) < 0.01);
    auto const again = million_draws({1, 2}, draw_purpose::profiling_filter);
    CHECK(draws == again);
  }

}  // TEST_SUITE
