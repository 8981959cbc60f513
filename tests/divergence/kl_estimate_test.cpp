#include "support/batches.hpp"

#include <turnwise/divergence/kl_estimate.hpp>
#include <turnwise/importance/divergence_sums.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace {

using namespace turnwise;
using divergence::kl_estimate;
using divergence::kl_gradient;
using divergence::kl_kind;
using divergence::kl_options;
using divergence::kl_outputs;
using divergence::kl_sums;
using test::infinity;
using test::nan_value;

constexpr kl_kind kinds[] = {kl_kind::k1, kl_kind::k2, kl_kind::k3, kl_kind::absolute};

kl_options unlimited(kl_kind kind) { return {.kind = kind, .clamp = infinity, .cap = infinity}; }

/// One trajectory of one turn a size.
struct turns_of {
  std::vector<std::int64_t> begin, end, offsets{0}, id{0};
  explicit turns_of(std::vector<std::size_t> const& sizes) {
    std::int64_t next = 0;
    for (std::size_t const size : sizes) {
      begin.push_back(next);
      end.push_back(next += static_cast<std::int64_t>(size));
    }
    offsets.push_back(static_cast<std::int64_t>(sizes.size()));
  }
  [[nodiscard]] rollout_view view() const { return {begin, end, offsets, id, id, {}, {}}; }
};

}  // namespace

TEST_SUITE("divergence/kl_estimate") {
  TEST_CASE_TEMPLATE("KL-01: clamp before exp, then cap; the slope is 0 where either is active", F, float, double) {
    double const d[] = {0.5, -1, 100, -60};
    double const value[] = {0.14872127070012814, 0.36787944117144233, 10, 10};
    double const slope[] = {-0.6487212707001282, 0.6321205588285577, 0, 0};
    for (std::size_t i = 0; i < 4; ++i) {
      auto const terms = kl_estimate(static_cast<F>(d[i]), kl_options{});
      CHECK(static_cast<double>(terms.value) == doctest::Approx(value[i]).epsilon(1e-6));
      CHECK(static_cast<double>(terms.slope) == doctest::Approx(slope[i]).epsilon(1e-6));
    }
  }

  TEST_CASE("KL-02: the log ratio stands in the exponent, not the ratio") {
    // ratio = new / old = 0.8 is reference / current of the estimate.
    CHECK(kl_estimate(std::log(0.8), kl_options{}).value == doctest::Approx(0.023143551314209757).epsilon(1e-12));
  }

  TEST_CASE("KL-03: tokens that a tool wrote are left out of the mean") {
    std::vector<double> const current{-1.9, -0.8, -8, -9}, reference{-2, -1, 0, 0};
    std::vector<std::uint8_t> const mask{1, 1, 0, 0};
    turns_of const turn{{4}};
    std::vector<kl_sums> sums(1);
    kl_estimate<double, double>(turn.view(), {current, reference, mask}, unlimited(kl_kind::k1), sums);
    CHECK(sums[0].mean() == doctest::Approx(0.15));
    CHECK(sums[0].count == 2);
  }

  TEST_CASE_TEMPLATE("every kind by hand", F, float, double) {
    auto const at = [](double d, kl_kind kind) { return kl_estimate(static_cast<F>(d), unlimited(kind)); };
    auto const is = [](divergence::kl_terms<F> const& terms, double value, double slope) {
      return static_cast<double>(terms.value) == value && static_cast<double>(terms.slope) == slope;
    };
    CHECK(is(at(2, kl_kind::k1), -2, 1));
    CHECK(is(at(-2, kl_kind::k1), 2, 1));
    CHECK(is(at(3, kl_kind::k2), 4.5, -3));
    CHECK(is(at(-0.5, kl_kind::absolute), 0.5, 1));
    CHECK(is(at(0.5, kl_kind::absolute), 0.5, -1));
    CHECK(is(at(0, kl_kind::absolute), 0, 0));
    CHECK(is(at(0, kl_kind::k3), 0, 0));
  }

  TEST_CASE("the straight-through slope is that of k2; only the clamp stops it") {
    for (kl_kind const kind : kinds) {
      kl_options const options{.kind = kind, .clamp = 4, .cap = 0.5, .gradient = kl_gradient::k2};
      kl_options const own{.kind = kind, .clamp = 4, .cap = 0.5};
      for (double const d : {-3.0, -0.25, 0.0, 1.5, 4.0, 4.5, -5.0}) {
        CAPTURE(d);
        CHECK(kl_estimate(d, options).slope == (std::abs(d) > 4 ? 0 : -d));
        CHECK(kl_estimate(d, options).value == kl_estimate(d, own).value);
      }
    }
  }

  TEST_CASE("limits: values stop at them, edges included, and slopes go to 0 beyond") {
    auto const slope = [](double d, kl_options const& options) { return kl_estimate(d, options).slope; };
    kl_options const clamp{.kind = kl_kind::k1, .clamp = 2, .cap = infinity};
    CHECK(slope(2, clamp) == 1);
    CHECK(slope(-2, clamp) == 1);
    CHECK(slope(2.5, clamp) == 0);
    CHECK(slope(-2.5, clamp) == 0);
    CHECK(kl_estimate(-2.5, clamp).value == 2);
    kl_options const cap{.kind = kl_kind::k1, .clamp = infinity, .cap = 2};
    CHECK(slope(2, cap) == 1);
    CHECK(slope(2.5, cap) == 0);
    CHECK(kl_estimate(2.5, cap).value == -2);
    CHECK(kl_estimate(-2.5, cap).value == 2);
  }

  TEST_CASE_TEMPLATE("k3 is at least 0 and exact near 0, where a plain difference cancels", F, float, double) {
    double const bound = std::same_as<F, float> ? 1e-5 : 1e-13;
    for (int i = -4000; i <= 4000; ++i) {
      auto const d = static_cast<F>(i) * static_cast<F>(0x1p-11);
      // e^d - 1 - d, summed as a series in long double
      long double const x = static_cast<long double>(d);
      long double term = x, truth = 0;
      for (int n = 2; n < 60; ++n) truth += term *= x / n;
      auto const value = static_cast<long double>(kl_estimate(d, unlimited(kl_kind::k3)).value);
      if (value < 0 || std::abs(value - truth) > static_cast<long double>(bound) * truth) {
        CAPTURE(d);
        CHECK(value == truth);
      }
    }
    CHECK(kl_estimate(static_cast<F>(1e-4), kl_options{}).value == doctest::Approx(5.00016667e-9).epsilon(1e-6));
  }

  TEST_CASE("slopes are derivatives: central differences, off the limits") {
    for (kl_kind const kind : kinds)
      for (double const d : {-12.0, -2.0, -0.2501, -0.2499, -1e-3, 1e-3, 0.2499, 0.2501, 1.0, 3.0}) {
        CAPTURE(d);
        auto const at = [&](double x) { return kl_estimate(x, unlimited(kind)).value; };
        double const h = 1e-6;
        // d = reference - current falls as current rises
        CHECK(kl_estimate(d, unlimited(kind)).slope ==
              doctest::Approx((at(d - h) - at(d + h)) / (2 * h)).epsilon(1e-6));
      }
  }

  TEST_CASE_TEMPLATE("huge, infinite and NaN log ratios: finite; without limits the largest number, or 2^500", F, float,
                     double) {
    for (kl_kind const kind : kinds)
      for (kl_gradient const gradient : {kl_gradient::own, kl_gradient::k2})
        for (bool const limits : {true, false})
          for (F const d : {F(1000), F(-1000), F(1e30), F(-1e30), largest<F>, -largest<F>, F(infinity), F(-infinity),
                            F(nan_value)}) {
            kl_options options = limits ? kl_options{.kind = kind} : unlimited(kind);
            options.gradient = gradient;
            auto const terms = kl_estimate(d, options);
            CHECK(importance::is_finite(terms.value));
            CHECK(importance::is_finite(terms.slope));
            if (!importance::is_finite(d)) CHECK((terms.value == 0 && terms.slope == 0));
            if (limits) CHECK(std::abs(terms.value) <= 10);
            if (limits && gradient == kl_gradient::own) CHECK(terms.slope == 0);
          }
    F const most = sizeof(F) == 4 ? largest<F> : static_cast<F>(magnitude_limit<double>);
    CHECK(kl_estimate(F(1000), unlimited(kl_kind::k3)).value == most);
    CHECK(kl_estimate(F(1000), kl_options{.clamp = infinity, .cap = 0x1p600}).value == most);
  }

  TEST_CASE_TEMPLATE("sums without limits are finite", F, float, double) {
    std::vector<F> const current(4), reference(4, -largest<F>);
    turns_of const turn{{4}};
    std::vector<kl_sums> sums(1);
    for (kl_kind const kind : kinds) {
      kl_estimate<F, F>(turn.view(), {current, reference, {}}, unlimited(kind), sums);
      CHECK(importance::is_finite(sums[0].value));
      CHECK(sums[0].count == 4);
    }
  }

  TEST_CASE("registers hold what numbers do, lane by lane") {
    using float_lanes [[gnu::vector_size(16)]] = float;
    using double_lanes [[gnu::vector_size(16)]] = double;
    auto const compare = [](auto lanes, auto const& d) {
      for (kl_kind const kind : kinds)
        for (kl_options const& options :
             {kl_options{kind}, unlimited(kind), kl_options{.kind = kind, .gradient = kl_gradient::k2}}) {
          for (std::size_t l = 0; l < d.size(); ++l) lanes[l] = d[l];
          auto const terms = kl_estimate(lanes, options);
          for (std::size_t l = 0; l < d.size(); ++l) {
            CHECK(terms.value[l] == kl_estimate(d[l], options).value);
            CHECK(terms.slope[l] == kl_estimate(d[l], options).slope);
          }
        }
    };
    auto const nan = static_cast<float>(nan_value);
    compare(float_lanes{}, std::array<float, 4>{0.125f, -3, 30, nan});
    compare(float_lanes{}, std::array<float, 4>{-0.125f, 2.75f, -1000, static_cast<float>(infinity)});
    compare(double_lanes{}, std::array<double, 2>{0.2, -1.5});
    compare(double_lanes{}, std::array<double, 2>{1000, -infinity});
  }

  TEST_CASE("published values on the recorded batches (verl), tokens 4, 12, 20, ...") {
    for (std::string const name : {"kernel_rollouts_a", "kernel_rollouts_b"}) {
      auto const batch = test::load_batch(name);
      std::vector<double> const current(batch.old_logprob.begin(), batch.old_logprob.end());
      std::vector<double> const reference(batch.rollout_logprob.begin(), batch.rollout_logprob.end());
      auto const compare = [&](std::string const& file, kl_options const& options) {
        CAPTURE(file);
        auto const expected = test::load_npy<double>(batch.expected_folder / (file + "_every_8th.npy"));
        std::vector<double> value(current.size());
        std::vector<kl_sums> sums(batch.turns.view().turns());
        kl_estimate<double, double, double>(batch.turns.view(), {current, reference, {}}, options, sums, {value, {}});
        double worst = 0;
        for (std::size_t i = 0; i < expected.size(); ++i)
          worst = std::max(worst, std::abs(value[8 * i + 4] - expected[i]));
        CHECK(worst < 1e-12);
      };
      compare("verl_kl_kl", unlimited(kl_kind::k1));
      compare("verl_kl_abs", unlimited(kl_kind::absolute));
      compare("verl_kl_mse", unlimited(kl_kind::k2));
      compare("verl_kl_low_var_kl", {});
    }
  }

  TEST_CASE("sums of k2 and k3 agree with the exact ones of the log ratio's grid") {
    auto const batch = test::load_batch("kernel_rollouts_b");
    auto const view = batch.turns.view();
    std::vector<importance::turn_divergence> exact(view.turns());
    importance::divergence_sums(view, batch.tokens(), exact);
    for (kl_kind const kind : {kl_kind::k2, kl_kind::k3}) {
      std::vector<kl_sums> sums(view.turns());
      // d of divergence_sums is old - rollout: here rollout is the current, old the reference.
      kl_estimate<float, float>(view, {batch.rollout_logprob, batch.old_logprob, {}}, unlimited(kind), sums);
      for (std::size_t s = 0; s < sums.size(); ++s) {
        auto const sum = kind == kl_kind::k2 ? exact[s].k2 : exact[s].k3;
        CHECK(sums[s].value == doctest::Approx(static_cast<double>(sum) * importance::divergence_unit).epsilon(1e-5));
      }
    }
  }

  TEST_CASE("bad tokens are counted, never spread, and masked ones are not read") {
    std::vector<float> const current{0, 0, 0, 0, 0, 0, 0, 0};
    auto const inf = static_cast<float>(infinity);
    auto const nan = static_cast<float>(nan_value);
    std::vector<float> const reference{1, nan, -inf, 1000, /* turn 1 */ -1, nan, inf, -1000};
    std::vector<std::uint8_t> const mask{1, 1, 1, 1, 1, 0, 0, 0};
    turns_of const turns{{4, 4, 0}};
    std::vector<kl_sums> sums(3, {.value = 7});
    std::vector<float> value(8, 9), slope(8, 9);
    kl_estimate<float, float, float>(turns.view(), {current, reference, mask}, {.kind = kl_kind::k2}, sums,
                                     {value, slope});
    CHECK(sums[0] == kl_sums{.value = 10.5, .count = 2, .clamped = 1, .non_finite = 2});
    CHECK(sums[1] == kl_sums{.value = 0.5, .count = 1});
    CHECK(sums[2] == kl_sums{});
    CHECK(sums[2].mean() == 0);
    CHECK(value == std::vector<float>{0.5, 0, 0, 10, 0.5, 0, 0, 0});
    CHECK(slope == std::vector<float>{-1, 0, 0, 0, 1, 0, 0, 0});

    CHECK(divergence::total_kl(sums, std::vector<reason_flags>{0, 0, 0}).mean() == doctest::Approx(11.0 / 3));
    CHECK(divergence::total_kl(sums, std::vector<reason_flags>{reason::non_finite, 0, 0}).mean() == 0.5);
    CHECK(divergence::total_kl(sums, std::vector<reason_flags>{1, 1, 1}) == kl_sums{});
    CHECK(divergence::total_kl({}, {}).mean() == 0);
  }

  TEST_CASE("the same bits for any threads; tokens in no turn are left alone") {
    auto const batch = test::load_batch("kernel_rollouts_b");
    auto const view = batch.turns.view();
    std::vector<kl_sums> one(view.turns()), many(view.turns());
    divergence::kl_logprobs<float, float> const tokens{batch.old_logprob, batch.rollout_logprob, {}};
    kl_estimate<float, float>(view, tokens, {}, one, {}, 1);
    kl_estimate<float, float>(view, tokens, {}, many, {}, 7);
    CHECK(one == many);

    std::vector<float> const logprob(5);
    std::vector<float> value(5, 3);
    std::vector<std::int64_t> const begin{1}, end{3}, offsets{0, 1}, id{0};
    std::vector<kl_sums> sums(1);
    kl_estimate<float, float, float>({begin, end, offsets, id, id, {}, {}}, {logprob, logprob, {}}, {}, sums,
                                     {value, {}});
    CHECK(value == std::vector<float>{3, 0, 0, 3, 3});
  }

  TEST_CASE("bad arguments throw, and nothing is written") {
    std::vector<float> const four(4), three(3);
    std::vector<std::uint8_t> const mask(3);
    turns_of const turn{{4}};
    std::vector<kl_sums> sums(1, {.value = 7});
    std::vector<kl_sums> two(2);
    std::vector<float> value(4, 9), shorter(3, 9);
    auto const throws = [&](auto const& tokens, kl_options const& options, std::span<kl_sums> out,
                            kl_outputs<float> const& of_token) {
      CHECK_THROWS_AS((kl_estimate<float, float, float>(turn.view(), tokens, options, out, of_token)),
                      precondition_error);
      CHECK(sums[0].value == 7);
      CHECK(value[0] == 9);
    };
    using tokens = divergence::kl_logprobs<float, float>;
    throws(tokens{four, three, {}}, {}, sums, {value, {}});
    throws(tokens{three, three, {}}, {}, sums, {shorter, {}});
    throws(tokens{four, four, mask}, {}, sums, {value, {}});
    throws(tokens{four, four, {}}, {}, two, {value, {}});
    throws(tokens{four, four, {}}, {}, sums, {value, shorter});
    throws(tokens{four, four, {}}, {}, sums, {shorter, {}});
    for (double const bad : {0.0, -1.0, nan_value}) {
      throws(tokens{four, four, {}}, {.clamp = bad}, sums, {value, {}});
      throws(tokens{four, four, {}}, {.cap = bad}, sums, {value, {}});
    }
    std::vector<std::int64_t> const begin{0, 1}, end{3, 4}, offsets{0, 2}, id{0};
    rollout_view const overlapping{begin, end, offsets, id, id, {}, {}};
    CHECK_THROWS_AS((kl_estimate<float, float, float>(overlapping, {four, four, {}}, {}, two, {value, {}})),
                    precondition_error);
    kl_estimate<float, float>(overlapping, {four, four, {}}, {}, two);
    CHECK((two[0].count == 3 && two[1].count == 3));
    CHECK_THROWS_AS(static_cast<void>(divergence::total_kl(sums, std::vector<reason_flags>(2))), precondition_error);
  }
}
