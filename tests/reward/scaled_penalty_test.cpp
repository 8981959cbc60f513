#include <turnwise/core/grouping.hpp>
#include <turnwise/reward/scaled_penalty.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

using doctest::Contains;
using turnwise::precondition_error;
using turnwise::reason_flags;
using turnwise::reward::penalty_kind;
using turnwise::reward::scaled_penalty;
using turnwise::reward::scaled_penalty_options;

namespace {

using flags = std::vector<std::uint8_t>;
using numbers = std::vector<double>;
constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

template <typename T = double>
std::vector<T> scaled(std::vector<T> const& reward, flags const& marked, scaled_penalty_options const& options = {},
                      std::vector<reason_flags> const& reasons = {}) {
  std::vector<T> out(reward.size(), T{-77});
  scaled_penalty(reward, marked, options, reasons, std::span{out});
  return out;
}

}  // namespace

TEST_SUITE("reward/scaled_penalty") {
  TEST_CASE_TEMPLATE("hand numbers of each kind; unmarked turns stay", T, float, double) {
    std::vector<T> const reward{4, -4, 0, 4, -4};
    flags const marked{1, 255, 1, 0, 0};
    CHECK(scaled<T>(reward, marked, {penalty_kind::away, 0.25}) == std::vector<T>{1, -7, 0, 4, -4});
    CHECK(scaled<T>(reward, marked, {penalty_kind::multiply, 0.25}) == std::vector<T>{1, -1, 0, 4, -4});
    CHECK(scaled<T>(reward, marked, {penalty_kind::replace, -0.5}) == std::vector<T>{T{-0.5}, T{-0.5}, T{-0.5}, 4, -4});
    CHECK(scaled<T>(reward, marked) == std::vector<T>{2, -6, 0, 4, -4});  // the default: away, a half
  }

  TEST_CASE("a penalty never raises a reward, as multiplying would") {
    for (double const factor : {0.0, 0.1, 0.5, 0.9, 1.0})
      for (double const reward : {-100.0, -0.3, -1e-300, 0.0, 1e-300, 0.7, 100.0}) {
        double const away = scaled({reward}, {1}, {penalty_kind::away, factor})[0];
        CHECK(away <= reward);
        CHECK(away >= reward - std::abs(reward));
        if (factor == 1) CHECK(away == reward);
        double const multiplied = scaled({reward}, {1}, {penalty_kind::multiply, factor})[0];
        if (reward < 0 && factor < 1) CHECK(multiplied > reward);
        if (reward >= 0) CHECK(away == doctest::Approx(multiplied));
      }
  }

  TEST_CASE("a missing reward stays missing, of any kind; turns flagged off keep what they have") {
    for (auto const kind : {penalty_kind::away, penalty_kind::multiply, penalty_kind::replace}) {
      auto const got = scaled({nan_value, infinity, -2}, {1, 1, 1}, {kind, 0.5},
                              {0, turnwise::reason::invalid, turnwise::reason::invalid});
      CHECK(std::isnan(got[0]));
      CHECK(got[1] == infinity);
      CHECK(got[2] == -2);
    }
    CHECK(scaled({}, {}).empty());
  }

  TEST_CASE_TEMPLATE("the output may be the reward", T, float, double) {
    std::vector<T> reward{4, -4, 1};
    scaled_penalty(reward, flags{1, 1, 0}, {}, {}, std::span{reward});
    CHECK(reward == std::vector<T>{2, -6, 1});
  }

  TEST_CASE("errors by name, with nothing written") {
    numbers reward{1, 2, 3}, out(3, 9.0);
    flags marked(3, 1);
    std::vector<reason_flags> reasons;
    scaled_penalty_options options;
    auto const refused = [&](char const* text) {
      auto const before = out;
      CHECK_THROWS_WITH_AS(scaled_penalty(reward, marked, options, reasons, std::span{out}), Contains(text),
                           precondition_error);
      CHECK(out == before);
    };
    marked.pop_back();
    refused("scaled_penalty: marked has 2 elements, expected 3");
    marked.push_back(1);
    reasons = {0};
    refused("scaled_penalty: reasons has 1 elements, expected 3");
    reasons.clear();
    out.push_back(9);
    refused("scaled_penalty: out has 4 elements, expected 3");
    out.pop_back();
    for (double const bad : {-0.1, 1.1, nan_value})
      for (auto const kind : {penalty_kind::away, penalty_kind::multiply}) {
        options = {kind, bad};
        refused("scaled_penalty: factor = ");
      }
    for (double const bad : {infinity, nan_value}) {
      options = {penalty_kind::replace, bad};
      refused("scaled_penalty: factor = ");
    }
    options = {penalty_kind::replace, 0x1p101};  // no float, and a double
    std::vector<float> narrow(3, 9.0f);
    CHECK_THROWS_WITH_AS(scaled_penalty(std::vector<float>{1, 2, 3}, marked, options, reasons, std::span{narrow}),
                         Contains("expected a number within +-2^100"), precondition_error);
    CHECK(narrow == std::vector<float>(3, 9.0f));
    CHECK_NOTHROW(scaled_penalty(reward, marked, options, reasons, std::span{out}));
    options = {};
    for (double const bad : {infinity, -infinity, 0x1p501}) {
      reward[1] = bad;
      marked[1] = 0;
      refused("scaled_penalty: reward[1] = ");
    }
  }

}  // TEST_SUITE
