#include "support/ragged.hpp"

#include <turnwise/advantage/group_relative.hpp>
#include <turnwise/advantage/opo.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

using doctest::Approx;
using doctest::Contains;
using turnwise::group_by;
using turnwise::grouping;
using turnwise::make_grouping;
using turnwise::precondition_error;
using turnwise::reason_flags;
using turnwise::advantage::baseline_members;
using turnwise::advantage::opo;
using turnwise::advantage::opo_options;
using turnwise::test::ragged_batch;
namespace reason = turnwise::reason;

namespace {

using numbers = std::vector<double>;
using ids = std::vector<std::int64_t>;
using flags = std::vector<reason_flags>;

constexpr opo_options kept{.members = baseline_members::kept};

template <typename T>
std::vector<T> advantages(grouping const& groups, std::vector<T> const& returns, numbers const& weight,
                          flags const& reasons = {}, opo_options const& options = {}) {
  std::vector<T> out(returns.size(), T{-77});
  opo(groups, returns, weight, reasons, options, std::span{out});
  return out;
}

}  // namespace

TEST_SUITE("advantage/opo") {
  TEST_CASE_TEMPLATE("hand numbers: lengths 1, 2, 5 and returns 8, 4, 0 make a baseline of 2", T, float, double) {
    CHECK(advantages<T>(make_grouping(ids{1, 1, 1}), {8, 4, 0}, {1, 2, 5}) == std::vector<T>{6, 2, -2});
    // Only ratios count.
    CHECK(advantages<T>(make_grouping(ids{1, 1, 1}), {8, 4, 0}, {0.25, 0.5, 1.25}) == std::vector<T>{6, 2, -2});
  }

  TEST_CASE("weights of any size: only ratios count") {
    double const least = std::numeric_limits<double>::denorm_min();
    grouping const two = make_grouping(ids{1, 1});
    // Baseline 5/16; a product of the least number with either return is 0.
    CHECK(advantages<double>(two, {0.25, 0.375}, {least, least}) == numbers{-0.0625, 0.0625});
    CHECK(advantages<double>(two, {4, 8}, {least, 3 * least}) == numbers{-3, 1});
    CHECK(advantages<double>(two, {0x1p-500, 0x3p-500}, {0x1p-600, 0x1p-600}) == numbers{-0x1p-500, 0x1p-500});
    CHECK(advantages<double>(two, {-0x1p500, 0x1p500}, {0x1p500, 0x1p500}) == numbers{-0x1p500, 0x1p500});
  }

  TEST_CASE("members with weight that are equal get exactly 0, whatever those without weight have") {
    for (double const value : {0.1, 0.3, 0.7, 1.1}) {
      CAPTURE(value);
      auto const got = advantages<double>(make_grouping(ids{1, 1, 1, 1}), {value, 5, value, value}, {3, 0, 7, 0.3});
      CHECK(got == numbers{0, 5 - value, 0, 0});
      CHECK(advantages<double>(make_grouping(ids{1, 1}), {5, value}, {0, 3}) == numbers{5 - value, 0});
    }
  }

  TEST_CASE_TEMPLATE("by prompt and by turn", T, float, double) {
    // Returns (4, 1), (2): prompt (4 * 2 + 1 * 4 + 2 * 2) / 8 = 2; turn 0 (4 * 2 + 2 * 2) / 4 = 3; turn 1 alone.
    ragged_batch<T> const batch{{{.group = 3, .id = 1, .turns = {4, 1}}, {.group = 3, .id = 2, .turns = {2}}}};
    CHECK(advantages(make_grouping(batch.view(), group_by::group), batch.value, {2, 4, 2}) == std::vector<T>{2, -1, 0});
    CHECK(advantages(make_grouping(batch.view(), group_by::turn), batch.value, {2, 4, 2}) == std::vector<T>{1, 0, -1});
  }

  TEST_CASE("equal weights: mean-centred") {
    turnwise::test::integers random{5};
    for (std::size_t const n : {2u, 3u, 16u, 33u, 5000u}) {
      numbers returns(n), centred(n);
      for (double& value : returns) value = turnwise::test::uneven_number(random);
      auto const groups = make_grouping(ids(n, 1));
      turnwise::advantage::group_relative(groups, returns, {}, {.scale = false}, std::span{centred});
      for (double const weight : {1.0, 0.25}) CHECK(advantages(groups, returns, numbers(n, weight)) == centred);
      for (double const weight : {3.0, 1e-9}) {
        auto const got = advantages(groups, returns, numbers(n, weight));
        for (std::size_t i = 0; i < n; ++i) CHECK(std::abs(got[i] - centred[i]) < 1e-12);
      }
    }
  }

  TEST_CASE("the weighted sum of advantages is 0") {
    turnwise::test::integers random{6};
    for (std::size_t const n : {2u, 3u, 16u, 33u, 5000u}) {
      numbers returns(n), weight(n);
      for (std::size_t i = 0; i < n; ++i) {
        returns[i] = turnwise::test::uneven_number(random);
        weight[i] = static_cast<double>(random.below(8000));
      }
      auto const got = advantages(make_grouping(ids(n, 1)), returns, weight);
      double sum = 0, total = 0;
      for (std::size_t i = 0; i < n; ++i) {
        sum += weight[i] * got[i];
        total += weight[i];
      }
      CHECK(std::abs(sum) < 1e-10 * total);
    }
  }

  TEST_CASE_TEMPLATE("members without weight leave the baseline; none with weight: the plain mean", T, float, double) {
    CHECK(advantages<T>(make_grouping(ids{1, 1, 1}), {8, 4, 6}, {0, 3, 1}) == std::vector<T>{T{3.5}, T{-0.5}, T{1.5}});
    CHECK(advantages<T>(make_grouping(ids{1, 1, 1}), {8, 4, 6}, {0, 3, 0}) == std::vector<T>{4, 0, 2});
    CHECK(advantages<T>(make_grouping(ids{1, 1, 1}), {8, 4, 6}, {0, 0, 0}) == std::vector<T>{2, -2, 0});
    CHECK(advantages<T>(make_grouping(ids{1, 1, 1}), {8, 4, 6}, {0, -0.0, 0}) == std::vector<T>{2, -2, 0});
  }

  TEST_CASE_TEMPLATE("equal returns give exactly 0, with any weights", T, float, double) {
    for (std::size_t const n : {2u, 3u, 10u, 33u, 4097u}) {
      numbers weight(n);
      for (std::size_t i = 0; i < n; ++i) weight[i] = 0.1 * static_cast<double>(i % 7);
      CHECK(advantages(make_grouping(ids(n, 4)), std::vector<T>(n, T{0.1f}), weight) == std::vector<T>(n, T{0}));
    }
  }

  TEST_CASE_TEMPLATE("a lone member gets 0, as every turn of a group with fewer than two members", T, float, double) {
    CHECK(advantages<T>(make_grouping(ids{3, 1, 2}), {4, -6, 1}, {1, 2, 0}) == std::vector<T>{0, 0, 0});
    auto const one = make_grouping(ids(3, 0));
    CHECK(advantages<T>(one, {4, -6, 1}, {1, 2, 3}, {0, reason::invalid, reason::unscored}) == std::vector<T>{0, 0, 0});
    CHECK(advantages<T>(one, {4, -6, 1}, {1, 2, 3}, {0, reason::stale, reason::stale}, kept) ==
          std::vector<T>{0, 0, 0});
    CHECK(advantages<T>(one, {4, -6, 1}, {1, 2, 3}, flags(3, reason::stale), kept) == std::vector<T>{0, 0, 0});
  }

  TEST_CASE_TEMPLATE("rejected turns: members with `valid`, judged from outside with `kept`", T, float, double) {
    auto const groups = make_grouping(ids(3, 0));
    flags const reasons{0, 0, reason::ratio_low};
    CHECK(advantages<T>(groups, {8, 4, 0}, {1, 2, 5}, reasons) == std::vector<T>{6, 2, -2});
    CHECK(advantages<T>(groups, {8, 4, 0}, {1, 3, 5}, reasons, kept) == std::vector<T>{3, -1, -5});
  }

  TEST_CASE_TEMPLATE("invalid turns: 0, and neither their return nor their weight is read", T, float, double) {
    T const nan = std::numeric_limits<T>::quiet_NaN();
    double const infinity = std::numeric_limits<double>::infinity();
    for (double const weight : {std::numeric_limits<double>::quiet_NaN(), infinity, -1.0})
      for (auto const why : {reason::invalid, reason::unscored, reason::unscored_future})
        CHECK(advantages<T>(make_grouping(ids(3, 0)), {8, nan, 4}, {1, weight, 3}, {0, why, 0}) ==
              std::vector<T>{3, 0, -1});
  }

  TEST_CASE("large returns and weights overflow nowhere") {
    double const limit = turnwise::magnitude_limit<double>;
    CHECK(advantages(make_grouping(ids{1, 1, 1, 1}), numbers{limit, limit, -limit, -limit}, numbers(4, limit)) ==
          numbers{limit, limit, -limit, -limit});
  }

  TEST_CASE("no turns") { CHECK(advantages(make_grouping(ids{}), numbers{}, {}).empty()); }

  TEST_CASE_TEMPLATE("every error names the argument and leaves the advantage alone", T, float, double) {
    auto const groups = make_grouping(ids{1, 1, 2});
    std::vector<T> returns{1, 2, 3}, out(3, T{9});
    numbers weight{1, 1, 1};
    flags reasons;
    auto const refused = [&](char const* text) {
      auto const before = out;
      CHECK_THROWS_WITH_AS(opo(groups, returns, weight, reasons, {}, std::span{out}), Contains(text),
                           precondition_error);
      CHECK(out == before);
    };
    SUBCASE("sizes") {
      returns.push_back(0);
      refused("opo: turn_return has 4 elements, expected 3");
      returns.pop_back();
      reasons = {0};
      refused("opo: reasons has 1 elements, expected 3");
      reasons.clear();
      weight.pop_back();
      refused("opo: weight has 2 elements, expected 3");
      weight.clear();
      refused("opo: weight has 0 elements, expected 3");
      weight = {1, 1, 1};
      out.pop_back();
      refused("opo: advantage has 2 elements, expected 3");
    }
    SUBCASE("a return of a valid turn") {
      returns[1] = std::numeric_limits<T>::infinity();
      refused("opo: turn_return[1] = inf");
    }
    SUBCASE("a weight of a valid turn") {
      for (double const bad :
           {-1e-300, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), 0x1p501}) {
        weight[2] = bad;
        reasons = {0, 0, reason::profiling};
        refused("opo: weight[2] = ");
      }
    }
    SUBCASE("advantage over an input") {
      CHECK_THROWS_WITH_AS(opo(groups, returns, weight, reasons, {}, std::span{returns}),
                           Contains("advantage must not overlap turn_return"), precondition_error);
      if constexpr (std::is_same_v<T, double>)
        CHECK_THROWS_WITH_AS(opo(groups, returns, weight, reasons, {}, std::span{weight}),
                             Contains("advantage must not overlap weight"), precondition_error);
      CHECK(weight == numbers{1, 1, 1});
    }
  }

}  // TEST_SUITE
