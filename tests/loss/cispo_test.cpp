#include <turnwise/loss/cispo.hpp>

#include "loss/loss_batch.hpp"

#include <turnwise/loss/reinforce.hpp>

#include <doctest/doctest.h>

#include <cmath>

using namespace turnwise;
using namespace turnwise::test;
using doctest::Approx;

TEST_SUITE("loss/cispo") {
  TEST_CASE("PL-03: the weight is clipped and held, the gradient stays") {
    loss_batch<double> batch({{0}, {0}}, {1, -1});
    batch.current = {-1, -2};
    batch.old = {-1.5, -2};
    loss::cispo const policy{.clip_low = 1, .clip_high = 0.2};
    auto const result = batch.run(policy);
    CHECK(result.gradient[0] == Approx(-1.2));
    CHECK(result.gradient[1] == Approx(1));
    CHECK(result.record.loss() == Approx(1.2 - 2));
    CHECK(result.record.clipped_high == 1);
    CHECK(result.record.clipped_low == 0);
  }

  TEST_CASE("gradients against central differences with the weight held") {
    check_gradient(all_signs(around({0.8, 1.28}), false), loss::cispo{.clip_high = 0.28}, {}, true);
  }

  TEST_CASE("wide edges: REINFORCE with a weight") {
    auto const batch = all_signs(around({0.8, 1.28}), false);
    auto const other = batch.run(loss::reinforce{.importance_weight = true, .weight_low = 0, .weight_high = 100});
    CHECK(batch.run(loss::cispo{.clip_low = 1, .clip_high = 99}).gradient == other.gradient);
  }

  TEST_CASE("bad options throw") {
    loss_batch<double> const batch({{0}}, {1});
    CHECK_THROWS_AS(batch.run(loss::cispo{.clip_low = 2}), precondition_error);
    CHECK_THROWS_AS(batch.run(loss::cispo{.clip_high = -1}), precondition_error);
  }

}  // TEST_SUITE
