#include <turnwise/loss/kl_cov.hpp>

#include "loss/loss_batch.hpp"

#include <turnwise/loss/ppo_clip.hpp>

#include <doctest/doctest.h>

#include <cmath>

using namespace turnwise;
using namespace turnwise::test;
using doctest::Approx;

namespace {

std::vector<std::uint8_t> chosen(loss_batch<double> const& batch, loss::kl_cov const& policy) {
  std::vector<std::uint8_t> selected(batch.tokens(), 9);
  loss::select_kl_cov(batch.view(), batch.inputs(), policy, {}, batch.scale, selected);
  return selected;
}

}  // namespace

TEST_SUITE("loss/kl_cov") {
  TEST_CASE("the tokens of highest covariance, by hand; of equal ones the first") {
    loss_batch<double> batch({{0, 0, 0}, {0, 0, 0}}, {3, -3});
    batch.current = batch.old = {-1, -2, -3, -1, -2, -3};
    // covariances 3, 0, -3, -3, 0, 3
    CHECK(chosen(batch, {.share = 1.0 / 6}) == std::vector<std::uint8_t>{1, 0, 0, 0, 0, 0});
    CHECK(chosen(batch, {.share = 0.34}) == std::vector<std::uint8_t>{1, 0, 0, 0, 0, 1});
    CHECK(chosen(batch, {.share = 0.5}) == std::vector<std::uint8_t>{1, 1, 0, 0, 0, 1});
    CHECK(chosen(batch, {.share = 1}) == std::vector<std::uint8_t>(6, 1));
    CHECK(chosen(batch, {.share = 0}) == std::vector<std::uint8_t>(6));
    CHECK(chosen(batch, {.share = 1e-9}) == std::vector<std::uint8_t>{1, 0, 0, 0, 0, 0});
    batch.mask = {0, 1, 1, 1, 1, 1};
    CHECK(chosen(batch, {.share = 1})[0] == 0);
    batch.scale = {0, 0};
    CHECK(chosen(batch, {.share = 1}) == std::vector<std::uint8_t>(6));
  }

  TEST_CASE("penalty by hand, and gradients against central differences") {
    loss_batch<double> batch({{0.5, 0.5, -0.25}}, {1});
    batch.selected = {1, 0, 1};
    auto const result = batch.run(loss::kl_cov{.kl_coefficient = 2});
    CHECK(result.record.loss() == Approx(-2 * std::exp(0.5) - std::exp(-0.25) + 2 * 0.75));
    CHECK(result.gradient[0] == Approx(2 - std::exp(0.5)));
    CHECK(result.gradient[1] == Approx(-std::exp(0.5)));
    CHECK(result.gradient[2] == Approx(-2 - std::exp(-0.25)));
    auto many = all_signs({0.3, -0.3, 1e-4, -1e-4, 2, -2}, false);
    for (std::size_t i = 0; i < many.tokens(); ++i) many.selected.push_back(i % 3 != 0);
    check_gradient(many, loss::kl_cov{.kl_coefficient = 0.7});
    check_gradient(many, loss::kl_cov{}, {.log_ratio_limit = 1});
  }

  TEST_CASE("none chosen: PPO without clip") {
    auto batch = all_signs(around({0.8, 1.2}), false);
    batch.selected.assign(batch.tokens(), 0);
    CHECK(batch.run(loss::kl_cov{}).gradient == batch.run(loss::ppo_clip{.clip_low = 1, .clip_high = 1000}).gradient);
  }

  TEST_CASE("bad options and sizes throw") {
    loss_batch<double> const batch({{0}}, {1});
    CHECK_THROWS_AS(chosen(batch, {.share = -1}), precondition_error);
    CHECK_THROWS_AS(chosen(batch, {.kl_coefficient = -1}), precondition_error);
    CHECK_THROWS_AS(batch.run(loss::kl_cov{}), precondition_error);  // no selection
  }

}  // TEST_SUITE
