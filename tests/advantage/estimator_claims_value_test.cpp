#include "support/two_turn_problem.hpp"

#include <turnwise/advantage/gae.hpp>
#include <turnwise/advantage/vtrace.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

using namespace turnwise::test::two_turns;
using turnwise::advantage::gae_options;
using turnwise::advantage::token_segments;
using turnwise::advantage::vtrace_advantage;
using turnwise::advantage::vtrace_options;
using turnwise::test::exactly;
using turnwise::test::rational;

namespace {

/// The value function at the two turns.
using values = std::array<double, 2>;
constexpr values constants[]{{0, 0}, {1.5, 1.5}, {-2, -2}};

token_segments<double> segments_of(sample const& drawn) { return {.offsets = drawn.batch.offsets}; }

std::vector<double> at_each_turn(sample const& drawn, values const& value) {
  std::vector<double> result;
  for (outcome const what : drawn.what)
    for (std::size_t t = 0; t < rewards(what).size(); ++t) result.push_back(value[t]);
  return result;
}

/// All numbers below are multiples of 1/64.
std::vector<rational> in_64ths(std::vector<double> const& advantage) {
  std::vector<rational> result;
  for (double const one : advantage) result.push_back(exactly(one, 64));
  return result;
}

estimator gae(values const& value, gae_options const& options) {
  return [=](sample const& drawn) {
    std::vector<double> advantage(drawn.batch.turns());
    turnwise::advantage::gae(segments_of(drawn), drawn.batch.value, at_each_turn(drawn, value), options,
                             std::span{advantage});
    return in_64ths(advantage);
  };
}

/// The sampler goes on and succeeds with the probabilities of `sampler`; trained is `w`.
std::vector<double> log_ratios(sample const& drawn, world const& w, world const& sampler) {
  auto const log_of = [](rational trained, rational sampled) { return std::log(as_double(trained / sampled)); };
  rational const one{1};
  std::vector<double> result;
  for (outcome const what : drawn.what) {
    if (what == outcome::stop) {
      result.push_back(log_of(one - w.go, one - sampler.go));
      continue;
    }
    result.push_back(log_of(w.go, sampler.go));
    result.push_back(what == outcome::success ? log_of(w.success, sampler.success)
                                              : log_of(one - w.success, one - sampler.success));
  }
  return result;
}

std::vector<double> vtrace(sample const& drawn, values const& value, std::vector<double> const& log_ratio,
                           vtrace_options const& options) {
  std::vector<double> advantage(drawn.batch.turns());
  turnwise::advantage::vtrace(segments_of(drawn), drawn.batch.value, at_each_turn(drawn, value), log_ratio, options,
                              std::span{advantage});
  return advantage;
}

estimator vtrace_on_policy(values const& value, vtrace_options const& options) {
  return [=](sample const& drawn) {
    return in_64ths(vtrace(drawn, value, std::vector<double>(drawn.batch.turns()), options));
  };
}

/// Slope of go's logit where going on is credited with gamma (V + lambda (3 p - V)), V the value at turn 2.
rational bootstrapped_slope(world const& w, double gamma, double lambda, double value) {
  rational const v = exactly(value, 4), earned = rational{3} * w.success;
  rational const credit = exactly(gamma, 4) * (v + exactly(lambda, 4) * (earned - v));
  return w.go * (rational{1} - w.go) * (credit - rational{1});
}

constexpr vtrace_advantage forms[]{vtrace_advantage::next_target, vtrace_advantage::mixed_target,
                                   vtrace_advantage::excess};

}  // namespace

TEST_SUITE("advantage/estimator_claims_value") {
  TEST_CASE("gae: unbiased with lambda = gamma = 1, for every K and any value that does not depend on the action") {
    for (world const& w : {of_the_table, of_the_wrong_sign, uneven})
      for (std::size_t k = 1; k <= 5; ++k) {
        CAPTURE(k);
        for (values const& value : constants) CHECK(expected_gradient(w, k, gae(value, {})) == true_gradient(w));
        CHECK(expected_gradient(w, k, gae({0.25, 2}, {})) == true_gradient(w));
      }
  }

  TEST_CASE("gae: K = 4 of the table by hand, and what a smaller lambda or gamma makes of a wrong value") {
    // Going on earns V = 3/2 at lambda 0 instead of 3/4: 1/4 (3/2 - 1).
    CHECK(expected_gradient(of_the_table, 4, gae({1.5, 1.5}, {})) == gradient{{-1, 16}, {9, 32}});
    CHECK(expected_gradient(of_the_table, 4, gae({1.5, 1.5}, {.lambda = 0})) == gradient{{1, 8}, {9, 32}});
    CHECK(expected_gradient(of_the_table, 4, gae({1.5, 1.5}, {.lambda = 0.5})) == gradient{{1, 32}, {9, 32}});
    for (world const& w : {of_the_table, of_the_wrong_sign, uneven})
      for (double const lambda : {0.0, 0.25, 0.5, 1.0})
        for (double const gamma : {0.5, 1.0})
          for (values const& value : {values{0, 0}, values{1.5, 1.5}, values{-2, -2}, values{0.25, 2}}) {
            auto const got = expected_gradient(w, 2, gae(value, {.gamma = gamma, .lambda = lambda}));
            CHECK(got == gradient{bootstrapped_slope(w, gamma, lambda, value[1]), true_gradient(w).turn_2});
          }
    // The exact value of turn 2 needs no lambda.
    CHECK(expected_gradient(of_the_table, 3, gae({0, 0.75}, {.lambda = 0})) == true_gradient(of_the_table));
  }

  TEST_CASE("vtrace, on-policy: unbiased with lambda = gamma = 1 in all forms, for every K") {
    for (world const& w : {of_the_table, of_the_wrong_sign, uneven})
      for (std::size_t k = 1; k <= 5; ++k)
        for (auto const form : forms) {
          CAPTURE(k);
          for (values const& value : constants)
            CHECK(expected_gradient(w, k, vtrace_on_policy(value, {.advantage = form})) == true_gradient(w));
          CHECK(expected_gradient(w, k, vtrace_on_policy({0.25, 2}, {.advantage = form})) == true_gradient(w));
        }
    CHECK(expected_gradient(of_the_table, 4, vtrace_on_policy({1.5, 1.5}, {})) == gradient{{-1, 16}, {9, 32}});
  }

  TEST_CASE("vtrace, on-policy with lambda or gamma below 1: as gae; the paper's form takes the whole target") {
    for (world const& w : {of_the_table, of_the_wrong_sign, uneven})
      for (double const lambda : {0.0, 0.25, 0.5})
        for (double const gamma : {0.5, 1.0}) {
          values const value{0.25, 2};
          auto const slope = [&](vtrace_advantage form) {
            return expected_gradient(w, 2,
                                     vtrace_on_policy(value, {.gamma = gamma, .lambda = lambda, .advantage = form}));
          };
          gradient const bootstrapped{bootstrapped_slope(w, gamma, lambda, value[1]), true_gradient(w).turn_2};
          CHECK(slope(vtrace_advantage::mixed_target) == bootstrapped);
          CHECK(slope(vtrace_advantage::excess) == bootstrapped);
          // The target of the last turn is its reward.
          CHECK(slope(vtrace_advantage::next_target) ==
                gradient{bootstrapped_slope(w, gamma, 1, value[1]), true_gradient(w).turn_2});
        }
  }

  TEST_CASE("vtrace, off-policy: without caps turn 1 is right and turn 2 as often as the sampler gets there") {
    constexpr double none = std::numeric_limits<double>::infinity();
    world const sampler{{1, 2}, {1, 2}};
    for (world const& w : {of_the_table, of_the_wrong_sign, uneven}) {
      auto const slopes = [&](vtrace_options const& options) {
        std::array<double, 2> result{};
        for_each_outcome(sampler, 2, [&](sample const& drawn, rational weight) {
          auto const advantage = vtrace(drawn, {0.25, 2}, log_ratios(drawn, w, sampler), options);
          for (std::size_t i = 0; i < 2; ++i) {
            std::size_t const first = drawn.batch.view().first_turn(i);
            gradient const score = scores(w, drawn.what[i]);
            result[0] += as_double(weight * score.turn_1) / 2 * advantage[first];
            if (drawn.what[i] != outcome::stop)
              result[1] += as_double(weight * score.turn_2) / 2 * advantage[first + 1];
          }
        });
        return result;
      };
      gradient const truth = true_gradient(w);
      auto const free = slopes({.rho_bar = none, .pg_rho_bar = none});
      CHECK(std::abs(free[0] - as_double(truth.turn_1)) < 1e-14);
      CHECK(std::abs(free[1] - as_double(truth.turn_2 * sampler.go / w.go)) < 1e-14);
      auto const capped = slopes({});
      if (w.success == sampler.success) continue;  // nothing to cap at turn 2
      CHECK(std::abs(capped[1] - free[1]) > 1e-3);
    }
  }

}  // TEST_SUITE
