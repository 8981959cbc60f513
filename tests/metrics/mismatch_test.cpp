#include "support/batches.hpp"

#include <turnwise/importance/log_ratio_statistics.hpp>
#include <turnwise/metrics/mismatch.hpp>
#include <turnwise/rejection/token_veto.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace {

using namespace turnwise;
using metrics::mismatch_options;
using metrics::mismatch_record;
using rejection::ratio_kind;
using rejection::scope;
using test::infinity;
using test::nan_value;
using test::sample_batch;
using test::sample_trajectory;
using test::sample_turn;
using flags = std::vector<reason_flags>;

/// What a test says of a batch besides its turns.
struct outcome {
  flags reasons{};                  ///< empty: as begin_reasons and usable_tokens write them
  std::vector<double> advantage{};  ///< empty: 0
  mismatch_options options{};
  group_by by = group_by::turn;
  bool evaluated = true;
};

template <typename P = double>
mismatch_record record_of(std::vector<sample_trajectory> const& trajectories, outcome given = {}) {
  sample_batch<P> const batch{trajectories};
  std::vector<importance::turn_statistics> statistics(batch.turns());
  std::vector<importance::ratio_moments> moments(batch.turns());
  importance::log_ratio_statistics(batch.view(), batch.tokens(), statistics, moments);
  if (given.reasons.empty()) {
    given.reasons.resize(batch.turns());
    begin_reasons(batch.view(), given.reasons);
    rejection::usable_tokens(batch.view(), statistics, {}, given.reasons);
  }
  given.advantage.resize(batch.turns());
  return metrics::mismatch(
      batch.view(), make_grouping(batch.view(), given.by), std::span<importance::turn_statistics const>{statistics},
      std::span<importance::ratio_moments const>{moments}, given.reasons, std::span<double const>{given.advantage},
      given.evaluated ? batch.evaluation() : reward::evaluation<double>{}, given.options);
}

std::vector<double> numbers(mismatch_record const& r) {
  return {r.kl,
          r.k3,
          r.old_log_ppl,
          r.rollout_log_ppl,
          r.log_ppl_difference,
          r.old_ppl,
          r.rollout_ppl,
          r.chi2_token,
          r.chi2_turn,
          r.effective_sample_size,
          r.ratio_min,
          r.ratio_max,
          r.low_turn_share,
          r.high_turn_share,
          r.low_token_share,
          r.high_token_share,
          r.kept_advantage_mean,
          r.valid.rate(),
          r.correct.rate(),
          r.incorrect.rate(),
          r.fast.rate()};
}

void check_finite(mismatch_record const& r) {
  for (double const number : numbers(r)) CHECK(std::isfinite(number));
  CHECK(r.effective_sample_size > 0);
  CHECK(r.effective_sample_size <= 1);
  CHECK(r.k3 >= 0);
  CHECK(r.ratio_min > 0);
}

doctest::Approx about(double value) { return doctest::Approx(value).epsilon(1e-6); }

double const ln2 = std::log(2.0);

/// Ratios 2, 1/2 | 1, 1 || 4: two turns of one trajectory and one of another.
std::vector<sample_trajectory> const five_tokens{
    {.id = 1,
     .turns = {{.log_ratio = {ln2, -ln2}, .rollout_logprob = {-1, -2}},
               {.log_ratio = {0, 0}, .rollout_logprob = {-3, -4}}}},
    {.id = 2, .turns = {{.log_ratio = {2 * ln2}, .rollout_logprob = {-5}}}}};

std::array<std::int64_t, reason::names.size()> reason_counts(
    std::vector<std::pair<std::size_t, std::int64_t>> const& counts) {
  std::array<std::int64_t, reason::names.size()> result{};
  for (auto const& [bit, count] : counts) result[bit] = count;
  return result;
}

}  // namespace

TEST_SUITE("metrics/mismatch") {
  TEST_CASE_TEMPLATE("token metrics of five tokens by hand", P, float, double) {
    auto const r = record_of<P>(five_tokens);
    CHECK(r.turns == 3);
    CHECK(r.ratio_turns == 3);
    CHECK(r.ratio_tokens == 5);
    CHECK(r.non_finite_tokens == 0);
    CHECK(r.saturated_tokens == 0);
    // Log ratios sum to 2 ln 2, ratios to 8.5, squared ratios to 4 + 1/4 + 1 + 1 + 16 = 22.25.
    CHECK(r.kl == about(-2 * ln2 / 5));
    CHECK(r.k3 == about((8.5 - 5 - 2 * ln2) / 5));
    CHECK(r.rollout_log_ppl == about(3));
    CHECK(r.old_log_ppl == about(3 - 2 * ln2 / 5));
    CHECK(r.log_ppl_difference == r.kl);
    CHECK(r.rollout_ppl == about(std::exp(3.0)));
    CHECK(r.old_ppl == about(std::exp(3 - 2 * ln2 / 5)));
    CHECK(r.chi2_token == about(22.25 / 5 - 1));
    CHECK(r.chi2_turn == about((1.0 + 1.0 + 16.0) / 3 - 1));  // product ratios 1, 1, 4
    CHECK(r.effective_sample_size == about(8.5 * 8.5 / (5 * 22.25)));
    CHECK(r.ratio_min == about(0.5));
    CHECK(r.ratio_max == about(4));
    check_finite(r);
  }

  TEST_CASE("a policy that did not move: no mismatch at all, exactly") {
    auto const r = record_of({{.turns = {{.log_ratio = {0, 0, 0}, .rollout_logprob = {-1, -1, -1}}}}});
    CHECK(r.kl == 0);
    CHECK(r.k3 == 0);
    CHECK(r.chi2_token == 0);
    CHECK(r.chi2_turn == 0);
    CHECK(r.effective_sample_size == 1);
    CHECK(r.ratio_min == 1);
    CHECK(r.ratio_max == 1);
    CHECK(r.rollout_ppl == r.old_ppl);
    CHECK(r.rollout_log_ppl == 1);
  }

  TEST_CASE("metrics run over valid turns with usable tokens: invalid, non-finite and masked ones are out") {
    auto with_garbage = five_tokens;
    with_garbage[0].turns.push_back({.log_ratio = {3, 3}, .valid = false});
    with_garbage[0].turns.push_back({.log_ratio = {-3, nan_value, infinity}});
    with_garbage[1].turns.push_back({.log_ratio = {}});
    with_garbage[1].turns.push_back({.log_ratio = {7, nan_value}, .mask = {0, 0}});
    auto const clean = record_of(five_tokens);
    auto const r = record_of(with_garbage);
    CHECK(r.turns == 7);
    CHECK(r.ratio_turns == 3);
    CHECK(r.ratio_tokens == 5);
    CHECK(r.non_finite_tokens == 2);
    CHECK(r.kl == clean.kl);
    CHECK(r.k3 == clean.k3);
    CHECK(r.chi2_token == clean.chi2_token);
    CHECK(r.chi2_turn == clean.chi2_turn);
    CHECK(r.rollout_log_ppl == clean.rollout_log_ppl);
    CHECK(r.ratio_max == clean.ratio_max);
    CHECK(r.high_token_share == clean.high_token_share);
    CHECK(r.reasons == reason_counts({{0, 1}, {3, 2}, {4, 1}}));
    CHECK(r.valid.turns == 6);
    CHECK(r.valid.kept == 3);
    CHECK(r.kept_tokens == 5);
  }

  TEST_CASE("rejected turns stay in the mismatch: it describes the batch, not what was kept") {
    auto const r = record_of(five_tokens, {.reasons = {reason::ratio_low, 0, reason::token_veto | reason::profiling}});
    auto const all = record_of(five_tokens);
    CHECK(r.kl == all.kl);
    CHECK(r.k3 == all.k3);
    CHECK(r.chi2_token == all.chi2_token);
    CHECK(r.chi2_turn == all.chi2_turn);
    CHECK(r.rollout_log_ppl == all.rollout_log_ppl);
    CHECK(r.effective_sample_size == all.effective_sample_size);
    CHECK(r.ratio_max == all.ratio_max);
    CHECK(r.ratio_turns == 3);
    CHECK(r.valid.turns == 3);
    CHECK(r.valid.kept == 1);
    CHECK(r.valid.rate() == doctest::Approx(1.0 / 3));
    CHECK(r.kept_tokens == 2);
    CHECK(r.reasons == reason_counts({{5, 1}, {7, 1}, {8, 1}}));
  }

  TEST_CASE("each reason is counted at its bit, and names follow the bits") {
    std::vector<sample_trajectory> trajectories;
    flags reasons;
    for (std::size_t bit = 0; bit < 11; ++bit)
      for (std::size_t k = 0; k <= bit; ++k) {
        trajectories.push_back({.id = static_cast<std::int64_t>(trajectories.size()), .turns = {{}}});
        reasons.push_back(1u << bit);
      }
    auto const r = record_of(trajectories, {.reasons = reasons});
    for (std::size_t bit = 0; bit < 11; ++bit) CHECK(r.reasons[bit] == static_cast<std::int64_t>(bit) + 1);
    CHECK(r.valid.turns == 66 - 6);
    CHECK(reason::names[8] == "profiling");
  }

  TEST_CASE("shares below and above the band, by turns and tokens, at the level and of the kind of the filter") {
    // Turn means ln2 * (0, 1, -1, 0) with 2, 1, 1, 3 tokens; the third turn belongs to a trajectory of mean -ln2 / 4.
    std::vector<sample_trajectory> const batch{{.id = 1, .turns = {{.log_ratio = {ln2, -ln2}}}},
                                               {.id = 2, .turns = {{.log_ratio = {ln2}}}},
                                               {.id = 3, .turns = {{.log_ratio = {-ln2}}, {.log_ratio = {0, 0, 0}}}}};
    auto const with = [&](rejection::ratio_band_options const& band) {
      return record_of(batch, {.options = {.band = band}});
    };
    auto r = with({scope::turn, ratio_kind::geometric, 0.9, 1.1});
    CHECK(r.low_turn_share == 0.25);
    CHECK(r.high_turn_share == 0.25);
    CHECK(r.low_token_share == doctest::Approx(1.0 / 7));
    CHECK(r.high_token_share == doctest::Approx(1.0 / 7));
    r = with({scope::trajectory, ratio_kind::geometric, 0.9, 1.1});
    CHECK(r.low_turn_share == 0.5);
    CHECK(r.low_token_share == doctest::Approx(4.0 / 7));
    CHECK(r.high_turn_share == 0.25);
    r = with({scope::trajectory, ratio_kind::geometric, 0.8, 1.1});
    CHECK(r.low_turn_share == 0);
    r = with({scope::trajectory, ratio_kind::product, 0.8, 3});
    CHECK(r.low_turn_share == 0.5);
    CHECK(r.high_turn_share == 0);
    // Whatever was rejected, and by whom: the shares are of ratio turns.
    r = record_of(batch, {.reasons = flags(4, reason::profiling),
                          .options = {.band = {scope::turn, ratio_kind::geometric, 0.9, 1.1}}});
    CHECK(r.low_turn_share == 0.25);
    r = record_of(batch, {.reasons = {0, reason::invalid, 0, 0},
                          .options = {.band = {scope::turn, ratio_kind::geometric, 0.9, 1.1}}});
    CHECK(r.high_turn_share == 0);
    CHECK(r.low_turn_share == doctest::Approx(1.0 / 3));
  }

  TEST_CASE("keep rate by length quartile") {
    auto const with_lengths = [](std::vector<std::size_t> const& lengths, flags const& reasons) {
      std::vector<sample_trajectory> trajectories;
      for (std::size_t const length : lengths)
        trajectories.push_back({.id = static_cast<std::int64_t>(trajectories.size()),
                                .turns = {{.log_ratio = std::vector<double>(length, 0.0)}}});
      return record_of(trajectories, {.reasons = reasons}).by_length;
    };
    auto const is = [](metrics::length_class const& q, std::int64_t shortest, std::int64_t longest, std::int64_t turns,
                       std::int64_t kept) {
      return q.shortest == shortest && q.longest == longest && q.count.turns == turns && q.count.kept == kept;
    };
    reason_flags const no = reason::ratio_low;

    auto q = with_lengths({8, 1, 7, 2, 6, 3, 5, 4}, {no, 0, no, 0, 0, 0, no, 0});
    CHECK(is(q[0], 1, 2, 2, 2));
    CHECK(is(q[1], 3, 4, 2, 2));
    CHECK(is(q[2], 5, 6, 2, 1));
    CHECK(is(q[3], 7, 8, 2, 0));

    // Turns of one length stay together.
    q = with_lengths({5, 5, 5, 5, 5, 9, 9, 9}, flags(8, 0));
    std::int64_t turns = 0;
    std::size_t classes = 0;
    for (auto const& of : q) {
      turns += of.count.turns;
      classes += of.count.turns > 0;
      if (of.count.turns > 0) CHECK(of.shortest == of.longest);
      if (of.longest == 5) CHECK(of.count.turns == 5);
      if (of.longest == 9) CHECK(of.count.turns == 3);
    }
    CHECK(turns == 8);
    CHECK(classes == 2);
    q = with_lengths({4, 4, 4, 4, 4}, {no, no, 0, 0, 0});
    CHECK(is(q[0], 4, 4, 5, 3));
    for (std::size_t i = 1; i < 4; ++i) CHECK(is(q[i], 0, 0, 0, 0));

    // Fewer than four turns: each is counted once, shorter ones in lower classes.
    for (std::size_t n = 1; n < 4; ++n) {
      std::vector<std::size_t> lengths;
      for (std::size_t k = 0; k < n; ++k) lengths.push_back(10 * (n - k));
      q = with_lengths(lengths, flags(n, 0));
      std::int64_t counted = 0;
      std::int64_t longest = 0;
      for (auto const& of : q) {
        counted += of.count.turns;
        if (of.count.turns == 0) continue;
        CHECK(of.shortest > longest);
        longest = of.longest;
      }
      CHECK(counted == static_cast<std::int64_t>(n));
      CHECK(longest == static_cast<std::int64_t>(10 * n));
    }

    // Invalid turns and turns without tokens are in no class; tokens that are not finite count as length.
    std::vector<sample_trajectory> const mixed{{.turns = {{.log_ratio = {0, nan_value, 0}},
                                                          {.log_ratio = {}},
                                                          {.log_ratio = {0, 0}, .valid = false},
                                                          {.log_ratio = {0, 0}, .mask = {0, 1}}}}};
    q = record_of(mixed).by_length;
    CHECK(q[0].shortest == 1);
    CHECK(q[0].longest == 1);
    CHECK(q[2].longest == 3);
    CHECK(q[0].count.turns + q[1].count.turns + q[2].count.turns + q[3].count.turns == 2);
  }

  TEST_CASE("MP-03: lengths are those of the tokens, not of what the loss keeps") {
    std::vector<sample_trajectory> const batch{{.id = 0, .turns = {{.log_ratio = std::vector<double>(4)}}},
                                               {.id = 1, .turns = {{.log_ratio = std::vector<double>(6)}}}};
    auto const r = record_of(batch, {.reasons = {0, reason::stale}});
    CHECK(r.by_length[0].shortest == 4);
    CHECK(r.by_length[0].count.kept == 1);
    CHECK(r.by_length[2].longest == 6);
    CHECK(r.by_length[2].count.kept == 0);
    CHECK(r.ratio_tokens == 10);
    CHECK(r.kept_tokens == 4);
  }

  TEST_CASE("kept by quality: correct, fast, the rest; outliers and profiles") {
    auto const turn = [](bool correct, double speedup, double generated = 1, double total = 2) {
      return sample_turn{.correct = correct, .speedup = speedup, .generated_us = generated, .total_us = total};
    };
    auto decoy = turn(true, 50, 0, 0);
    decoy.decoy = true;
    auto broken = turn(true, 50, 0, 0);
    broken.compiled = false;
    auto off = turn(true, 50, 0, 0);
    off.valid = false;
    std::vector<sample_trajectory> const batch{
        {.turns = {turn(true, 1), turn(true, 1.5), turn(true, 3), turn(true, 3.5, 0, 0), turn(true, nan_value),
                   turn(false, 9, 0, 0), decoy, broken, off}}};
    reason_flags const no = reason::ratio_high;
    auto const r = record_of(batch, {.reasons = {0, no, 0, no, 0, 0, no, 0, reason::invalid},
                                     .options = {.fast_speedup = 1, .speedup_cap = 3}});
    CHECK(r.correct.turns == 5);
    CHECK(r.correct.kept == 3);
    CHECK(r.incorrect.turns == 3);
    CHECK(r.incorrect.kept == 2);
    CHECK(r.fast.turns == 3);  // strictly faster than 1
    CHECK(r.fast.kept == 1);
    CHECK(r.fast.rate() == doctest::Approx(1.0 / 3));
    CHECK(r.speedup_outliers == 1);  // strictly above the cap
    CHECK(r.meaningless_profiles == 1);
    CHECK(!r.profiler_suspect);
    CHECK(record_of(batch, {.options = {.fast_speedup = 2}}).fast.turns == 2);
    CHECK(record_of(batch).speedup_outliers == 0);  // no cap

    auto const none = record_of(batch, {.evaluated = false});
    CHECK(none.correct.turns == 0);
    CHECK(none.incorrect.turns == 0);
    CHECK(none.correct.rate() == 0);
    CHECK(!none.profiler_suspect);
  }

  TEST_CASE("profiler_suspect: over half of the valid correct turns, not half") {
    auto const with = [](std::size_t meaningless, std::size_t meaningful) {
      sample_trajectory trajectory;
      for (std::size_t k = 0; k < meaningless + meaningful; ++k)
        trajectory.turns.push_back(
            {.correct = true, .speedup = 1, .generated_us = k < meaningless ? 3.0 : 1.0, .total_us = 2});
      // Neither wrong nor invalid turns count.
      for (int k = 0; k < 5; ++k) trajectory.turns.push_back({.correct = false});
      for (int k = 0; k < 5; ++k) trajectory.turns.push_back({.correct = true, .valid = false});
      return record_of({trajectory});
    };
    CHECK(!with(0, 0).profiler_suspect);
    CHECK(!with(0, 3).profiler_suspect);
    CHECK(!with(2, 2).profiler_suspect);
    CHECK(with(3, 2).profiler_suspect);
    CHECK(with(1, 0).profiler_suspect);
    CHECK(!with(1, 1).profiler_suspect);
    CHECK(with(3, 2).meaningless_profiles == 3);
  }

  TEST_CASE("low_keep: the kept share of valid turns is strictly below the threshold") {
    auto const with = [](std::size_t kept, std::size_t valid, double share) {
      sample_trajectory trajectory;
      flags reasons;
      for (std::size_t k = 0; k < valid + 2; ++k) {
        trajectory.turns.push_back({});
        reasons.push_back(k < kept ? 0 : k < valid ? reason::ratio_low : reason::unscored);
      }
      return record_of({trajectory}, {.reasons = reasons, .options = {.low_keep_share = share}});
    };
    CHECK(!with(1, 10, 0.1).low_keep);
    CHECK(with(1, 11, 0.1).low_keep);
    CHECK(with(4, 10, 0.5).low_keep);
    CHECK(!with(5, 10, 0.5).low_keep);
    CHECK(!with(5, 10, 0.5).nothing_kept);
    CHECK(!with(0, 10, 0).low_keep);
    CHECK(mismatch_options{}.low_keep_share == 0.1);
  }

  TEST_CASE("everything rejected: nothing_kept, rates 0, all finite") {
    auto const r = record_of(five_tokens, {.reasons = flags(3, reason::token_veto), .advantage = {1, 2, 3}});
    CHECK(r.nothing_kept);
    CHECK(r.low_keep);
    CHECK(r.valid.rate() == 0);
    CHECK(r.kept_tokens == 0);
    CHECK(r.kept_advantage_mean == 0);
    CHECK(r.negative_groups == 0);
    CHECK(r.rejected_to_one == 0);
    check_finite(r);
  }

  TEST_CASE("an empty batch, and batches without valid turns or tokens") {
    for (auto const& trajectories : {std::vector<sample_trajectory>{},
                                     {{.id = 1}},
                                     {{.turns = {{.log_ratio = {}}}}},
                                     {{.turns = {{.log_ratio = {nan_value}}}}},
                                     {{.turns = {{.log_ratio = {2}, .valid = false}}}}}) {
      auto const r = record_of(trajectories);
      check_finite(r);
      CHECK(r.nothing_kept);
      CHECK(r.ratio_tokens == 0);
      CHECK(r.kl == 0);
      CHECK(r.old_ppl == 1);
      CHECK(r.rollout_ppl == 1);
      CHECK(r.effective_sample_size == 1);
      CHECK(r.ratio_min == 1);
      CHECK(r.ratio_max == 1);
      CHECK(r.low_turn_share == 0);
      CHECK(r.high_token_share == 0);
    }
  }

  TEST_CASE("finite for any garbage") {
    std::vector<double> const values{0,     -0.0,  1e-300, -700,     700,       63.999,    -64,     65, 1e30,
                                     -1e30, 1e308, -1e308, infinity, -infinity, nan_value, 0x1p-24, 5};
    for (double const a : values)
      for (double const b : values)
        for (double const c : {0.0, -1e30, 1e30, nan_value}) {
          std::vector<sample_trajectory> const trajectories{
              {.id = 1,
               .turns = {{.log_ratio = {a}, .rollout_logprob = {c}},
                         {.log_ratio = {a, b},
                          .correct = true,
                          .speedup = a,
                          .generated_us = b,
                          .total_us = a,
                          .rollout_logprob = {c, c}}}},
              {.id = 2, .turns = {{.log_ratio = {b, b, a, b, b, b, b, b, a, b}}}}};
          outcome given{.advantage = {1, -1, 2}};
          if (std::isnan(c)) given.reasons = flags(3, reason::ratio_low);
          // Non-finite turns may also be let through (neutral): the sums must not hold their tokens.
          if (c == 0) given.reasons = flags(3, 0);
          for (auto const& r : {record_of<float>(trajectories, given), record_of<double>(trajectories, given)}) {
            check_finite(r);
            CHECK(r.ratio_max >= r.ratio_min);
          }
        }
  }

  TEST_CASE("finite for log-probs whose sum overflows") {
    for (double const huge : {-1e308, 1e308})
      for (std::size_t const tokens : {std::size_t{2}, std::size_t{40}}) {
        std::vector<double> const rollout(tokens, huge);
        sample_turn const turn{.log_ratio = std::vector<double>(tokens, 0.0), .rollout_logprob = rollout};
        check_finite(record_of({{.id = 1, .turns = {turn}}, {.id = 2, .turns = {turn}}}));
      }
  }

  TEST_CASE("RR-01, RR-13 huge log ratios saturate at +-64 and are counted") {
    auto const r = record_of({{.turns = {{.log_ratio = {500, -500, 0}}}}});
    CHECK(r.saturated_tokens == 2);
    CHECK(r.ratio_max == about(std::exp(64.0)));
    CHECK(r.ratio_min == about(std::exp(-64.0)));
    CHECK(r.kl == 0);
    CHECK(r.chi2_token == about(std::exp(128.0) / 3));
    CHECK(r.effective_sample_size == about(1.0 / 3));
    // The product ratio of a turn is clamped as well: 40 tokens of 5.
    auto const turn = record_of({{.turns = {{.log_ratio = std::vector<double>(40, 5.0)}}}});
    CHECK(turn.chi2_turn == about(std::exp(128.0)));
    CHECK(turn.chi2_token == about(std::exp(10.0) - 1));
    CHECK(turn.effective_sample_size == about(1));
  }

  TEST_CASE("one dominant token: the effective sample size is about 1 / n, and 1 where all ratios are equal") {
    std::vector<double> log_ratio(100, 0.0);
    log_ratio[17] = 20;
    CHECK(record_of({{.turns = {{.log_ratio = log_ratio}}}}).effective_sample_size ==
          doctest::Approx(0.01).epsilon(1e-3));
    for (double const shift : {-30.0, -1.0, 0.25, 30.0})
      CHECK(record_of({{.turns = {{.log_ratio = std::vector<double>(50, shift)}}}}).effective_sample_size ==
            doctest::Approx(1).epsilon(1e-6));
  }

  TEST_CASE("mean advantage of kept turns, groups left with negative advantages alone, groups rejected to one") {
    // Group 1 by turn 0: four turns; group 2: two; group 3: a lone member.
    auto const lone = [](std::int64_t group, std::int64_t id) {
      return sample_trajectory{.group = group, .id = id, .turns = {{}}};
    };
    std::vector<sample_trajectory> const batch{lone(1, 0), lone(1, 1), lone(1, 2), lone(1, 3),
                                               lone(2, 0), lone(2, 1), lone(3, 0)};
    reason_flags const no = reason::ratio_low;
    auto r = record_of(batch, {.reasons = {0, no, 0, 0, no, 0, 0}, .advantage = {-1, 6, -2, -0.5, 3, -4, 5}});
    CHECK(r.kept_advantage_mean == doctest::Approx((-1 - 2 - 0.5 - 4 + 5) / 5));
    CHECK(r.negative_groups == 2);
    CHECK(r.rejected_to_one == 1);  // group 2; group 3 was alone before
    // 0 is not negative, and an invalid turn makes no group of two.
    r = record_of(batch, {.reasons = {0, no, 0, 0, reason::unscored, 0, no}, .advantage = {-1, 6, 0, -0.5, 3, 4, -5}});
    CHECK(r.negative_groups == 0);
    CHECK(r.rejected_to_one == 0);
    // As many negative turns as kept ones, but one of them is rejected.
    r = record_of({lone(1, 0), lone(1, 1), lone(1, 2)}, {.reasons = {0, 0, no}, .advantage = {-1, 1, -1}});
    CHECK(r.negative_groups == 0);
    r = record_of(batch, {.reasons = {no, no, no, 0, no, no, no}, .advantage = {0, 0, 0, -1, 0, 0, 0}});
    CHECK(r.negative_groups == 1);
    CHECK(r.rejected_to_one == 1);
    // The grouping is the baseline's: over the whole batch there is one group.
    r = record_of(
        batch, {.reasons = {0, no, 0, 0, no, 0, 0}, .advantage = {-1, 6, -2, -0.5, 3, -4, 5}, .by = group_by::batch});
    CHECK(r.negative_groups == 0);
  }

  TEST_CASE("the same bits for any order of trajectories") {
    auto const trajectories = test::random_trajectories(21, 30, 5, 40);
    auto const advantage_of = [](sample_trajectory const& trajectory, std::size_t t) {
      return 0.1 * static_cast<double>(trajectory.id) - 0.3 * static_cast<double>(t);
    };
    auto const run = [&](std::vector<sample_trajectory> const& batch) {
      outcome given;
      for (auto const& trajectory : batch)
        for (std::size_t t = 0; t < trajectory.turns.size(); ++t)
          given.advantage.push_back(advantage_of(trajectory, t));
      return record_of<float>(batch, given);
    };
    auto const first = run(trajectories);
    test::integers random{8};
    for (int round = 0; round < 100; ++round) {
      std::vector<sample_trajectory> shuffled;
      for (std::size_t const j : test::random_order(trajectories.size(), random)) shuffled.push_back(trajectories[j]);
      auto const r = run(shuffled);
      CHECK(test::bits_of(numbers(r)) == test::bits_of(numbers(first)));
      CHECK(r.reasons == first.reasons);
      CHECK(r.negative_groups == first.negative_groups);
      CHECK(r.speedup_outliers == first.speedup_outliers);
    }
  }

  TEST_CASE("wrong sizes and bad bands throw") {
    sample_batch<> const batch{five_tokens};
    auto const groups = make_grouping(batch.view(), group_by::turn);
    std::vector<importance::turn_statistics> const statistics(3);
    std::vector<importance::ratio_moments> const moments(3);
    flags const reasons(3);
    std::vector<double> const advantage(3);
    auto const call = [&](grouping const& g, std::size_t n_statistics, std::size_t n_moments, std::size_t n_reasons,
                          std::size_t n_advantage, reward::evaluation<double> const& evaluation,
                          mismatch_options const& options) {
      return metrics::mismatch(batch.view(), g, std::span{statistics}.first(n_statistics),
                               std::span{moments}.first(n_moments), std::span{reasons}.first(n_reasons),
                               std::span{advantage}.first(n_advantage), evaluation, options);
    };
    CHECK_NOTHROW(static_cast<void>(call(groups, 3, 3, 3, 3, batch.evaluation(), {})));
    auto const throws = [&](auto... arguments) {
      CHECK_THROWS_AS(static_cast<void>(call(arguments...)), precondition_error);
    };
    auto const evaluation = batch.evaluation();
    mismatch_options const options;
    throws(grouping{}, 3u, 3u, 3u, 3u, evaluation, options);
    throws(groups, 2u, 3u, 3u, 3u, evaluation, options);
    throws(groups, 3u, 2u, 3u, 3u, evaluation, options);
    throws(groups, 3u, 3u, 2u, 3u, evaluation, options);
    throws(groups, 3u, 3u, 3u, 2u, evaluation, options);
    auto short_evaluation = evaluation;
    short_evaluation.speedup = short_evaluation.speedup.first(2);
    throws(groups, 3u, 3u, 3u, 3u, short_evaluation, options);
    throws(groups, 3u, 3u, 3u, 3u, evaluation, mismatch_options{.band = {.low = 2, .high = 1}});
    throws(groups, 3u, 3u, 3u, 3u, evaluation, mismatch_options{.band = {.low = nan_value}});
  }

}  // TEST_SUITE
