#include "support/ragged.hpp"

#include <turnwise/advantage/group_relative.hpp>
#include <turnwise/advantage/max_rl.hpp>

#include <doctest/doctest.h>

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
using turnwise::advantage::max_rl;
using turnwise::advantage::max_rl_options;
using turnwise::test::ragged_batch;
namespace reason = turnwise::reason;

namespace {

using numbers = std::vector<double>;
using ids = std::vector<std::int64_t>;
using flags = std::vector<reason_flags>;

constexpr max_rl_options kept{.members = baseline_members::kept};

template <typename T>
std::vector<T> advantages(grouping const& groups, std::vector<T> const& returns, flags const& reasons = {},
                          max_rl_options const& options = {}) {
  std::vector<T> out(returns.size(), T{-77});
  max_rl(groups, returns, reasons, options, std::span{out});
  return out;
}

}  // namespace

TEST_SUITE("advantage/max_rl") {
  TEST_CASE_TEMPLATE("hand numbers: one success among four weighs 3, three weigh 1/3 each", T, float, double) {
    CHECK(advantages<T>(make_grouping(ids(4, 1)), {1, 0, 0, 0}) == std::vector<T>{3, -1, -1, -1});
    auto const got = advantages<T>(make_grouping(ids(4, 1)), {1, 1, 1, 0});
    for (std::size_t i = 0; i < 3; ++i) CHECK(static_cast<double>(got[i]) == Approx(1.0 / 3).epsilon(1e-7));
    CHECK(got[3] == -1);
    // Mean 4.
    CHECK(advantages<T>(make_grouping(ids(3, 1)), {2, 4, 6}) == std::vector<T>{T{-0.5}, 0, T{0.5}});
  }

  TEST_CASE_TEMPLATE("by prompt and by turn", T, float, double) {
    ragged_batch<T> const batch{{{.group = 3, .id = 1, .turns = {4, 1}}, {.group = 3, .id = 2, .turns = {1, 3}}}};
    // Turn 0: mean 2.5; turn 1: mean 2. All: mean 2.25.
    auto const by_turn = advantages(make_grouping(batch.view(), group_by::turn), batch.value);
    CHECK(static_cast<double>(by_turn[0]) == Approx(0.6).epsilon(1e-7));
    CHECK(static_cast<double>(by_turn[2]) == Approx(-0.6).epsilon(1e-7));
    CHECK(by_turn[1] == T{-0.5});
    CHECK(by_turn[3] == T{0.5});
    auto const by_group = advantages(make_grouping(batch.view(), group_by::group), batch.value);
    CHECK(static_cast<double>(by_group[0]) == Approx(1.75 / 2.25).epsilon(1e-7));
  }

  TEST_CASE("the form with epsilon: added to the mean that divides") {
    CHECK(max_rl_options{}.epsilon == 0);
    CHECK(advantages(make_grouping(ids(2, 1)), numbers{1, 3}, {}, {.epsilon = 2}) == numbers{-0.25, 0.25});
    auto const got = advantages(make_grouping(ids(4, 1)), numbers{1, 0, 0, 0}, {}, {.epsilon = 1e-6});
    CHECK(got[0] == Approx(0.75 / 0.250001).epsilon(1e-15));
    CHECK(got[1] == Approx(-0.25 / 0.250001).epsilon(1e-15));
  }

  TEST_CASE_TEMPLATE("a group whose mean is not above 0 gets 0", T, float, double) {
    for (double const epsilon : {0.0, 1e-6}) {
      max_rl_options const options{.epsilon = epsilon};
      CHECK(advantages<T>(make_grouping(ids(3, 1)), {0, 0, 0}, {}, options) == std::vector<T>{0, 0, 0});
      CHECK(advantages<T>(make_grouping(ids(3, 1)), {1, 0, -1}, {}, options) == std::vector<T>{0, 0, 0});
      CHECK(advantages<T>(make_grouping(ids(3, 1)), {5, 0, -8}, {}, options) == std::vector<T>{0, 0, 0});
      CHECK(advantages<T>(make_grouping(ids(2, 1)), {0, -T{0}}, {}, options) == std::vector<T>{0, 0});
    }
  }

  TEST_CASE("relation: mean times the advantage is mean-centred, and the advantages sum to 0") {
    turnwise::test::integers random{9};
    for (std::size_t const n : {2u, 16u, 33u, 5000u}) {
      numbers returns(n), centred(n);
      double mean = 0;
      for (double& value : returns) mean += value = std::abs(turnwise::test::uneven_number(random)) + 0.1;
      mean /= static_cast<double>(n);
      auto const groups = make_grouping(ids(n, 1));
      turnwise::advantage::group_relative(groups, returns, {}, {.scale = false}, std::span{centred});
      auto const got = advantages(groups, returns);
      double sum = 0;
      for (std::size_t i = 0; i < n; ++i) {
        CHECK(got[i] * mean == Approx(centred[i]).epsilon(1e-9));
        sum += got[i];
      }
      CHECK(std::abs(sum) < 1e-9);
    }
  }

  TEST_CASE_TEMPLATE("equal returns give exactly 0; a lone member too", T, float, double) {
    for (std::size_t const n : {1u, 2u, 3u, 10u, 33u, 4097u})
      for (double const value : {0.1, 1e-30, 1.0, -0.7, 0.0})
        CHECK(advantages(make_grouping(ids(n, 4)), std::vector<T>(n, static_cast<T>(value))) ==
              std::vector<T>(n, T{0}));
    CHECK(advantages<T>(make_grouping(ids{1, 2, 3}), {1, 2, 3}) == std::vector<T>{0, 0, 0});
    CHECK(advantages<T>(make_grouping(ids(3, 0)), {1, 2, 3}, {0, reason::stale, reason::stale}, kept) ==
          std::vector<T>{0, 0, 0});
    CHECK(advantages<T>(make_grouping(ids(3, 0)), {1, 2, 3}, flags(3, reason::invalid)) == std::vector<T>{0, 0, 0});
  }

  TEST_CASE_TEMPLATE("rejected turns: members with `valid`, judged from outside with `kept`", T, float, double) {
    auto const groups = make_grouping(ids(3, 0));
    flags const reasons{0, 0, reason::ratio_low};
    CHECK(advantages<T>(groups, {1, 3, 8}, reasons) == std::vector<T>{T{-0.75}, T{-0.25}, 1});
    CHECK(advantages<T>(groups, {1, 3, 8}, reasons, kept) == std::vector<T>{T{-0.5}, T{0.5}, 3});
  }

  TEST_CASE_TEMPLATE("invalid turns: 0, and their return is not read", T, float, double) {
    for (T const bad : {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity()})
      for (auto const why : {reason::invalid, reason::unscored, reason::unscored_future})
        CHECK(advantages<T>(make_grouping(ids(3, 0)), {1, bad, 3}, {0, why, 0}) == std::vector<T>{T{-0.5}, 0, T{0.5}});
  }

  TEST_CASE_TEMPLATE("a mean near 0 gives the largest number, not infinity", T, float, double) {
    T const tiny = std::numeric_limits<T>::denorm_min();
    auto const got =
        advantages<T>(make_grouping(ids(2, 1)), {static_cast<T>(0x1p100), static_cast<T>(-0x1p100) + tiny});
    CHECK(got == std::vector<T>{0, 0});  // rounds to a mean of 0
    auto const wide = advantages(make_grouping(ids(3, 1)), numbers{0x1p500, -0x1p500, 1e-300});
    for (double const value : wide) CHECK(std::isfinite(value));
  }

  TEST_CASE("no turns") { CHECK(advantages(make_grouping(ids{}), numbers{}).empty()); }

  TEST_CASE_TEMPLATE("every error names the argument and leaves the advantage alone", T, float, double) {
    auto const groups = make_grouping(ids{1, 1, 2});
    std::vector<T> returns{1, 2, 3}, out(3, T{9});
    flags reasons;
    max_rl_options options;
    auto const refused = [&](char const* text) {
      auto const before = out;
      CHECK_THROWS_WITH_AS(max_rl(groups, returns, reasons, options, std::span{out}), Contains(text),
                           precondition_error);
      CHECK(out == before);
    };
    SUBCASE("sizes") {
      returns.push_back(0);
      refused("max_rl: turn_return has 4 elements, expected 3");
      returns.pop_back();
      reasons = {0};
      refused("max_rl: reasons has 1 elements, expected 3");
      reasons.clear();
      out.pop_back();
      refused("max_rl: advantage has 2 elements, expected 3");
    }
    SUBCASE("epsilon") {
      for (double const bad :
           {-1e-9, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
        options.epsilon = bad;
        refused("max_rl: epsilon = ");
      }
    }
    SUBCASE("a return of a valid turn") {
      returns[1] = std::numeric_limits<T>::quiet_NaN();
      refused("max_rl: turn_return[1] = nan");
    }
    SUBCASE("advantage over the returns") {
      CHECK_THROWS_WITH_AS(max_rl(groups, returns, reasons, options, std::span{returns}),
                           Contains("advantage must not overlap turn_return"), precondition_error);
    }
  }

}  // TEST_SUITE
