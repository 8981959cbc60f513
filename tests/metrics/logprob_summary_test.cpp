#include "support/batches.hpp"

#include <turnwise/importance/log_ratio_statistics.hpp>
#include <turnwise/metrics/logprob_summary.hpp>
#include <turnwise/rejection/usable_tokens.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace {

using namespace turnwise;
using metrics::logprob_record;
using metrics::logprob_source;
using test::infinity;
using test::nan_value;
using test::sample_batch;
using test::sample_trajectory;
using flags = std::vector<reason_flags>;

struct summary {
  logprob_record record;
  std::vector<double> turn_mean;
};

summary summed(std::vector<sample_trajectory> const& trajectories, logprob_source source = logprob_source::rollout,
               flags reasons = {}, rejection::non_finite_policy policy = rejection::non_finite_policy::reject) {
  sample_batch<> const batch{trajectories};
  std::vector<importance::turn_statistics> statistics(batch.turns());
  std::vector<importance::ratio_moments> moments(batch.turns());
  importance::log_ratio_statistics(batch.view(), batch.tokens(), statistics, moments);
  if (reasons.empty()) {
    reasons.resize(batch.turns());
    begin_reasons(batch.view(), reasons);
    rejection::usable_tokens(batch.view(), statistics, {.non_finite = policy}, reasons);
  }
  summary result;
  result.turn_mean.assign(batch.turns(), -7);
  result.record = metrics::logprob_summary(make_grouping(batch.view(), group_by::turn), statistics, moments, reasons,
                                           {source}, result.turn_mean);
  return result;
}

/// -log-probs 1 3 | 4 || 0.5 0.5 0.5 0.5 under the sampler; the trainer's lie above by 0.25, 0.75 | -1 || 0 0 0.5 0.
std::vector<sample_trajectory> const three_turns{
    {.id = 1,
     .turns = {{.log_ratio = {0.25, 0.75}, .rollout_logprob = {-1, -3}}, {.log_ratio = {-1}, .rollout_logprob = {-4}}}},
    {.id = 2, .turns = {{.log_ratio = {0, 0, 0.5, 0}, .rollout_logprob = {-0.5, -0.5, -0.5, -0.5}}}}};

void check_finite(logprob_record const& r) {
  for (double const number :
       {r.token_mean, r.turn_mean, r.turn_min, r.turn_max, r.token_ppl, r.turn_ppl, r.mean_turn_ppl})
    CHECK(std::isfinite(number));
}

}  // namespace

TEST_SUITE("metrics/logprob_summary") {
  TEST_CASE("by token, by turn and by perplexity, by hand") {
    auto const [r, turns] = summed(three_turns);
    CHECK(turns == std::vector<double>{2, 4, 0.5});
    CHECK(r.turns == 3);
    CHECK(r.tokens == 7);
    CHECK(r.token_mean == 10.0 / 7);
    CHECK(r.turn_mean == 6.5 / 3);
    CHECK(r.turn_min == 0.5);
    CHECK(r.turn_max == 4);
    CHECK(r.token_ppl == doctest::Approx(std::exp(10.0 / 7)));
    CHECK(r.turn_ppl == doctest::Approx(std::exp(6.5 / 3)));
    CHECK(r.mean_turn_ppl == doctest::Approx((std::exp(2.0) + std::exp(4.0) + std::exp(0.5)) / 3));
  }

  TEST_CASE("the trainer's log-probs: the sampler's and the log ratio") {
    auto const [r, turns] = summed(three_turns, logprob_source::old);
    CHECK(turns == std::vector<double>{1.5, 5, 0.375});
    CHECK(r.token_mean == (3 + 5 + 1.5) / 7);
    CHECK(r.turn_mean == 6.875 / 3);
  }

  TEST_CASE("masked tokens, turns without tokens and invalid ones are out; rejected ones are in") {
    auto given = three_turns;
    given[0].turns.push_back({.log_ratio = {9, 0}, .mask = {0, 1}, .rollout_logprob = {-100, -2}});
    given[0].turns.push_back({.log_ratio = {}});
    given[1].turns.push_back({.log_ratio = {5}, .valid = false, .rollout_logprob = {-50}});
    auto const [r, turns] = summed(given);
    CHECK(turns == std::vector<double>{2, 4, 2, 0, 0.5, 0});
    CHECK(r.turns == 4);
    CHECK(r.tokens == 8);
    CHECK(r.token_mean == 12.0 / 8);
    CHECK(r.turn_mean == 8.5 / 4);
    CHECK(summed(three_turns, logprob_source::rollout, {reason::ratio_low, reason::token_veto, reason::stale}).record ==
          summed(three_turns).record);
    CHECK(summed(three_turns, logprob_source::rollout, {reason::unscored, 0, reason::unscored_future}).record.turns ==
          1);
  }

  TEST_CASE("NaN and infinite log-probs stay in their turn") {
    auto given = three_turns;
    given[0].turns[1] = {.log_ratio = {nan_value, 0}, .rollout_logprob = {-1, -6}};
    given[1].turns.push_back({.log_ratio = {infinity}});
    auto r = summed(given).record;
    check_finite(r);
    CHECK(r.turns == 2);
    CHECK(r.token_mean == 6.0 / 6);
    auto const neutral = summed(given, logprob_source::rollout, {}, rejection::non_finite_policy::neutral);
    CHECK(neutral.turn_mean == std::vector<double>{2, 6, 0.5, 0});
    check_finite(neutral.record);
  }

  TEST_CASE("perplexities are clamped, means are not") {
    auto const [r, turns] = summed({{.turns = {{.log_ratio = {0}, .rollout_logprob = {-1000}}}}});
    CHECK(r.token_mean == 1000);
    CHECK(r.token_ppl == std::exp(64.0));
    CHECK(r.mean_turn_ppl == std::exp(64.0));
  }

  TEST_CASE("a sure sampler: 0, not -0") {
    auto const [r, turns] = summed({{.turns = {{.log_ratio = {0, 0}, .rollout_logprob = {0, -0.0}}}}});
    CHECK_FALSE(std::signbit(r.token_mean));
    CHECK_FALSE(std::signbit(turns[0]));
    CHECK(r.token_ppl == 1);
  }

  TEST_CASE("nothing counts: means 0, perplexities 1") {
    CHECK(metrics::logprob_summary(grouping{}, {}, {}, {}, {}) == logprob_record{});
    auto const [r, turns] = summed({{.turns = {{.valid = false}, {.log_ratio = {}}}}});
    CHECK(r == logprob_record{});
    CHECK(turns == std::vector<double>{0, 0});
  }

  TEST_CASE("the published trainer's numbers, of which the empty rows are taken off") {
    // mismatch_rollout_log_ppl, mismatch_rollout_ppl, mismatch_training_log_ppl and mismatch_training_ppl of the Dr.
    // Kernel trainer: means over 16 * 16 * 3 rows, of which those without a turn have 0 and perplexity 1.
    struct published {
      std::string batch;
      double rollout_log, rollout, old_log, old;
    };
    for (auto const& one : {published{"kernel_rollouts_a", 0.17732322160808034, 1.1957116254136115, 0.17735167700370402,
                                      1.1957485761497708},
                            published{"kernel_rollouts_b", 0.16827432455058974, 1.1867239645920158, 0.17320606809363745,
                                      1.1925940973484133}}) {
      auto const batch = test::load_batch(one.batch);
      auto const view = batch.turns.view();
      std::vector<importance::turn_statistics> statistics(view.turns());
      std::vector<importance::ratio_moments> moments(view.turns());
      importance::log_ratio_statistics(view, batch.tokens(), statistics, moments);
      auto const groups = make_grouping(view, group_by::group);
      auto const rows = 768.0;
      auto const turns = static_cast<double>(view.turns());
      auto const compare = [&](logprob_source source, double log, double ppl) {
        auto const r = metrics::logprob_summary(groups, statistics, moments, {}, {source});
        CHECK(r.turns == static_cast<std::int64_t>(view.turns()));
        CHECK(r.turn_mean == doctest::Approx(log * rows / turns).epsilon(1e-8));
        CHECK(r.mean_turn_ppl == doctest::Approx((ppl * rows - (rows - turns)) / turns).epsilon(1e-8));
      };
      compare(logprob_source::rollout, one.rollout_log, one.rollout);
      compare(logprob_source::old, one.old_log, one.old);
    }
  }

  TEST_CASE("the same bits for any order of trajectories") {
    auto trajectories = test::random_trajectories(23, 30, 40, 20);
    auto const expected = summed(trajectories).record;
    test::integers random{2};
    for (int round = 0; round < 5; ++round) {
      std::vector<sample_trajectory> shuffled;
      for (auto const j : test::random_order(trajectories.size(), random)) shuffled.push_back(trajectories[j]);
      CHECK(summed(shuffled).record == expected);
    }
  }

  TEST_CASE("errors, with nothing written") {
    std::vector<std::int64_t> const group{1, 1};
    auto const groups = make_grouping(group);
    std::vector<importance::turn_statistics> const statistics(2);
    std::vector<importance::ratio_moments> const moments(2);
    std::vector<double> out(2, -7);
    auto const call = [&](std::size_t s, std::size_t m, std::size_t r, std::size_t o) {
      metrics::logprob_summary(groups, std::span{statistics}.first(s), std::span{moments}.first(m), flags(r), {},
                               std::span{out}.first(o));
    };
    CHECK_NOTHROW(call(2, 2, 0, 0));
    CHECK_THROWS_AS(call(1, 2, 2, 2), precondition_error);
    CHECK_THROWS_AS(call(2, 1, 2, 2), precondition_error);
    CHECK_THROWS_AS(call(2, 2, 1, 2), precondition_error);
    CHECK_THROWS_AS(call(2, 2, 2, 1), precondition_error);
    CHECK(out == std::vector<double>{-7, -7});
  }
}
