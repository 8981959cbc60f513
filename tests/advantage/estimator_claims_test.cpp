#include "support/two_turn_problem.hpp"

#include <turnwise/advantage/leave_one_out.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

using namespace turnwise::test::two_turns;
using turnwise::group_by;
using turnwise::grouping;
using turnwise::make_grouping;
using turnwise::reason_flags;
using turnwise::advantage::baseline_members;
using turnwise::advantage::exclude_policy;
using turnwise::advantage::leave_one_out_options;
using turnwise::advantage::singleton_policy;
using turnwise::test::exactly;
using turnwise::test::power;
using turnwise::test::rational;

namespace {

std::vector<double> left_out(grouping const& groups, std::vector<double> const& returns,
                             leave_one_out_options const& options, std::vector<reason_flags> const& reasons = {}) {
  std::vector<double> advantage(returns.size());
  turnwise::advantage::leave_one_out(groups, returns, reasons, options, std::span{advantage});
  return advantage;
}

// The estimators of the table, by the library.

estimator leave_one_out(group_by by, leave_one_out_options const& options) {
  return [=](sample const& drawn) {
    return as_fractions(left_out(make_grouping(drawn.batch.view(), by), returns_of(drawn.batch), options));
  };
}

std::vector<rational> single_rewards_summed(sample const& drawn) {
  auto const view = drawn.batch.view();
  auto advantage = left_out(make_grouping(view, group_by::turn), returns_of(drawn.batch, 0), {});
  for (std::size_t j = 0; j < view.trajectories(); ++j)
    for (std::size_t s = view.first_turn(j + 1) - 1; s-- > view.first_turn(j);) advantage[s] += advantage[s + 1];
  return as_fractions(advantage);
}

// Prompt-level baselines once more, in fractions and without the library.

std::vector<rational> exact_prompt_level(sample const& drawn, bool without_the_turn) {
  auto returns = exact_returns(drawn);
  rational sum;
  for (rational const value : returns) sum += value;
  auto const n = static_cast<std::int64_t>(returns.size());
  for (rational& value : returns)
    value = without_the_turn ? value - (sum - value) / rational{n - 1} : value - sum / rational{n};
  return returns;
}

constexpr leave_one_out_options keep{.singleton = singleton_policy::keep};
constexpr leave_one_out_options zero{.singleton = singleton_policy::zero};
constexpr leave_one_out_options others{.singleton = singleton_policy::others};
constexpr leave_one_out_options without_member{.exclude = exclude_policy::member};

/// Probability, for one who goes on, that none of the other k - 1 does; and the mean of (N - 1) / N, N those who go on.
rational alone(world const& w, std::size_t k) { return power(rational{1} - w.go, static_cast<int>(k) - 1); }
rational mean_shrinkage(world const& w, std::size_t k) {
  rational const none = power(rational{1} - w.go, static_cast<int>(k));
  return rational{1} - (rational{1} - none) / (rational{static_cast<std::int64_t>(k)} * w.go);
}

// Two or three kinds of samples in a group of 16, all counts enumerated.

struct kind {
  long double probability;
  double reward;
  reason_flags reasons;
  std::size_t action;
};

/// Expected logit gradient of each action: (1 / 16) sum over kept samples of advantage * (1{its action} - probability).
std::array<double, 3> softmax_gradient(std::array<kind, 3> const& kinds, std::array<long double, 3> const& policy,
                                       leave_one_out_options const& options) {
  constexpr std::size_t k = 16;
  std::array<long double, k + 1> factorial{1};
  for (std::size_t i = 1; i <= k; ++i) factorial[i] = factorial[i - 1] * static_cast<long double>(i);
  auto const groups = make_grouping(std::vector<std::int64_t>(k, 0));
  std::array<long double, 3> sum{};
  for (std::size_t a = 0; a <= k; ++a)
    for (std::size_t b = 0; a + b <= k; ++b) {
      std::array const counts{a, b, k - a - b};
      long double weight = factorial[k];
      std::vector<std::size_t> drawn;
      for (std::size_t i = 0; i < 3; ++i) {
        weight *= std::pow(kinds[i].probability, static_cast<long double>(counts[i])) / factorial[counts[i]];
        drawn.insert(drawn.end(), counts[i], i);
      }
      std::vector<double> returns;
      std::vector<reason_flags> reasons;
      for (std::size_t const i : drawn) {
        returns.push_back(kinds[i].reward);
        reasons.push_back(kinds[i].reasons);
      }
      auto const advantage = left_out(groups, returns, options, reasons);
      for (std::size_t n = 0; n < k; ++n) {
        if (!turnwise::is_kept(reasons[n])) continue;
        for (std::size_t action = 0; action < 3; ++action)
          sum[action] += weight / k * static_cast<long double>(advantage[n]) *
                         ((kinds[drawn[n]].action == action ? 1 : 0) - policy[action]);
      }
    }
  return {static_cast<double>(sum[0]), static_cast<double>(sum[1]), static_cast<double>(sum[2])};
}

void check_triple(std::array<double, 3> const& got, std::array<double, 3> const& wanted, double tolerance) {
  for (std::size_t i = 0; i < 3; ++i) {
    CAPTURE(i);
    CAPTURE(got[i]);
    CHECK(std::abs(got[i] - wanted[i]) <= tolerance);
  }
}

/// Wrong, lazy and real kernels; the filter rejects the lazy ones.
std::array<double, 3> kernels(bool filtered, leave_one_out_options const& options) {
  reason_flags const lazy = filtered ? turnwise::reason::profiling : 0;
  return softmax_gradient({{{0.5L, 0, 0, 0}, {0.45L, 2, lazy, 1}, {0.05L, 3.4, 0, 2}}}, {0.5L, 0.45L, 0.05L}, options);
}

}  // namespace

TEST_SUITE("advantage/estimator_claims") {
  TEST_CASE("fractions: the arithmetic that the claims rest on") {
    CHECK(rational{6, -8} == rational{-3, 4});
    CHECK(rational{1, 3} + rational{1, 6} == rational{1, 2});
    CHECK(rational{1, 3} - rational{1, 2} == rational{-1, 6});
    CHECK(rational{2, 3} * rational{9, 4} == rational{3, 2});
    CHECK(rational{2, 3} / rational{-4, 9} == rational{-3, 2});
    CHECK(power(rational{2, 3}, 3) == rational{8, 27});
    CHECK(rational{-1, 2} < rational{-1, 3});
    CHECK(rational{0, 5} == rational{});
    CHECK(exactly(-3.0 / 7, 2520) == rational{-3, 7});
    CHECK_THROWS_AS(static_cast<void>(exactly(1.0 / 11, 2520)), std::domain_error);
    CHECK_THROWS_AS(static_cast<void>(exactly(1.0 / 7 + 1e-11, 2520)), std::domain_error);
    CHECK_THROWS_AS((rational{1, 0}), std::domain_error);
    CHECK_THROWS_AS(static_cast<void>(power(rational{10}, 19)), std::overflow_error);
  }

  TEST_CASE("the true gradient is the slope of the value") {
    CHECK(value(of_the_table) == rational{7, 8});  // 1/2 + 1/2 * 1/4 * 3
    CHECK(true_gradient(of_the_table) == gradient{{-1, 16}, {9, 32}});
    CHECK(true_gradient(of_the_wrong_sign) == gradient{{3, 32}, {3, 16}});
    // And the expectation of return * score without any baseline.
    for (world const& w : {of_the_table, of_the_wrong_sign, uneven})
      CHECK(expected_gradient(w, 1, [](sample const& drawn) { return as_fractions(returns_of(drawn.batch)); }) ==
            true_gradient(w));
  }

  TEST_CASE("K = 4: every row of the table") {
    auto const row = [](estimator const& advantage) { return expected_gradient(of_the_table, 4, advantage); };
    // Turn-level leave-one-out.
    CHECK(row(leave_one_out(group_by::turn, keep)) == gradient{{-1, 16}, {9, 32}});
    CHECK(row(leave_one_out(group_by::turn, others)) == gradient{{-1, 16}, {9, 32}});
    CHECK(row(leave_one_out(group_by::turn, zero)) == gradient{{-1, 16}, {63, 256}});
    // Group mean by turn, lone member kept or zeroed.
    CHECK(row(group_mean_by_turn_lone_kept) == gradient{{-3, 64}, {189, 1024}});
    CHECK(row(group_mean_by_turn) == gradient{{-3, 64}, {153, 1024}});
    // Prompt-level leave-one-out, the trajectory or the turn left out.
    CHECK(row(leave_one_out(group_by::group, {})) == gradient{{-1, 16}, {9, 32}});
    CHECK(row(leave_one_out(group_by::group, without_member)) == gradient{{-147, 2560}, {8199, 35840}});
    // Mean over all turns of the prompt.
    CHECK(row(mean_over_all_turns) == gradient{{-213, 4480}, {6921, 35840}});
    // Leave-one-out of single rewards, summed to the own last turn.
    CHECK(row(single_rewards_summed) == gradient{{-29, 128}, {9, 32}});
  }

  TEST_CASE("unbiased for every K: turn-level with keep or others, prompt-level without the own trajectory") {
    for (world const& w : {of_the_table, of_the_wrong_sign, uneven})
      for (std::size_t k = 2; k <= 5; ++k) {
        CAPTURE(k);
        for (leave_one_out_options const& options : {keep, others}) {
          CHECK(expected_gradient(w, k, leave_one_out(group_by::turn, options)) == true_gradient(w));
          CHECK(expected_gradient(w, k, leave_one_out(group_by::group, options)) == true_gradient(w));
        }
        // In a turn group each trajectory has one turn, so both exclusions are the same.
        CHECK(expected_gradient(w, k, leave_one_out(group_by::turn, without_member)) == true_gradient(w));
      }
  }

  TEST_CASE("the shrinkage of the others, for every K") {
    for (world const& w : {of_the_table, of_the_wrong_sign, uneven})
      for (std::size_t k = 2; k <= 5; ++k) {
        CAPTURE(k);
        gradient const truth = true_gradient(w);
        auto const count = static_cast<std::int64_t>(k);
        rational const one{1};
        CHECK(expected_gradient(w, k, leave_one_out(group_by::turn, zero)) ==
              gradient{truth.turn_1, truth.turn_2 * (one - alone(w, k))});
        rational const centred_turn_1 = truth.turn_1 * rational{count - 1, count};
        CHECK(expected_gradient(w, k, group_mean_by_turn) ==
              gradient{centred_turn_1, truth.turn_2 * mean_shrinkage(w, k)});
        CHECK(expected_gradient(w, k, group_mean_by_turn_lone_kept) ==
              gradient{centred_turn_1, truth.turn_2 * (mean_shrinkage(w, k) + alone(w, k))});
        // Worse than (N - 1) / N at the mean N.
        rational const mean_n = one + rational{count - 1} * w.go;
        CHECK(mean_shrinkage(w, k) < (mean_n - one) / mean_n);
      }
  }

  TEST_CASE("prompt-level baselines that contain the own trajectory are biased, for every K") {
    for (world const& w : {of_the_table, of_the_wrong_sign, uneven})
      for (std::size_t k = 2; k <= 5; ++k) {
        CAPTURE(k);
        auto const member = expected_gradient(w, k, leave_one_out(group_by::group, without_member));
        auto const mean = expected_gradient(w, k, mean_over_all_turns);
        CHECK(member == expected_gradient(w, k, [](sample const& s) { return exact_prompt_level(s, true); }));
        CHECK(mean == expected_gradient(w, k, [](sample const& s) { return exact_prompt_level(s, false); }));
        gradient const truth = true_gradient(w);
        CHECK(member.turn_1 != truth.turn_1);
        CHECK(member.turn_2 < truth.turn_2);
        CHECK(mean.turn_2 < member.turn_2);
      }
  }

  TEST_CASE("single rewards summed to the own last turn: wrong where going on is rare") {
    // Going on earns the lone member's reward of turn 2 and no baseline: q (1 - q) (-1 + 3 p (1 - q)^(K - 1)).
    for (world const& w : {of_the_table, of_the_wrong_sign, uneven})
      for (std::size_t k = 2; k <= 5; ++k) {
        CAPTURE(k);
        rational const slope = w.go * (rational{1} - w.go) * (rational{3} * w.success * alone(w, k) - rational{1});
        CHECK(expected_gradient(w, k, single_rewards_summed) == gradient{slope, true_gradient(w).turn_2});
      }
    auto const wrong = expected_gradient(of_the_wrong_sign, 4, single_rewards_summed);
    CHECK(wrong.turn_1 == rational{-141, 2048});
    CHECK(rational{0} < true_gradient(of_the_wrong_sign).turn_1);
  }

  TEST_CASE("a filter on the action: the lazy kernel grows although it is filtered out, unless only kept turns count") {
    // Without the filter: p (reward - 1.07).
    check_triple(kernels(false, {}), {-0.535, 0.4185, 0.1165}, 1e-12);
    // Filtered, all valid members: the kept advantages sum to -0.4185, of which each action's logit takes its share.
    check_triple(kernels(true, {}), {-0.32575, 0.188325, 0.137425}, 1e-12);
    check_triple(kernels(true, {}), {-0.326, 0.188, 0.137}, 0.0005);
    for (auto const singleton : {singleton_policy::zero, singleton_policy::others})
      check_triple(kernels(true, {.singleton = singleton}), {-0.326, 0.188, 0.137}, 0.0005);
  }

  TEST_CASE("the same filter with kept members alone") {
    // Lone survivors zeroed: advantages sum to 0 in each outcome, so exactly 0 for lazy, and for the others
    // 3.4 * 10/121 * 0.55 (1 - 0.45^15).
    double const by_hand = 17.0 / 110 * (1 - std::pow(0.45, 15));
    check_triple(kernels(true, {.singleton = singleton_policy::zero, .members = baseline_members::kept}),
                 {-by_hand, 0, by_hand}, 1e-12);
    check_triple({-by_hand, 0, by_hand}, {-0.155, 0, 0.155}, 0.0005);
    // Lone survivors are rare here: the other policies agree in three digits, but lazy moves a little.
    for (auto const singleton : {singleton_policy::keep, singleton_policy::others}) {
      auto const got =
          kernels(true, {.singleton = singleton, .members = baseline_members::kept, .allow_kept_with_keep = true});
      check_triple(got, {-0.155, 0, 0.155}, 0.0005);
      CHECK(std::abs(got[1]) > 1e-8);
    }
  }

  TEST_CASE("masking failures turns the slope round: safe pays 1, risky pays 2 with probability 0.3") {
    auto const slope = [](reason_flags of_failure, leave_one_out_options const& options) {
      return softmax_gradient({{{0.5L, 1, 0, 0}, {0.15L, 2, 0, 1}, {0.35L, 0, of_failure, 1}}}, {0.5L, 0.5L, 0},
                              options)[1];
    };
    for (leave_one_out_options const& options : {keep, zero, others})
      CHECK(std::abs(slope(0, options) - -0.1) < 1e-12);  // 1/4 (0.6 - 1)
    // Among valid samples 0.15 risky ones win against 0.5 safe ones: 0.15 * 0.5 / 0.65, less the lone ones.
    CHECK(std::abs(slope(turnwise::reason::invalid, zero) - 0.075 / 0.65 * (1 - std::pow(0.35, 15))) < 1e-12);
    for (leave_one_out_options const& options : {keep, zero, others})
      CHECK(std::abs(slope(turnwise::reason::invalid, options) - 0.115) < 0.0005);
  }

}  // TEST_SUITE
