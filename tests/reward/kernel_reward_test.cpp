#include <turnwise/reward/kernel_reward.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

using doctest::Approx;
using doctest::Contains;
using turnwise::precondition_error;
using turnwise::reason_flags;
using turnwise::reward::evaluation;
using turnwise::reward::kernel_reward_options;

namespace {

using flags = std::vector<std::uint8_t>;

template <typename T>
constexpr T nan_of = std::numeric_limits<T>::quiet_NaN();
template <typename T>
constexpr T infinity_of = std::numeric_limits<T>::infinity();

/// The arrays of an evaluation; `turns()` of them are filled with a correct, compiled kernel without speed or profile.
template <typename T = double>
struct arrays {
  flags compiled, correct, decoy, rule_violation;
  std::vector<T> speedup, generated_us, total_us;

  explicit arrays(std::size_t turns)
      : compiled(turns, 1),
        correct(turns, 1),
        decoy(turns, 0),
        rule_violation(turns, 0),
        speedup(turns, 0),
        generated_us(turns, 0),
        total_us(turns, 1) {}
  [[nodiscard]] evaluation<T> view() const {
    return {compiled, correct, decoy, rule_violation, speedup, generated_us, total_us};
  }
};

template <typename T>
std::vector<T> rewards(arrays<T> const& turns, kernel_reward_options const& options = {},
                       std::vector<reason_flags> const& reasons = {}) {
  std::vector<T> reward(turns.correct.size(), T{-77});
  turnwise::reward::kernel_reward(turns.view(), options, reasons, std::span{reward});
  return reward;
}

/// One correct turn.
template <typename T = double>
T reward_of(T speedup, T generated_us, T total_us, kernel_reward_options const& options = {}) {
  arrays<T> turns(1);
  turns.speedup[0] = speedup;
  turns.generated_us[0] = generated_us;
  turns.total_us[0] = total_us;
  return rewards(turns, options)[0];
}

}  // namespace

TEST_SUITE("reward/kernel_reward") {
  TEST_CASE_TEMPLATE("correctness, speedup and profiling ratio with their weights", T, float, double) {
    CHECK(reward_of<T>(2, 30, 40) == T{3.75});                            // 1 + 2 + 0.75
    CHECK(reward_of<T>(0, 0, 40) == T{1});                                // correct, nothing else
    CHECK(reward_of<T>(1, 40, 40) == T{3});                               // 1 + 1 + 1
    CHECK(reward_of<T>(2, 30, 40, {.correct_weight = 10}) == T{12.75});   // 10 + 2 + 0.75
    CHECK(reward_of<T>(2, 30, 40, {.speedup_weight = -0.5}) == T{0.75});  // 1 - 1 + 0.75
    CHECK(reward_of<T>(2, 30, 40, {.profiling_weight = 4}) == T{6});      // 1 + 2 + 3
    kernel_reward_options const released{
        .correct_weight = 0.5, .speedup_weight = 0.5, .profiling_weight = 0.5, .speedup_cap = 3};
    CHECK(reward_of<T>(5, 30, 40, released) == T{2.375});  // 0.5 (1 + 3 + 0.75)
    kernel_reward_options const kevin{.correct_weight = 0.3, .profiling_weight = 0};
    CHECK(static_cast<double>(reward_of<T>(2, 30, 40, kevin)) == Approx(2.3).epsilon(1e-6));
  }

  TEST_CASE_TEMPLATE("the cap is inclusive and larger speedups count as it", T, float, double) {
    kernel_reward_options const options{.speedup_cap = 3};
    CHECK(reward_of<T>(T{2.5}, 0, 1, options) == T{3.5});
    CHECK(reward_of<T>(3, 0, 1, options) == T{4});
    CHECK(reward_of<T>(T{3.5}, 0, 1, options) == T{4});
    CHECK(reward_of<T>(50, 0, 1, options) == T{4});
    CHECK(reward_of<T>(50, 0, 1) == T{51});  // no cap by default
  }

  TEST_CASE_TEMPLATE("below the floor the speed term is 0, at the floor it counts", T, float, double) {
    kernel_reward_options const options{.speedup_floor = 1.25};
    CHECK(reward_of<T>(T{1.125}, 0, 1, options) == T{1});
    CHECK(reward_of<T>(T{1.25}, 0, 1, options) == T{2.25});
    CHECK(reward_of<T>(T{1.5}, 0, 1, options) == T{2.5});
    CHECK(reward_of<T>(T{-2}, 0, 1) == T{1});  // the default floor is 0
    CHECK(reward_of<T>(2, 0, 1, {.speedup_cap = 2, .speedup_floor = 2}) == T{3});
  }

  TEST_CASE_TEMPLATE("a profile without meaning gives PR = 0", T, float, double) {
    T const nan = nan_of<T>;
    std::vector<std::pair<T, T>> const meaningless{{0, 0}, {1, 0},   {0, -4},  {-5, -4},  {-1, 4},
                                                   {5, 4}, {nan, 4}, {1, nan}, {nan, nan}};
    for (auto const& profile : meaningless) {
      T const generated_us = profile.first, total_us = profile.second;
      CAPTURE(generated_us);
      CAPTURE(total_us);
      CHECK(!turnwise::reward::has_profile(static_cast<double>(generated_us), static_cast<double>(total_us)));
      CHECK(reward_of<T>(2, generated_us, total_us, {.profiling_weight = 100}) == T{3});
    }
  }

  TEST_CASE("PF-01: the share is formed only where it means something, and lies in [0, 1]") {
    using turnwise::reward::has_profile;
    using turnwise::reward::profiling_ratio;
    CHECK(profiling_ratio(30, 40) == 0.75);
    CHECK(!has_profile(0, 0));
    CHECK(profiling_ratio(0, 0) == 0.0);
    CHECK(profiling_ratio(12, 48) == 0.25);
    CHECK(!has_profile(52, 40));
    CHECK(profiling_ratio(52, 40) == 0.0);
    CHECK(has_profile(0, 40));
    CHECK(has_profile(40, 40));
    CHECK(profiling_ratio(40, 40) == 1.0);
    CHECK(!has_profile(0, infinity_of<double>));
    CHECK(!has_profile(infinity_of<double>, infinity_of<double>));
    CHECK(has_profile(5e-324, 5e-324));
    CHECK(profiling_ratio(5e-324, 5e-324) == 1.0);
  }

  TEST_CASE("PF-03: speedup is reference time over candidate time, so a real gain earns more than none") {
    double const reference_us = 10.5, candidate_us = 10.0;
    double const gain = reward_of(reference_us / candidate_us, 0.0, 1.0);
    CHECK(gain == Approx(1 + 1.05));
    CHECK(gain > reward_of(1.0, 0.0, 1.0));
  }

  TEST_CASE_TEMPLATE("RG-04: the cap acts on the speed term, not on the total", T, float, double) {
    kernel_reward_options const options{
        .correct_weight = 0, .speedup_weight = 0.6, .profiling_weight = 0.4, .speedup_cap = 0.25};
    CHECK(static_cast<double>(reward_of<T>(1, T{0.5}, 1, options)) == Approx(0.35).epsilon(1e-6));
    CHECK(static_cast<double>(reward_of<T>(static_cast<T>(0.1), T{0.5}, 1, options)) == Approx(0.26).epsilon(1e-6));
  }

  TEST_CASE("C needs compiled, correct, no decoy and no broken rule; the penalty is the first that applies") {
    kernel_reward_options const options{
        .compile_failure_penalty = -1, .rule_violation_penalty = -2, .decoy_penalty = -4, .incorrect_penalty = -8};
    // Bits of the row number: compiled, correct, decoy, rule broken.
    std::vector<double> const by_hand{
        -1, -8, -1, 4,   // neither decoy nor rule broken
        -1, -4, -1, -4,  // decoy
        -1, -2, -1, -2,  // rule broken
        -1, -2, -1, -2,  // both
    };
    arrays<> turns(16);
    for (std::size_t s = 0; s < 16; ++s) {
      turns.compiled[s] = s & 1;
      turns.correct[s] = (s >> 1) & 1;
      turns.decoy[s] = (s >> 2) & 1;
      turns.rule_violation[s] = (s >> 3) & 1;
      turns.speedup[s] = 2;
      turns.generated_us[s] = 1;
    }
    CHECK(rewards(turns, options) == by_hand);
    for (std::size_t s = 0; s < 16; ++s) CHECK(turns.view().counts_as_correct(s) == (s == 3));
    // Without penalties, C = 0 pays 0.
    auto const plain = rewards(turns);
    for (std::size_t s = 0; s < 16; ++s) CHECK(plain[s] == (s == 3 ? 4 : 0));
  }

  TEST_CASE("flags are on for any value but 0, and absent flags mean compiled, no decoy, no rule broken") {
    arrays<> turns(4);
    turns.correct = {255, 1, 2, 0};
    turns.compiled = {1, 128, 1, 1};
    turns.decoy = {0, 0, 64, 0};
    CHECK(rewards(turns) == std::vector<double>{1, 1, 0, 0});
    turns.compiled.clear();
    turns.decoy.clear();
    turns.rule_violation.clear();
    CHECK(rewards(turns) == std::vector<double>{1, 1, 1, 0});
  }

  TEST_CASE_TEMPLATE("speed and times are ignored where C = 0", T, float, double) {
    T const nan = nan_of<T>, inf = infinity_of<T>;
    arrays<T> turns(4);
    turns.correct = {0, 1, 1, 1};
    turns.decoy = {0, 1, 0, 0};
    turns.compiled = {1, 1, 0, 1};
    turns.rule_violation = {0, 0, 0, 1};
    turns.speedup = {inf, nan, -inf, nan};
    turns.generated_us = {nan, inf, inf, -inf};
    turns.total_us = {inf, -inf, nan, inf};
    CHECK(rewards(turns, {.incorrect_penalty = -0.5}) == std::vector<T>{T{-0.5}, 0, 0, 0});
  }

  TEST_CASE_TEMPLATE("a NaN speedup leaves the reward unscored, whatever the weight, cap and floor", T, float, double) {
    CHECK(std::isnan(reward_of<T>(nan_of<T>, 1, 2)));
    CHECK(std::isnan(reward_of<T>(nan_of<T>, 1, 2, {.speedup_weight = 0})));
    CHECK(std::isnan(reward_of<T>(nan_of<T>, 1, 2, {.speedup_cap = 3, .speedup_floor = 1})));
  }

  TEST_CASE_TEMPLATE("an infinite ingredient of a correct turn is an error that names its index", T, float, double) {
    for (T const bad : {infinity_of<T>, -infinity_of<T>}) {
      arrays<T> turns(4);
      std::vector<T> reward(4, T{9});
      auto const call = [&] {
        turnwise::reward::kernel_reward(turns.view(), kernel_reward_options{}, {}, std::span{reward});
      };
      turns.speedup[2] = bad;
      CHECK_THROWS_WITH_AS(call(), Contains("kernel_reward: speedup[2]"), precondition_error);
      turns.generated_us[1] = bad;
      CHECK_THROWS_WITH_AS(call(), Contains("kernel_reward: generated_us[1]"), precondition_error);
      turns.total_us[0] = bad;
      CHECK_THROWS_WITH_AS(call(), Contains("kernel_reward: total_us[0]"), precondition_error);
      CHECK(reward == std::vector<T>(4, T{9}));
    }
  }

  TEST_CASE("turns flagged off are not judged; other reasons change nothing") {
    arrays<> turns(3);
    turns.speedup = {infinity_of<double>, 2, nan_of<double>};
    turns.total_us = {1, infinity_of<double>, 1};
    std::vector<reason_flags> const off{turnwise::reason::invalid, turnwise::reason::invalid, 0};
    auto const reward = rewards(turns, {}, off);
    CHECK(std::isinf(reward[0]));  // written as it comes out
    CHECK(reward[1] == 3);
    CHECK(std::isnan(reward[2]));
    CHECK_THROWS_WITH_AS(rewards(turns, {}, {turnwise::reason::invalid, turnwise::reason::unscored, 0}),
                         Contains("total_us[1]"), precondition_error);
  }

  TEST_CASE("a reward beyond the magnitude limit of its type is an error, not an infinity") {
    arrays<> turns(2);
    turns.speedup = {1, 0x1p110};
    std::vector<float> reward(2, 9);
    auto const call = [&](kernel_reward_options const& options, std::vector<reason_flags> const& reasons = {}) {
      turnwise::reward::kernel_reward(turns.view(), options, reasons, std::span{reward});
    };
    CHECK_THROWS_WITH_AS(call({}), Contains("kernel_reward: speedup[1] = 1.29807421e+33 makes a reward of "),
                         precondition_error);
    CHECK_THROWS_WITH_AS(call({.decoy_penalty = -0x1p101}), Contains("kernel_reward: decoy_penalty = "),
                         precondition_error);
    CHECK(reward == std::vector<float>{9, 9});
    CHECK_NOTHROW(call({.speedup_cap = 3}));
    CHECK_NOTHROW(call({}, {0, turnwise::reason::invalid}));
    CHECK_NOTHROW(rewards(turns));  // doubles reach further
  }

  TEST_CASE("no turns, no rewards") { CHECK(rewards(arrays<>(0)).empty()); }

  TEST_CASE("the evaluation and the reward may have different types") {
    arrays<float> turns(1);
    turns.speedup[0] = 0.1f;
    std::vector<double> reward(1);
    turnwise::reward::kernel_reward(turns.view(), kernel_reward_options{}, {}, std::span{reward});
    CHECK(reward[0] == 1.0 + static_cast<double>(0.1f));
  }

  TEST_CASE("arrays of another size are an error that names both sizes") {
    arrays<> turns(3);
    std::vector<double> reward(3, 9.0);
    std::vector<reason_flags> reasons;
    auto const call = [&] {
      turnwise::reward::kernel_reward(turns.view(), kernel_reward_options{}, reasons, std::span{reward});
    };
    CHECK_NOTHROW(call());
    reward.assign(3, 9.0);

    SUBCASE("compiled") {
      turns.compiled.pop_back();
      CHECK_THROWS_WITH_AS(call(), Contains("compiled has 2 elements, expected 3"), precondition_error);
    }
    SUBCASE("correct") {
      turns.correct.clear();
      CHECK_THROWS_WITH_AS(call(), Contains("correct has 0 elements, expected 3"), precondition_error);
    }
    SUBCASE("decoy") {
      turns.decoy.push_back(0);
      CHECK_THROWS_WITH_AS(call(), Contains("decoy has 4 elements, expected 3"), precondition_error);
    }
    SUBCASE("rule_violation") {
      turns.rule_violation.pop_back();
      CHECK_THROWS_WITH_AS(call(), Contains("rule_violation has 2 elements, expected 3"), precondition_error);
    }
    SUBCASE("speedup") {
      turns.speedup.clear();
      CHECK_THROWS_WITH_AS(call(), Contains("speedup has 0 elements, expected 3"), precondition_error);
    }
    SUBCASE("generated_us") {
      turns.generated_us.clear();
      CHECK_THROWS_WITH_AS(call(), Contains("generated_us has 0 elements, expected 3"), precondition_error);
    }
    SUBCASE("no profile") {
      turns.generated_us.clear();
      turns.total_us.clear();
      CHECK_THROWS_WITH_AS(call(), Contains("generated_us has 0 elements, expected 3"), precondition_error);
    }
    SUBCASE("total_us") {
      turns.total_us.push_back(1);
      CHECK_THROWS_WITH_AS(call(), Contains("total_us has 4 elements, expected 3"), precondition_error);
    }
    SUBCASE("reasons") {
      reasons = {0, 0};
      CHECK_THROWS_WITH_AS(call(), Contains("reasons has 2 elements, expected 3"), precondition_error);
    }
    CHECK(reward == std::vector<double>(3, 9.0));
  }

  TEST_CASE("options that are not finite, or a cap below the floor, are refused by name") {
    arrays<> const turns(1);
    auto const refused = [&](kernel_reward_options const& options, char const* name) {
      std::vector<double> reward(1, 9.0);
      CHECK_THROWS_WITH_AS(turnwise::reward::kernel_reward(turns.view(), options, {}, std::span{reward}),
                           Contains(name), precondition_error);
      CHECK(reward[0] == 9.0);
    };
    for (double const bad : {nan_of<double>, infinity_of<double>, -infinity_of<double>}) {
      refused({.correct_weight = bad}, "correct_weight = ");
      refused({.speedup_weight = bad}, "speedup_weight = ");
      refused({.profiling_weight = bad}, "profiling_weight = ");
      refused({.speedup_floor = bad}, "speedup_floor = ");
      refused({.compile_failure_penalty = bad}, "compile_failure_penalty = ");
      refused({.rule_violation_penalty = bad}, "rule_violation_penalty = ");
      refused({.decoy_penalty = bad}, "decoy_penalty = ");
      refused({.incorrect_penalty = bad}, "incorrect_penalty = ");
    }
    refused({.speedup_cap = nan_of<double>}, "speedup_cap = nan");
    refused({.speedup_cap = 0.5, .speedup_floor = 1}, "speedup_cap = 0.5");
    refused({.speedup_cap = -1}, "speedup_cap = -1");
  }

}  // TEST_SUITE
