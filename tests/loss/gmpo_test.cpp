#include <turnwise/loss/gmpo.hpp>

#include "loss/loss_batch.hpp"

#include <turnwise/loss/gspo.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <limits>

using namespace turnwise;
using namespace turnwise::test;
using doctest::Approx;

TEST_SUITE("loss/gmpo") {
  TEST_CASE("the geometric mean of clipped ratios, by hand") {
    loss_batch<double> const batch({{1, -1, 0.3}, {1, -1, 0.3}}, {1, -1});
    auto const result = batch.run(loss::gmpo{});
    double const above = std::exp((0.4 - 1 + 0.3) / 3), below = std::exp((1 - 0.4 + 0.3) / 3);
    CHECK(result.record.loss() == Approx(3 * (below - above)));
    double const slope[]{0, -above, -above, below, 0, below};
    for (std::size_t i = 0; i < 6; ++i) CHECK(result.gradient[i] == Approx(slope[i]));
    CHECK(result.record.clipped_high == 1);
    CHECK(result.record.clipped_low == 1);
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
      auto const result = batch.run(loss::gmpo{});
      CHECK(result.record.tokens == 3);
      CHECK(result.record.non_finite == 1);
      CHECK(result.record.loss() == Approx(-3 * std::exp(0.1)));
      for (std::size_t i = 0; i < 4; ++i) CHECK(result.gradient[i] == (i == bad ? Approx(0) : Approx(-std::exp(0.1))));
    }
  }

  TEST_CASE("gradients against central differences around each edge") {
    std::vector<double> log_ratio{0.1, -0.2};
    for (double const edge : {-0.4, 0.3})
      for (double const distance : {-0.1, -1e-4, 1e-4, 0.1}) log_ratio.push_back(edge + distance);
    check_gradient(all_signs(log_ratio, false), loss::gmpo{.clip_low = 0.4, .clip_high = 0.3});
    check_gradient(all_signs(log_ratio, true), loss::gmpo{.clip_low = 0.4, .clip_high = 0.3});
  }

  TEST_CASE("nothing to clip: GSPO with wide edges") {
    loss_batch<double> const batch({{0.3, -0.1, 0.1}, {0.2, -0.3}}, {1, -1});
    auto const other = batch.run(loss::gspo{.clip_low = 1, .clip_high = 10});
    auto const ours = batch.run(loss::gmpo{});
    CHECK(ours.gradient == other.gradient);
    CHECK(ours.record.loss() == Approx(other.record.loss()));
  }

  TEST_CASE("bad options throw") {
    loss_batch<double> const batch({{0}}, {1});
    CHECK_THROWS_AS(batch.run(loss::gmpo{.clip_low = -1}), precondition_error);
    CHECK_THROWS_AS(batch.run(loss::gmpo{.clip_high = std::nan("")}), precondition_error);
  }

}  // TEST_SUITE
