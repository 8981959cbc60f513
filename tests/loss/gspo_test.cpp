#include <turnwise/loss/gspo.hpp>

#include "loss/loss_batch.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <limits>

using namespace turnwise;
using namespace turnwise::test;
using doctest::Approx;

TEST_SUITE("loss/gspo") {
  TEST_CASE("one ratio a turn, by hand") {
    loss_batch<double> const batch({{0.3, -0.1, 0.1}, {0.3, -0.1, 0.1}, {1, 2}}, {1, -1, 1});
    auto const result = batch.run(loss::gspo{.clip_low = 0.2, .clip_high = 0.2});
    double const s = std::exp(0.1);
    CHECK(result.record.loss() == Approx(-3 * s + 3 * s - 2 * 1.2));
    for (std::size_t i = 0; i < 3; ++i) CHECK(result.gradient[i] == Approx(-s));
    for (std::size_t i = 3; i < 6; ++i) CHECK(result.gradient[i] == Approx(s));
    CHECK(result.gradient[6] == 0);
    CHECK(result.record.clipped_high == 2);
    CHECK(result.record.ratio_max == Approx(std::exp(1.5)));
  }

  TEST_CASE("masked and non-finite tokens are not in the mean") {
    loss_batch<double> batch({{0.3, 50, -0.1, 0.1, 0}}, {1});
    batch.mask = {1, 0, 1, 1, 1};
    batch.current[4] = std::nan("");
    auto const result = batch.run(loss::gspo{.clip_low = 0.2, .clip_high = 0.2});
    CHECK(result.record.loss() == Approx(-3 * std::exp(0.1)));
    CHECK(result.gradient[1] == 0);
    CHECK(result.gradient[4] == 0);
    CHECK(result.record.non_finite == 1);
    CHECK(result.record.tokens == 3);
  }

  TEST_CASE("a token that any number leaves out of the loss is not in its turn's ratio") {
    for (int const which : {0, 1, 2, 3}) {
      loss_batch<double> batch({{0.3, 2, -0.1, 0.1}}, {1});
      std::size_t const bad = 1;
      if (which == 0) {
        batch.token_advantage.assign(4, 1);
        batch.token_advantage[bad] = std::nan("");
      } else if (which == 1) {
        batch.weight.assign(4, 1);
        batch.weight[bad] = std::numeric_limits<float>::infinity();
      } else if (which == 2) {
        batch.reference = batch.old;
        batch.reference[bad] = std::nan("");
      } else {
        batch.entropy.assign(4, 1);
        batch.entropy[bad] = std::numeric_limits<float>::quiet_NaN();
      }
      CAPTURE(which);
      auto const result = batch.run(loss::gspo{.clip_low = 0.2, .clip_high = 0.2});
      CHECK(result.record.tokens == 3);
      CHECK(result.record.non_finite == 1);
      CHECK(result.record.loss() == Approx(-3 * std::exp(0.1)));
      for (std::size_t i = 0; i < 4; ++i) CHECK(result.gradient[i] == (i == bad ? Approx(0) : Approx(-std::exp(0.1))));
    }
  }

  TEST_CASE("one token a turn: PPO's clip") {
    auto const batch = all_signs(around({0.8, 1.28}), true);
    auto const ours = batch.run(loss::gspo{.clip_low = 0.2, .clip_high = 0.28});
    auto const ppo = batch.run(loss::ppo_clip{.clip_low = 0.2, .clip_high = 0.28});
    CHECK(ours.gradient == ppo.gradient);
    CHECK(ours.record.loss() == Approx(ppo.record.loss()));
    CHECK(ours.record.clipped_low == ppo.record.clipped_low);
  }

  TEST_CASE("gradients against central differences around each edge") {
    for (double const edge : {0.8, 1.28})
      for (double const distance : {-0.1, -1e-4, 1e-4, 0.1}) {
        double const mean = std::log(edge) + distance;
        check_gradient(all_signs({mean - 0.5, mean + 0.2, mean + 0.3}, false),
                       loss::gspo{.clip_low = 0.2, .clip_high = 0.28});
      }
    check_gradient(all_signs({2, -0.5, 0.1}, false), loss::gspo{.clip_high = 1}, {.log_ratio_limit = 1});
  }

  TEST_CASE("bad options throw") {
    loss_batch<double> const batch({{0}}, {1});
    CHECK_THROWS_AS(batch.run(loss::gspo{.clip_low = 2}), precondition_error);
  }

}  // TEST_SUITE
