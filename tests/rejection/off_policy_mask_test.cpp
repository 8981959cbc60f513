#include "support/batches.hpp"

#include <turnwise/importance/log_ratio_statistics.hpp>
#include <turnwise/rejection/off_policy_mask.hpp>

#include <doctest/doctest.h>

#include <span>
#include <vector>

namespace {

using namespace turnwise;
using rejection::off_policy_mask_options;
using rejection::scope;
using test::infinity;
using test::nan_value;
using test::sample_batch;
using test::sample_trajectory;
using flags = std::vector<reason_flags>;

constexpr reason_flags out = reason::off_policy;

template <typename T = double>
flags mask(std::vector<sample_trajectory> const& trajectories, std::vector<T> const& advantage,
           off_policy_mask_options const& options) {
  sample_batch<> const batch{trajectories};
  std::vector<importance::turn_statistics> statistics(batch.turns());
  importance::log_ratio_statistics(batch.view(), batch.tokens(), statistics);
  flags reasons(batch.turns());
  begin_reasons(batch.view(), reasons);
  rejection::usable_tokens(batch.view(), statistics, {}, reasons);
  rejection::off_policy_mask(batch.view(), statistics, std::span<T const>{advantage}, options, reasons);
  return reasons;
}

}  // namespace

TEST_SUITE("rejection/off_policy_mask") {
  TEST_CASE_TEMPLATE("masks a negative advantage whose mean of rollout - old is above delta, both strictly", T, float,
                     double) {
    constexpr double unit = 0x1p-24;
    std::vector<sample_trajectory> const batch{{.turns = {{.log_ratio = {-0.25, -0.75}},         // mean 0.5: at delta
                                                          {.log_ratio = {-0.25, -0.75 - unit}},  // above it
                                                          {.log_ratio = {-0.25, -0.75 - unit}},
                                                          {.log_ratio = {-0.25, -0.75 - unit}},
                                                          {.log_ratio = {-0.25, -0.75 - unit}}}}};
    std::vector<T> const advantage{-1, -1, 0, 1, -T{0}};
    CHECK(mask<T>(batch, advantage, {.delta = 0.5}) == flags{0, out, 0, 0, 0});
  }

  TEST_CASE("one-sided: tokens that the policy finds likelier are never masked") {
    CHECK(mask({{.turns = {{.log_ratio = {5, 5}}, {.log_ratio = {-5, 5}}}}}, {-1.0, -1.0}, {.delta = 0}) ==
          flags{0, 0});
    CHECK(mask({{.turns = {{.log_ratio = {-5, 4.5}}}}}, {-1.0}, {.delta = 0}) == flags{out});
  }

  TEST_CASE("level trajectory: a token-weighted mean, each turn's own advantage") {
    std::vector<sample_trajectory> const batch{{.id = 1,
                                                .turns = {{.log_ratio = {-1, -1, -1}},
                                                          {.log_ratio = {1}},
                                                          {.log_ratio = {-1}},
                                                          {.log_ratio = {}},
                                                          {.log_ratio = {nan_value, -60}},
                                                          {.log_ratio = {-60}, .valid = false}}},
                                               {.id = 2, .turns = {{.log_ratio = {0}}}}};
    std::vector<double> const advantage{-1, -1, 2, -1, -1, -1, -1};
    flags const rest{reason::no_token, reason::non_finite, reason::invalid, 0};
    auto const with = [&](reason_flags a, reason_flags b, reason_flags c) {
      flags all{a, b, c};
      all.insert(all.end(), rest.begin(), rest.end());
      return all;
    };
    // Mean over the trajectory: (3 - 1 + 1) / 5 = 0.6.
    CHECK(mask(batch, advantage, {.delta = 0.6, .level = scope::trajectory}) == with(0, 0, 0));
    CHECK(mask(batch, advantage, {.delta = 0.59, .level = scope::trajectory}) == with(out, out, 0));
    CHECK(mask(batch, advantage, {.delta = 0.59, .level = scope::turn}) == with(out, 0, 0));
  }

  TEST_CASE("a NaN advantage is not negative, -infinity is") {
    CHECK(mask({{.turns = {{.log_ratio = {-1}}, {.log_ratio = {-1}}}}}, {nan_value, -infinity}, {}) == flags{0, out});
  }

  TEST_CASE("bad options and sizes throw and change nothing; no turns") {
    CHECK(mask({}, {}, {}) == flags{});
    sample_batch<> const batch{std::vector<sample_trajectory>{{.turns = {{.log_ratio = {-9}}, {.log_ratio = {-9}}}}}};
    std::vector<importance::turn_statistics> statistics(2);
    importance::log_ratio_statistics(batch.view(), batch.tokens(), statistics);
    std::vector<double> const advantage{-1, -1};
    flags reasons{0, 0};
    auto const throws = [&](std::size_t turns, std::size_t advantages, std::span<reason_flags> in, double delta) {
      CHECK_THROWS_AS(rejection::off_policy_mask(
                          batch.view(), std::span<importance::turn_statistics const>{statistics}.first(turns),
                          std::span<double const>{advantage}.first(advantages), {.delta = delta}, in),
                      precondition_error);
    };
    throws(1, 2, reasons, 0);
    throws(2, 1, reasons, 0);
    throws(2, 2, std::span{reasons}.first(1), 0);
    for (double const delta : {-1e-9, nan_value, infinity}) throws(2, 2, reasons, delta);
    CHECK(reasons == flags{0, 0});
  }

}  // TEST_SUITE
