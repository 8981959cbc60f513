#include <turnwise/loss/sapo.hpp>

#include "loss/loss_batch.hpp"

#include <turnwise/loss/ppo_clip.hpp>

#include <doctest/doctest.h>

#include <cmath>

using namespace turnwise;
using namespace turnwise::test;
using doctest::Approx;

TEST_SUITE("loss/sapo") {
  TEST_CASE("the gate by hand") {
    // sigmoid(0) = 1/2 at ratio 1; sigmoid(ln 3) = 3/4 at ratio 1 + ln 3 with tau 1
    loss_batch<double> const batch({{0, std::log(1 + std::log(3.0))}, {0}}, {1, -2});
    auto const result = batch.run(loss::sapo{.tau_positive = 1, .tau_negative = 2});
    CHECK(result.record.loss() == Approx(-2 - 3 + 2));  // -A 4 / tau gate: -4/2, -4 * 3/4, +2 * 4/2 / 2
    CHECK(result.gradient[0] == Approx(-1));
    CHECK(result.gradient[1] == Approx(-4 * 0.75 * 0.25 * (1 + std::log(3.0))));
    CHECK(result.gradient[2] == Approx(2));
    CHECK(result.record.clipped_low + result.record.clipped_high == 0);
  }

  TEST_CASE("gradients against central differences") {
    check_gradient(all_signs(around({0.5, 2, 8}), false), loss::sapo{});
    check_gradient(all_signs(around({0.5, 2, 8}), true), loss::sapo{.tau_positive = 3, .tau_negative = 0.5});
  }

  TEST_CASE("at ratio 1 the gradient is that of PPO") {
    loss_batch<double> const batch({{0, 0, 0}, {0, 0}}, {1.5, -2});
    CHECK(batch.run(loss::sapo{}).gradient == batch.run(loss::ppo_clip{}).gradient);
  }

  TEST_CASE("a ratio at the limit is finite") {
    loss_batch<float> const batch({{300, -300}}, {-1});
    auto const result = batch.run(loss::sapo{});
    CHECK(std::isfinite(result.record.loss()));
    CHECK(result.record.saturated == 2);
    CHECK(result.gradient == std::vector<float>{0, 0});
  }

  TEST_CASE("the outermost taus give finite losses at every ratio") {
    for (double const tau : {0x1p-20, 0x1p20}) {
      loss_batch<float> const batch({{300, 0, -300}, {300, 0, -300}}, {-1, 1});
      auto const result = batch.run(loss::sapo{.tau_positive = tau, .tau_negative = tau}, {.log_ratio_limit = 20});
      CHECK(result.record.tokens == 6);
      CHECK(std::isfinite(result.record.loss()));
    }
  }

  TEST_CASE("bad options throw") {
    loss_batch<double> const batch({{0}}, {1});
    CHECK_THROWS_AS(batch.run(loss::sapo{.tau_positive = 0}), precondition_error);
    CHECK_THROWS_AS(batch.run(loss::sapo{.tau_negative = std::nan("")}), precondition_error);
    for (double const bad : {1e-320, 0x1p-21, 0x1p21, 1e300}) {
      CHECK_THROWS_WITH_AS(batch.run(loss::sapo{.tau_positive = bad}), doctest::Contains("sapo: tau_positive = "),
                           precondition_error);
      CHECK_THROWS_WITH_AS(batch.run(loss::sapo{.tau_negative = bad}), doctest::Contains("sapo: tau_negative = "),
                           precondition_error);
    }
  }

}  // TEST_SUITE
