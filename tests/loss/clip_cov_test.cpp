#include <turnwise/loss/clip_cov.hpp>

#include "loss/loss_batch.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

using namespace turnwise;
using namespace turnwise::test;
using doctest::Approx;

namespace {

/// Log-probs -1 and -3 with advantages 2 and -2: covariances 2 at (2, -1) and (-2, -3), -2 elsewhere.
loss_batch<double> crossed() {
  loss_batch<double> batch({{0, 0, 0, 0}, {0, 0, 0, 0}}, {2, -2});
  batch.current = batch.old = {-1, -3, -1, -3, -1, -3, -1, -3};
  batch.selected.assign(8, 0);
  return batch;
}

std::vector<std::uint8_t> chosen(loss_batch<double> const& batch, loss::clip_cov const& policy, draw_key key) {
  std::vector<std::uint8_t> selected(batch.tokens(), 9);
  loss::select_clip_cov(batch.view(), batch.inputs(), policy, {}, batch.scale, key, selected);
  return selected;
}

}  // namespace

TEST_SUITE("loss/clip_cov") {
  TEST_CASE("all candidates, by hand") {
    auto const batch = crossed();
    CHECK(chosen(batch, {.share = 1}, {1, 2}) == std::vector<std::uint8_t>{1, 0, 1, 0, 0, 1, 0, 1});
    CHECK(chosen(batch, {.share = 1, .covariance_high = 2}, {1, 2}) == std::vector<std::uint8_t>(8));  // strictly
    CHECK(chosen(batch, {.share = 1, .covariance_low = 2}, {1, 2}) == std::vector<std::uint8_t>(8));   // likewise
    CHECK(chosen(batch, {.share = 0}, {1, 2}) == std::vector<std::uint8_t>(8));
  }

  TEST_CASE("a share of them is drawn, at least one, by seed and step") {
    auto const batch = crossed();
    int seen[8]{};
    for (std::uint32_t step = 0; step < 400; ++step) {
      auto const selected = chosen(batch, {.share = 0.3}, {7, step});  // 2 of 8 tokens, among 4 candidates
      CHECK(std::accumulate(selected.begin(), selected.end(), 0) == 2);
      CHECK(selected == chosen(batch, {.share = 0.3}, {7, step}));
      for (std::size_t i = 0; i < 8; ++i) seen[i] += selected[i];
      auto const least = chosen(batch, {.share = 1e-9}, {7, step});
      CHECK(std::accumulate(least.begin(), least.end(), 0) == 1);
    }
    for (int const i : {0, 2, 5, 7}) CHECK(seen[i] == Approx(200).epsilon(0.2));  // four deviations of 10
    CHECK(seen[1] + seen[3] + seen[4] + seen[6] == 0);
  }

  TEST_CASE("a NaN advantage counts as non_finite where the token is taken out too, among plain tokens and alone") {
    for (std::size_t const tokens : {1u, 64u}) {
      loss_batch<float> batch({std::vector<double>(tokens, 0.0)}, {0});
      batch.advantage.clear();
      batch.token_advantage.assign(tokens, 1);
      batch.token_advantage[0] = std::numeric_limits<double>::quiet_NaN();
      batch.selected.assign(tokens, 0);
      batch.selected[0] = 1;
      auto const result = batch.run(loss::clip_cov{});
      CHECK(result.record.non_finite == 1);
      CHECK(result.record.tokens == static_cast<std::int64_t>(tokens) - 1);
      CHECK(result.gradient[0] == 0);
    }
  }

  TEST_CASE("tokens that are clipped, masked, not finite or out of the loss are no candidates") {
    auto batch = crossed();
    batch.old[5] = -2.5;  // ratio e^-0.5 with A < 0: clipped
    CHECK(chosen(batch, {.share = 1}, {1, 2}) == std::vector<std::uint8_t>{1, 0, 1, 0, 0, 0, 0, 1});
    batch = crossed();
    batch.mask.assign(8, 1);
    batch.old[0] = -2;  // ratio e with A > 0: clipped
    CHECK(chosen(batch, {.share = 1}, {1, 2}) == std::vector<std::uint8_t>{0, 0, 1, 0, 0, 1, 0, 1});
    batch.mask[2] = 0;
    batch.current[5] = std::nan("");
    auto const rest = chosen(batch, {.share = 1, .covariance_low = 0.5}, {1, 2});
    CHECK(rest[2] + rest[5] == 0);
    batch.scale = {0, 0};
    CHECK(chosen(batch, {.share = 1}, {1, 2}) == std::vector<std::uint8_t>(8));
  }

  TEST_CASE("the draw does not depend on the order of trajectories") {
    auto const batch = crossed();
    auto other = batch;
    std::ranges::swap(other.begin[0], other.begin[1]);
    std::ranges::swap(other.end[0], other.end[1]);
    std::ranges::swap(other.advantage[0], other.advantage[1]);
    std::ranges::swap(other.trajectory[0], other.trajectory[1]);
    for (std::uint32_t step = 0; step < 20; ++step)
      CHECK(chosen(batch, {.share = 0.3}, {7, step}) == chosen(other, {.share = 0.3}, {7, step}));
  }

  TEST_CASE("chosen tokens have loss and gradient 0, the others PPO's") {
    auto batch = all_signs(around({0.8, 1.2}), false);
    auto const ppo = batch.run(loss::ppo_clip{});
    batch.selected.assign(batch.tokens(), 0);
    CHECK(batch.run(loss::clip_cov{}).gradient == ppo.gradient);
    for (std::size_t i = 0; i < batch.tokens(); i += 3) batch.selected[i] = 1;
    auto const result = batch.run(loss::clip_cov{});
    for (std::size_t i = 0; i < batch.tokens(); ++i)
      CHECK(result.gradient[i] == (batch.selected[i] != 0 ? 0 : ppo.gradient[i]));
    check_gradient(batch, loss::clip_cov{});
  }

  TEST_CASE("bad options, ids and sizes throw") {
    auto batch = crossed();
    CHECK_THROWS_AS(chosen(batch, {.share = 2}, {1, 2}), precondition_error);
    CHECK_THROWS_AS(chosen(batch, {.share = std::nan("")}, {1, 2}), precondition_error);
    CHECK_THROWS_AS(chosen(batch, {.covariance_low = 6}, {1, 2}), precondition_error);
    std::vector<std::uint8_t> few(3);
    CHECK_THROWS_AS(loss::select_clip_cov(batch.view(), batch.inputs(), loss::clip_cov{}, {}, batch.scale, {1, 2}, few),
                    precondition_error);
    batch.trajectory[0] = -1;
    CHECK_THROWS_AS(chosen(batch, {}, {1, 2}), precondition_error);
    batch.selected.clear();
    CHECK_THROWS_AS(batch.run(loss::clip_cov{}), precondition_error);
  }

}  // TEST_SUITE
