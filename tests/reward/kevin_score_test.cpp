#include <turnwise/reward/kevin_score.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

using doctest::Approx;
using doctest::Contains;
using turnwise::precondition_error;
using turnwise::reason_flags;
using turnwise::reward::evaluation;
using turnwise::reward::kevin_score;
using turnwise::reward::kevin_score_options;

namespace {

using flags = std::vector<std::uint8_t>;
constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

template <typename T = double>
std::vector<T> scores(flags const& correct, std::vector<T> const& speedup, kevin_score_options const& options = {},
                      std::vector<reason_flags> const& reasons = {}) {
  std::vector<T> reward(correct.size(), T{-77});
  kevin_score(evaluation<T>{.correct = correct, .speedup = speedup}, options, reasons, std::span{reward});
  return reward;
}

}  // namespace

TEST_SUITE("reward/kevin_score") {
  TEST_CASE_TEMPLATE("0.3 for correct, and the speedup", T, float, double) {
    auto const got = scores<T>({1, 1, 1, 0}, {2, T{0.5}, 0, 9});
    CHECK(static_cast<double>(got[0]) == Approx(2.3).epsilon(1e-6));
    CHECK(static_cast<double>(got[1]) == Approx(0.8).epsilon(1e-6));
    CHECK(got[2] == static_cast<T>(0.3));
    CHECK(got[3] == 0);
  }

  TEST_CASE("weights, cap, floor and penalty are options") {
    CHECK(scores({1, 0}, {2, 2}, {.correct_weight = 1, .speedup_weight = 4}) == std::vector<double>{9, 0});
    kevin_score_options const cut{.correct_weight = 1, .speedup_cap = 3, .speedup_floor = 1};
    CHECK(scores({1, 1, 1, 1}, {0.5, 1, 3, 50}, cut) == std::vector<double>{1, 2, 4, 4});
    CHECK(scores({1, 0}, {0, 0}, {.correct_weight = 1, .failure_penalty = -0.5}) == std::vector<double>{1, -0.5});
  }

  TEST_CASE("it is kernel_reward without the profile, for every kind of failure") {
    std::size_t const n = 16;
    flags compiled(n), correct(n), decoy(n), rule_violation(n);
    std::vector<double> speedup(n), zero(n), score(n), reward(n);
    for (std::size_t s = 0; s < n; ++s) {
      compiled[s] = s & 1, correct[s] = s >> 1 & 1, decoy[s] = s >> 2 & 1, rule_violation[s] = s >> 3 & 1;
      speedup[s] = 0.1 * static_cast<double>(s);
    }
    evaluation<double> turns{compiled, correct, decoy, rule_violation, speedup, {}, {}};
    kevin_score_options const options{.speedup_weight = 1.1, .speedup_cap = 1.0, .failure_penalty = -0.25};
    kevin_score(turns, options, {}, std::span{score});
    turns.generated_us = turns.total_us = zero;
    turnwise::reward::kernel_reward(turns, options.as_kernel_reward(), {}, std::span{reward});
    CHECK(score == reward);
    // A profile that would be an error or pay elsewhere is not looked at.
    std::vector<double> const strange(n, infinity);
    turns.generated_us = turns.total_us = strange;
    kevin_score(turns, options, {}, std::span{score});
    CHECK(score == reward);
  }

  TEST_CASE("a NaN speedup of a correct turn is unscored; where C = 0 nothing is read") {
    auto const got = scores({1, 0, 0}, {nan_value, nan_value, infinity});
    CHECK(std::isnan(got[0]));
    CHECK(got[1] == 0);
    CHECK(got[2] == 0);
    CHECK(scores({}, {}).empty());
  }

  TEST_CASE("a score beyond the magnitude limit of its type is an error, not an infinity") {
    kevin_score_options const steep{.correct_weight = 0, .speedup_weight = 0x1p60};
    CHECK(scores<float>({1}, {0x1p40f}, steep) == std::vector<float>{0x1p100f});
    CHECK_THROWS_WITH_AS(scores<float>({1, 1}, {1, 0x1p41f}, steep),
                         Contains("kevin_score: speedup[1] = 2.19902326e+12 makes a reward of "), precondition_error);
    CHECK_NOTHROW(scores<float>({1, 0}, {1, 0x1p41f}, steep));                                  // C = 0
    CHECK_NOTHROW(scores<float>({1, 1}, {1, 0x1p41f}, steep, {0, turnwise::reason::invalid}));  // not judged
    CHECK_THROWS_WITH_AS(scores({1}, {0x1p501}), Contains("kevin_score: speedup[0]"), precondition_error);
    std::vector<float> narrow{9};
    std::vector<double> const wide{1e39};
    flags const correct{1};
    CHECK_THROWS_AS(kevin_score(evaluation<double>{.correct = correct, .speedup = wide}, {}, {}, std::span{narrow}),
                    precondition_error);
    CHECK(narrow[0] == 9);
    CHECK_THROWS_WITH_AS(scores<float>({0}, {1}, {.failure_penalty = -0x1p101}),
                         Contains("kevin_score: failure_penalty = "), precondition_error);
  }

  TEST_CASE("errors by name, with nothing written") {
    std::vector<double> reward(3, 9.0);
    flags const correct(3, 1), two(2, 1);
    std::vector<double> speedup{1, 2, -infinity};
    std::vector<reason_flags> reasons;
    kevin_score_options options;
    auto const refused = [&](evaluation<double> const& turns, char const* text) {
      CHECK_THROWS_WITH_AS(kevin_score(turns, options, reasons, std::span{reward}), Contains(text), precondition_error);
      CHECK(reward == std::vector<double>(3, 9.0));
    };
    refused({.correct = correct, .speedup = speedup}, "kevin_score: speedup[2] is infinite");
    refused({.correct = two, .speedup = speedup}, "kevin_score: correct has 2 elements, expected 3");
    refused({.compiled = two, .correct = correct, .speedup = speedup}, "kevin_score: compiled has 2 elements");
    refused({.correct = correct}, "kevin_score: speedup has 0 elements");
    reasons = {0, 0};
    refused({.correct = correct, .speedup = speedup}, "kevin_score: reasons has 2 elements, expected 3");
    reasons.clear();
    for (double const bad : {nan_value, infinity}) {
      options = {.correct_weight = bad};
      refused({.correct = correct, .speedup = speedup}, "kevin_score: correct_weight = ");
      options = {.speedup_weight = bad};
      refused({.correct = correct, .speedup = speedup}, "kevin_score: speedup_weight = ");
      options = {.speedup_floor = bad};
      refused({.correct = correct, .speedup = speedup}, "kevin_score: speedup_floor = ");
      options = {.failure_penalty = bad};
      refused({.correct = correct, .speedup = speedup}, "kevin_score: failure_penalty = ");
    }
    options = {.speedup_cap = 1, .speedup_floor = 2};
    refused({.correct = correct, .speedup = speedup}, "kevin_score: speedup_cap = 1");
    // Turns flagged off are not judged.
    reasons = {0, 0, turnwise::reason::invalid};
    options = {};
    CHECK_NOTHROW(
        kevin_score(evaluation<double>{.correct = correct, .speedup = speedup}, options, reasons, std::span{reward}));
  }

}  // TEST_SUITE
