#include "logprob/logits.hpp"

#include <turnwise/logprob/policy_loss_from_logits.hpp>
#include <turnwise/loss/cispo.hpp>
#include <turnwise/loss/ppo_clip.hpp>
#include <turnwise/loss/reinforce.hpp>
#include <turnwise/loss/sapo.hpp>

#include <doctest/doctest.h>

#include <string>

namespace {

using namespace turnwise;
using namespace turnwise::logprob;
using test::infinity;
using test::nan_value;

struct batch {
  std::size_t rows, vocabulary;
  std::vector<double> values;
  std::vector<std::int32_t> ids;
  std::vector<double> old_logprob, advantage, scale, reference, weight;
  std::vector<std::uint8_t> mask{};

  batch(std::size_t r, std::size_t v) : rows(r), vocabulary(v), values(test::random_logits<double>(1, r * v, 1)) {
    ids = test::random_ids<std::int32_t>(2, r, v);
    std::mt19937 generator{3};
    std::normal_distribution<double> around{0, 0.3};
    std::vector<double> logprob(r);
    token_logprob(logits(), {0.8}, token_logprob_outputs<double>{logprob});
    for (std::size_t i = 0; i < r; ++i) {
      old_logprob.push_back(logprob[i] + around(generator));
      reference.push_back(logprob[i] + around(generator));
      advantage.push_back(around(generator) * 5);
      scale.push_back(0.01 * static_cast<double>(generator() % 7));  // some are 0
      weight.push_back(0.5 + static_cast<double>(generator() % 3));
    }
  }
  [[nodiscard]] token_logits<double, std::int32_t> logits() const { return {values, {rows, vocabulary}, ids, mask}; }
  [[nodiscard]] row_loss_inputs<double> inputs(bool extras) const {
    row_loss_inputs<double> in{old_logprob, advantage, scale};
    if (extras) in.reference_logprob = reference, in.weight = weight;
    return in;
  }
  template <typename Policy>
  loss::loss_record run(Policy const& policy, loss::loss_options const& options, bool extras,
                        std::vector<double>& gradient) const {
    gradient.assign(values.size(), 9);
    return policy_loss_from_logits(logits(), inputs(extras), policy, options, 0.8,
                                   {.gradient = gradient, .layout = {rows, vocabulary}});
  }
};

loss::loss_options const with_all{.kl_coefficient = 0.1, .entropy_coefficient = 0.02};

}  // namespace

TEST_SUITE("logprob/policy_loss_from_logits") {
  TEST_CASE("by hand: on-policy REINFORCE of one token with probability 1/4") {
    std::vector<double> const values{0, std::log(3.0)}, old{std::log(0.25)}, advantage{2}, scale{0.5};
    std::vector<std::int32_t> const ids{0};
    std::vector<double> gradient(2), logprob(1);
    auto const record = policy_loss_from_logits(token_logits<double, std::int32_t>{values, {1, 2}, ids},
                                                row_loss_inputs<double>{old, advantage, scale}, loss::reinforce{}, {},
                                                1, {.gradient = gradient, .layout = {1, 2}, .logprob = logprob});
    // loss = -A logp scale, d loss / d logp = -1; d logp / d x = (3/4, -3/4).
    CHECK(record.loss() == doctest::Approx(2 * std::log(4.0) * 0.5));
    CHECK(record.tokens == 1);
    CHECK(gradient[0] == doctest::Approx(-0.75));
    CHECK(gradient[1] == doctest::Approx(0.75));
    CHECK(logprob[0] == doctest::Approx(std::log(0.25)));
  }

  TEST_CASE("central differences of the loss itself, every token-level policy, with KL and entropy") {
    auto const compare = [](auto const& policy, loss::loss_options const& options, bool extras) {
      batch one{6, 5};
      std::vector<double> gradient, unused;
      static_cast<void>(one.run(policy, options, extras, gradient));
      for (std::size_t i = 0; i < one.values.size(); ++i) {
        double const kept = one.values[i], step = 1e-5;
        one.values[i] = kept + step;
        double const above = one.run(policy, options, extras, unused).loss();
        one.values[i] = kept - step;
        double const below = one.run(policy, options, extras, unused).loss();
        one.values[i] = kept;
        CHECK(std::abs(gradient[i] - (above - below) / (2 * step)) < 1e-8);
      }
    };
    compare(loss::ppo_clip{}, {}, false);
    compare(loss::ppo_clip{}, {.entropy_coefficient = 0.02}, false);
    compare(loss::ppo_clip{.dual_clip = 3}, with_all, true);
    compare(loss::reinforce{}, with_all, true);
    compare(loss::sapo{}, with_all, true);
  }

  TEST_CASE("the three steps give the same") {
    batch const one{40, 33};
    std::vector<double> gradient;
    auto const record = one.run(loss::cispo{}, with_all, true, gradient);
    // Each row as a turn of one token.
    std::vector<double> logprob(one.rows), entropy(one.rows), of_logprob(one.rows), of_entropy(one.rows);
    std::vector<log_normalizer<double>> normalizer(one.rows);
    token_logprob(one.logits(), {0.8},
                  token_logprob_outputs<double>{.logprob = logprob, .entropy = entropy, .normalizer = normalizer});
    std::vector<std::int64_t> begin, end, offsets{0}, id;
    for (std::size_t i = 0; i < one.rows; ++i) {
      auto const n = static_cast<std::int64_t>(i);
      begin.push_back(n), end.push_back(n + 1), offsets.push_back(n + 1), id.push_back(n);
    }
    rollout_view view;
    view.turn_begin = begin, view.turn_end = end, view.trajectory_offsets = offsets, view.group_id = id;
    view.trajectory_id = id;
    loss::loss_inputs<double, double, double, double, double> in;
    in.current_logprob = logprob, in.old_logprob = one.old_logprob, in.turn_advantage = one.advantage;
    in.reference_logprob = one.reference, in.weight = one.weight, in.entropy = entropy;
    loss::loss_outputs<double> out{of_logprob, of_entropy};
    auto const expected = loss::policy_loss(view, in, loss::cispo{}, with_all, one.scale, out);
    std::vector<double> steps(gradient.size());
    token_logprob_backward(one.logits(), logprob_gradients<double>{normalizer, entropy, of_logprob, of_entropy}, 0.8, 0,
                           std::span{steps}, {one.rows, one.vocabulary});
    double worst = 0;
    for (std::size_t i = 0; i < steps.size(); ++i) worst = std::max(worst, std::abs(steps[i] - gradient[i]));
    CHECK(worst < 1e-15);
    CHECK(record.loss() == doctest::Approx(expected.loss()).epsilon(1e-12));
    CHECK(record.tokens == expected.tokens);
    CHECK(record.non_finite == expected.non_finite);
    CHECK(record.clipped_low == expected.clipped_low);
    CHECK(record.clipped_high == expected.clipped_high);
    CHECK(record.ratio_min == expected.ratio_min);
    CHECK(record.ratio_max == expected.ratio_max);
    CHECK(record.kl_sum == doctest::Approx(expected.kl_sum).epsilon(1e-12));
    CHECK(record.entropy_sum == doctest::Approx(expected.entropy_sum).epsilon(1e-12));
    CHECK(record.tokens > 20);
  }

  TEST_CASE("rows outside the loss are not read and get 0; bad rows count; nothing kept; no rows; in place") {
    batch one{5, 3};
    one.scale = {1, 0, 1, 1, 1};
    one.mask = {0, 1, 1, 1, 1};
    for (std::size_t const i : {0u, 3u, 6u}) one.values[i] = nan_value;
    one.ids[0] = -100;
    one.ids[1] = -100;
    one.old_logprob[3] = infinity;
    std::vector<double> gradient;
    auto const record = one.run(loss::ppo_clip{}, {}, false, gradient);
    for (std::size_t i = 0; i < 12; ++i) CHECK(gradient[i] == 0);
    CHECK(record.tokens == 1);
    CHECK(record.non_finite == 2);
    CHECK(gradient[12] + gradient[13] + gradient[14] == doctest::Approx(0.0));

    auto in_place = one.values;
    policy_loss_from_logits(token_logits<double, std::int32_t>{in_place, {5, 3}, one.ids, one.mask}, one.inputs(false),
                            loss::ppo_clip{}, {}, 0.8, {.gradient = in_place, .layout = {5, 3}});
    CHECK(in_place == gradient);

    one.scale.assign(5, 0);
    CHECK(one.run(loss::ppo_clip{}, {}, false, gradient).nothing_kept());
    CHECK(gradient == std::vector<double>(15, 0));
    CHECK(batch{0, 3}.run(loss::ppo_clip{}, {}, false, gradient).nothing_kept());
    CHECK(batch{0, 3}.run(loss::ppo_clip{}, {.kl_coefficient = 0.1}, false, gradient).nothing_kept());
  }

  TEST_CASE("gradients beyond their type stop at its largest number") {
    std::vector<float> const values{0, 1, 2};
    std::vector<std::int64_t> const ids{0};
    std::vector<double> const old{-2}, advantage{1e30}, scale{1e20};
    std::vector<float> gradient(3);
    auto const record =
        policy_loss_from_logits(token_logits<float, std::int64_t>{values, {1, 3}, ids},
                                row_loss_inputs<double>{.old_logprob = old, .advantage = advantage, .scale = scale},
                                loss::ppo_clip{}, {}, 1, {.gradient = gradient, .layout = {1, 3}});
    CHECK(record.tokens == 1);
    for (float const value : gradient) CHECK(std::abs(value) == std::numeric_limits<float>::max());
  }

  TEST_CASE("errors write nothing and say what is wrong") {
    batch one{3, 4};
    std::vector<double> gradient(12, 9.0);
    auto const fails = [&](row_loss_inputs<double> const& in, loss::loss_options const& options, double temperature,
                           logit_layout const& layout, std::string const& part) {
      CAPTURE(part);
      std::string message;
      try {
        policy_loss_from_logits(one.logits(), in, loss::ppo_clip{}, options, temperature,
                                {.gradient = gradient, .layout = layout});
      } catch (precondition_error const& error) {
        message = error.what();
      }
      CHECK(message.find(part) != std::string::npos);
      CHECK(gradient == std::vector<double>(12, 9.0));
    };
    auto in = one.inputs(true);
    in.old_logprob = in.old_logprob.first(2);
    fails(in, {}, 1, {3, 4}, "old_logprob has 2 elements, expected 3");
    in = one.inputs(true);
    in.weight = in.weight.first(1);
    fails(in, {}, 1, {3, 4}, "weight has 1 elements");
    fails(one.inputs(false), with_all, 1, {3, 4}, "without reference_logprob");
    fails(one.inputs(true), {}, 0, {3, 4}, "temperature = 0");
    fails(one.inputs(true), {}, 1, {3, 3}, "gradient is 3 rows of 3");
    one.scale = {1, 1, -1};
    fails(one.inputs(true), {}, 1, {3, 4}, "scale[2] = -1");
    one.scale = {1, 1, 1};
    one.ids = {0, 4, 0};
    fails(one.inputs(true), {}, 1, {3, 4}, "ids[1] = 4");
  }

}  // TEST_SUITE
