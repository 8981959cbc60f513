#include "support/batches.hpp"

#include <turnwise/reward/kl_penalty.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace {

using namespace turnwise;
using divergence::kl_kind;
using divergence::kl_logprobs;
using divergence::kl_sums;
using reward::kl_penalty;
using reward::kl_penalty_options;
using test::infinity;
using test::nan_value;

}  // namespace

TEST_SUITE("reward/kl_penalty") {
  TEST_CASE_TEMPLATE("tokens: the reward minus the coefficient times the estimate", T, float, double) {
    std::vector<float> const current{-1, -2, -1, -4}, reference{-2, -1, 0, -1};
    std::vector<std::uint8_t> const mask{1, 1, 0, 1};
    std::vector<T> reward{0, 1, 2, 3};
    kl_penalty<float, float, T>({current, reference, mask}, {.coefficient = 0.5}, reward);
    CHECK(reward == std::vector<T>{T(-0.5), T(1.5), 2, T(4.5)});
    reward = {0, 1, 2, 3};
    kl_penalty<float, float, T>({current, reference, {}}, {.coefficient = 2, .estimate = {.kind = kl_kind::k2}},
                                reward);
    CHECK(reward == std::vector<T>{-1, 0, 1, -6});
    kl_penalty<float, float, T>({}, {}, std::span<T>{});
  }

  TEST_CASE("turns: the sums of the tokens; the same total as the penalties of the tokens") {
    auto const batch = test::load_batch("kernel_rollouts_b");
    auto const view = batch.turns.view();
    kl_logprobs<float, float> const tokens{batch.old_logprob, batch.rollout_logprob, {}};
    kl_penalty_options const options{.coefficient = 0.25};
    std::vector<double> token_reward(batch.old_logprob.size());
    kl_penalty<float, float, double>(tokens, options, token_reward);
    std::vector<kl_sums> sums(view.turns());
    divergence::kl_estimate<float, float>(view, tokens, options.estimate, sums);
    std::vector<double> turn_reward(view.turns(), 3);
    kl_penalty(sums, options.coefficient, std::span{turn_reward});
    for (std::size_t s = 0; s < turn_reward.size(); ++s) {
      double total = 3;
      for (auto i = view.turn_begin[s]; i < view.turn_end[s]; ++i) total += token_reward[static_cast<std::size_t>(i)];
      CHECK(turn_reward[s] == doctest::Approx(total).epsilon(1e-12));
    }
    std::vector<kl_sums> const by_hand{{.value = 4, .count = 2}, {}, {.value = -2, .count = 1}};
    std::vector<float> reward{1, 2, 3};
    kl_penalty(by_hand, 0.5, std::span{reward});
    CHECK(reward == std::vector<float>{-1, 2, 4});
  }

  TEST_CASE("bad tokens and missing rewards stay in their place") {
    std::vector<double> const current{0, 0, 0, 0, 0, nan_value};
    std::vector<double> const reference{nan_value, -infinity, 1000, -1000, -1, -1};
    std::vector<std::uint8_t> const mask{1, 1, 1, 1, 1, 0};
    std::vector<double> reward{1, 1, 1, 1, nan_value, 1};
    kl_penalty<double, double, double>({current, reference, mask}, {.coefficient = 1}, reward);
    CHECK(test::bits_of(reward) == test::bits_of(std::vector<double>{1, 1, 11, -9, nan_value, 1}));
    std::vector<double> turn_reward{nan_value, infinity, -infinity, 1};
    kl_penalty(std::vector<kl_sums>(4, {.value = 1}), 1, std::span{turn_reward});
    CHECK(test::bits_of(turn_reward) == test::bits_of(std::vector<double>{nan_value, infinity, -infinity, 0}));
    std::vector<float> small{0};
    kl_penalty(std::vector<kl_sums>(1, {.value = 1e200}), 1, std::span{small});
    CHECK(small[0] == -largest<float>);
  }

  TEST_CASE("bad arguments throw, and nothing is written") {
    std::vector<float> const two(2, -1), three(3);
    std::vector<std::uint8_t> const mask(3);
    std::vector<double> reward{7, 7};
    auto const throws = [&](kl_logprobs<float, float> const& tokens, kl_penalty_options const& options) {
      CHECK_THROWS_AS((kl_penalty<float, float, double>(tokens, options, reward)), precondition_error);
    };
    throws({three, two, {}}, {});
    throws({two, three, {}}, {});
    throws({two, two, mask}, {});
    throws({two, two, {}}, {.estimate = {.clamp = 0}});
    for (double const bad : {-1.0, nan_value, infinity}) {
      throws({two, two, {}}, {.coefficient = bad});
      CHECK_THROWS_AS(kl_penalty(std::vector<kl_sums>(2), bad, std::span{reward}), precondition_error);
    }
    CHECK_THROWS_AS(kl_penalty(std::vector<kl_sums>(3), 1, std::span{reward}), precondition_error);
    CHECK(reward == std::vector<double>{7, 7});
  }
}
