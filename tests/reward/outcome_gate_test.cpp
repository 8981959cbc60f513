#include <turnwise/advantage/group_relative.hpp>
#include <turnwise/reward/outcome_gate.hpp>

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
using turnwise::reward::outcome_gate;
using turnwise::reward::outcome_gate_options;
using turnwise::reward::shaping_form;

namespace {

using numbers = std::vector<double>;
constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

template <typename T = double>
std::vector<T> gated(std::vector<T> const& outcome, std::vector<T> const& shaping,
                     outcome_gate_options const& options = {}, std::vector<reason_flags> const& reasons = {}) {
  std::vector<T> reward(outcome.size(), T{-77});
  outcome_gate(outcome, shaping, options, reasons, std::span{reward});
  return reward;
}

}  // namespace

TEST_SUITE("reward/outcome_gate") {
  TEST_CASE_TEMPLATE("shaping counts for correct turns alone", T, float, double) {
    std::vector<T> const outcome{1, 0, 1, 0, -1}, shaping{T{0.5}, T{0.5}, -2, -2, 8};
    CHECK(gated<T>(outcome, shaping) == std::vector<T>{T{1.5}, 0, -1, 0, -1});
    CHECK(gated<T>(outcome, shaping, {.weight = 0.25}) == std::vector<T>{T{1.125}, 0, T{0.5}, 0, -1});
    CHECK(gated<T>(outcome, shaping, {.low = -1, .high = 0.25}) == std::vector<T>{T{1.25}, 0, 0, 0, -1});
  }

  TEST_CASE("the gate opens above the threshold, not at it") {
    CHECK(gated({0.5, 0.75, 0.25}, {1, 1, 1}, {.threshold = 0.5}) == numbers{0.5, 1.75, 0.25});
    CHECK(gated({-1, 0, 0}, {1, 1, -3}, {.threshold = -0.5}) == numbers{-1, 1, -3});
  }

  TEST_CASE("a bounded bonus as a factor: 1 - length / mean length of the correct ones, at most doubling") {
    // Correct ones of 10, 20 and 60 tokens, mean 30: 2/3, 1/3, 0 (not -1); a negative length would not get more than 1.
    numbers const outcome{1, 2, 1, 0, 1}, bonus{2.0 / 3, 1.0 / 3, -1, 0.9, 7};
    auto const got = gated(outcome, bonus, outcome_gate_options::length_bonus());
    numbers const by_hand{5.0 / 3, 8.0 / 3, 1, 0, 2};
    for (std::size_t s = 0; s < got.size(); ++s) CHECK(got[s] == doctest::Approx(by_hand[s]).epsilon(1e-15));
    CHECK(gated({4, 4}, {0.5, -0.5}, {.weight = 0.5, .form = shaping_form::factor}) == numbers{5, 3});
  }

  TEST_CASE("failures are not ranked by their looks, so a group of failures has no advantage") {
    auto const reward = gated({0, 0, 0}, {0.1, 0.05, 0});
    numbers advantage(3, 9.0);
    turnwise::advantage::group_relative(turnwise::make_grouping(std::vector<std::int64_t>(3, 0)), reward, {}, {},
                                        std::span{advantage});
    CHECK(advantage == numbers{0, 0, 0});
  }

  TEST_CASE("RG-03: centred after shaping, advantages add up to 0") {
    auto const reward = gated({1, 1, 0}, {0, -0.5, 0}, {.form = shaping_form::factor});
    CHECK(reward == numbers{1, 0.5, 0});
    numbers advantage(3);
    turnwise::advantage::group_relative(turnwise::make_grouping(std::vector<std::int64_t>(3, 0)), reward, {},
                                        {.scale = false}, std::span{advantage});
    CHECK(advantage == numbers{0.5, 0, -0.5});
  }

  TEST_CASE("RG-04: the bound acts on the part it is meant for, not on the total") {
    // 0.6 min(outcome, 0.25) + 0.4 format: the capped part is the shaping term here.
    outcome_gate_options const options{.weight = 0.6, .high = 0.25};
    auto const got = gated({0.4 * 0.5, 0.4 * 0.5}, {1, 0.1}, options);
    CHECK(got[0] == doctest::Approx(0.35));
    CHECK(got[1] == doctest::Approx(0.26));
  }

  TEST_CASE_TEMPLATE("NaN: of the outcome, or of a shaping term that is read; behind a closed gate nothing is", T,
                     float, double) {
    T const nan = std::numeric_limits<T>::quiet_NaN(), inf = std::numeric_limits<T>::infinity();
    auto const got = gated<T>({nan, 1, 0, 0}, {1, nan, nan, inf}, {.low = 0, .high = 1});
    CHECK(std::isnan(got[0]));
    CHECK(std::isnan(got[1]));
    CHECK(got[2] == 0);
    CHECK(got[3] == 0);
    CHECK(gated<T>({}, {}).empty());
  }

  TEST_CASE("turns flagged off keep their outcome; the reward may overwrite either input") {
    std::vector<reason_flags> const reasons{turnwise::reason::invalid, 0, turnwise::reason::invalid};
    CHECK(gated({infinity, 1, 1}, {1, 1, infinity}, {}, reasons) == numbers{infinity, 2, 1});
    numbers outcome{1, 0}, shaping{3, 4};
    outcome_gate(outcome, shaping, {}, {}, std::span{shaping});
    CHECK(shaping == numbers{4, 0});
    outcome_gate(outcome, numbers{3, 4}, {}, {}, std::span{outcome});
    CHECK(outcome == numbers{4, 0});
  }

  TEST_CASE("errors by name, with nothing written") {
    numbers outcome{1, 1}, shaping{1, 1}, reward(2, 9.0);
    std::vector<reason_flags> reasons;
    outcome_gate_options options;
    auto const refused = [&](char const* text) {
      auto const before = reward;
      CHECK_THROWS_WITH_AS(outcome_gate(outcome, shaping, options, reasons, std::span{reward}), Contains(text),
                           precondition_error);
      CHECK(reward == before);
    };
    shaping.push_back(1);
    refused("outcome_gate: shaping has 3 elements, expected 2");
    shaping.pop_back();
    reasons = {0};
    refused("outcome_gate: reasons has 1 elements, expected 2");
    reasons.clear();
    reward.pop_back();
    refused("outcome_gate: reward has 1 elements, expected 2");
    reward.push_back(9);
    for (double const bad : {nan_value, infinity}) {
      options = {.threshold = bad};
      refused("outcome_gate: threshold = ");
      options = {.weight = bad};
      refused("outcome_gate: weight = ");
    }
    options = {.low = 1, .high = 0};
    refused("outcome_gate: low = 1");
    options = {.low = nan_value};
    refused("outcome_gate: low = nan");
    options = {.weight = 0, .low = infinity};
    refused("outcome_gate: low = inf");
    options = {.weight = 0, .high = -infinity};
    refused("outcome_gate: high = -inf");
    options = {};
    for (double const bad : {infinity, -infinity}) {
      shaping[1] = bad;
      refused("outcome_gate: shaping[1] = ");
      outcome[0] = bad;
      refused("outcome_gate: outcome[0] = ");
      outcome[0] = 1;
    }
    shaping[1] = 0x1p499;  // each number is within the limit, the reward is not
    options = {.weight = 4};
    refused("outcome_gate: shaping[1] = 1.63");
    refused("makes a reward of 6.54");
  }

}  // TEST_SUITE
