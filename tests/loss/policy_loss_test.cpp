#include <turnwise/loss/policy_loss.hpp>

#include "loss/loss_batch.hpp"
#include "support/batches.hpp"

#include <turnwise/loss/cispo.hpp>
#include <turnwise/loss/gmpo.hpp>
#include <turnwise/loss/gspo.hpp>
#include <turnwise/loss/ppo_clip.hpp>
#include <turnwise/loss/reinforce.hpp>
#include <turnwise/loss/sapo.hpp>

#include <doctest/doctest.h>
#include <Eigen/Core>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

using namespace turnwise;
using namespace turnwise::test;
using doctest::Approx;
using loss::loss_options;
using loss::loss_record;

namespace {

/// Calls body(policy) for every policy without a selection.
template <typename Body>
void for_each_policy(Body body) {
  body(loss::ppo_clip{.clip_high = 0.28, .dual_clip = 3});
  body(loss::reinforce{.importance_weight = true});
  body(loss::cispo{});
  body(loss::sapo{});
  body(loss::gspo{.clip_low = 0.1, .clip_high = 0.1});
  body(loss::gmpo{});
}

/// Turns of 0 to 400 tokens with log ratios of a few tenths, some masked.
template <typename T>
loss_batch<T> random_batch(std::uint64_t seed, std::size_t turns) {
  integers random{seed};
  std::vector<std::vector<double>> log_ratio(turns);
  std::vector<double> advantage;
  for (auto& turn : log_ratio) {
    turn.resize(static_cast<std::size_t>(random.below(random.below(4) == 0 ? 400 : 40)));
    for (double& d : turn) d = static_cast<double>(random.below(2001) - 1000) * 3e-4;
    advantage.push_back(static_cast<double>(random.below(9) - 4) * 0.5);
  }
  loss_batch<T> batch(log_ratio, advantage);
  for (std::size_t i = 0; i < batch.tokens(); ++i) batch.mask.push_back(random.below(6) != 0);
  for (double& scale : batch.scale) scale = random.below(7) == 0 ? 0.0 : 1.0 / 1024;
  return batch;
}

template <typename T>
bool all_finite(std::vector<T> const& values) {
  return std::ranges::all_of(values, [](T value) { return std::isfinite(value); });
}

}  // namespace

TEST_SUITE("loss/policy_loss") {
  TEST_CASE("RR-01: log ratios far beyond the clamp, one with advantage 0; NaN is left out and counted") {
    loss_batch<float> const batch({{0.1}, {95}, {-95}}, {1, 0, 2});
    auto const result = batch.run(loss::ppo_clip{});
    CHECK(result.record.loss() / 3 == Approx(-0.3683903073993183).epsilon(1e-6));
    CHECK(result.record.saturated == 2);
    CHECK(all_finite(result.gradient));
    loss_batch<float> const second({{nan_value}}, {1});
    auto const of_nan = second.run(loss::ppo_clip{});
    CHECK(of_nan.record.loss() == 0);
    CHECK(of_nan.record.non_finite == 1);
    CHECK(of_nan.record.nothing_kept());
    CHECK(of_nan.gradient == std::vector<float>{0});
  }

  TEST_CASE("RR-13: ratios are reported after the clamp, with the number of clamped tokens") {
    loss_batch<double> const batch({{0.5}, {31}, {-26}}, {1, 1, 1});
    auto const record = batch.run(loss::ppo_clip{}).record;
    CHECK(record.saturated == 2);
    CHECK(record.ratio_max == Approx(485165195.4097903).epsilon(1e-9));
    CHECK(record.ratio_min == Approx(2.061153622438558e-09).epsilon(1e-9).scale(0));
    CHECK(record.log_ratio_sum == Approx(0.5));
  }

  TEST_CASE_TEMPLATE("+-1000, infinities and NaN, masked and not, advantage 0 and not, spread nowhere", T, float,
                     double) {
    for_each_policy([](auto const& policy) {
      for (double const advantage : {0.0, 1.0, -1.0})
        for (double const wild : {1000.0, -1000.0, infinity, -infinity, nan_value})
          for (bool const masked : {false, true})
            for (std::size_t const at : {3u, 40u}) {  // in a register of its own, and near the end
              std::vector<double> log_ratio(43, 0.05);
              loss_batch<T> batch({log_ratio, {0.1, 0.2}}, {advantage, 1});
              batch.mask.assign(45, 1);
              batch.mask[at] = 0;
              auto const without = batch.run(policy);
              batch.current[at] = static_cast<T>(wild);
              batch.mask[at] = !masked;
              auto const with = batch.run(policy);
              CAPTURE(wild);
              CAPTURE(masked);
              CHECK(std::isfinite(with.record.loss()));
              CHECK(all_finite(with.gradient));
              bool const left_out = masked || !std::isfinite(wild);
              CHECK(with.record.tokens == without.record.tokens + !left_out);
              CHECK(with.record.non_finite == (!masked && !std::isfinite(wild)));
              CHECK(with.record.saturated == !left_out);
              if (!left_out) continue;
              CHECK(with.gradient == without.gradient);
              CHECK(with.record.loss() == without.record.loss());
            }
    });
  }

  TEST_CASE("any other number of a token that is not finite leaves it out too") {
    loss_batch<float> batch({{0.1, 0.2, 0.3, 0.4, 0.5, 0.6}}, {1});
    batch.token_advantage.assign(6, 1);
    batch.reference = batch.old;
    batch.weight.assign(6, 1);
    batch.entropy.assign(6, 2);
    batch.token_advantage[0] = nan_value;
    batch.reference[1] = -std::numeric_limits<float>::infinity();
    batch.weight[2] = std::numeric_limits<float>::quiet_NaN();
    batch.entropy[3] = std::numeric_limits<float>::infinity();
    batch.old[4] = -std::numeric_limits<float>::infinity();
    auto const result = batch.run(loss::ppo_clip{.clip_high = 9}, {.kl_coefficient = 0.1, .entropy_coefficient = 0.01});
    CHECK(result.record.non_finite == 5);
    CHECK(result.record.tokens == 1);
    CHECK(std::isfinite(result.record.loss()));
    CHECK(std::count(result.gradient.begin(), result.gradient.end(), 0.0f) == 5);
    CHECK(std::count(result.entropy_gradient.begin(), result.entropy_gradient.end(), 0.0f) == 5);
    batch.token_advantage.clear();
    batch.advantage = {1e30};  // float terms overflow
    auto const huge = batch.run(loss::ppo_clip{});
    CHECK(huge.record.tokens == 0);
    CHECK(all_finite(huge.gradient));
  }

  TEST_CASE("an entropy gradient beyond the range leaves its token out") {
    loss_batch<float> batch({{0, 0}, {0}}, {0, 0});
    batch.entropy = {0, 0, 0};  // their loss is 0
    batch.scale = {0x1p100, 1};
    auto const result = batch.run(loss::ppo_clip{}, {.entropy_coefficient = 0x1p40});
    CHECK(result.record.non_finite == 2);
    CHECK(result.record.tokens == 1);
    CHECK(result.entropy_gradient == std::vector<float>{0, 0, -0x1p40f});
  }

  TEST_CASE("weight, KL and entropy by hand") {
    loss_batch<double> batch({{0, 0}}, {2});
    batch.weight = {0.5f, 3};
    batch.reference = batch.current;
    batch.reference[0] += std::log(2.0);
    batch.entropy = {1, 2};
    batch.scale = {0.25};
    auto const result = batch.run(loss::ppo_clip{}, {.kl_coefficient = 0.1, .entropy_coefficient = 0.01});
    double const k3 = 1 - std::log(2.0);
    CHECK(result.record.policy_loss == Approx(0.25 * (-1 - 6)));
    CHECK(result.record.kl_loss == Approx(0.25 * 0.1 * k3));
    CHECK(result.record.entropy_loss == Approx(-0.25 * 0.01 * 3));
    CHECK(result.record.loss() ==
          Approx(result.record.policy_loss + result.record.kl_loss + result.record.entropy_loss));
    CHECK(result.record.kl_mean() == Approx(k3 / 2));
    CHECK(result.record.entropy_mean() == Approx(1.5));
    CHECK(result.gradient[0] == Approx(0.25 * (-1 + 0.1 * (1 - 2))));  // slope of k3: 1 - e^d
    CHECK(result.gradient[1] == Approx(0.25 * -6));
    CHECK(result.entropy_gradient == std::vector<double>{-0.0025, -0.0025});
    auto const reported = batch.run(loss::ppo_clip{});
    CHECK(reported.record.kl_mean() == Approx(k3 / 2));
    CHECK(reported.record.loss() == Approx(0.25 * -7));
  }

  TEST_CASE("gradients with weight and each KL against central differences") {
    auto batch = all_signs(around({0.8, 1.2}), false);
    for (std::size_t i = 0; i < batch.tokens(); ++i) {
      batch.weight.push_back(0.5f + static_cast<float>(i % 3));
      batch.reference.push_back(batch.old[i] + 0.3 * static_cast<double>(i % 5) - 0.53);
    }
    for (auto const kind :
         {divergence::kl_kind::k1, divergence::kl_kind::k2, divergence::kl_kind::k3, divergence::kl_kind::absolute})
      check_gradient(batch, loss::ppo_clip{}, {.kl_coefficient = 0.3, .kl = {.kind = kind, .clamp = 0.7}});
  }

  TEST_CASE_TEMPLATE("micro-batches and shards of any size add up to the whole", T, float, double) {
    double const tolerance = std::is_same_v<T, float> ? 1e-6 : 1e-13;
    for_each_policy([&](auto const& policy) {
      auto const batch = random_batch<T>(7, 50);
      auto const whole = batch.run(policy);
      // the sum of magnitudes: bounded by that of the gradient and a term a token
      double magnitude = 0;
      for (std::size_t i = 0; i < batch.tokens(); ++i) magnitude += 4.0 * 2 / 1024;
      for (std::size_t const size : {1u, 2u, 7u, 49u}) {
        loss_record sum;
        std::vector<T> gradient(batch.tokens());
        for (std::size_t first = 0; first < 50; first += size) {
          auto part = batch;
          for (std::size_t s = 0; s < 50; ++s)
            if (s < first || s >= first + size) part.scale[s] = 0;
          auto const result = part.run(policy);
          sum += result.record;
          for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] += result.gradient[i];
        }
        CHECK(std::abs(sum.loss() - whole.record.loss()) <= tolerance * magnitude);
        CHECK(gradient == whole.gradient);
        CHECK(sum.tokens == whole.record.tokens);
        CHECK(sum.turns == whole.record.turns);
        CHECK(sum.clipped_low == whole.record.clipped_low);
        CHECK(sum.clipped_high == whole.record.clipped_high);
        CHECK(sum.ratio_min == whole.record.ratio_min);
        CHECK(sum.ratio_max == whole.record.ratio_max);
      }
    });
  }

  TEST_CASE("the same bits for any number of threads") {
    loss_batch<float> batch = random_batch<float>(11, 60);
    for (int k = 0; k < 5; ++k) {  // more than one share of turns
      std::vector<std::int64_t> begin = batch.begin, end = batch.end;
      auto const size = static_cast<std::int64_t>(batch.tokens());
      auto const append = [](auto& to, auto const& from) { to.insert(to.end(), from.begin(), from.end()); };
      for (std::size_t s = 0; s < begin.size(); ++s) begin[s] += size, end[s] += size;
      auto const copy = batch;
      append(batch.begin, begin);
      append(batch.end, end);
      append(batch.current, copy.current);
      append(batch.old, copy.old);
      append(batch.mask, copy.mask);
      append(batch.advantage, copy.advantage);
      append(batch.scale, copy.scale);
      append(batch.group, copy.group);
      for (std::size_t s = 0; s < begin.size(); ++s) {
        batch.trajectory.push_back(static_cast<std::int64_t>(batch.trajectory.size()));
        batch.trajectory_offsets.push_back(static_cast<std::int64_t>(batch.trajectory.size()));
      }
    }
    REQUIRE(batch.tokens() > 100000);
    for_each_policy([&](auto const& policy) {
      auto const one = batch.run(policy, {}, 1);
      for (int const threads : {0, 2, 5}) {
        auto const other = batch.run(policy, {}, threads);
        CHECK(other.record == one.record);
        CHECK(other.gradient == one.gradient);
      }
    });
  }

  TEST_CASE("padding, gaps and turns out of the loss get gradient 0, and are not read") {
    loss_batch<float> batch({{0.1, 0.2}, {nan_value, 0.3}, {0.4}}, {1, nan_value, 1});
    batch.scale = {1, 0, 1};
    std::vector<float> const padding(3, std::numeric_limits<float>::quiet_NaN());
    for (auto* values : {&batch.current, &batch.old}) {
      values->insert(values->begin(), padding.begin(), padding.end());
      values->insert(values->begin() + 5, padding.begin(), padding.end());
      values->insert(values->end(), padding.begin(), padding.end());
    }
    batch.begin = {3, 8, 10};
    batch.end = {5, 10, 11};
    auto const result = batch.run(loss::ppo_clip{.clip_high = 2});
    CHECK(result.record.tokens == 3);
    CHECK(result.record.turns == 2);
    CHECK(result.record.non_finite == 0);
    for (std::size_t i = 0; i < result.gradient.size(); ++i)
      CHECK((result.gradient[i] != 0) == (i == 3 || i == 4 || i == 10));
    // turns in any order in memory
    auto swapped = batch;
    std::swap(swapped.begin[0], swapped.begin[2]);
    std::swap(swapped.end[0], swapped.end[2]);
    CHECK(swapped.run(loss::ppo_clip{.clip_high = 2}).gradient == result.gradient);
  }

  TEST_CASE("everything rejected, no turns, turns without tokens") {
    loss_batch<float> batch({{0.1, 0.2}, {}}, {1, 1});
    batch.scale = {0, 1};
    auto const none = batch.run(loss::ppo_clip{});
    CHECK(none.record == loss_record{});
    CHECK(none.record.nothing_kept());
    CHECK(none.record.loss() == 0);
    CHECK(none.record.ratio_mean() == 0);
    CHECK(none.gradient == std::vector<float>{0, 0});
    for_each_policy([](auto const& policy) {
      CHECK(loss_batch<float>({}, {}).run(policy).record == loss_record{});
      loss_batch<float> masked({{0.1, 0.2}}, {1});
      masked.mask = {0, 0};
      CHECK(masked.run(policy).record == loss_record{.turns = 1});
      CHECK(masked.run(policy).gradient == std::vector<float>{0, 0});
    });
  }

  TEST_CASE("a plain register path and a careful one agree") {
    // an array of ones as mask goes the plain way, a array of ones as weight the careful one
    auto batch = random_batch<double>(3, 30);
    batch.mask.assign(batch.tokens(), 1);
    for_each_policy([&](auto const& policy) {
      auto careful = batch;
      careful.weight.assign(batch.tokens(), 1);
      auto const plain = batch.run(policy);
      auto const other = careful.run(policy);
      CHECK(plain.record.loss() == Approx(other.record.loss()).epsilon(1e-12));
      CHECK(plain.record.tokens == other.record.tokens);
      CHECK(plain.record.turns == other.record.turns);
      CHECK(plain.record.ratio_max == Approx(other.record.ratio_max));
      CHECK(plain.record.clipped_high == other.record.clipped_high);
      for (std::size_t i = 0; i < batch.tokens(); ++i)
        CHECK(plain.gradient[i] == Approx(other.gradient[i]).epsilon(1e-14));
    });
  }

  TEST_CASE("bfloat16 log-probs and gradients, mixed with float") {
    using half = Eigen::bfloat16;
    auto const wide = random_batch<float>(5, 20);
    std::vector<half> current, gradient(wide.tokens());
    auto rounded = wide;
    for (float& value : rounded.current) {
      current.push_back(static_cast<half>(value));
      value = static_cast<float>(current.back());
    }
    loss::loss_inputs<half, float> const in{
        .current_logprob = current, .old_logprob = wide.old, .mask = wide.mask, .turn_advantage = wide.advantage};
    auto const record =
        loss::policy_loss(wide.view(), in, loss::ppo_clip{}, {}, wide.scale, loss::loss_outputs<half>{gradient});
    auto const expected = rounded.run(loss::ppo_clip{});
    CHECK(record == expected.record);
    for (std::size_t i = 0; i < wide.tokens(); ++i)
      CHECK(static_cast<float>(gradient[i]) == static_cast<float>(static_cast<half>(expected.gradient[i])));
  }

  TEST_CASE("no tokens at all: no loss, whatever the coefficients ask for") {
    rollout_view const none;
    loss_options const both{.kl_coefficient = 0.1, .entropy_coefficient = 0.1};
    CHECK(loss::policy_loss(none, loss::loss_inputs<float>{}, loss::ppo_clip{}, both, {}, loss::loss_outputs<float>{})
              .nothing_kept());
    std::vector<std::int64_t> const begin(2), end(2), offsets{0, 2}, id{0};
    rollout_view const empty_turns{
        .turn_begin = begin, .turn_end = end, .trajectory_offsets = offsets, .group_id = id, .trajectory_id = id};
    std::vector<double> const scale{1, 1};
    auto const record = loss::policy_loss(empty_turns, loss::loss_inputs<float>{}, loss::ppo_clip{}, both, scale,
                                          loss::loss_outputs<float>{});
    CHECK(record.loss() == 0);
    CHECK(record.nothing_kept());
  }

  TEST_CASE("a log ratio one ulp beyond the limit is saturated among others as it is alone") {
    // 0.03f squared, over the squared limit, rounds to 1 a step beyond the limit too.
    for (float const limit : {0.03f, 1.77f, 6.53f}) {
      loss_batch<float> batch({std::vector<double>(64, 0.0)}, {-1});
      batch.old.assign(64, 0.0f);
      batch.current.assign(64, 0.0f);
      batch.current[7] = std::nextafter(limit, 100.0f);
      auto const result = batch.run(loss::ppo_clip{.clip_low = 1, .clip_high = 1e3}, {.log_ratio_limit = limit});
      CHECK(result.record.saturated == 1);
      CHECK(result.gradient[7] == 0);
    }
  }

  TEST_CASE("bad arguments throw, and nothing is written") {
    loss_batch<float> const good({{0.1, 0.2}, {0.3}}, {1, 2});
    auto const throws = [&](auto change, loss_options const& options = {}) {
      auto batch = good;
      change(batch);
      std::vector<float> gradient(3, 7.0f);
      CHECK_THROWS_AS(loss::policy_loss(batch.view(), batch.inputs(), loss::ppo_clip{}, options, batch.scale,
                                        loss::loss_outputs<float>{gradient}),
                      precondition_error);
      CHECK(gradient == std::vector<float>(3, 7.0f));
    };
    throws([](auto& b) { b.old.pop_back(); });
    throws([](auto& b) { b.mask = {1}; });
    throws([](auto& b) { b.reference = {1}; });
    throws([](auto& b) { b.weight = {1}; });
    throws([](auto& b) { b.entropy = {1}; });
    throws([](auto& b) { b.token_advantage = {1}; });
    throws([](auto& b) { b.advantage.pop_back(); });
    throws([](auto& b) { b.scale.pop_back(); });
    throws([](auto& b) { b.scale[1] = -1; });
    throws([](auto& b) { b.scale[1] = nan_value; });
    throws([](auto& b) { b.advantage[1] = nan_value; });
    throws([](auto& b) { b.advantage[1] = infinity; });
    throws([](auto& b) { b.end[1] = 4; });
    throws([](auto& b) { b.begin[1] = 1; });
    auto const nothing = [](auto&) {};
    throws(nothing, {.log_ratio_limit = 0});
    throws(nothing, {.log_ratio_limit = 81});
    throws(nothing, {.log_ratio_limit = nan_value});
    throws(nothing, {.kl_coefficient = 0.1});
    throws(nothing, {.entropy_coefficient = 0.1});
    throws([](auto& b) { b.reference = b.old; }, {.kl_coefficient = nan_value});
    throws([](auto& b) { b.reference = b.old; }, {.kl = {.clamp = -1}});
    auto in = good.inputs();
    in.token_advantage = in.turn_advantage;
    std::vector<float> gradient(3), short_gradient(2);
    CHECK_THROWS_AS(
        loss::policy_loss(good.view(), in, loss::ppo_clip{}, {}, good.scale, loss::loss_outputs<float>{gradient}),
        precondition_error);
    CHECK_THROWS_AS(loss::policy_loss(good.view(), good.inputs(), loss::ppo_clip{}, {}, good.scale,
                                      loss::loss_outputs<float>{short_gradient}),
                    precondition_error);
    CHECK_THROWS_AS(loss::policy_loss(good.view(), good.inputs(), loss::ppo_clip{}, {}, good.scale,
                                      loss::loss_outputs<float>{gradient, gradient}),
                    precondition_error);
  }

}  // TEST_SUITE
