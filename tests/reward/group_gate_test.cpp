#include <turnwise/core/grouping.hpp>
#include <turnwise/reward/group_gate.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

using doctest::Approx;
using doctest::Contains;
using turnwise::make_grouping;
using turnwise::precondition_error;
using turnwise::reason_flags;
using turnwise::reward::evaluation;
using turnwise::reward::group_gate;
using turnwise::reward::group_gate_options;

namespace {

constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

/// Rewards of single-turn samples, the profile left out.
template <typename T = double>
std::vector<T> rewards(std::vector<std::int64_t> const& groups, std::vector<std::uint8_t> const& correct,
                       std::vector<T> const& speedup, group_gate_options const& options = {},
                       std::vector<reason_flags> const& reasons = {}) {
  std::vector<T> reward(groups.size(), T{-77});
  group_gate(make_grouping(groups), evaluation<T>{.correct = correct, .speedup = speedup}, options, reasons,
             std::span{reward});
  return reward;
}

}  // namespace

TEST_SUITE("reward/group_gate") {
  TEST_CASE_TEMPLATE("an open gate pays correct turns for speed between slowest and fastest", T, float, double) {
    // Three of four correct: S = 0, 1, 1/2 times beta 1/4.
    CHECK(rewards<T>({5, 5, 5, 5}, {1, 1, 0, 1}, {1, 3, 9, 2}, {.beta = 0.25}) ==
          std::vector<T>{1, T{1.25}, 0, T{1.125}});
    auto const by_default = rewards<T>({5, 5, 5, 5}, {1, 1, 0, 1}, {1, 3, 9, 2});
    CHECK(static_cast<double>(by_default[1]) == Approx(1.1).epsilon(1e-6));
    CHECK(static_cast<double>(by_default[3]) == Approx(1.05).epsilon(1e-6));
  }

  TEST_CASE_TEMPLATE("a closed gate pays correctness alone", T, float, double) {
    CHECK(rewards<T>({5, 5, 5, 5, 5}, {1, 1, 0, 0, 0}, {1, 3, 9, 2, 1}) == std::vector<T>{1, 1, 0, 0, 0});
  }

  TEST_CASE("the gate opens at exactly alpha: 3 of 5 at 0.6, 1 of 2 at the default") {
    CHECK(rewards({1, 1, 1, 1, 1}, {1, 1, 1, 0, 0}, {1, 3, 2, 0, 0}, {.alpha = 0.6, .beta = 0.5}) ==
          std::vector<double>{1, 1.5, 1.25, 0, 0});
    CHECK(rewards({1, 1, 1, 1, 1}, {1, 1, 0, 0, 0}, {1, 3, 2, 0, 0}, {.alpha = 0.6, .beta = 0.5}) ==
          std::vector<double>{1, 1, 0, 0, 0});
    CHECK(rewards({1, 1, 1, 1}, {1, 1, 0, 0}, {1, 3, 0, 0}, {.beta = 0.5}) == std::vector<double>{1, 1.5, 0, 0});
    CHECK(rewards({1, 1, 1}, {1, 1, 0}, {1, 3, 0}, {.alpha = 1, .beta = 0.5}) == std::vector<double>{1, 1, 0});
    CHECK(rewards({1, 1}, {1, 1}, {1, 3}, {.alpha = 1, .beta = 0.5}) == std::vector<double>{1, 1.5});
  }

  TEST_CASE("every share c / n opens the gate with c correct of n, and not with one fewer") {
    for (std::int64_t n = 1; n <= 256; ++n)
      for (std::int64_t c = 1; c <= n; ++c) {
        double const alpha = static_cast<double>(c) / static_cast<double>(n);
        CAPTURE(c);
        CAPTURE(n);
        bool const opens = turnwise::reward::gate_is_open(c, n, alpha);
        bool const opens_below = turnwise::reward::gate_is_open(c - 1, n, alpha);
        if (!opens || opens_below) {
          FAIL_CHECK("the gate is wrong at its edge");
          return;
        }
      }
  }

  TEST_CASE("min_spread: a spread must be larger to count") {
    std::vector<double> const speedup{1, 1.5, 1.25};
    CHECK(rewards({1, 1, 1}, {1, 1, 1}, speedup, {.beta = 1, .min_spread = 0.5}) == std::vector<double>{1, 1, 1});
    CHECK(rewards({1, 1, 1}, {1, 1, 1}, speedup, {.beta = 1, .min_spread = 0.25}) == std::vector<double>{1, 2, 1.5});
  }

  TEST_CASE("equal speedups have no score, and neither has a lone correct member") {
    CHECK(rewards({1, 1, 1}, {1, 1, 1}, {0.1, 0.1, 0.1}, {.beta = 1}) == std::vector<double>{1, 1, 1});
    CHECK(rewards({1}, {1}, {7}, {.beta = 1}) == std::vector<double>{1});
    CHECK(rewards({1, 1}, {1, 0}, {7, 2}, {.beta = 1}) == std::vector<double>{1, 0});
    CHECK(rewards({1, 1}, {0, 0}, {7, 2}, {.alpha = 0, .beta = 1}) == std::vector<double>{0, 0});
  }

  TEST_CASE("a NaN speedup of a correct turn is unscored: NaN, and in no count") {
    // Two of three scored are correct. Counting the NaN as wrong (2 of 4) would close the gate at 0.6.
    auto const reward = rewards({1, 1, 1, 1}, {1, 1, 0, 1}, {1, 3, 0, nan_value}, {.alpha = 0.6, .beta = 0.5});
    CHECK(reward[0] == 1);
    CHECK(reward[1] == 1.5);
    CHECK(reward[2] == 0);
    CHECK(std::isnan(reward[3]));
    // Counting it as correct (2 of 3) would open this one.
    CHECK(rewards({1, 1, 1, 1}, {1, 1, 0, 0}, {1, nan_value, 0, 0}, {.alpha = 0.4, .beta = 0.5})[0] == 1);
    CHECK(std::isnan(rewards({1}, {1}, {nan_value})[0]));
  }

  TEST_CASE("what stands where C = 0 is ignored") {
    CHECK(rewards({1, 1, 1, 1}, {0, 1, 1, 0}, {infinity, 1, 3, nan_value}, {.beta = 0.5}) ==
          std::vector<double>{0, 1, 1.5, 0});
  }

  TEST_CASE("turns flagged off count nowhere and get their C") {
    std::vector<reason_flags> const reasons{0, 0, 0, turnwise::reason::invalid, turnwise::reason::invalid};
    // Two of three: counted with the others the gate (4 of 5, fastest 100) would pay differently.
    auto const reward =
        rewards({1, 1, 1, 1, 1}, {1, 1, 0, 1, 1}, {1, 3, 0, 100, infinity}, {.alpha = 0.6, .beta = 0.5}, reasons);
    CHECK(reward == std::vector<double>{1, 1.5, 0, 1, 1});
    // One of three valid: the two that are off must not open the gate.
    CHECK(rewards({1, 1, 1, 1, 1}, {1, 0, 0, 1, 1}, {1, 3, 0, 2, 3}, {.beta = 0.5}, reasons) ==
          std::vector<double>{1, 0, 0, 1, 1});
  }

  TEST_CASE("groups do not see each other, whatever their ids and order") {
    CHECK(rewards({-9, 4, -9, 4}, {1, 1, 1, 0}, {1, 50, 3, 0}, {.beta = 0.5}) == std::vector<double>{1, 1, 1.5, 0});
  }

  TEST_CASE("decoys, broken rules and failed builds are not correct") {
    std::vector<std::uint8_t> const correct(5, 1), compiled{1, 1, 1, 1, 0}, decoy{0, 0, 1, 0, 0}, broken{0, 0, 0, 1, 0};
    std::vector<double> const speedup{1, 3, 9, 9, 9};
    std::vector<double> reward(5);
    evaluation<double> const turns{
        .compiled = compiled, .correct = correct, .decoy = decoy, .rule_violation = broken, .speedup = speedup};
    auto const groups = make_grouping(std::vector<std::int64_t>(5, 0));
    group_gate(groups, turns, {.alpha = 0.4, .beta = 0.5}, {}, std::span{reward});
    CHECK(reward == std::vector<double>{1, 1.5, 0, 0, 0});
    group_gate(groups, turns, {.alpha = 0.5, .beta = 0.5}, {}, std::span{reward});
    CHECK(reward == std::vector<double>{1, 1, 0, 0, 0});
  }

  TEST_CASE("by turn, each turn group has its own gate") {
    // Two trajectories of two turns: turn 0 has speedups 1 and 3, turn 1 has one correct of two.
    std::vector<std::int64_t> const offsets{0, 2, 4}, group{0, 0}, id{0, 1};
    std::vector<std::uint8_t> const correct{1, 1, 1, 0};
    std::vector<double> const speedup{1, 8, 3, 0};
    turnwise::rollout_view const batch{.trajectory_offsets = offsets, .group_id = group, .trajectory_id = id};
    evaluation<double> const turns{.correct = correct, .speedup = speedup};
    std::vector<double> reward(4);
    group_gate(make_grouping(batch, turnwise::group_by::turn), turns, {.beta = 0.5}, {}, std::span{reward});
    CHECK(reward == std::vector<double>{1, 1, 1.5, 0});
    group_gate(make_grouping(batch, turnwise::group_by::group), turns, {.beta = 0.7}, {}, std::span{reward});
    CHECK(reward[0] == 1);
    CHECK(reward[1] == Approx(1.7));
    CHECK(reward[2] == Approx(1.2));  // (3 - 1) / (8 - 1) of 0.7
    CHECK(reward[3] == 0);
  }

  TEST_CASE("many groups on several threads") {
    std::vector<std::int64_t> groups;
    std::vector<std::uint8_t> correct;
    std::vector<double> speedup, by_hand;
    for (std::int64_t g = 0; g < 3000; ++g) {
      for (int k = 0; k < 3; ++k) groups.push_back(g * 7 - 5000);
      bool const open = g % 2 == 0;
      for (std::uint8_t const c : {std::uint8_t{1}, static_cast<std::uint8_t>(open), std::uint8_t{0}})
        correct.push_back(c);
      for (double const s : {2.0, 4.0, 1.0}) speedup.push_back(s);
      for (double const r : {1.0, open ? 1.5 : 0.0, 0.0}) by_hand.push_back(r);
    }
    for (int const threads : {0, 1, 2, 4})
      CHECK(rewards(groups, correct, speedup, {.beta = 0.5, .threads = threads}) == by_hand);
  }

  TEST_CASE("an infinite speedup of a correct turn that is not flagged off is an error, and nothing is written") {
    for (double const bad : {infinity, -infinity, 0x1p501, -0x1p501}) {
      std::vector<std::uint8_t> const correct{0, 1, 1};
      std::vector<double> const speedup{bad, 1, bad};
      std::vector<double> reward(3, 9.0);
      auto const groups = make_grouping(std::vector<std::int64_t>(3, 0));
      CHECK_THROWS_WITH_AS(
          group_gate(groups, evaluation<double>{.correct = correct, .speedup = speedup}, {}, {}, std::span{reward}),
          Contains("group_gate: speedup[2]"), precondition_error);
      CHECK(reward == std::vector<double>(3, 9.0));
    }
  }

  TEST_CASE("options out of range are refused by name") {
    auto const refused = [](group_gate_options const& options, char const* name) {
      CHECK_THROWS_WITH_AS(rewards({1, 1}, {1, 1}, {1, 2}, options), Contains(name), precondition_error);
    };
    for (double const bad : {-0.1, 1.1, nan_value, infinity}) refused({.alpha = bad}, "alpha = ");
    for (double const bad : {-0.1, nan_value, infinity}) {
      refused({.beta = bad}, "beta = ");
      refused({.min_spread = bad}, "min_spread = ");
    }
    CHECK_NOTHROW(rewards({1, 1}, {1, 1}, {1, 2}, {.alpha = 0, .beta = 0, .min_spread = 0}));
  }

  TEST_CASE("arrays of another size are an error that names both sizes") {
    std::vector<std::uint8_t> const two(2, 1), three(3, 1);
    std::vector<double> const speedup(3, 1.0), short_speedup(2, 1.0);
    std::vector<reason_flags> const short_reasons(2, 0);
    auto const groups = make_grouping(std::vector<std::int64_t>(3, 0));
    auto const refused = [&](evaluation<double> const& turns, std::span<reason_flags const> reasons,
                             std::size_t outputs, char const* text) {
      std::vector<double> reward(outputs, 9.0);
      CHECK_THROWS_WITH_AS(group_gate(groups, turns, {}, reasons, std::span{reward}), Contains(text),
                           precondition_error);
      CHECK(reward == std::vector<double>(outputs, 9.0));
    };
    refused({.correct = three, .speedup = speedup}, {}, 2, "reward has 2 elements, expected 3");
    refused({.correct = two, .speedup = speedup}, {}, 3, "correct has 2 elements, expected 3");
    refused({.correct = three, .speedup = short_speedup}, {}, 3, "speedup has 2 elements, expected 3");
    refused({.compiled = two, .correct = three, .speedup = speedup}, {}, 3, "compiled has 2 elements, expected 3");
    refused({.correct = three, .decoy = two, .speedup = speedup}, {}, 3, "decoy has 2 elements, expected 3");
    refused({.correct = three, .rule_violation = two, .speedup = speedup}, {}, 3,
            "rule_violation has 2 elements, expected 3");
    refused({.correct = three, .speedup = speedup, .generated_us = speedup}, {}, 3,
            "total_us has 0 elements, expected 3");
    refused({.correct = three, .speedup = speedup}, short_reasons, 3, "reasons has 2 elements, expected 3");
  }

}  // TEST_SUITE
