#include "support/batches.hpp"

#include <turnwise/importance/divergence_sums.hpp>
#include <turnwise/importance/log_ratio_statistics.hpp>
#include <turnwise/rejection/divergence_limit.hpp>
#include <turnwise/rejection/ratio_band.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace {

using namespace turnwise;
using rejection::divergence_estimate;
using rejection::divergence_limit_options;
using rejection::scope;
using rejection::token_aggregate;
using test::infinity;
using test::nan_value;
using test::sample_batch;
using test::sample_trajectory;
using flags = std::vector<reason_flags>;

constexpr reason_flags out = reason::divergence;

flags limit(std::vector<sample_trajectory> const& trajectories, divergence_limit_options const& options) {
  sample_batch<> const batch{trajectories};
  std::vector<importance::turn_statistics> statistics(batch.turns());
  std::vector<importance::turn_divergence> sums(batch.turns());
  importance::log_ratio_statistics(batch.view(), batch.tokens(), statistics);
  importance::divergence_sums(batch.view(), batch.tokens(), sums);
  flags reasons(batch.turns());
  begin_reasons(batch.view(), reasons);
  rejection::usable_tokens(batch.view(), statistics, {}, reasons);
  rejection::divergence_limit(batch.view(), statistics, sums, options, reasons);
  return reasons;
}

flags one_turn(std::vector<double> const& log_ratio, divergence_limit_options const& options) {
  return limit({{.turns = {{.log_ratio = log_ratio}}}}, options);
}

}  // namespace

TEST_SUITE("rejection/divergence_limit") {
  TEST_CASE("k2: sum, mean and max by hand, the bound inclusive") {
    // d = 1, -2, 0: k2 = 0.5, 2, 0.
    std::vector<double> const d{1, -2, 0};
    for (scope const level : {scope::turn, scope::trajectory}) {
      auto const with = [&](token_aggregate aggregate, double high) {
        return one_turn(d, {divergence_estimate::k2, aggregate, level, -infinity, high});
      };
      CHECK(with(token_aggregate::sum, 2.5) == flags{0});
      CHECK(with(token_aggregate::sum, 2.4999) == flags{out});
      CHECK(with(token_aggregate::mean, 2.5 / 3 + 1e-15) == flags{0});
      CHECK(with(token_aggregate::mean, 0.8333) == flags{out});
      CHECK(with(token_aggregate::max, 2) == flags{0});
      CHECK(with(token_aggregate::max, 1.9999) == flags{out});
    }
  }

  TEST_CASE("k1 is -d: bounds on both sides, inclusive to one unit of the grid") {
    constexpr double unit = 0x1p-24;
    for (scope const level : {scope::turn, scope::trajectory}) {
      divergence_limit_options const sum{divergence_estimate::k1, token_aggregate::sum, level, -1, 2};
      CHECK(one_turn({1, 1, -1}, sum) == flags{0});
      CHECK(one_turn({1, 1, -1 + unit}, sum) == flags{out});
      CHECK(one_turn({-1, -2, 1}, sum) == flags{0});
      CHECK(one_turn({-1, -2, 1 - unit}, sum) == flags{out});
      divergence_limit_options const mean{divergence_estimate::k1, token_aggregate::mean, level, -1, 2};
      CHECK(one_turn({1, 1}, mean) == flags{0});
      CHECK(one_turn({1, 1 + unit}, mean) == flags{out});
      CHECK(one_turn({-1, -3}, mean) == flags{0});
      CHECK(one_turn({-1, -3 - unit}, mean) == flags{out});
      divergence_limit_options const max{divergence_estimate::k1, token_aggregate::max, level, -1, 2};
      CHECK(one_turn({-2, 5, 0}, max) == flags{0});
      CHECK(one_turn({-2 - unit, 5, 0}, max) == flags{out});
      CHECK(one_turn({1, 5}, max) == flags{0});
      CHECK(one_turn({1 + unit, 5}, max) == flags{out});
      CHECK(one_turn({-80, 5}, {divergence_estimate::k1, token_aggregate::max, level, -1, 64}) == flags{0});  // clamped
    }
  }

  TEST_CASE("k3 is of old / rollout: e^d - 1 - d, which is steeper above 0") {
    double const at_1 = std::exp(1.0) - 2;     // 0.718
    double const at_minus_1 = std::exp(-1.0);  // 0.368
    for (auto const aggregate : {token_aggregate::sum, token_aggregate::mean, token_aggregate::max}) {
      auto const with = [&](double d, double high) {
        return one_turn({d}, {divergence_estimate::k3, aggregate, scope::turn, -infinity, high});
      };
      CHECK(with(1, at_1 + 1e-6) == flags{0});
      CHECK(with(1, at_1 - 1e-6) == flags{out});
      CHECK(with(-1, at_minus_1 + 1e-6) == flags{0});
      CHECK(with(-1, at_minus_1 - 1e-6) == flags{out});
    }
    // The maximum may be that of the smallest or of the largest log ratio.
    divergence_limit_options const max{divergence_estimate::k3, token_aggregate::max, scope::turn, -infinity, 1.5};
    CHECK(one_turn({-2.2, 1.2, 0}, max) == flags{0});    // 1.31, 1.12
    CHECK(one_turn({-2.5, 1.2, 0}, max) == flags{out});  // 1.58
    CHECK(one_turn({-2.2, 1.4, 0}, max) == flags{out});  // 1.66
  }

  TEST_CASE("a lower bound") {
    divergence_limit_options const options{divergence_estimate::k2, token_aggregate::sum, scope::turn, 0.5, infinity};
    CHECK(one_turn({1}, options) == flags{0});
    CHECK(one_turn({0.999}, options) == flags{out});
    CHECK(one_turn({50, 50}, options) == flags{0});
  }

  TEST_CASE("a trajectory's estimate weighs tokens; it marks every turn that has a ratio and no other") {
    std::vector<sample_trajectory> const batch{{.id = 1,
                                                .turns = {{.log_ratio = std::vector<double>(9, 0.0)},
                                                          {.log_ratio = {2}},
                                                          {.log_ratio = {}},
                                                          {.log_ratio = {nan_value, 60}},
                                                          {.log_ratio = {60}, .valid = false}}},
                                               {.id = 2, .turns = {{.log_ratio = {0}}}}};
    auto const with = [&](token_aggregate aggregate, scope level, double high) {
      return limit(batch, {divergence_estimate::k2, aggregate, level, -infinity, high});
    };
    flags const none{0, 0, reason::no_token, reason::non_finite, reason::invalid, 0};
    flags const both{out, out, reason::no_token, reason::non_finite, reason::invalid, 0};
    flags const second{0, out, reason::no_token, reason::non_finite, reason::invalid, 0};
    CHECK(with(token_aggregate::mean, scope::trajectory, 0.2) == none);  // 2 over 10 tokens
    CHECK(with(token_aggregate::mean, scope::trajectory, 0.19) == both);
    CHECK(with(token_aggregate::mean, scope::turn, 0.2) == second);
    CHECK(with(token_aggregate::sum, scope::trajectory, 2) == none);
    CHECK(with(token_aggregate::sum, scope::trajectory, 1.9) == both);
    CHECK(with(token_aggregate::max, scope::trajectory, 2) == none);
    CHECK(with(token_aggregate::max, scope::trajectory, 1.9) == both);
    CHECK(with(token_aggregate::max, scope::turn, 1.9) == second);
  }

  TEST_CASE("k1 of the mean is ratio_band with the edges turned around") {
    auto const trajectories = test::random_trajectories(5, 30, 4, 40);
    sample_batch<> const batch{trajectories};
    std::vector<importance::turn_statistics> statistics(batch.turns());
    importance::log_ratio_statistics(batch.view(), batch.tokens(), statistics);
    for (scope const level : {scope::turn, scope::trajectory})
      for (auto const& [aggregate, kind] : {std::pair{token_aggregate::mean, rejection::ratio_kind::geometric},
                                            std::pair{token_aggregate::sum, rejection::ratio_kind::product}}) {
        flags band(batch.turns()), k1(batch.turns());
        begin_reasons(batch.view(), band);
        rejection::usable_tokens(batch.view(), statistics, {}, band);
        k1 = band;
        rejection::ratio_band(batch.view(), statistics, {level, kind, 0.99, 1.02}, band);
        rejection::divergence_limit(batch.view(), statistics, {},
                                    {divergence_estimate::k1, aggregate, level, -rejection::log_of_option(1.02),
                                     -rejection::log_of_option(0.99)},
                                    k1);
        std::size_t rejected = 0;
        for (std::size_t s = 0; s < band.size(); ++s) {
          CHECK(is_kept(band[s]) == is_kept(k1[s]));
          rejected += k1[s] == out;
        }
        CHECK(rejected > 5);
      }
  }

  TEST_CASE("k1 has a direction: verl's bounds [a, b] on exp(k1) act on rollout / old, not on old / rollout") {
    double const low = rejection::log_of_option(0.5), high = rejection::log_of_option(1.001);
    for (auto const aggregate : {token_aggregate::sum, token_aggregate::mean})
      for (scope const level : {scope::turn, scope::trajectory}) {
        divergence_limit_options const options{divergence_estimate::k1, aggregate, level, low, high};
        // k1 = -d: 0.5 in excess of the sampler is within [-0.69, 0.001], as much short of it is not.
        CHECK(one_turn({0.5}, options) == flags{0});
        CHECK(one_turn({-0.5}, options) == flags{out});
        CHECK(one_turn({0.7}, options) == flags{out});
        CHECK(one_turn({-0.0005}, options) == flags{0});
        CHECK(one_turn({-0.002}, options) == flags{out});
        CHECK(one_turn({0.002}, options) == flags{0});
      }
  }

  // The bounds on k1 are so near to symmetric about 0 that its masks here are the same for d and for -d; the direction
  // is the case above.
  TEST_CASE("the published keep masks of verl, of every estimate and aggregate") {
    struct mask {
      char const* name;
      divergence_estimate estimate;
      token_aggregate aggregate;
    };
    using enum divergence_estimate;
    using enum token_aggregate;
    for (auto const* name : {"kernel_rollouts_a", "kernel_rollouts_b"}) {
      auto const recorded = test::load_batch(name);
      auto const batch = recorded.turns.view();
      std::vector<importance::turn_statistics> statistics(batch.turns());
      std::vector<importance::turn_divergence> sums(batch.turns());
      importance::log_ratio_statistics(batch, recorded.tokens(), std::span{statistics});
      importance::divergence_sums(batch, recorded.tokens(), std::span{sums});
      for (auto const& one :
           {mask{"sum_k1", k1, sum}, mask{"mean_k1", k1, mean}, mask{"sum_k2", k2, sum}, mask{"mean_k2", k2, mean},
            mask{"max_k2", k2, max}, mask{"sum_k3", k3, sum}, mask{"mean_k3", k3, mean}, mask{"max_k3", k3, max}}) {
        CAPTURE(name);
        CAPTURE(one.name);
        divergence_limit_options options{one.estimate, one.aggregate};
        if (one.estimate == k1) {
          options.low = rejection::log_of_option(0.999);
          options.high = rejection::log_of_option(1.001);
        }
        flags reasons(batch.turns());
        begin_reasons(batch, reasons);
        rejection::usable_tokens(batch, statistics, {}, reasons);
        rejection::divergence_limit(batch, statistics, sums, options, reasons);
        auto const published = recorded.expected<std::uint8_t>(std::string{"verl_seq_"} + one.name + "_keep");
        std::vector<std::uint8_t> keep;
        for (reason_flags const found : reasons) keep.push_back(is_kept(found));
        CHECK(keep == published);
      }
    }
  }

  TEST_CASE("turns rejected by other rules stay in the trajectory's estimate") {
    sample_batch<> const batch{std::vector<sample_trajectory>{{.turns = {{.log_ratio = {0}}, {.log_ratio = {2}}}}}};
    std::vector<importance::turn_statistics> statistics(2);
    importance::log_ratio_statistics(batch.view(), batch.tokens(), statistics);
    flags reasons{0, reason::stale};
    rejection::divergence_limit(batch.view(), statistics, {},
                                {divergence_estimate::k2, token_aggregate::max, scope::trajectory, 0, 1.9}, reasons);
    CHECK(reasons == flags{out, reason::stale | out});
  }

  TEST_CASE("nothing to estimate: never rejected, whatever the bounds") {
    for (auto const aggregate : {token_aggregate::sum, token_aggregate::mean, token_aggregate::max})
      CHECK(rejection::divergence_reason({}, {divergence_estimate::k2, aggregate, scope::turn, 1, 2}) == 0);
    CHECK(limit({{.turns = {{.log_ratio = {}}, {.log_ratio = {nan_value}}}}}, {.low = 1, .high = 2}) ==
          flags{reason::no_token, reason::non_finite});
  }

  TEST_CASE("bad options and sizes throw and change nothing; no turns") {
    CHECK(limit({}, {}) == flags{});
    sample_batch<> const batch{std::vector<sample_trajectory>{{.turns = {{.log_ratio = {9}}, {.log_ratio = {9}}}}}};
    std::vector<importance::turn_statistics> statistics(2);
    std::vector<importance::turn_divergence> sums(2);
    importance::log_ratio_statistics(batch.view(), batch.tokens(), statistics);
    importance::divergence_sums(batch.view(), batch.tokens(), sums);
    flags reasons{0, 0};
    using stats = std::span<importance::turn_statistics const>;
    using divergences = std::span<importance::turn_divergence const>;
    auto const throws = [&](stats of, divergences with, divergence_limit_options const& options, flags& in) {
      CHECK_THROWS_AS(rejection::divergence_limit(batch.view(), of, with, options, in), precondition_error);
    };
    throws(statistics, sums, {.low = 1, .high = 0.5}, reasons);
    throws(statistics, sums, {.low = nan_value}, reasons);
    throws(statistics, sums, {.high = nan_value}, reasons);
    throws(stats{statistics}.first(1), sums, {}, reasons);
    throws(statistics, divergences{sums}.first(1), {}, reasons);
    throws(statistics, {}, {}, reasons);  // the mean of k3 needs sums
    flags one{0};
    throws(statistics, sums, {}, one);
    auto view = batch.view();
    view.group_id = {};
    CHECK_THROWS_AS(rejection::divergence_limit(view, statistics, sums, {}, reasons), precondition_error);
    CHECK(reasons == flags{0, 0});
  }

}  // TEST_SUITE
