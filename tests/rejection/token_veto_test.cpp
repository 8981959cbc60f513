#include "support/batches.hpp"

#include <turnwise/importance/log_ratio_statistics.hpp>
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
using rejection::scope;
using test::infinity;
using test::nan_value;
using test::sample_batch;
using test::sample_trajectory;
using flags = std::vector<reason_flags>;

template <typename P = double>
flags veto(std::vector<sample_trajectory> const& trajectories, rejection::token_veto_options const& options) {
  sample_batch<P> const batch{trajectories};
  std::vector<importance::turn_statistics> statistics(batch.turns());
  importance::log_ratio_statistics(batch.view(), batch.tokens(), statistics);
  flags reasons(batch.turns());
  begin_reasons(batch.view(), reasons);
  rejection::usable_tokens(batch.view(), statistics, {}, reasons);
  rejection::token_veto(batch.view(), statistics, options, reasons);
  return reasons;
}

}  // namespace

TEST_SUITE("rejection/token_veto") {
  TEST_CASE("strict: a log ratio of exactly log(threshold) does not veto, the next number below it does") {
    for (scope const of : {scope::turn, scope::trajectory})
      for (double const threshold : {1e-4, 0.9, 0.5}) {
        double const edge = std::log(threshold);
        CHECK(veto({{.turns = {{.log_ratio = {0, edge, 0.5}}}}}, {threshold, of}) == flags{0});
        double const below = std::nextafter(edge, -infinity);
        CHECK(veto({{.turns = {{.log_ratio = {0, below, 0.5}}}}}, {threshold, of}) == flags{reason::token_veto});
      }
  }

  TEST_CASE("float log ratios are compared in double") {
    // The two floats next to log(1e-4).
    double const edge = -9.210340371976184;
    float near = static_cast<float>(edge);
    float const below = static_cast<double>(near) < edge ? near : std::nextafter(near, -100.0f);
    float const above = std::nextafter(below, 100.0f);
    REQUIRE(static_cast<double>(above) > edge);
    CHECK(veto<float>({{.turns = {{.log_ratio = {above}}}}}, {1e-4, scope::turn}) == flags{0});
    CHECK(veto<float>({{.turns = {{.log_ratio = {below}}}}}, {1e-4, scope::turn}) == flags{reason::token_veto});
  }

  TEST_CASE("lo = 1: any token below its sampler's probability vetoes, -0 does not") {
    CHECK(veto({{.turns = {{.log_ratio = {0.0, -0.0}}, {.log_ratio = {-0x1p-60}}}}}, {1.0, scope::turn}) ==
          flags{0, reason::token_veto});
  }

  TEST_CASE("the smallest log ratio is not clamped") {
    CHECK(veto({{.turns = {{.log_ratio = {-92}}, {.log_ratio = {-93}}}}}, {1e-40, scope::turn}) ==
          flags{0, reason::token_veto});
  }

  TEST_CASE("scope turn rejects the turn, scope trajectory every turn that has a ratio") {
    std::vector<sample_trajectory> const batch{{.id = 1,
                                                .turns = {{.log_ratio = {0}},
                                                          {.log_ratio = {5, -10, 5}},
                                                          {.log_ratio = {}},
                                                          {.log_ratio = {nan_value}},
                                                          {.log_ratio = {-50}, .valid = false}}},
                                               {.id = 2, .turns = {{.log_ratio = {-9}}}}};
    CHECK(veto(batch, {1e-4, scope::turn}) ==
          flags{0, reason::token_veto, reason::no_token, reason::non_finite, reason::invalid, 0});
    CHECK(veto(batch, {1e-4, scope::trajectory}) ==
          flags{reason::token_veto, reason::token_veto, reason::no_token, reason::non_finite, reason::invalid, 0});
  }

  TEST_CASE("tokens of invalid, non-finite and masked kind veto nobody") {
    std::vector<sample_trajectory> const batch{{.turns = {{.log_ratio = {0}},
                                                          {.log_ratio = {-50}, .valid = false},
                                                          {.log_ratio = {-50, nan_value}},
                                                          {.log_ratio = {-50, 0}, .mask = {0, 1}}}}};
    CHECK(veto(batch, {1e-4, scope::trajectory}) == flags{0, reason::invalid, reason::non_finite, 0});
  }

  TEST_CASE("a turn rejected by another rule still vetoes its trajectory") {
    std::vector<sample_trajectory> const trajectories{{.turns = {{.log_ratio = {0}}, {.log_ratio = {-50}}}}};
    sample_batch<> const batch{trajectories};
    std::vector<importance::turn_statistics> statistics(2);
    importance::log_ratio_statistics(batch.view(), batch.tokens(), statistics);
    flags reasons{0, reason::ratio_low | reason::profiling};
    rejection::token_veto(batch.view(), statistics, {}, reasons);
    CHECK(reasons == flags{reason::token_veto, reason::ratio_low | reason::profiling | reason::token_veto});
  }

  TEST_CASE("threshold 0 vetoes nothing") {
    CHECK(veto({{.turns = {{.log_ratio = {-1e300}}}}}, {0, scope::trajectory}) == flags{0});
  }

  TEST_CASE("outlier: strictly above it a token vetoes, with a reason of its own, at both scopes") {
    constexpr reason_flags high = reason::token_outlier;
    double const edge = std::log(100.0);
    auto const turn = [&](std::vector<double> log_ratio, scope of) {
      return veto({{.turns = {{.log_ratio = {0}}, {.log_ratio = std::move(log_ratio)}}}}, {1e-4, of, 100});
    };
    for (scope const of : {scope::turn, scope::trajectory}) {
      CHECK(turn({edge, -1}, of) == flags{0, 0});
      reason_flags const other = of == scope::turn ? 0 : high;
      CHECK(turn({std::nextafter(edge, infinity), -1}, of) == flags{other, high});
      reason_flags const both = of == scope::turn ? 0 : high | reason::token_veto;
      CHECK(turn({90, -90}, of) == flags{both, high | reason::token_veto});
      CHECK(turn({-90}, of) == flags{both & reason::token_veto, reason::token_veto});
    }
    CHECK(veto({{.turns = {{.log_ratio = {1e300}}}}}, {}) == flags{0});  // off by default
    CHECK(veto({{.turns = {{.log_ratio = {}}, {.log_ratio = {nan_value, 50}}, {.log_ratio = {50}, .valid = false}}}},
               {1e-4, scope::trajectory, 100}) == flags{reason::no_token, reason::non_finite, reason::invalid});
    CHECK(veto({{.turns = {{.log_ratio = {90}}}}}, {0, scope::turn, 2}) == flags{high});
  }

  TEST_CASE("RR-09: padding does not veto, and a vetoed row is rejected as a whole") {
    auto const row = [](std::int64_t id, std::vector<double> log_ratio, std::vector<std::uint8_t> mask) {
      return sample_trajectory{.id = id, .turns = {{.log_ratio = std::move(log_ratio), .mask = std::move(mask)}}};
    };
    std::vector<sample_trajectory> const rows{row(0, {-0.1, -9.0, -50.0}, {1, 1, 0}),
                                              row(1, {-0.1, -9.5, 0.0}, {1, 1, 1}),
                                              row(2, {0.2, 0.1, -0.3}, {1, 1, 1})};
    for (scope const of : {scope::turn, scope::trajectory}) {
      CHECK(veto<float>(rows, {1e-4, of}) == flags{0, reason::token_veto, 0});
      CHECK(veto<double>(rows, {1e-4, of}) == flags{0, reason::token_veto, 0});
    }
  }

  TEST_CASE("bad thresholds and wrong sizes throw and change nothing") {
    std::vector<sample_trajectory> const trajectories{{.turns = {{.log_ratio = {-50}}, {.log_ratio = {-50}}}}};
    sample_batch<> const batch{trajectories};
    std::vector<importance::turn_statistics> statistics(2);
    importance::log_ratio_statistics(batch.view(), batch.tokens(), statistics);
    flags reasons{0, 0};
    for (double const threshold : {-1e-4, nan_value, infinity, -infinity})
      CHECK_THROWS_AS(rejection::token_veto(batch.view(), statistics, {threshold, scope::turn}, reasons),
                      precondition_error);
    for (double const outlier : {1e-5, 0.0, -1.0, nan_value})
      CHECK_THROWS_AS(rejection::token_veto(batch.view(), statistics, {1e-4, scope::turn, outlier}, reasons),
                      precondition_error);
    CHECK_THROWS_AS(rejection::token_veto(batch.view(), statistics, {0, scope::turn, 0}, reasons), precondition_error);
    auto const one = std::vector(statistics.begin(), statistics.begin() + 1);
    flags one_reason{0};
    CHECK_THROWS_AS(rejection::token_veto(batch.view(), one, {}, reasons), precondition_error);
    CHECK_THROWS_AS(rejection::token_veto(batch.view(), statistics, {}, one_reason), precondition_error);
    auto view = batch.view();
    view.trajectory_id = {};
    CHECK_THROWS_AS(rejection::token_veto(view, statistics, {}, reasons), precondition_error);
    CHECK(reasons == flags{0, 0});
    CHECK(one_reason == flags{0});
  }

  TEST_CASE("an empty batch") { CHECK(veto({}, {}) == flags{}); }

}  // TEST_SUITE
