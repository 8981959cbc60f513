#include "support/ragged.hpp"

#include <turnwise/advantage/reinforce_plus_plus.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

using doctest::Contains;
using turnwise::group_by;
using turnwise::grouping;
using turnwise::make_grouping;
using turnwise::precondition_error;
using turnwise::reason_flags;
using turnwise::advantage::baseline_members;
using turnwise::advantage::reinforce_plus_plus;
using turnwise::advantage::reinforce_plus_plus_options;
using turnwise::advantage::whiten_options;
using turnwise::test::bits_of;
namespace reason = turnwise::reason;

namespace {

using numbers = std::vector<double>;
using ids = std::vector<std::int64_t>;
using flags = std::vector<reason_flags>;

constexpr reinforce_plus_plus_options with_baseline{.group_baseline = true};

template <typename T>
std::vector<T> advantages(grouping const& groups, std::vector<T> const& returns, ids const& weight = {},
                          flags const& reasons = {}, reinforce_plus_plus_options const& options = {}) {
  std::vector<T> out(returns.size(), T{-77});
  reinforce_plus_plus(groups, returns, weight, reasons, options, std::span{out});
  return out;
}

template <typename T>
void check_near(std::vector<T> const& got, numbers const& wanted) {
  REQUIRE(got.size() == wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(static_cast<double>(got[i]) - wanted[i]) < 1e-6);
  }
}

}  // namespace

TEST_SUITE("advantage/reinforce_plus_plus") {
  TEST_CASE_TEMPLATE("hand numbers", T, float, double) {
    auto const groups = make_grouping(ids{5, 5, 9, 9});
    std::vector<T> const returns{0, 4, 10, 14};
    // Mean 7, squares 49 + 9 + 9 + 49 = 116.
    double const all = std::sqrt(116.0 / 3) + 1e-6;
    check_near(advantages(groups, returns), {-7 / all, -3 / all, 3 / all, 7 / all});
    // Means 2 and 12: -2, 2, -2, 2, squares 16.
    double const centred = std::sqrt(16.0 / 3) + 1e-6;
    check_near(advantages(groups, returns, {}, {}, with_baseline),
               {-2 / centred, 2 / centred, -2 / centred, 2 / centred});
    // By tokens 3, 1, 1, 1: -2 * 3 + 2 - 2 + 2 = -4 of 6; squares 3 * 16/9 + 64/9 + 16/9 + 64/9 = 64/3.
    double const tokens = std::sqrt(64.0 / 3 / 5) + 1e-6, low = -4.0 / 3 / tokens, high = 8.0 / 3 / tokens;
    check_near(advantages(groups, returns, {3, 1, 1, 1}, {}, with_baseline), {low, high, low, high});
  }

  TEST_CASE("it is whiten, of the returns or of group_relative without scale") {
    turnwise::test::integers random{7};
    ids const sizes{1, 2, 3, 9, 40};
    turnwise::test::ragged_batch<> const batch{turnwise::test::random_values<double>(random, sizes, 4)};
    numbers returns(batch.turns());
    flags reasons = batch.reasons();
    ids weight(batch.turns());
    for (std::size_t s = 0; s < batch.turns(); ++s) {
      returns[s] = turnwise::test::uneven_number(random);
      weight[s] = random.below(50);
      if (random.below(5) == 0) reasons[s] |= reason::ratio_high;
    }
    for (auto const by : {group_by::group, group_by::turn, group_by::batch})
      for (auto const members : {baseline_members::valid, baseline_members::kept}) {
        auto const groups = make_grouping(batch.view(), by);
        whiten_options const whitening{.epsilon = 1e-8, .members = members};
        numbers expected(batch.turns());
        turnwise::advantage::whiten(returns, weight, reasons, whitening, std::span{expected});
        CHECK(bits_of(advantages(groups, returns, weight, reasons, {.whiten = whitening})) == bits_of(expected));
        numbers centred(batch.turns());
        turnwise::advantage::group_relative(groups, returns, reasons, {.scale = false, .members = members},
                                            std::span{centred});
        turnwise::advantage::whiten(centred, weight, reasons, whitening, std::span{expected});
        for (int const threads : {1, 2})
          CHECK(bits_of(advantages(groups, returns, weight, reasons,
                                   {.group_baseline = true, .whiten = whitening, .threads = threads})) ==
                bits_of(expected));
      }
  }

  TEST_CASE("lone members enter with 0; groups of equal returns alone give exactly 0") {
    // Group 1: -1, 1; group 2: alone, 0. Mean 0, squares 2 over n - 1 = 2.
    double const one = 1 / (1.0 + 1e-6);
    check_near(advantages(make_grouping(ids{1, 1, 2}), numbers{3, 5, 100}, {}, {}, with_baseline), {-one, one, 0});
    CHECK(advantages(make_grouping(ids{1, 1, 2, 2}), numbers{0.1, 0.1, 7, 7}, {}, {}, with_baseline) ==
          numbers{0, 0, 0, 0});
    CHECK(advantages(make_grouping(ids{1, 2, 3}), numbers{1, 2, 3}, {}, {}, with_baseline) == numbers{0, 0, 0});
    CHECK(advantages(make_grouping(ids{1, 2, 3}), numbers{0.1, 0.1, 0.1}) == numbers{0, 0, 0});
    CHECK(advantages(make_grouping(ids{}), numbers{}).empty());
  }

  TEST_CASE("invalid turns are 0 and their NaN stays where it is") {
    auto const groups = make_grouping(ids{1, 1, 1});
    for (double const garbage : {turnwise::test::nan_value, turnwise::test::infinity})
      for (bool const baseline : {false, true}) {
        auto const got = advantages(groups, numbers{-1, garbage, 1}, {}, {0, reason::unscored, 0},
                                    {.group_baseline = baseline, .whiten = {.ddof = 0, .epsilon = 0}});
        CHECK(got == numbers{-1, 0, 1});
      }
  }

  TEST_CASE_TEMPLATE("every error names the argument and leaves the advantage alone", T, float, double) {
    auto const groups = make_grouping(ids{1, 1, 2});
    std::vector<T> returns{1, 2, 3}, out(3, T{9});
    ids weight;
    flags reasons;
    reinforce_plus_plus_options options;
    auto const refused = [&](char const* text) {
      for (bool const baseline : {false, true}) {
        options.group_baseline = baseline;
        auto const before = out;
        CHECK_THROWS_WITH_AS(reinforce_plus_plus(groups, returns, weight, reasons, options, std::span{out}),
                             Contains(text), precondition_error);
        CHECK(out == before);
      }
    };
    SUBCASE("sizes") {
      weight = {1};
      refused("reinforce_plus_plus: weight has 1 elements, expected 3");
      weight.clear();
      reasons = {0, 0};
      refused("reinforce_plus_plus: reasons has 2 elements, expected 3");
      reasons.clear();
      out.pop_back();
      refused("reinforce_plus_plus: advantage has 2 elements, expected 3");
      returns.push_back(0);
      refused("reinforce_plus_plus: turn_return has 4 elements, expected 3");
    }
    SUBCASE("options and content") {
      options.whiten.ddof = 3;
      refused("reinforce_plus_plus: ddof = 3");
      options.whiten = {.epsilon = -1};
      refused("reinforce_plus_plus: epsilon = -1");
      options.whiten = {};
      weight = {1, -1, 1};
      refused("reinforce_plus_plus: weight[1] = -1");
      weight.clear();
      returns[2] = std::numeric_limits<T>::infinity();
      refused("reinforce_plus_plus: turn_return[2] = inf");
    }
    SUBCASE("advantage over the returns, with a group baseline") {
      CHECK_THROWS_AS(reinforce_plus_plus(groups, returns, {}, {}, with_baseline, std::span{returns}),
                      precondition_error);
      CHECK(returns == std::vector<T>{1, 2, 3});
      reinforce_plus_plus(groups, returns, {}, {}, {}, std::span{returns});
      CHECK(returns == advantages<T>(groups, {1, 2, 3}));
    }
  }

  TEST_CASE("centred returns beyond the limit are refused before anything is written") {
    std::vector<std::int64_t> const ids{7, 7, 7};
    std::vector<double> const returns{0x1p500, -0x1p500, -0x1p500};
    std::vector<double> advantage{7, 7, 7};
    CHECK_THROWS_AS(turnwise::advantage::reinforce_plus_plus<double>(turnwise::make_grouping(ids), returns, {}, {},
                                                                     {.group_baseline = true}, std::span{advantage}),
                    turnwise::precondition_error);
    CHECK(advantage == std::vector<double>{7, 7, 7});
  }

}  // TEST_SUITE
