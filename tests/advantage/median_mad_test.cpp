#include "support/ragged.hpp"

#include <turnwise/advantage/median_mad.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

using doctest::Approx;
using doctest::Contains;
using turnwise::group_by;
using turnwise::grouping;
using turnwise::make_grouping;
using turnwise::precondition_error;
using turnwise::reason_flags;
using turnwise::advantage::baseline_members;
using turnwise::advantage::median_mad;
using turnwise::advantage::median_mad_options;
using turnwise::advantage::normal_mad;
using turnwise::test::ragged_batch;
namespace detail = turnwise::advantage::detail;
namespace reason = turnwise::reason;

namespace {

using numbers = std::vector<double>;
using ids = std::vector<std::int64_t>;
using flags = std::vector<reason_flags>;

constexpr median_mad_options centred{.scale = false};
constexpr median_mad_options exact{.epsilon = 0};

template <typename T>
std::vector<T> advantages(grouping const& groups, std::vector<T> const& returns, flags const& reasons = {},
                          median_mad_options const& options = {}) {
  std::vector<T> out(returns.size(), T{-77});
  median_mad(groups, returns, reasons, options, std::span{out});
  return out;
}

/// A group of bare numbers.
struct plain_group {
  numbers values;
  template <typename Function>
  [[nodiscard]] detail::member_split split(Function f, double pivot) const {
    ++splits;
    detail::member_split result;
    for (double const value : values) result.add(f(value), pivot);
    return result;
  }
  mutable int splits = 0;
};

double sorted_median(numbers values) {
  std::sort(values.begin(), values.end());
  std::size_t const n = values.size();
  return 0.5 * (values[(n - 1) / 2] + values[n / 2]);
}

}  // namespace

TEST_SUITE("advantage/median_mad") {
  TEST_CASE_TEMPLATE("hand numbers: 1 2 4 8 100, median 4, deviations 3 2 0 4 96, MAD 3", T, float, double) {
    auto const groups = make_grouping(ids(5, 1));
    std::vector<T> const returns{8, 1, 100, 4, 2};
    CHECK(advantages(groups, returns, {}, centred) == std::vector<T>{4, -3, 96, 0, -2});
    numbers const distance{4, -3, 96, 0, -2};
    auto const scaled = advantages(groups, returns, {}, exact);
    auto const with_epsilon = advantages(groups, returns, {}, {.epsilon = 0.5522});
    for (std::size_t i = 0; i < 5; ++i) {
      CHECK(static_cast<double>(scaled[i]) == Approx(distance[i] / 4.4478).epsilon(1e-6));  // 3 * 1.4826
      CHECK(static_cast<double>(with_epsilon[i]) == Approx(distance[i] / 5).epsilon(1e-6));
    }
  }

  TEST_CASE_TEMPLATE("an even number: the mean of the two middle ones, for the deviations too", T, float, double) {
    // Median 3, deviations 2 1 1 6: MAD 1.5.
    auto const groups = make_grouping(ids(4, 1));
    CHECK(advantages<T>(groups, {4, 9, 1, 2}, {}, centred) == std::vector<T>{1, 6, -2, -1});
    auto const scaled = advantages<T>(groups, {4, 9, 1, 2}, {}, exact);
    CHECK(static_cast<double>(scaled[1]) == Approx(6 / (1.5 * normal_mad)).epsilon(1e-6));
    // Two members: both deviate by half their difference.
    auto const pair = advantages<T>(make_grouping(ids(2, 1)), {1, 4}, {}, exact);
    CHECK(static_cast<double>(pair[1]) == Approx(1 / normal_mad).epsilon(1e-6));
    CHECK(pair[0] == -pair[1]);
    // The two middle ones are equal.
    CHECK(advantages<T>(groups, {5, 5, 0, 9}, {}, centred) == std::vector<T>{0, 0, -5, 4});
  }

  TEST_CASE("the defaults: scaled, epsilon 1e-6, valid members") {
    median_mad_options const options;
    CHECK(options.scale);
    CHECK(options.epsilon == 1e-6);
    CHECK(options.members == baseline_members::valid);
  }

  TEST_CASE_TEMPLATE("by prompt and by turn", T, float, double) {
    ragged_batch<T> const batch{{{.group = 7, .id = 30, .turns = {10, 6, 7}},
                                 {.group = 7, .id = 10, .turns = {4, 1}},
                                 {.group = 7, .id = 20, .turns = {2}}}};
    // Prompt: 1 2 4 6 7 10; turn 0: 2 4 10; turn 1: 1 6; turn 2 alone.
    CHECK(advantages(make_grouping(batch.view(), group_by::group), batch.value, {}, centred) ==
          std::vector<T>{5, 1, 2, -1, -4, -3});
    CHECK(advantages(make_grouping(batch.view(), group_by::turn), batch.value, {}, centred) ==
          std::vector<T>{6, T{2.5}, 0, 0, T{-2.5}, -2});
  }

  TEST_CASE_TEMPLATE("a wild outlier moves neither median nor deviation", T, float, double) {
    auto const groups = make_grouping(ids(5, 1));
    auto const calm = advantages<T>(groups, {1, 2, 3, 4, 9});
    auto const wild = advantages<T>(groups, {1, 2, 3, 4, static_cast<T>(1e20)});
    for (std::size_t i = 0; i < 4; ++i) CHECK(calm[i] == wild[i]);
  }

  TEST_CASE_TEMPLATE("MAD 0: equal ones get 0, the others their undivided distance", T, float, double) {
    for (double const epsilon : {0.0, 1e-6})
      CHECK(advantages<T>(make_grouping(ids(5, 1)), {1, 1, 0, 1, 9}, {}, {.epsilon = epsilon}) ==
            std::vector<T>{0, 0, -1, 0, 8});
    // Half of an even number is not enough: 1 1 2 9 has the deviations 0.5 0.5 0.5 7.5.
    auto const got = advantages<T>(make_grouping(ids(4, 1)), {1, 1, 2, 9}, {}, exact);
    CHECK(static_cast<double>(got[3]) == Approx(7.5 / (0.5 * normal_mad)).epsilon(1e-6));
  }

  TEST_CASE_TEMPLATE("equal returns give exactly 0; a lone member too", T, float, double) {
    for (std::size_t const n : {1u, 2u, 3u, 10u, 33u, 4097u})
      for (double const value : {0.1, 1e-30, -0.7, 0.0})
        for (bool const scale : {true, false})
          CHECK(advantages(make_grouping(ids(n, 4)), std::vector<T>(n, static_cast<T>(value)), {},
                           {.scale = scale, .epsilon = 0}) == std::vector<T>(n, T{0}));
    CHECK(advantages<T>(make_grouping(ids{1, 2, 3}), {1, 2, 3}) == std::vector<T>{0, 0, 0});
    median_mad_options const kept{.members = baseline_members::kept};
    auto const groups = make_grouping(ids(3, 0));
    CHECK(advantages<T>(groups, {1, 2, 3}, {0, reason::stale, reason::stale}, kept) == std::vector<T>{0, 0, 0});
    CHECK(advantages<T>(groups, {1, 2, 3}, flags(3, reason::invalid)) == std::vector<T>{0, 0, 0});
    // Equal members, and a valid turn that is no member.
    CHECK(advantages<T>(groups, {1, 1, 3}, {0, 0, reason::stale}, kept) == std::vector<T>{0, 0, 2});
  }

  TEST_CASE_TEMPLATE("zeros of both signs are one value", T, float, double) {
    auto const groups = make_grouping(ids(4, 0));
    CHECK(advantages<T>(groups, {0, -T{0}, 0, -T{0}}) == std::vector<T>{0, 0, 0, 0});
    CHECK(advantages<T>(groups, {-T{0}, 0, 5, -3}, {}, centred) == std::vector<T>{0, 0, 5, -3});
  }

  TEST_CASE_TEMPLATE("rejected and invalid turns", T, float, double) {
    auto const groups = make_grouping(ids(4, 0));
    T const nan = std::numeric_limits<T>::quiet_NaN();
    flags const reasons{0, 0, reason::ratio_low, 0};
    CHECK(advantages<T>(groups, {1, 2, 9, 6}, reasons, centred) == std::vector<T>{-3, -2, 5, 2});
    CHECK(advantages<T>(groups, {1, 2, 9, 6}, reasons, {.scale = false, .members = baseline_members::kept}) ==
          std::vector<T>{-1, 0, 7, 4});
    for (auto const why : {reason::invalid, reason::unscored, reason::unscored_future})
      CHECK(advantages<T>(groups, {1, 2, nan, 6}, {0, 0, why, 0}, centred) == std::vector<T>{-1, 0, 0, 4});
  }

  TEST_CASE("selection by counting: every rank's order statistic, however the values lie") {
    CHECK(detail::ordered_key(0.0) == 0);
    CHECK(detail::ordered_key(-0.0) == 0);
    CHECK(detail::ordered_key(-1.0) == -detail::ordered_key(1.0));
    double const ladder[] = {-0x1p500, -2, -1, -5e-324, 0, 5e-324, 1e-300, 1, 1.5, 0x1p500};
    for (std::size_t i = 0; i < std::size(ladder); ++i) {
      CHECK(detail::number_of_key(detail::ordered_key(ladder[i])) == ladder[i]);
      for (std::size_t j = i + 1; j < std::size(ladder); ++j) {
        CHECK(detail::ordered_key(ladder[i]) < detail::ordered_key(ladder[j]));
        double const middle = detail::halfway(ladder[i], ladder[j]);
        CHECK(middle >= ladder[i]);
        CHECK(middle < ladder[j]);
      }
    }
    turnwise::test::integers random{12};
    for (int round = 0; round < 3000; ++round) {
      plain_group group;
      std::int64_t const n = 1 + random.below(round % 10 == 0 ? 400 : 12);
      std::int64_t const kinds = 1 + random.below(round % 3 == 0 ? 3 : 1000);
      for (std::int64_t i = 0; i < n; ++i) {
        double value = static_cast<double>(random.below(kinds) - kinds / 2);
        if (round % 4 == 1) value = std::ldexp(value, static_cast<int>(random.below(1000)) - 510);
        if (round % 7 == 2) value *= 5e-324;
        group.values.push_back(random.below(5) == 0 ? -0.0 : value);
      }
      auto const [low, high] = std::minmax_element(group.values.begin(), group.values.end());
      double const got = detail::median(
          group, [](double value) { return value; }, n, *low, *high);
      CHECK(got == sorted_median(group.values));
      CHECK(!(got == 0 && std::signbit(got)));
      CHECK(group.splits <= 65);
    }
  }

  TEST_CASE("relation: shifting and scaling the returns") {
    turnwise::test::integers random{13};
    for (std::size_t const n : {2u, 5u, 16u, 33u, 1001u}) {
      numbers returns(n), moved(n);
      for (std::size_t i = 0; i < n; ++i) {
        returns[i] = static_cast<double>(random.below(1 << 20));
        moved[i] = 8 * returns[i] - 4096;
      }
      auto const groups = make_grouping(ids(n, 1));
      CHECK(advantages(groups, returns, {}, exact) == advantages(groups, moved, {}, exact));
    }
  }

  TEST_CASE("large returns overflow nowhere") {
    double const limit = turnwise::magnitude_limit<double>;
    auto const got = advantages(make_grouping(ids(4, 1)), numbers{limit, -limit, -limit, limit});
    for (double const value : got) CHECK(std::abs(value) == Approx(1 / normal_mad));
  }

  TEST_CASE("no turns") { CHECK(advantages(make_grouping(ids{}), numbers{}).empty()); }

  TEST_CASE_TEMPLATE("every error names the argument and leaves the advantage alone", T, float, double) {
    auto const groups = make_grouping(ids{1, 1, 2});
    std::vector<T> returns{1, 2, 3}, out(3, T{9});
    flags reasons;
    median_mad_options options;
    auto const refused = [&](char const* text) {
      auto const before = out;
      CHECK_THROWS_WITH_AS(median_mad(groups, returns, reasons, options, std::span{out}), Contains(text),
                           precondition_error);
      CHECK(out == before);
    };
    SUBCASE("sizes") {
      returns.push_back(0);
      refused("median_mad: turn_return has 4 elements, expected 3");
      returns.pop_back();
      reasons = {0};
      refused("median_mad: reasons has 1 elements, expected 3");
      reasons.clear();
      out.pop_back();
      refused("median_mad: advantage has 2 elements, expected 3");
    }
    SUBCASE("epsilon") {
      for (double const bad :
           {-1e-9, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
        options.epsilon = bad;
        refused("median_mad: epsilon = ");
      }
    }
    SUBCASE("a return of a valid turn") {
      returns[1] = std::numeric_limits<T>::quiet_NaN();
      refused("median_mad: turn_return[1] = nan");
    }
    SUBCASE("advantage over the returns") {
      CHECK_THROWS_WITH_AS(median_mad(groups, returns, reasons, options, std::span{returns}),
                           Contains("advantage must not overlap turn_return"), precondition_error);
    }
  }

}  // TEST_SUITE
