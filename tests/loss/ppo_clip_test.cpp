#include <turnwise/loss/ppo_clip.hpp>

#include "loss/loss_batch.hpp"

#include <turnwise/core/error.hpp>
#include <turnwise/loss/gmpo.hpp>
#include <turnwise/loss/gspo.hpp>
#include <turnwise/loss/reinforce.hpp>

#include <doctest/doctest.h>

#include <cmath>

using namespace turnwise;
using namespace turnwise::test;
using doctest::Approx;

namespace {

double log_of(double x) { return std::log(x); }

}  // namespace

TEST_SUITE("loss/ppo_clip") {
  TEST_CASE("PL-01: dual clip is for negative advantages alone") {
    loss_batch<double> const batch({{log_of(5.0)}, {log_of(1.1)}, {log_of(0.5)}}, {-2, 1, -1});
    double const by_hand[]{6, -1.1, 0.8};
    loss::ppo_clip const policy{.clip_low = 0.2, .clip_high = 0.2, .dual_clip = 3};
    for (std::size_t s = 0; s < 3; ++s) {
      auto one = batch;
      one.scale = {0, 0, 0};
      one.scale[s] = 1;
      CHECK(one.run(policy).record.loss() == Approx(by_hand[s]));
    }
    auto const all = batch.run(policy);
    CHECK(all.record.loss() / 3 == Approx(1.9));
    CHECK(all.gradient[0] == 0);
    CHECK(all.gradient[1] == Approx(-1.1));
    CHECK(all.gradient[2] == 0);
    CHECK(all.record.clipped_low == 1);
    CHECK(all.record.clipped_high == 1);
    CHECK(batch.run(loss::ppo_clip{}).record.loss() == Approx(10 - 1.1 + 0.8));
    loss_batch<double> const good({{log_of(5.0)}}, {2});
    CHECK(good.run(policy).record.loss() == Approx(-2.4));
  }

  TEST_CASE("value and gradient of the four quadrants, by hand") {
    loss_batch<double> const batch({{log_of(2.0), log_of(0.5), 0}, {log_of(2.0), log_of(0.5), 0}}, {1, -1});
    auto const result = batch.run(loss::ppo_clip{.clip_low = 0.2, .clip_high = 0.28});
    CHECK(result.record.loss() == Approx(-1.28 - 0.5 - 1 + 2 + 0.8 + 1));
    double const slope[]{0, -0.5, -1, 2, 0, 1};
    for (std::size_t i = 0; i < 6; ++i) CHECK(result.gradient[i] == Approx(slope[i]));
    CHECK(result.record.clip_fraction_high() == Approx(1.0 / 6));
    CHECK(result.record.clip_fraction_low() == Approx(1.0 / 6));
    CHECK(result.record.ratio_mean() == Approx(7.0 / 6));
    CHECK(result.record.ratio_min == Approx(0.5));
    CHECK(result.record.ratio_max == Approx(2));
    CHECK(result.record.old_kl_mean() == Approx(0).scale(1));
  }

  TEST_CASE("on an edge the gradient is whole") {
    // ratio 1 = 1 + 0: on both edges
    loss_batch<double> const batch({{0, 0}, {0, 0}}, {2, -3});
    auto const result = batch.run(loss::ppo_clip{.clip_low = 0, .clip_high = 0});
    CHECK(result.gradient[0] == -2);
    CHECK(result.gradient[3] == 3);
    CHECK(result.record.clipped_low + result.record.clipped_high == 0);
  }

  TEST_CASE("an advantage of 0 has no gradient that could be cut") {
    loss_batch<double> const batch({{-0.5}, {0.5}}, {0, 0});
    auto const count = [&](auto const& policy) {
      auto const result = batch.run(policy);
      CHECK(result.record.tokens == 2);
      return result.record.clipped_low + result.record.clipped_high;
    };
    CHECK(count(loss::ppo_clip{.dual_clip = 3}) == 0);
    CHECK(count(loss::gspo{}) == 0);
    CHECK(count(loss::gmpo{}) == 0);
  }

  TEST_CASE("gradients against central differences around each edge") {
    loss::ppo_clip const policy{.clip_low = 0.2, .clip_high = 0.28, .dual_clip = 3};
    for (bool const one_token : {false, true}) {
      check_gradient(all_signs(around({0.8, 1.28, 3}), one_token), policy);
      check_gradient(all_signs(around({0.8, 1.28, 3}), one_token), loss::ppo_clip{});
    }
    // around the clamp of the log ratio
    loss::loss_options const narrow{.log_ratio_limit = 0.15};
    check_gradient(all_signs({0.15 - 1e-4, 0.15 + 1e-4, -0.15 - 1e-4, -0.15 + 1e-4, 0.4, -0.4}, false), policy, narrow);
  }

  TEST_CASE("at ratio 1 the gradient is that of REINFORCE") {
    loss_batch<double> const batch({{0, 0, 0}, {0, 0}}, {1.5, -2});
    CHECK(batch.run(loss::ppo_clip{}).gradient == batch.run(loss::reinforce{}).gradient);
  }

  TEST_CASE("bad options throw") {
    loss_batch<double> const batch({{0}}, {1});
    double const nan = std::nan("");
    for (auto const& policy :
         {loss::ppo_clip{.clip_low = -0.1}, loss::ppo_clip{.clip_low = 1.1}, loss::ppo_clip{.clip_high = -0.1},
          loss::ppo_clip{.clip_high = nan}, loss::ppo_clip{.clip_low = nan}, loss::ppo_clip{.dual_clip = 1},
          loss::ppo_clip{.dual_clip = -3}, loss::ppo_clip{.dual_clip = nan}})
      CHECK_THROWS_AS(batch.run(policy), precondition_error);
  }

}  // TEST_SUITE
