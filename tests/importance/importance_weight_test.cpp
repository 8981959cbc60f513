#include "support/batches.hpp"

#include <turnwise/importance/importance_weight.hpp>
#include <turnwise/importance/log_ratio_statistics.hpp>
#include <turnwise/rejection/token_mask.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace {

using namespace turnwise;
using importance::importance_weight;
using importance::non_finite_policy;
using importance::ratio_kind;
using importance::scope;
using importance::token_weight_options;
using importance::turn_statistics;
using importance::turn_weight_options;
using importance::weight_bounds;
using importance::weight_counts;
using importance::weight_rule;
using test::infinity;
using test::nan_value;
using test::sample_batch;
using test::sample_trajectory;

constexpr weight_bounds unbounded{.high = infinity};

template <typename P = double>
struct token_result {
  std::vector<double> weight;
  weight_counts counts;
  token_result(std::vector<P> const& log_ratio, token_weight_options const& options,
               std::vector<std::uint8_t> const& mask = {})
      : weight(log_ratio.size(), 9) {
    std::vector<P> const zero(log_ratio.size());
    counts = importance_weight<P, P, double>({log_ratio, zero, mask}, options, weight);
  }
};

struct turn_result {
  std::vector<double> weight;
  weight_counts counts;
  turn_result(std::vector<sample_trajectory> const& trajectories, turn_weight_options const& options,
              std::vector<reason_flags> const& further = {}) {
    sample_batch<> const batch{trajectories};
    std::vector<turn_statistics> statistics(batch.turns());
    importance::log_ratio_statistics(batch.view(), batch.tokens(), statistics);
    std::vector<reason_flags> reasons(batch.turns());
    begin_reasons(batch.view(), reasons);
    rejection::usable_tokens(batch.view(), statistics, {}, reasons);
    for (std::size_t s = 0; s < further.size(); ++s) reasons[s] |= further[s];
    weight.resize(batch.turns());
    counts = importance_weight(batch.view(), statistics, reasons, options, std::span{weight});
  }
};

bool near(std::vector<double> const& a, std::vector<double> const& b, double tolerance = 1e-12) {
  return std::ranges::equal(a, b, [&](double x, double y) { return std::abs(x - y) <= tolerance * std::abs(y); });
}

}  // namespace

TEST_SUITE("importance/importance_weight") {
  TEST_CASE("tokens: truncate, clip and mask by hand; counts say which bound") {
    std::vector<double> const d{std::log(0.25), std::log(0.5), 0, std::log(2.0), std::log(4.0)};
    CHECK(near(token_result<>{d, {}}.weight, {0.25, 0.5, 1, 2, 2}));
    CHECK(token_result<>{d, {}}.counts == weight_counts{.count = 5, .above = 1});
    token_result<> const clip{d, {{weight_rule::clip, 0.5, 2}}};
    CHECK(near(clip.weight, {0.5, 0.5, 1, 2, 2}));
    CHECK(clip.counts == weight_counts{.count = 5, .below = 1, .above = 1});
    token_result<> const mask{d, {{weight_rule::mask, 0.5, 2}}};
    CHECK(near(mask.weight, {0, 0.5, 1, 2, 0}));
    CHECK(mask.counts == weight_counts{.count = 5, .below = 1, .above = 1});
    CHECK(near(token_result<>{d, {unbounded}}.weight, {0.25, 0.5, 1, 2, 4}));
  }

  TEST_CASE("mask drops the tokens that rejection::token_mask drops, edges included") {
    auto const batch = test::load_batch("kernel_rollouts_b");
    std::vector<float> weight(batch.old_logprob.size());
    importance_weight(batch.tokens(), {{weight_rule::mask, 0.95, 1.05}}, std::span{weight});
    std::vector<std::uint8_t> keep(weight.size(), 1);
    rejection::token_mask(batch.tokens(), {.low = 0.95, .high = 1.05}, keep);
    bool same = true;
    for (std::size_t i = 0; i < keep.size(); ++i) same = same && (weight[i] != 0) == (keep[i] != 0);
    CHECK(same);
  }

  TEST_CASE("published weights on the recorded batches (verl): min(exp(log ratio), 2)") {
    for (std::string const name : {"kernel_rollouts_a", "kernel_rollouts_b"}) {
      auto const batch = test::load_batch(name);
      auto const token = test::load_npy<double>(batch.expected_folder / "verl_is_token_weight_every_8th.npy");
      std::vector<double> weight(batch.old_logprob.size());
      importance_weight(batch.tokens(), {}, std::span{weight});
      double worst = 0;
      for (std::size_t i = 0; i < token.size(); ++i) worst = std::max(worst, std::abs(weight[8 * i + 4] - token[i]));
      CHECK(worst < 1e-6);

      auto const view = batch.turns.view();
      std::vector<turn_statistics> statistics(view.turns());
      importance::log_ratio_statistics(view, batch.tokens(), statistics);
      std::vector<reason_flags> const reasons(view.turns());
      std::vector<double> of_turn(view.turns());
      importance_weight(view, statistics, reasons, {.bounds = {.log_clamp = 20}}, std::span{of_turn});
      auto const expected = batch.expected<double>("verl_is_sequence_weight");
      worst = 0;
      for (std::size_t s = 0; s < of_turn.size(); ++s) worst = std::max(worst, std::abs(of_turn[s] - expected[s]));
      CHECK(worst < 1e-6);
    }
  }

  TEST_CASE("RR-06: product and geometric are two things") {
    std::vector<sample_trajectory> const one{{.turns = {{.log_ratio = std::vector<double>(40, 0.05)}}}};
    for (scope const level : {scope::turn, scope::trajectory}) {
      CHECK(near(turn_result{one, {level, ratio_kind::product, unbounded}}.weight, {7.38905609893065}, 1e-6));
      CHECK(near(turn_result{one, {level, ratio_kind::geometric, unbounded}}.weight, {1.0512710963760241}, 1e-6));
      weight_bounds const band{weight_rule::mask, 0.9, 1.1};
      CHECK(turn_result{one, {level, ratio_kind::product, band}}.weight == std::vector<double>{0});
      CHECK(turn_result{one, {level, ratio_kind::product, band}}.counts.above == 1);
      CHECK(near(turn_result{one, {level, ratio_kind::geometric, band}}.weight, {1.0512710963760241}, 1e-6));
    }
  }

  TEST_CASE("RR-07: the exponential of the sum over unmasked tokens, not the sum of exponentials") {
    std::vector<sample_trajectory> const one{{.turns = {{.log_ratio = {0.1, -0.2, 0.3, 5.0}, .mask = {1, 1, 1, 0}}}}};
    CHECK(near(turn_result{one, {.bounds = unbounded}}.weight, {1.2214027581601699}, 1e-6));
  }

  TEST_CASE("RR-12: bypass: current minus rollout, not current minus itself") {
    std::vector<double> const current{-0.9}, behaviour{-1.2};
    std::vector<double> weight(1);
    importance_weight<double, double, double>({current, behaviour, {}}, {unbounded}, weight);
    CHECK(weight[0] == doctest::Approx(1.3498588075760032).epsilon(1e-6));
  }

  TEST_CASE("RR-13: the weight is of the saturated log ratio, and saturated tokens are counted") {
    token_result<> const one{{0.5, 31, -26}, {{.high = infinity, .log_clamp = 20}}};
    CHECK(near(one.weight, {1.6487212707001282, 485165195.4097903, 2.061153622438558e-09}, 1e-6));
    CHECK(one.counts.saturated == 2);
    std::vector<sample_trajectory> const turn{{.turns = {{.log_ratio = {15, 16}}, {.log_ratio = {15, 5}}}}};
    auto const of_turns = turn_result{turn, {.bounds = {.high = infinity, .log_clamp = 20}}};
    CHECK(near(of_turns.weight, {485165195.4097903, 485165195.4097903}, 1e-6));
    CHECK(of_turns.counts.saturated == 1);
  }

  TEST_CASE("RR-04: a token without a log-prob: rejected, neutral or an error") {
    std::vector<double> const train{-1, -0.2, -2}, rollout{-1.5, nan_value, -1.8};
    std::vector<double> weight(3, 9);
    auto const call = [&](non_finite_policy policy) {
      return importance_weight<double, double, double>({train, rollout, {}}, {unbounded, policy}, weight);
    };
    CHECK_THROWS_AS(call(non_finite_policy::error), precondition_error);
    CHECK(weight == std::vector<double>(3, 9));
    CHECK(call(non_finite_policy::reject) == weight_counts{.count = 2, .non_finite = 1});
    CHECK(near(weight, {1.6487212707001282, 0, 0.8187307530779818}, 1e-6));
    call(non_finite_policy::neutral);
    CHECK(near(weight, {1.6487212707001282, 1, 0.8187307530779818}, 1e-6));
  }

  TEST_CASE("RR-02: masked tokens are not read: weight 0, in no count") {
    std::vector<double> const d{0.25, 600, -infinity, nan_value};
    token_result<> const one{d, {{}, non_finite_policy::error}, {1, 0, 0, 0}};
    CHECK(near(one.weight, {std::exp(0.25), 0, 0, 0}));
    CHECK(one.counts == weight_counts{.count = 1});
  }

  TEST_CASE_TEMPLATE("huge, infinite and NaN log ratios: finite and counted under every rule", P, float, double) {
    auto const inf = static_cast<P>(infinity);
    std::vector<P> const d{1000, -1000, largest<P>, -largest<P>, inf, -inf, static_cast<P>(nan_value), 0};
    for (weight_rule const rule : {weight_rule::truncate, weight_rule::clip, weight_rule::mask})
      for (double const high : {2.0, infinity}) {
        double const low = rule == weight_rule::truncate ? 0 : 0.5;
        token_result<P> const one{d, {{rule, low, high}}};
        double const most = high == 2 ? (rule == weight_rule::mask ? 0 : 2) : std::exp(64.0);
        double const least = rule == weight_rule::mask ? 0 : rule == weight_rule::clip ? 0.5 : std::exp(-64.0);
        CHECK(near(one.weight, {most, least, most, least, 0, 0, 0, 1}, 1e-6));
        CHECK(one.counts == weight_counts{.count = 5,
                                          .below = rule == weight_rule::truncate ? 0 : 2,
                                          .above = high == 2 ? 2 : 0,
                                          .saturated = 4,
                                          .non_finite = 3});
      }
    std::vector<float> narrow(1);
    std::vector<P> const large{700}, zero{0};
    if constexpr (sizeof(P) == 8) {
      importance_weight<P, P, float>({large, zero, {}}, {{.high = infinity, .log_clamp = 700}}, narrow);
      CHECK(narrow[0] == largest<float>);
    } else {  // beyond 88 the exp is infinite
      std::vector<double> wide{7};
      importance_weight<P, P, double>({large, zero, {}}, {{.high = infinity, .log_clamp = 88}}, wide);
      CHECK(wide[0] == doctest::Approx(1.6516362549940018e38).epsilon(1e-6));
      wide[0] = 7;
      CHECK_THROWS_WITH_AS((importance_weight<P, P, double>({large, zero, {}}, {{.log_clamp = 88.5}}, wide)),
                           doctest::Contains("log_clamp = 88.5, expected a number in (0, 88"), precondition_error);
      CHECK(wide[0] == 7);
    }
  }

  TEST_CASE("trajectories: token-weighted over valid turns, rejected ones included; 0 without a ratio") {
    double const a = std::log(2.0);
    std::vector<sample_trajectory> const two{{.turns = {{.log_ratio = {a, a, a}},
                                                        {.log_ratio = {-a}},
                                                        {.log_ratio = {8 * a}, .valid = false},
                                                        {.log_ratio = {}},
                                                        {.log_ratio = {a, nan_value}}}},
                                             {.id = 1, .turns = {{.log_ratio = {0}}}},
                                             {.id = 2}};
    std::vector<reason_flags> const further{reason::profiling, 0, 0, 0, 0, 0};
    turn_result const product{two, {scope::trajectory, ratio_kind::product, unbounded}, further};
    CHECK(near(product.weight, {4, 4, 0, 0, 0, 1}, 1e-6));
    CHECK(product.counts == weight_counts{.count = 3});
    turn_result const geometric{two, {scope::trajectory, ratio_kind::geometric, unbounded}, further};
    CHECK(near(geometric.weight, {std::sqrt(2.0), std::sqrt(2.0), 0, 0, 0, 1}, 1e-6));
    turn_result const turn{two, {scope::turn, ratio_kind::geometric, {weight_rule::clip, 0.75, 1.5}}, further};
    CHECK(near(turn.weight, {1.5, 0.75, 0, 0, 0, 1}, 1e-6));
    CHECK(turn.counts == weight_counts{.count = 3, .below = 1, .above = 1});
    // all rejected by ratio rules: the weights stand, the losses leave the turns out
    std::vector<reason_flags> const all(6, reason::ratio_low);
    CHECK(
        near(turn_result{two, {scope::turn, ratio_kind::product, unbounded}, all}.weight, {8, 0.5, 0, 0, 0, 1}, 1e-6));
    CHECK(turn_result{{}, {}}.weight.empty());
  }

  TEST_CASE("a turn of one token has the token's weight; the band agrees with rejection::ratio_band") {
    test::integers random{3};
    std::vector<sample_trajectory> batch;
    std::vector<double> d;
    for (std::int64_t k = 0; k < 50; ++k) {
      d.push_back(static_cast<double>(random.below(4001) - 2000) * 0x1p-10);
      batch.push_back({.id = k, .turns = {{.log_ratio = {d.back()}}}});
    }
    for (ratio_kind const kind : {ratio_kind::product, ratio_kind::geometric})
      for (scope const level : {scope::turn, scope::trajectory}) {
        turn_result const of_turns{batch, {level, kind, {weight_rule::mask, 0.5, 2}}};
        token_result<> const of_tokens{d, {{weight_rule::mask, 0.5, 2}}};
        CHECK(near(of_turns.weight, of_tokens.weight));
        CHECK(of_turns.counts == of_tokens.counts);
      }
  }

  TEST_CASE("the same bits and counts for any threads") {
    auto const batch = test::load_batch("kernel_rollouts_b");
    std::vector<float> one(batch.old_logprob.size()), many(one);
    auto const counts = importance_weight(batch.tokens(), {}, std::span{one}, 1);
    CHECK(counts.above > 0);
    CHECK(importance_weight(batch.tokens(), {}, std::span{many}, 5) == counts);
    CHECK(one == many);
  }

  TEST_CASE("bad arguments throw, and nothing is written") {
    std::vector<double> const two(2), three(3);
    std::vector<std::uint8_t> const mask(3);
    std::vector<double> weight{7, 7};
    auto const throws = [&](token_logprobs<double, double> const& tokens, weight_bounds const& bounds) {
      CHECK_THROWS_AS(importance_weight(tokens, {bounds}, std::span{weight}), precondition_error);
    };
    throws({two, three, {}}, {});
    throws({three, two, {}}, {});
    throws({two, two, mask}, {});
    sample_batch<> const batch{std::vector<sample_trajectory>{{.turns = {{}, {}}}}};
    std::vector<turn_statistics> const statistics(2), more(3);
    std::vector<reason_flags> const reasons(2), flags(3);
    auto const turns_throw = [&](auto const& of_turns, auto const& why, weight_bounds const& bounds,
                                 std::span<double> out) {
      CHECK_THROWS_AS(importance_weight(batch.view(), of_turns, why, {.bounds = bounds}, out), precondition_error);
    };
    turns_throw(more, reasons, {}, weight);
    turns_throw(statistics, flags, {}, weight);
    turns_throw(statistics, reasons, {}, std::span{weight}.first(1));
    for (weight_bounds const& bad : {weight_bounds{.low = 0.5},
                                     {.high = 0},
                                     {.high = nan_value},
                                     {.log_clamp = 0},
                                     {.log_clamp = 701},
                                     {.log_clamp = nan_value},
                                     {weight_rule::clip, 3, 2},
                                     {weight_rule::mask, -1, 2},
                                     {weight_rule::mask, infinity, infinity},
                                     {weight_rule::clip, nan_value, 2}}) {
      throws({two, two, {}}, bad);
      turns_throw(statistics, reasons, bad, weight);
    }
    CHECK(weight == std::vector<double>{7, 7});
  }
}
