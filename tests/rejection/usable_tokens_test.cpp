#include "support/batches.hpp"

#include <turnwise/advantage/discounted_return.hpp>
#include <turnwise/importance/log_ratio_statistics.hpp>
#include <turnwise/rejection/ratio_band.hpp>
#include <turnwise/rejection/token_veto.hpp>
#include <turnwise/rejection/usable_tokens.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace {

using namespace turnwise;
using rejection::non_finite_policy;
using rejection::scope;
using test::infinity;
using test::nan_value;
using test::sample_batch;
using test::sample_trajectory;
using test::sample_turn;
using flags = std::vector<reason_flags>;

template <typename P>
std::vector<importance::turn_statistics> statistics_of(sample_batch<P> const& batch) {
  std::vector<importance::turn_statistics> statistics(batch.turns());
  importance::log_ratio_statistics(batch.view(), batch.tokens(), statistics);
  return statistics;
}

template <typename P>
flags first_reasons(sample_batch<P> const& batch) {
  flags reasons(batch.turns());
  begin_reasons(batch.view(), reasons);
  return reasons;
}

template <typename P = double>
flags usable(std::vector<sample_trajectory> const& trajectories, rejection::usable_tokens_options const& options) {
  sample_batch<P> const batch{trajectories};
  auto reasons = first_reasons(batch);
  rejection::usable_tokens(batch.view(), statistics_of(batch), options, reasons);
  return reasons;
}

/// Trajectory 1: a clean turn, a NaN, no token, all masked, flagged off with a NaN. Trajectory 2: clean.
std::vector<sample_trajectory> const one_broken_turn{{.group = 1,
                                                      .id = 1,
                                                      .turns = {{.log_ratio = {0, 0.5}},
                                                                {.log_ratio = {0.25, nan_value, 0.25}},
                                                                {.log_ratio = {}},
                                                                {.log_ratio = {1, nan_value}, .mask = {0, 0}},
                                                                {.log_ratio = {nan_value}, .valid = false}}},
                                                     {.group = 1, .id = 2, .turns = {{.log_ratio = {0}}}}};

}  // namespace

TEST_SUITE("rejection/usable_tokens") {
  TEST_CASE_TEMPLATE("reject, scope turn: the broken turn alone", P, float, double) {
    CHECK(usable<P>(one_broken_turn, {}) ==
          flags{0, reason::non_finite, reason::no_token, reason::no_token, reason::invalid, 0});
  }

  TEST_CASE_TEMPLATE("reject, scope trajectory: every valid turn that has tokens", P, float, double) {
    CHECK(usable<P>(one_broken_turn, {.non_finite_scope = scope::trajectory}) ==
          flags{reason::non_finite, reason::non_finite, reason::no_token, reason::no_token, reason::invalid, 0});
  }

  TEST_CASE("neutral: the token is left out, and a turn left with none is no_token, in either scope") {
    std::vector<sample_trajectory> const trajectories{
        {.turns = {
             {.log_ratio = {nan_value, 0.25}}, {.log_ratio = {nan_value, infinity}}, {.log_ratio = {-infinity, 0}}}}};
    for (scope const of : {scope::turn, scope::trajectory})
      CHECK(usable(trajectories, {non_finite_policy::neutral, of}) == flags{0, reason::no_token, 0});
  }

  TEST_CASE("every kind of log ratio that is not finite counts") {
    float const most = std::numeric_limits<float>::max();
    for (double const bad : {nan_value, infinity, -infinity})
      CHECK(usable({{.turns = {{.log_ratio = {0, bad}}}}}, {}) == flags{reason::non_finite});
    // Finite log-probs, but their difference is not a float.
    CHECK(usable<float>({{.turns = {{.log_ratio = {2.0 * most}, .rollout_logprob = {-most}}}}}, {}) ==
          flags{reason::non_finite});
    CHECK(usable<double>({{.turns = {{.log_ratio = {2.0 * most}, .rollout_logprob = {-most}}}}}, {}) == flags{0});
  }

  TEST_CASE("error: throws for a valid turn, in either scope, and changes nothing") {
    sample_batch<> const batch{one_broken_turn};
    auto const statistics = statistics_of(batch);
    for (scope const of : {scope::turn, scope::trajectory}) {
      auto reasons = first_reasons(batch);
      auto const before = reasons;
      CHECK_THROWS_WITH_AS(rejection::usable_tokens(batch.view(), statistics, {non_finite_policy::error, of}, reasons),
                           "usable_tokens: turn 1 has 1 log ratios that are not finite", precondition_error);
      CHECK(reasons == before);
    }
    std::vector<sample_trajectory> const masked_or_off{
        {.turns = {{.log_ratio = {0, nan_value}, .mask = {1, 0}}, {.log_ratio = {nan_value}, .valid = false}}}};
    CHECK(usable(masked_or_off, {.non_finite = non_finite_policy::error}) == flags{0, reason::invalid});
  }

  TEST_CASE("invalid turns get no other reason") {
    std::vector<sample_trajectory> const trajectories{{.turns = {{.log_ratio = {nan_value}},
                                                                 {.log_ratio = {}},
                                                                 {.log_ratio = {5}},
                                                                 {.log_ratio = {nan_value}, .valid = false}}}};
    sample_batch<> const batch{trajectories};
    auto reasons = first_reasons(batch);
    std::vector<double> turn_return(4);
    advantage::discounted_return(batch.view(), std::vector{1.0, 1.0, nan_value, nan_value}, {}, reasons,
                                 std::span{turn_return});
    flags const settled{reason::unscored_future, reason::unscored_future, reason::unscored, reason::invalid};
    REQUIRE(reasons == settled);
    for (scope const of : {scope::turn, scope::trajectory}) {
      rejection::usable_tokens(batch.view(), statistics_of(batch), {.non_finite_scope = of}, reasons);
      rejection::ratio_band(batch.view(), statistics_of(batch), {.level = of}, reasons);
      rejection::token_veto(batch.view(), statistics_of(batch), {0.5, of}, reasons);
      CHECK(reasons == settled);
    }
  }

  TEST_CASE("a non-finite turn gets no ratio reason and enters no trajectory sum or veto") {
    // Alone, the second turn would pull the trajectory's mean to -2.5 and veto it.
    std::vector<sample_trajectory> const trajectories{
        {.turns = {{.log_ratio = {0, 0}}, {.log_ratio = {-10, nan_value}}, {.log_ratio = {}}}}};
    sample_batch<> const batch{trajectories};
    auto const statistics = statistics_of(batch);
    auto reasons = first_reasons(batch);
    rejection::usable_tokens(batch.view(), statistics, {}, reasons);
    rejection::ratio_band(batch.view(), statistics, {}, reasons);
    rejection::token_veto(batch.view(), statistics, {}, reasons);
    CHECK(reasons == flags{0, reason::non_finite, reason::no_token});

    // Neutral: the token alone is left out, and -10 counts.
    reasons = first_reasons(batch);
    rejection::usable_tokens(batch.view(), statistics, {.non_finite = non_finite_policy::neutral}, reasons);
    rejection::ratio_band(batch.view(), statistics, {}, reasons);
    rejection::token_veto(batch.view(), statistics, {}, reasons);
    reason_flags const both = reason::ratio_low | reason::token_veto;
    CHECK(reasons == flags{both, both, reason::no_token});
  }

  TEST_CASE("scope trajectory: no turn of the trajectory gets a ratio reason") {
    std::vector<sample_trajectory> const trajectories{
        {.turns = {{.log_ratio = {-20}}, {.log_ratio = {nan_value}}, {.log_ratio = {20}}}}};
    sample_batch<> const batch{trajectories};
    auto const statistics = statistics_of(batch);
    for (scope const level : {scope::turn, scope::trajectory}) {
      auto reasons = first_reasons(batch);
      rejection::usable_tokens(batch.view(), statistics, {.non_finite_scope = scope::trajectory}, reasons);
      rejection::ratio_band(batch.view(), statistics, {.level = level}, reasons);
      rejection::token_veto(batch.view(), statistics, {1e-4, level}, reasons);
      CHECK(reasons == flags(3, reason::non_finite));
    }
  }

  TEST_CASE("RR-02: garbage at masked positions leaves the statistics of the clean batch") {
    sample_batch<double> dirty{
        std::vector<sample_trajectory>{{.turns = {{.log_ratio = {0, 0, 0, 0}, .mask = {1, 1, 0, 0}}}}}};
    dirty.old_logprob = {-1, -2, 300, -infinity};
    dirty.rollout_logprob = {-1.25, -2, -300, nan_value};
    sample_batch<double> clean{std::vector<sample_trajectory>{{.turns = {{.log_ratio = {0, 0}}}}}};
    clean.old_logprob = {-1, -2};
    clean.rollout_logprob = {-1.25, -2};

    auto const moments_of = [](sample_batch<double> const& batch, auto& statistics) {
      std::vector<importance::ratio_moments> moments(1);
      importance::log_ratio_statistics(batch.view(), batch.tokens(), statistics, moments);
      return moments[0];
    };
    std::vector<importance::turn_statistics> of_dirty(1), of_clean(1);
    auto const moments = moments_of(dirty, of_dirty);
    CHECK(moments == moments_of(clean, of_clean));
    CHECK(of_dirty == of_clean);
    CHECK(of_dirty[0] == importance::turn_statistics{2, 1 << 22, 0, 0.25, 0, 0});
    double const mean_ratio = (2 + of_dirty[0].log_sum() + moments.k3) / 2;
    CHECK(mean_ratio == doctest::Approx(1.1420127083438707).epsilon(1e-6));
    auto reasons = first_reasons(dirty);
    rejection::usable_tokens(dirty.view(), of_dirty, {.non_finite = non_finite_policy::error}, reasons);
    CHECK(reasons == flags{0});
  }

  TEST_CASE("RR-04: a token without a sampler log-prob is neutral, or an error") {
    std::vector<double> const old_logprob{-1, -0.2, -2};
    std::vector<double> const rollout_logprob{-1.5, nan_value, -1.8};
    sample_batch<> batch{std::vector<sample_trajectory>{{.turns = {{.log_ratio = {0, 0, 0}}}}}};
    batch.old_logprob = old_logprob;
    batch.rollout_logprob = rollout_logprob;
    auto const statistics = statistics_of(batch);
    CHECK(statistics[0].count == 2);
    CHECK(statistics[0].non_finite == 1);
    CHECK(statistics[0].max == doctest::Approx(std::log(1.6487212707001282)));
    CHECK(statistics[0].min == doctest::Approx(std::log(0.8187307530779818)));
    CHECK((statistics[0].max - statistics[0].min) / 2 == doctest::Approx(0.35));

    auto reasons = first_reasons(batch);
    rejection::usable_tokens(batch.view(), statistics, {.non_finite = non_finite_policy::neutral}, reasons);
    CHECK(reasons == flags{0});
    std::vector<double> ratio(1);
    rejection::geometric_ratio(batch.view(), statistics, reasons, scope::turn, ratio);
    CHECK(ratio[0] == doctest::Approx(std::exp(0.15)));
    CHECK_THROWS_AS(
        rejection::usable_tokens(batch.view(), statistics, {.non_finite = non_finite_policy::error}, reasons),
        precondition_error);
    rejection::usable_tokens(batch.view(), statistics, {}, reasons);
    CHECK(reasons == flags{reason::non_finite});
  }

  TEST_CASE("an empty batch, and trajectories without turns") {
    CHECK(usable({}, {}) == flags{});
    CHECK(usable({{.id = 1}, {.id = 2, .turns = {{.log_ratio = {}}}}, {.id = 3}}, {}) == flags{reason::no_token});
  }

  TEST_CASE("wrong sizes throw and change nothing") {
    sample_batch<> const batch{one_broken_turn};
    auto const statistics = statistics_of(batch);
    auto const short_statistics = std::vector(statistics.begin(), statistics.end() - 1);
    flags reasons(6, 77u);
    flags short_reasons(5, 77u);
    CHECK_THROWS_AS(rejection::usable_tokens(batch.view(), short_statistics, {}, reasons), precondition_error);
    CHECK_THROWS_AS(rejection::usable_tokens(batch.view(), statistics, {}, short_reasons), precondition_error);
    auto view = batch.view();
    view.group_id = view.group_id.first(1);
    CHECK_THROWS_AS(rejection::usable_tokens(view, statistics, {}, reasons), precondition_error);
    CHECK(reasons == flags(6, 77u));
    CHECK(short_reasons == flags(5, 77u));
  }

}  // TEST_SUITE
