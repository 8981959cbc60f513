#include <turnwise/reward/speedup_ladder.hpp>

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
using turnwise::reward::evaluation;
using turnwise::reward::speedup_ladder;
using turnwise::reward::speedup_ladder_options;

namespace {

using flags = std::vector<std::uint8_t>;
using numbers = std::vector<double>;
constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

/// Correct turns of these speedups.
template <typename T>
std::vector<T> climbed(std::vector<T> const& speedup, speedup_ladder_options const& options,
                       std::vector<T> const& baseline = {}) {
  std::vector<T> reward(speedup.size(), T{-77});
  flags const correct(speedup.size(), 1);
  speedup_ladder(evaluation<T>{.correct = correct, .speedup = speedup}, baseline, options, {}, std::span{reward});
  return reward;
}

/// The four failures and a correct turn of speedup 0: not compiled, rule broken, decoy, incorrect, correct.
numbers failures(speedup_ladder_options const& options, numbers const& baseline = {}) {
  flags const compiled{0, 1, 1, 1, 1}, correct{1, 1, 1, 0, 1}, decoy{1, 1, 1, 0, 0}, rule_violation{1, 1, 0, 0, 0};
  numbers const speedup{nan_value, infinity, 50, nan_value, 0};
  numbers reward(5, -77);
  speedup_ladder(evaluation<double>{compiled, correct, decoy, rule_violation, speedup, {}, {}}, baseline, options, {},
                 std::span{reward});
  return reward;
}

}  // namespace

TEST_SUITE("reward/speedup_ladder") {
  TEST_CASE("like_kernel: edges are inclusive, below all is slow") {
    auto const ladder = speedup_ladder_options::like_kernel();
    CHECK(climbed(numbers{0, 0.999, 1, 1.199, 1.2, 1.499, 1.5, 1.999, 2, 2.999, 3, 1000}, ladder) ==
          numbers{-0.1, -0.1, 0.2, 0.2, 0.4, 0.4, 0.6, 0.6, 0.8, 0.8, 1, 1});
    CHECK(failures(ladder) == numbers{-0.5, -1, -1, -0.3, -0.1});
  }

  TEST_CASE("weighted: half for correct, half for faster") {
    auto const ladder = speedup_ladder_options::weighted();
    CHECK(climbed(numbers{0.5, 1, 1.0099, 1.01, 4}, ladder) == numbers{0.5, 0.5, 0.5, 1, 1});
    CHECK(failures(ladder) == numbers{0, 0, 0, 0, 0.5});
  }

  TEST_CASE("cuda_agent: over one baseline, over both, or only over the second") {
    auto const ladder = speedup_ladder_options::cuda_agent();
    CHECK(climbed(numbers{1, 1.05, 2, 2, 1}, ladder, numbers{1, 1, 1.04, 1.05, 9}) == numbers{1, 2, 2, 3, 1});
    CHECK(failures(ladder, numbers(5)) == numbers{-1, -1, -1, -1, 1});
  }

  TEST_CASE_TEMPLATE("any ladder, in either precision", T, float, double) {
    speedup_ladder_options const ladder{.rungs = {{{4, 10}, {2, -5}, {0.5, 1}}}, .correct = 7};
    CHECK(climbed<T>({T{0.25}, T{0.5}, 1, 2, 3, 4, 5, -1}, ladder) == std::vector<T>{7, 1, 1, -5, -5, 10, 10, 7});
    CHECK(climbed<T>({1, 100}, {.correct = 3}) == std::vector<T>{3, 3});  // no rungs
    CHECK(climbed<T>({}, ladder).empty());
  }

  TEST_CASE("a NaN of a correct turn is unscored if the ladder asks for it") {
    auto const plain = speedup_ladder_options::weighted();
    CHECK(std::isnan(climbed(numbers{nan_value}, plain)[0]));
    CHECK(climbed(numbers{2}, plain, numbers{nan_value}) == numbers{1});  // given, and not asked for
    auto const both = speedup_ladder_options::cuda_agent();
    CHECK(std::isnan(climbed(numbers{2}, both, numbers{nan_value})[0]));
    CHECK(std::isnan(climbed(numbers{nan_value}, both, numbers{2})[0]));
  }

  TEST_CASE("errors by name, with nothing written") {
    numbers reward(2, 9.0), speedup{1, infinity}, baseline;
    flags const correct(2, 1), one(1, 1);
    std::vector<reason_flags> reasons;
    auto ladder = speedup_ladder_options::like_kernel();
    auto const refused = [&](evaluation<double> const& turns, char const* text) {
      CHECK_THROWS_WITH_AS(speedup_ladder(turns, baseline, ladder, reasons, std::span{reward}), Contains(text),
                           precondition_error);
      CHECK(reward == numbers(2, 9.0));
    };
    evaluation<double> const turns{.correct = correct, .speedup = speedup};
    refused(turns, "speedup_ladder: speedup[1] is infinite");
    refused({.correct = one, .speedup = speedup}, "correct has 1 elements, expected 2");
    reasons = {0};
    refused(turns, "reasons has 1 elements, expected 2");
    reasons = {0, turnwise::reason::invalid};
    CHECK_NOTHROW(speedup_ladder(turns, baseline, ladder, reasons, std::span{reward}));
    reward.assign(2, 9.0);

    ladder = speedup_ladder_options::cuda_agent();
    refused(turns, "baseline_speedup has 0 elements, expected 2");
    baseline = {infinity, 1};
    refused(turns, "baseline_speedup[0] is infinite");
    baseline.clear();

    for (double const bad : {nan_value, infinity}) {
      ladder = {.correct = bad};
      refused(turns, "speedup_ladder: correct = ");
      ladder = {.compile_failure = bad};
      refused(turns, "speedup_ladder: compile_failure = ");
      ladder = {.rule_violation = bad};
      refused(turns, "speedup_ladder: rule_violation = ");
      ladder = {.decoy = bad};
      refused(turns, "speedup_ladder: decoy = ");
      ladder = {.incorrect = bad};
      refused(turns, "speedup_ladder: incorrect = ");
      ladder = {.rungs = {{{2, 1}, {1, bad}}}};
      refused(turns, "rungs[1].value");
    }
    ladder = {.rungs = {{{nan_value, 1}}}};
    refused(turns, "rungs[0] asks for a speedup of NaN");
    ladder = {.rungs = {{{2, 1, nan_value}}}};
    refused(turns, "rungs[0] asks for a speedup of NaN");
    ladder = {.rungs = {{{1, 1}, {2, 2}}}};  // from the bottom
    refused(turns, "rungs[1] is never reached, for rungs[0]");
    ladder = {.rungs = {{{2, 1}, {2, 2}}}};
    refused(turns, "rungs[1] is never reached");
    ladder = {.rungs = {{{1.05, 2}, {1.05, 3, 1.05}}}};
    refused(turns, "rungs[1] is never reached");
    ladder = {.rungs = {{{2, 3}, {-infinity, 2}, {-infinity, 1}}}};
    refused(turns, "rungs[2] is never reached, for rungs[1]");
    ladder = {.rungs = {{{1, 5, infinity}}}};
    refused(turns, "rungs[0] is never reached, for its baseline is infinite");
    ladder = {.rungs = {{{1, 5}, {infinity, 4, 1}}}};  // unused, so no baseline is asked for
    CHECK_FALSE(ladder.asks_baseline());
  }

  TEST_CASE("values stay within the limit of the rewards' type; a rung at -infinity takes all") {
    CHECK(climbed(numbers{-7, 0, 2}, {.rungs = {{{2, 0x1p500}, {-infinity, -1}}}}) == numbers{-1, -1, 0x1p500});
    std::vector<float> const speedup{1};
    CHECK(climbed(speedup, {.correct = 0x1p100}) == std::vector<float>{0x1p100f});
    CHECK_THROWS_WITH_AS(climbed(speedup, {.correct = 0x1p101}), Contains("speedup_ladder: correct = 2.5"),
                         precondition_error);
    CHECK_THROWS_WITH_AS(climbed(speedup, {.rungs = {{{2, 1}, {1, -1e200}}}}),
                         Contains("speedup_ladder: rungs[1].value = -1e+200"), precondition_error);
  }

}  // TEST_SUITE
