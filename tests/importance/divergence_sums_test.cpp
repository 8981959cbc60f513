#include "support/batches.hpp"

#include <turnwise/importance/divergence_sums.hpp>

#include <doctest/doctest.h>
#include <Eigen/Core>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace {

using namespace turnwise;
using importance::turn_divergence;
using test::infinity;
using test::nan_value;
using test::sample_batch;
using test::sample_trajectory;

constexpr std::int64_t one = std::int64_t{1} << 32;

template <typename P = double>
std::vector<turn_divergence> sums_of(std::vector<sample_trajectory> const& trajectories,
                                     test::layout form = test::layout::packed) {
  sample_batch<P> const batch{trajectories, form};
  std::vector<turn_divergence> sums(batch.turns());
  importance::divergence_sums(batch.view(), batch.tokens(), sums);
  return sums;
}

std::vector<turn_divergence> of_one(std::vector<double> const& log_ratio) {
  return sums_of({{.turns = {{.log_ratio = log_ratio}}}});
}

}  // namespace

TEST_SUITE("importance/divergence_sums") {
  TEST_CASE("k2 by hand, exact to the grid") {
    CHECK(of_one({2})[0].k2 == 2 * one);
    CHECK(of_one({-2})[0].k2 == 2 * one);
    CHECK(of_one({0.5, -1, 3})[0].k2 == one / 8 + one / 2 + 9 * one / 2);
    CHECK(of_one({0x1p-15})[0].k2 == 2);            // 2^-31
    CHECK(of_one({0x1p-16})[0].k2 == 1);            // 2^-33: a half, up
    CHECK(of_one({0x1p-16 - 0x1p-24})[0].k2 == 0);  // below a half
    CHECK(of_one({64})[0].k2 == 2048 * one);
    CHECK(of_one({-1e30})[0].k2 == 2048 * one);  // clamped
  }

  TEST_CASE("k3 against e^d - 1 - d in long double, within 2^-33 + 1e-7 k3") {
    for (double d = -64; d < 13.8; d += 0.0390625) {
      long double const exact = std::expm1(static_cast<long double>(d)) - static_cast<long double>(d);
      auto const k3 = static_cast<long double>(of_one({d})[0].k3) * 0x1p-32L;
      CHECK(std::abs(k3 - exact) <= 0x1p-33L + 1e-7L * exact);
    }
    CHECK(of_one({0})[0] == turn_divergence{});
    CHECK(of_one({-0.0})[0] == turn_divergence{});
  }

  TEST_CASE("k3 is capped at 2^20, and sums stop at 2^31 instead of wrapping") {
    std::int64_t const cap = std::int64_t{1} << 52;
    CHECK(of_one({13.8})[0].k3 < cap);
    CHECK(of_one({13.9})[0].k3 == cap);
    CHECK(of_one({1e300})[0].k3 == cap);
    CHECK(of_one(std::vector<double>(2047, 20.0))[0].k3 == 2047 * cap);
    CHECK(of_one(std::vector<double>(2048, 20.0))[0].k3 == INT64_MAX);
    CHECK(of_one(std::vector<double>(5000, 20.0))[0].k3 == INT64_MAX);
    turn_divergence sum{INT64_MAX - 1, 5};
    CHECK((sum += {1, 7}) == turn_divergence{INT64_MAX, 12});
    CHECK((sum += {1, INT64_MAX}) == turn_divergence{INT64_MAX, INT64_MAX});
  }

  TEST_CASE("the token loop gives the sum of its tokens, for every type, length, mask and layout") {
    auto const check = [](auto old_type, auto rollout_type) {
      using Old = decltype(old_type);
      using Rollout = decltype(rollout_type);
      test::integers random{7};
      double const unusual[]{nan_value, infinity, -infinity, 3e38, -3e38, 64, -65, 20, 0.25, -0.0};
      for (std::int64_t const most : {3, 20, 3000})
        for (bool const masked : {false, true}) {
          std::vector<std::int64_t> begin, end;
          std::vector<Old> old_logprob;
          std::vector<Rollout> rollout_logprob;
          std::vector<std::uint8_t> mask;
          for (int s = 0; s < 40; ++s) {
            begin.push_back(static_cast<std::int64_t>(mask.size()));
            for (std::int64_t i = random.below(most + 1); i > 0; --i) {
              double const number =
                  random.below(30) == 0 ? unusual[random.below(10)] : -static_cast<double>(random.below(9000)) * 1.1e-3;
              old_logprob.push_back(static_cast<Old>(static_cast<float>(number)));
              rollout_logprob.push_back(static_cast<Rollout>(-static_cast<float>(random.below(9000)) * 1.1e-3f));
              mask.push_back(random.below(4) != 0);
            }
            end.push_back(static_cast<std::int64_t>(mask.size()));
          }
          std::vector<std::int64_t> const offsets{0, 40}, ids{0};
          rollout_view const batch{begin, end, offsets, ids, ids};
          token_logprobs<Old, Rollout> tokens{old_logprob, rollout_logprob, {}};
          if (masked) tokens.mask = mask;
          std::vector<turn_divergence> expected(40), sums(40), threaded(40);
          for (std::size_t s = 0; s < 40; ++s)
            for (auto i = static_cast<std::size_t>(begin[s]); i < static_cast<std::size_t>(end[s]); ++i) {
              auto const d = importance::log_ratio(old_logprob[i], rollout_logprob[i]);
              if ((masked && mask[i] == 0) || !importance::is_finite(d)) continue;
              expected[s] += importance::token_divergence(importance::log_ratio_index(d));
            }
          importance::divergence_sums(batch, tokens, std::span{sums}, 1);
          importance::divergence_sums(batch, tokens, std::span{threaded}, 3);
          CHECK(sums == expected);
          CHECK(threaded == expected);
        }
    };
    check(float{}, float{});
    check(double{}, double{});
    check(float{}, double{});
    check(Eigen::half{}, float{});
    check(Eigen::bfloat16{}, Eigen::bfloat16{});
  }

  TEST_CASE("masked, NaN and infinite tokens add nothing; padding is not read") {
    std::vector<sample_trajectory> const batch{
        {.turns = {{.log_ratio = {1, 50, nan_value, infinity, -infinity}, .mask = {1, 0, 1, 1, 1}},
                   {.log_ratio = {}},
                   {.log_ratio = {nan_value}},
                   {.log_ratio = {-1}}}}};
    for (auto const form : {test::layout::packed, test::layout::padded}) {
      auto const sums = sums_of(batch, form);
      CHECK(sums[0] == of_one({1})[0]);
      CHECK(sums[1] == turn_divergence{});
      CHECK(sums[2] == turn_divergence{});
      CHECK(sums[3] == of_one({-1})[0]);
    }
  }

  TEST_CASE("log ratios are formed in float unless either array is double") {
    // 0.1f - 0.3f rounds in float.
    CHECK(sums_of<float>({{.turns = {{.log_ratio = {0.1}, .rollout_logprob = {-0.3}}}}})[0] ==
          importance::token_divergence(
              importance::log_ratio_index(static_cast<float>(0.1 - 0.3) - static_cast<float>(-0.3))));
  }

  TEST_CASE("the mean of k3 over the recorded batches is the published one") {
    for (auto const* name : {"kernel_rollouts_a", "kernel_rollouts_b"}) {
      auto const batch = test::load_batch(name);
      std::vector<turn_divergence> sums(batch.turns.view().turns());
      importance::divergence_sums(batch.turns.view(), batch.tokens(), std::span{sums});
      turn_divergence total;
      for (auto const& turn : sums) total += turn;
      double const mean =
          static_cast<double>(total.k3) * importance::divergence_unit / static_cast<double>(batch.old_logprob.size());
      CHECK(mean == doctest::Approx(batch.metric("k3_kl")).epsilon(1e-6));
    }
  }

  TEST_CASE("no turns; wrong sizes throw and nothing is written") {
    CHECK(sums_of({}).empty());
    sample_batch<> const batch{std::vector<sample_trajectory>{{.turns = {{.log_ratio = {1}}, {.log_ratio = {2}}}}}};
    std::vector<turn_divergence> sums(2, {7, 7});
    auto const untouched = sums;
    auto const throws = [&](rollout_view const& view, token_logprobs<double, double> const& tokens,
                            std::span<turn_divergence> out) {
      CHECK_THROWS_AS(importance::divergence_sums(view, tokens, out), precondition_error);
    };
    throws(batch.view(), batch.tokens(), std::span{sums}.first(1));
    auto tokens = batch.tokens();
    tokens.rollout_logprob = tokens.rollout_logprob.first(1);
    throws(batch.view(), tokens, sums);
    tokens = batch.tokens();
    tokens.mask = tokens.mask.first(1);
    throws(batch.view(), tokens, sums);
    auto view = batch.view();
    std::vector<std::int64_t> const end{1, 3};
    view.turn_end = end;
    throws(view, batch.tokens(), sums);
    CHECK(sums == untouched);
  }

}  // TEST_SUITE
