#include <turnwise/loss/reinforce.hpp>

#include "loss/loss_batch.hpp"

#include <doctest/doctest.h>

#include <cmath>

using namespace turnwise;
using namespace turnwise::test;
using doctest::Approx;

TEST_SUITE("loss/reinforce") {
  TEST_CASE("minus advantage times log-prob, by hand") {
    loss_batch<double> batch({{0, 0}, {0}}, {2, -3});
    batch.current = {-1, -0.5, -2};
    auto const result = batch.run(loss::reinforce{});
    CHECK(result.record.loss() == Approx(2 + 1 - 6));
    CHECK(result.gradient == std::vector<double>{-2, -2, 3});
  }

  TEST_CASE("the weight is the ratio, truncated, and held") {
    loss_batch<double> const batch({around({0.5, 2})}, {1.25});
    loss::reinforce const policy{.importance_weight = true, .weight_low = 0.5, .weight_high = 2};
    auto const result = batch.run(policy);
    for (std::size_t i = 0; i < batch.tokens(); ++i)
      CHECK(result.gradient[i] == Approx(-1.25 * std::clamp(std::exp(batch.current[i] - batch.old[i]), 0.5, 2.0)));
    CHECK(result.record.clipped_low == 3);   // -1, log 0.5 - 0.3 and - 1e-4
    CHECK(result.record.clipped_high == 3);  // 1, log 2 + 1e-4 and + 0.3
    check_gradient(all_signs(around({0.5, 2}), false), policy, {}, true);
    check_gradient(all_signs(around({0.5, 2}), true), loss::reinforce{}, {}, true);
  }

  TEST_CASE("bad options throw") {
    loss_batch<double> const batch({{0}}, {1});
    for (auto const& policy : {loss::reinforce{.weight_low = -1}, loss::reinforce{.weight_low = 3, .weight_high = 2},
                               loss::reinforce{.weight_high = std::nan("")},
                               loss::reinforce{.weight_high = std::numeric_limits<double>::infinity()}})
      CHECK_THROWS_AS(batch.run(policy), precondition_error);
  }

}  // TEST_SUITE
