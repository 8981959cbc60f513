#include "support/batches.hpp"

#include <turnwise/importance/log_ratio_statistics.hpp>
#include <turnwise/metrics/mismatch.hpp>
#include <turnwise/rejection/ratio_band.hpp>
#include <turnwise/rejection/token_veto.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace {

using namespace turnwise;
using rejection::ratio_band_options;
using rejection::ratio_kind;
using rejection::scope;
using test::infinity;
using test::nan_value;
using test::sample_batch;
using test::sample_trajectory;
using test::sample_turn;
using flags = std::vector<reason_flags>;

constexpr double unit = 0x1p-24;

flags band(std::vector<sample_trajectory> const& trajectories, ratio_band_options const& options) {
  sample_batch<> const batch{trajectories};
  std::vector<importance::turn_statistics> statistics(batch.turns());
  importance::log_ratio_statistics(batch.view(), batch.tokens(), statistics);
  flags reasons(batch.turns());
  begin_reasons(batch.view(), reasons);
  rejection::usable_tokens(batch.view(), statistics, {}, reasons);
  rejection::ratio_band(batch.view(), statistics, options, reasons);
  return reasons;
}

/// A trajectory with one turn a list.
sample_trajectory trajectory(std::vector<std::vector<double>> const& turns) {
  sample_trajectory result;
  for (auto const& log_ratio : turns) result.turns.push_back({.log_ratio = log_ratio});
  return result;
}

}  // namespace

TEST_SUITE("rejection/ratio_band") {
  TEST_CASE("both edges are inclusive, to one unit of the grid, at both levels and of both kinds") {
    double const low = std::exp(-2.0);
    double const high = std::exp(2.0);
    REQUIRE(std::log(low) == -2.0);
    REQUIRE(std::log(high) == 2.0);
    for (scope const level : {scope::turn, scope::trajectory}) {
      ratio_band_options const geometric{level, ratio_kind::geometric, low, high};
      CHECK(band({trajectory({{1, 2, 3}})}, geometric) == flags{0});
      CHECK(band({trajectory({{1, 2, 3 + unit}})}, geometric) == flags{reason::ratio_high});
      CHECK(band({trajectory({{-1, -2, -3}})}, geometric) == flags{0});
      CHECK(band({trajectory({{-1, -2, -3 - unit}})}, geometric) == flags{reason::ratio_low});

      ratio_band_options const product{level, ratio_kind::product, low, high};
      CHECK(band({trajectory({{1, -2, 3}})}, product) == flags{0});
      CHECK(band({trajectory({{1, -2, 3 + unit}})}, product) == flags{reason::ratio_high});
      CHECK(band({trajectory({{-1, 2, -3}})}, product) == flags{0});
      CHECK(band({trajectory({{-1, 2, -3 - unit}})}, product) == flags{reason::ratio_low});
    }
  }

  TEST_CASE("lo = hi = 1 keeps a sum of exactly 0 and nothing else") {
    for (scope const level : {scope::turn, scope::trajectory})
      for (ratio_kind const kind : {ratio_kind::geometric, ratio_kind::product}) {
        ratio_band_options const one{level, kind, 1, 1};
        CHECK(band({trajectory({{0, 0, 0}})}, one) == flags{0});
        CHECK(band({trajectory({{-0.0, 0.3125, -0.3125}})}, one) == flags{0});
        CHECK(band({trajectory({{0, 0, unit}})}, one) == flags{reason::ratio_high});
        CHECK(band({trajectory({{0, 0, -unit}})}, one) == flags{reason::ratio_low});
      }
  }

  TEST_CASE("log space: a band of logs compares n times the bound with the sum") {
    rejection::log_band const geometric{-0.25, 0.5, ratio_kind::geometric};
    rejection::log_band const product{-0.25, 0.5, ratio_kind::product};
    auto const record = [](std::int64_t count, double sum) {
      return importance::turn_statistics{count, static_cast<std::int64_t>(sum / unit)};
    };
    CHECK(rejection::band_reason(record(4, 2), geometric) == 0);
    CHECK(rejection::band_reason(record(4, 2 + unit), geometric) == reason::ratio_high);
    CHECK(rejection::band_reason(record(4, -1), geometric) == 0);
    CHECK(rejection::band_reason(record(4, -1 - unit), geometric) == reason::ratio_low);
    CHECK(rejection::band_reason(record(4, 0.5), product) == 0);
    CHECK(rejection::band_reason(record(4, 0.5 + unit), product) == reason::ratio_high);
    CHECK(rejection::band_reason(record(4, -0.25), product) == 0);
    CHECK(rejection::band_reason(record(4, -0.25 - unit), product) == reason::ratio_low);
    CHECK(rejection::band_reason({}, geometric) == 0);
    CHECK(rejection::band_reason({}, {1, 2, ratio_kind::product}) == 0);
  }

  TEST_CASE("the ratio is old over rollout, never the inverse") {
    for (ratio_kind const kind : {ratio_kind::geometric, ratio_kind::product}) {
      CHECK(band({trajectory({{std::log(3.0)}})}, {scope::turn, kind, 2, 4}) == flags{0});
      CHECK(band({trajectory({{-std::log(3.0)}})}, {scope::turn, kind, 2, 4}) == flags{reason::ratio_low});
    }
  }

  TEST_CASE("a trajectory's ratio weighs tokens, not turns") {
    // Token-weighted mean (9 * 0 + 1 * 0.25) / 10 = 0.025; the mean of turn means would be 0.125.
    std::vector<sample_trajectory> const batch{trajectory({std::vector<double>(9, 0.0), {0.25}})};
    CHECK(band(batch, {scope::trajectory, ratio_kind::geometric, 0.9, 1.1}) == flags{0, 0});
    CHECK(band(batch, {scope::trajectory, ratio_kind::geometric, 0.9, 1.02}) == flags(2, reason::ratio_high));
    CHECK(band(batch, {scope::turn, ratio_kind::geometric, 0.9, 1.1}) == flags{0, reason::ratio_high});
    // Products: exp(0.25) = 1.28 for the trajectory.
    CHECK(band(batch, {scope::trajectory, ratio_kind::product, 0.9, 1.2}) == flags(2, reason::ratio_high));
    CHECK(band(batch, {scope::trajectory, ratio_kind::product, 0.9, 1.3}) == flags{0, 0});
  }

  TEST_CASE("level trajectory marks every valid turn but those without a ratio") {
    std::vector<sample_trajectory> batch{{.id = 1,
                                          .turns = {{.log_ratio = {1}},
                                                    {.log_ratio = {0}},
                                                    {.log_ratio = {}},
                                                    {.log_ratio = {nan_value}},
                                                    {.log_ratio = {-9}, .valid = false}}},
                                         {.id = 2, .turns = {{.log_ratio = {0}}}}};
    CHECK(band(batch, {}) ==
          flags{reason::ratio_high, reason::ratio_high, reason::no_token, reason::non_finite, reason::invalid, 0});
    CHECK(band(batch, {.level = scope::turn}) ==
          flags{reason::ratio_high, 0, reason::no_token, reason::non_finite, reason::invalid, 0});
  }

  TEST_CASE("turns that other rules rejected stay in the trajectory's ratio") {
    std::vector<sample_trajectory> const trajectories{trajectory({{0.5}, {-0.5}})};
    sample_batch<> const batch{trajectories};
    std::vector<importance::turn_statistics> statistics(2);
    importance::log_ratio_statistics(batch.view(), batch.tokens(), statistics);
    for (reason_flags const other : {reason::profiling, reason::token_veto, reason::stale, reason::ratio_low}) {
      flags reasons{0, other};
      rejection::ratio_band(batch.view(), statistics, {}, reasons);
      CHECK(reasons == flags{0, other});
    }
    for (reason_flags const out : {reason::invalid, reason::unscored, reason::non_finite, reason::no_token}) {
      flags reasons{0, out};
      rejection::ratio_band(batch.view(), statistics, {}, reasons);
      CHECK(reasons == flags{reason::ratio_high, out});
    }
  }

  TEST_CASE("bounds 0 and infinity are no edges") {
    std::vector<sample_trajectory> const batch{trajectory({{-60, -60}, {60, 60}})};
    ratio_band_options const open{scope::turn, ratio_kind::product, 0, infinity};
    CHECK(band(batch, open) == flags{0, 0});
    CHECK(band(batch, {scope::turn, ratio_kind::geometric, 0, infinity}) == flags{0, 0});
    CHECK(band(batch, {scope::turn, ratio_kind::geometric, 0, 1}) == flags{0, reason::ratio_high});
    CHECK(band(batch, {scope::turn, ratio_kind::geometric, 1, infinity}) == flags{reason::ratio_low, 0});
  }

  TEST_CASE("RR-06: 40 tokens of 0.05 lie outside [0.9, 1.1] as a product and inside as a geometric mean") {
    std::vector<sample_trajectory> const batch{trajectory({std::vector<double>(40, 0.05)})};
    for (scope const level : {scope::turn, scope::trajectory}) {
      CHECK(band(batch, {level, ratio_kind::product, 0.9, 1.1}) == flags{reason::ratio_high});
      CHECK(band(batch, {level, ratio_kind::geometric, 0.9, 1.1}) == flags{0});
      CHECK(band(batch, {level, ratio_kind::product, 7.389, 7.3891}) == flags{0});
      CHECK(band(batch, {level, ratio_kind::geometric, 1.0512, 1.0513}) == flags{0});
    }
  }

  TEST_CASE("RR-07: the product is exp of the sum over unmasked tokens") {
    std::vector<sample_trajectory> const trajectories{
        {.turns = {{.log_ratio = {0.1, -0.2, 0.3, 5.0}, .mask = {1, 1, 1, 0}}}}};
    CHECK(band(trajectories, {scope::turn, ratio_kind::product, 1.22140, 1.22141}) == flags{0});
    CHECK(band(trajectories, {scope::turn, ratio_kind::product, 1.3, 5.0}) == flags{reason::ratio_low});
    sample_batch<> const batch{trajectories};
    std::vector<importance::turn_statistics> statistics(1);
    importance::log_ratio_statistics(batch.view(), batch.tokens(), statistics);
    CHECK(std::exp(statistics[0].log_sum()) == doctest::Approx(1.2214027581601699).epsilon(1e-6));
  }

  TEST_CASE("RR-13: what is reported is the saturated pair, and how many tokens were saturated") {
    std::vector<sample_trajectory> const trajectories{trajectory({{0.5, 75, -70}})};
    sample_batch<> const batch{trajectories};
    std::vector<importance::turn_statistics> statistics(1);
    std::vector<importance::ratio_moments> moments(1);
    importance::log_ratio_statistics(batch.view(), batch.tokens(), statistics, moments);
    CHECK(statistics[0].saturated == 2);
    CHECK(statistics[0].log_sum() == 0.5);  // 0.5 + 64 - 64
    flags const reasons{0};
    std::vector<double> const advantage(1);
    auto const record = metrics::mismatch(batch.view(), make_grouping(batch.view(), group_by::group),
                                          std::span<importance::turn_statistics const>{statistics},
                                          std::span<importance::ratio_moments const>{moments}, reasons,
                                          std::span<double const>{advantage}, reward::evaluation<double>{}, {});
    CHECK(record.saturated_tokens == 2);
    CHECK(record.ratio_max == doctest::Approx(std::exp(64.0)));
    CHECK(record.ratio_min == doctest::Approx(std::exp(-64.0)));
    CHECK(record.kl == -0.5 / 3);
  }

  TEST_CASE("geometric_ratio: exp of the mean at the level, 1 where nothing enters") {
    std::vector<sample_trajectory> const trajectories{{.id = 1,
                                                       .turns = {{.log_ratio = {0.5, 0.5, 0.5}},
                                                                 {.log_ratio = {-0.5}},
                                                                 {.log_ratio = {}},
                                                                 {.log_ratio = {3, nan_value}},
                                                                 {.log_ratio = {2}, .valid = false}}},
                                                      {.id = 2, .turns = {{.log_ratio = {nan_value}}}},
                                                      {.id = 3}};
    sample_batch<> const batch{trajectories};
    std::vector<importance::turn_statistics> statistics(6);
    importance::log_ratio_statistics(batch.view(), batch.tokens(), statistics);
    flags reasons(6);
    begin_reasons(batch.view(), reasons);
    rejection::usable_tokens(batch.view(), statistics, {}, reasons);
    std::vector<double> ratio(6, -1);
    rejection::geometric_ratio(batch.view(), statistics, reasons, scope::turn, ratio);
    CHECK(ratio[0] == doctest::Approx(std::exp(0.5)));
    CHECK(ratio[1] == doctest::Approx(std::exp(-0.5)));
    CHECK(std::vector(ratio.begin() + 2, ratio.end()) == std::vector<double>{1, 1, 1, 1});
    rejection::geometric_ratio(batch.view(), statistics, reasons, scope::trajectory, ratio);
    for (std::size_t s = 0; s < 5; ++s) CHECK(ratio[s] == doctest::Approx(std::exp(0.25)));
    CHECK(ratio[5] == 1);
  }

  TEST_CASE("bad bands and wrong sizes throw and change nothing") {
    std::vector<sample_trajectory> const trajectories{trajectory({{5}, {-5}})};
    sample_batch<> const batch{trajectories};
    std::vector<importance::turn_statistics> statistics(2);
    importance::log_ratio_statistics(batch.view(), batch.tokens(), statistics);
    flags reasons{0, 0};
    auto const throws = [&](double low, double high) {
      CHECK_THROWS_AS(
          rejection::ratio_band(batch.view(), statistics, {scope::turn, ratio_kind::geometric, low, high}, reasons),
          precondition_error);
    };
    throws(1.001, 0.999);
    throws(-0.1, 1);
    throws(nan_value, 1);
    throws(0.9, nan_value);
    throws(0, 0);
    throws(-infinity, infinity);
    auto const one = std::vector(statistics.begin(), statistics.begin() + 1);
    flags one_reason{0};
    CHECK_THROWS_AS(rejection::ratio_band(batch.view(), one, {}, reasons), precondition_error);
    CHECK_THROWS_AS(rejection::ratio_band(batch.view(), statistics, {}, one_reason), precondition_error);
    auto view = batch.view();
    view.turn_valid = view.turn_valid.first(1);
    CHECK_THROWS_AS(rejection::ratio_band(view, statistics, {}, reasons), precondition_error);
    CHECK(reasons == flags{0, 0});
    CHECK(one_reason == flags{0});

    std::vector<double> ratio{7, 7};
    std::vector<double> one_ratio{7};
    CHECK_THROWS_AS(rejection::geometric_ratio(batch.view(), one, reasons, scope::turn, ratio), precondition_error);
    CHECK_THROWS_AS(rejection::geometric_ratio(batch.view(), statistics, one_reason, scope::turn, ratio),
                    precondition_error);
    CHECK_THROWS_AS(rejection::geometric_ratio(batch.view(), statistics, reasons, scope::turn, one_ratio),
                    precondition_error);
    CHECK(ratio == std::vector<double>{7, 7});
    CHECK(one_ratio == std::vector<double>{7});
  }

  TEST_CASE("an empty batch") { CHECK(band({}, {}) == flags{}); }

}  // TEST_SUITE
