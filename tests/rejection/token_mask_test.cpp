#include "support/batches.hpp"

#include <turnwise/importance/log_ratio_statistics.hpp>
#include <turnwise/rejection/begin_token_mask.hpp>
#include <turnwise/rejection/divergence_limit.hpp>
#include <turnwise/rejection/token_mask.hpp>
#include <turnwise/rejection/token_veto.hpp>

#include <doctest/doctest.h>
#include <Eigen/Core>

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace {

using namespace turnwise;
using rejection::token_mask_options;
using rejection::token_measure;
using test::infinity;
using test::nan_value;
using bytes = std::vector<std::uint8_t>;

/// The mask over tokens of these log ratios; rollout log-probs are 0.
template <typename P = double>
bytes masked(std::vector<double> const& log_ratio, token_mask_options const& options, bytes const& mask = {},
             bytes keep = {}) {
  std::vector<P> old_logprob, rollout_logprob(log_ratio.size());
  for (double const d : log_ratio) old_logprob.push_back(static_cast<P>(d));
  if (keep.empty()) keep.assign(log_ratio.size(), 1);
  rejection::token_mask(token_logprobs<P, P>{old_logprob, rollout_logprob, mask}, options, keep);
  return keep;
}

}  // namespace

TEST_SUITE("rejection/token_mask") {
  TEST_CASE("ratio: both edges inclusive, in log space; the ratio is old over rollout") {
    double const low = std::log(0.5);
    double const high = std::log(5.0);
    CHECK(masked({low, std::nextafter(low, -infinity), high, std::nextafter(high, infinity), 0, -high, -low}, {}) ==
          bytes{1, 0, 1, 0, 1, 0, 1});
    CHECK(masked({-700, 700}, {.low = 0, .high = infinity}) == bytes{1, 1});
    CHECK(masked({-1e-30, -0.0, 0.0, 1e-30}, {.low = 1, .high = 1}) == bytes{0, 1, 1, 0});
  }

  TEST_CASE("k1, k2 and k3 by hand") {
    CHECK(masked({1, 1.001, -2, -2.001}, {token_measure::k1, -1, 2}) == bytes{1, 0, 1, 0});
    CHECK(masked({1, -1, 1.001, -1.001, 1e30}, {token_measure::k2, 0, 0.5}) == bytes{1, 1, 0, 0, 0});
    // e - 2 = 0.71828, 1 / e = 0.36788.
    CHECK(masked({1, -1, -1.5, 0}, {token_measure::k3, 0.3, 0.7182}) == bytes{0, 1, 0, 0});
    CHECK(masked({1, -1, -1.5, 0}, {token_measure::k3, 0.3, 0.7183}) == bytes{1, 1, 0, 0});
    CHECK(masked({-1.75}, {token_measure::k3, 0, 0.93}) == bytes{1});  // 0.92377
  }

  TEST_CASE("a byte of 0 stays 0, tokens masked off are cleared, non-finite ones too") {
    CHECK(masked({0, 0, 0, 0}, {}, {1, 0, 9, 1}, {0, 1, 1, 1}) == bytes{0, 0, 1, 1});
    for (auto const measure : {token_measure::ratio, token_measure::k1, token_measure::k2, token_measure::k3})
      CHECK(masked({nan_value, infinity, -infinity, 0}, {measure, 0, infinity}) == bytes{0, 0, 0, 1});
    bytes in_place{1, 0, 1};
    std::vector<double> const old_logprob{0, 0, 9}, rollout_logprob(3);
    rejection::token_mask(token_logprobs<double, double>{old_logprob, rollout_logprob, in_place}, {}, in_place);
    CHECK(in_place == bytes{1, 0, 0});
    CHECK(masked({}, {}) == bytes{});
    CHECK(masked({9, 9}, {}) == bytes{0, 0});
  }

  TEST_CASE("RR-02: what stands at masked positions is not looked at") {
    std::vector<double> const old_logprob{-1, -2, 300, -infinity}, rollout_logprob{-1.25, -2, -300, nan_value};
    bytes const mask{1, 1, 0, 0};
    bytes keep(4, 1);
    rejection::token_mask(token_logprobs<double, double>{old_logprob, rollout_logprob, mask}, {}, keep);
    CHECK(keep == mask);
  }

  TEST_CASE("RR-11, RR-12: the ratio is of the trainer's log-prob over the sampler's as each gives it") {
    auto const keeps = [](double trainer, double sampler, double low, double high) {
      std::vector<double> const old_logprob{trainer}, rollout_logprob{sampler};
      bytes keep{1};
      rejection::token_mask(token_logprobs<double, double>{old_logprob, rollout_logprob, {}},
                            {token_measure::ratio, low, high}, keep);
      return keep[0] == 1;
    };
    CHECK(keeps(-0.9, -1.2, 1.34985, 1.34986));  // exp(0.3)
    CHECK_FALSE(keeps(-0.9, -1.2, 0.99, 1.01));
    // Top-p 0.8: the sampler's 0.3 / 0.8 against 0.3 over the whole vocabulary is 0.8; over the same kept set 1.
    CHECK(keeps(std::log(0.3), std::log(0.375), 0.7999, 0.8001));
    CHECK(keeps(std::log(0.375), std::log(0.375), 1, 1));
  }

  TEST_CASE("half types and mixed types form the ratio in float, doubles in double") {
    // 0.5 + 2^-30 is not a float.
    std::vector<double> const fine{0.5 + 0x1p-30};
    std::vector<float> const zero{0};
    bytes keep{1};
    token_mask_options const at_half{token_measure::k1, -0.5, 0};
    rejection::token_mask(token_logprobs<double, float>{fine, zero, {}}, at_half, keep);
    CHECK(keep == bytes{0});
    CHECK(masked<float>({0.5 + 0x1p-30}, at_half) == bytes{1});
    CHECK(masked<Eigen::half>({0.5, 0.5625}, at_half) == bytes{1, 0});
    CHECK(masked<Eigen::bfloat16>({0.5, 0.5625}, at_half) == bytes{1, 0});
  }

  TEST_CASE("the same for any number of threads") {
    std::vector<double> log_ratio((std::size_t{1} << 19) + 77);
    for (std::size_t i = 0; i < log_ratio.size(); ++i) log_ratio[i] = static_cast<double>(i % 41) - 20;
    auto const alone = masked(log_ratio, {.threads = 1});
    CHECK(masked(log_ratio, {.threads = 4}) == alone);
    for (std::size_t i = 0; i < 82; ++i) CHECK(alone[i] == (i % 41 == 20 || i % 41 == 21));
  }

  TEST_CASE("a turn's largest k2 and k3 are within a limit iff all its tokens are") {
    auto const trajectories = test::random_trajectories(11, 12, 3, 30);
    test::sample_batch<> const batch{trajectories};
    std::vector<importance::turn_statistics> statistics(batch.turns());
    importance::log_ratio_statistics(batch.view(), batch.tokens(), statistics);
    for (auto const& [measure, estimate] : {std::pair{token_measure::k2, rejection::divergence_estimate::k2},
                                            std::pair{token_measure::k3, rejection::divergence_estimate::k3}})
      for (double const limit : {1e-6, 1e-4, 1e-2}) {
        bytes keep(batch.mask.size(), 1);
        rejection::token_mask(batch.tokens(), {measure, 0, limit}, keep);
        std::vector<reason_flags> reasons(batch.turns());
        rejection::divergence_limit(batch.view(), statistics, {},
                                    {estimate, rejection::token_aggregate::max, rejection::scope::turn, 0, limit},
                                    reasons);
        for (std::size_t s = 0; s < batch.turns(); ++s) {
          bool all = true;
          for (auto i = static_cast<std::size_t>(batch.turn_begin[s]); i < static_cast<std::size_t>(batch.turn_end[s]);
               ++i)
            all &= batch.mask[i] == 0 || std::isnan(batch.old_logprob[i]) || keep[i] != 0;
          CHECK(all == is_kept(reasons[s]));
        }
      }
  }

  TEST_CASE("the published token masks of verl") {
    for (auto const* name : {"kernel_rollouts_a", "kernel_rollouts_b"}) {
      auto const batch = test::load_batch(name);
      auto const check = [&](char const* file, token_mask_options const& options) {
        CAPTURE(name);
        CAPTURE(file);
        bytes keep(batch.old_logprob.size(), 1);
        rejection::token_mask(batch.tokens(), options, keep);
        CHECK(keep == test::load_npy<std::uint8_t>(batch.expected_folder / file));
      };
      check("verl_token_k1_keep.npy",
            {token_measure::k1, rejection::log_of_option(0.999), rejection::log_of_option(1.001)});
      check("verl_token_k2_keep.npy", {token_measure::k2, 0, 0.001});
      check("verl_token_k3_keep.npy", {token_measure::k3, 0, 0.001});
    }
  }

  TEST_CASE("the published token band of Dr. Kernel, after its veto of turn scope") {
    for (auto const* name : {"kernel_rollouts_a", "kernel_rollouts_b", "stress"}) {
      CAPTURE(name);
      auto const recorded = test::load_batch(name);
      auto const batch = recorded.turns.view();
      std::vector<importance::turn_statistics> statistics(batch.turns());
      importance::log_ratio_statistics(batch, recorded.tokens(), std::span{statistics});
      std::vector<reason_flags> reasons(batch.turns());
      begin_reasons(batch, reasons);
      rejection::usable_tokens(batch, statistics, {}, reasons);
      double const veto = std::string{name} == "stress" ? 1e-4 : 0.9;
      rejection::token_veto(batch, statistics, {veto, rejection::scope::turn}, reasons);
      bytes keep(recorded.old_logprob.size());
      rejection::begin_token_mask(batch, {}, reasons, keep);
      rejection::token_mask(recorded.tokens(), {token_measure::ratio, 0.999, 1.001}, keep);
      CHECK(keep == test::load_npy<std::uint8_t>(recorded.expected_folder / "mrs_token_keep.npy"));
    }
  }

  TEST_CASE("bad bounds and wrong sizes throw and change nothing") {
    std::vector<double> const two{9, 9};
    bytes keep{1, 1};
    bytes const one_byte{1};
    auto const throws = [&](token_logprobs<double, double> const& tokens, token_mask_options const& options,
                            std::span<std::uint8_t> out) {
      CHECK_THROWS_AS(rejection::token_mask(tokens, options, out), precondition_error);
    };
    token_logprobs<double, double> const tokens{two, two, {}};
    for (auto const measure : {token_measure::ratio, token_measure::k1, token_measure::k3}) {
      throws(tokens, {measure, 2, 1}, keep);
      throws(tokens, {measure, nan_value, 1}, keep);
      throws(tokens, {measure, 0, nan_value}, keep);
    }
    throws(tokens, {token_measure::ratio, -0.1, 1}, keep);
    throws(tokens, {token_measure::ratio, 0, 0}, keep);
    throws(tokens, {token_measure::ratio, infinity, infinity}, keep);
    throws(tokens, {}, std::span{keep}.first(1));
    throws({two, std::span{two}.first(1), {}}, {}, keep);
    throws({two, two, one_byte}, {}, keep);
    CHECK(keep == bytes{1, 1});
  }

}  // TEST_SUITE
