#include "support/batches.hpp"

#include <turnwise/recipe/kernel_zero.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace turnwise;
using recipe::kernel_zero_options;
using rejection::scope;
using test::bits_of;
using test::infinity;
using test::layout;
using test::nan_value;
using test::sample_batch;
using test::sample_trajectory;
using test::sample_turn;
using flags = std::vector<reason_flags>;

constexpr draw_key key{.seed = 3, .step = 4};

struct step_result {
  std::vector<double> reward, turn_return, advantage;
  flags reasons;
  std::vector<importance::turn_statistics> statistics;
  std::vector<float> token_advantage;
  std::vector<std::uint8_t> token_mask;
  metrics::mismatch_record metrics;

  step_result(std::size_t turns, std::size_t tokens)
      : reward(turns, -77),
        turn_return(turns, -77),
        advantage(turns, -77),
        reasons(turns, 0xabcdu),
        statistics(turns, {-7, -7, -7, -7, -7, -7}),
        token_advantage(tokens, -77),
        token_mask(tokens, 0xcd) {
    metrics.turns = -77;
  }
  [[nodiscard]] recipe::step_outputs outputs() {
    return {reward, turn_return, advantage, reasons, statistics, token_advantage, token_mask, &metrics};
  }
  [[nodiscard]] bool untouched() const {
    step_result const fresh(reward.size(), token_mask.size());
    return reward == fresh.reward && turn_return == fresh.turn_return && advantage == fresh.advantage &&
           reasons == fresh.reasons && statistics == fresh.statistics && token_advantage == fresh.token_advantage &&
           token_mask == fresh.token_mask && metrics.turns == -77;
  }
};

template <typename P>
recipe::step_inputs<P, P, double> inputs(sample_batch<P> const& batch) {
  return {batch.tokens(), batch.evaluation(), {}};
}

template <typename P = double>
step_result run(sample_batch<P> const& batch, kernel_zero_options const& options = {}) {
  step_result result(batch.turns(), batch.mask.size());
  recipe::kernel_zero(batch.view(), inputs(batch), options, key, result.outputs());
  return result;
}

template <typename P = double>
step_result run(std::vector<sample_trajectory> const& trajectories, kernel_zero_options const& options = {}) {
  return run(sample_batch<P>{trajectories}, options);
}

sample_turn correct(double speedup) { return {.log_ratio = {0}, .correct = true, .speedup = speedup}; }
sample_turn wrong() { return {.log_ratio = {0}}; }

/// One trajectory a turn, in one group.
std::vector<sample_trajectory> group_of(std::vector<sample_turn> const& turns, std::int64_t group = 1) {
  std::vector<sample_trajectory> result;
  for (auto const& turn : turns)
    result.push_back({.group = group, .id = static_cast<std::int64_t>(result.size()), .turns = {turn}});
  return result;
}

void check_close(std::vector<double> const& got, std::vector<double> const& want) {
  REQUIRE(got.size() == want.size());
  for (std::size_t s = 0; s < got.size(); ++s) {
    CAPTURE(s);
    CHECK(std::abs(got[s] - want[s]) < 1e-12);
  }
}

}  // namespace

TEST_SUITE("recipe/kernel_zero") {
  TEST_CASE("the defaults are the paper's: alpha 0.5, beta 0.1, group deviation, by prompt, no filters") {
    kernel_zero_options const options;
    CHECK(options.reward.alpha == 0.5);
    CHECK(options.reward.beta == 0.1);
    CHECK(options.reward.min_spread == 0);
    CHECK(options.groups == group_by::group);
    CHECK(options.advantage.scale);
    CHECK(options.advantage.ddof == 1);
    CHECK(options.advantage.epsilon == 1e-6);
    CHECK(!options.filters.ratio_band);
    CHECK(!options.filters.token_veto);
    CHECK(!options.filters.profiling_filter);
  }

  TEST_CASE_TEMPLATE("gate open: three of four correct", P, float, double) {
    auto const r = run<P>(group_of({correct(1), correct(3), correct(2), wrong()}));
    check_close(r.reward, {1, 1.1, 1.05, 0});
    CHECK(r.turn_return == r.reward);
    // Mean 3.15 / 4; squared distances 0.04515625 + 0.09765625 + 0.06890625 + 0.62015625 = 0.831875.
    double const deviation = std::sqrt(0.831875 / 3) + 1e-6;
    check_close(r.advantage, {0.2125 / deviation, 0.3125 / deviation, 0.2625 / deviation, -0.7875 / deviation});
    CHECK(r.reasons == flags(4, 0));
    CHECK(r.token_mask == std::vector<std::uint8_t>(4, 1));
    for (std::size_t s = 0; s < 4; ++s) CHECK(r.token_advantage[s] == static_cast<float>(r.advantage[s]));
    CHECK(r.metrics.valid.kept == 4);
  }

  TEST_CASE("gate closed: one of four correct pays no speed bonus") {
    auto const r = run(group_of({correct(9), wrong(), wrong(), wrong()}));
    CHECK(r.reward == std::vector<double>{1, 0, 0, 0});
    // Mean 1/4, deviation sqrt((9/16 + 3/16) / 3) = 1/2.
    check_close(r.advantage, {0.75 / 0.500001, -0.25 / 0.500001, -0.25 / 0.500001, -0.25 / 0.500001});
  }

  TEST_CASE("the gate is inclusive, and counts scored members only") {
    check_close(run(group_of({correct(2), correct(4), wrong(), wrong()})).reward, {1, 1.1, 0, 0});
    check_close(run(group_of({correct(2), correct(4), wrong(), wrong(), wrong()})).reward, {1, 1, 0, 0, 0});
    auto off = wrong();
    off.valid = false;
    check_close(run(group_of({correct(2), correct(4), wrong(), wrong(), off})).reward, {1, 1.1, 0, 0, 0});
    // A correct turn without a speedup is unscored: it neither opens nor closes the gate.
    auto const r = run(group_of({correct(2), correct(4), wrong(), wrong(), correct(nan_value)}));
    check_close({r.reward.begin(), r.reward.begin() + 4}, {1, 1.1, 0, 0});
    CHECK(std::isnan(r.reward[4]));
    CHECK(r.reasons == flags{0, 0, 0, 0, reason::unscored});
    CHECK(r.advantage[4] == 0);
    CHECK(r.turn_return[4] == 0);
    auto decoy = correct(100);
    decoy.decoy = true;
    check_close(run(group_of({correct(2), correct(4), decoy, wrong(), wrong()})).reward, {1, 1, 0, 0, 0});
  }

  TEST_CASE("speedups that hardly differ have no score") {
    check_close(run(group_of({correct(2), correct(2), correct(2)})).reward, {1, 1, 1});
    CHECK(run(group_of({correct(2), correct(2), correct(2)})).advantage == std::vector<double>{0, 0, 0});
    kernel_zero_options options;
    options.reward.min_spread = 0.5;
    check_close(run(group_of({correct(2), correct(2.5)}), options).reward, {1, 1});
    check_close(run(group_of({correct(2), correct(2.75)}), options).reward, {1, 1.1});
  }

  TEST_CASE("alpha, beta and the advantage's options are handed on") {
    kernel_zero_options options;
    options.reward = {.alpha = 0.75, .beta = 0.5};
    options.advantage.scale = false;
    auto r = run(group_of({correct(1), correct(2), correct(5), wrong()}), options);
    check_close(r.reward, {1, 1.125, 1.5, 0});
    double const mean = 3.625 / 4;
    check_close(r.advantage, {1 - mean, 1.125 - mean, 1.5 - mean, -mean});
    options.reward.alpha = 1;
    check_close(run(group_of({correct(1), correct(2), correct(5), wrong()}), options).reward, {1, 1, 1, 0});
  }

  TEST_CASE("a group is the prompt, or the prompt and turn where the caller says so") {
    // By prompt: 3 of 4 correct, open. By turn: turn 0 has one of two correct (open, no spread), turn 1 two of two.
    std::vector<sample_trajectory> const batch{{.group = 1, .id = 0, .turns = {wrong(), correct(4)}},
                                               {.group = 1, .id = 1, .turns = {correct(8), correct(2)}}};
    kernel_zero_options options;
    options.advantage.scale = false;
    auto const prompt = run(batch, options);
    double const third = 1 + 0.1 * (4.0 - 2) / (8 - 2);
    check_close(prompt.reward, {0, third, 1.1, 1});
    double const mean = (third + 2.1) / 4;
    check_close(prompt.advantage, {-mean, third - mean, 1.1 - mean, 1 - mean});

    options.groups = group_by::turn;
    auto const turn = run(batch, options);
    check_close(turn.reward, {0, 1.1, 1, 1});
    check_close(turn.advantage, {-0.5, 0.05, 0.5, -0.05});
    // Whatever the grouping, a turn's return is its own reward.
    CHECK(turn.turn_return == turn.reward);
    CHECK(prompt.turn_return == prompt.reward);
  }

  TEST_CASE("a lone member and an all-equal group get exactly 0") {
    CHECK(run(group_of({correct(3)})).advantage == std::vector<double>{0});
    CHECK(run(group_of({wrong(), wrong()})).advantage == std::vector<double>{0, 0});
  }

  TEST_CASE("no filters unless asked for; non-finite tokens are always judged") {
    auto far = correct(1);
    far.log_ratio = {-30, 5};
    auto broken = correct(2);
    broken.log_ratio = {nan_value};
    auto const batch = group_of({far, broken, wrong()});
    CHECK(run(batch).reasons == flags{0, reason::non_finite, 0});
    kernel_zero_options options;
    options.filters.ratio_band = {scope::turn, rejection::ratio_kind::geometric, 0.5, 2};
    options.filters.token_veto.emplace();
    options.filters.profiling_filter.emplace();
    options.filters.usable_tokens.non_finite = rejection::non_finite_policy::neutral;
    CHECK(run(batch, options).reasons == flags{reason::ratio_low | reason::token_veto | reason::invalid_profile,
                                               reason::no_token | reason::invalid_profile, 0});
  }

  TEST_CASE("unscored turns concern themselves alone; error throws") {
    std::vector<sample_trajectory> const batch{{.id = 0, .turns = {correct(1), correct(nan_value), wrong()}},
                                               {.id = 1, .turns = {wrong()}}};
    kernel_zero_options options;
    for (auto const policy : {advantage::unscored_policy::exclude, advantage::unscored_policy::zero}) {
      options.unscored = policy;
      auto const r = run(batch, options);
      CHECK(r.reasons == flags{0, reason::unscored, 0, 0});
      CHECK(r.advantage[1] == 0);
    }
    options.unscored = advantage::unscored_policy::error;
    CHECK_THROWS_AS(run(batch, options), precondition_error);
  }

  TEST_CASE("a given reward replaces the gate, and needs no evaluation without the profiling filter") {
    sample_batch<> const batch{group_of({correct(1), wrong(), wrong()})};
    std::vector<double> const given{5, 2, nan_value};
    auto in = inputs(batch);
    in.given_reward = given;
    kernel_zero_options options;
    options.advantage.scale = false;
    for (bool const evaluated : {true, false}) {
      if (!evaluated) in.evaluation = {};
      step_result r(3, 3);
      recipe::kernel_zero(batch.view(), in, options, key, r.outputs());
      CHECK(bits_of(r.reward) == bits_of(given));
      CHECK(r.advantage == std::vector<double>{1.5, -1.5, 0});
      CHECK(r.reasons == flags{0, 0, reason::unscored});
    }
    options.filters.profiling_filter.emplace();
    step_result r(3, 3);
    CHECK_THROWS_AS(recipe::kernel_zero(batch.view(), in, options, key, r.outputs()), precondition_error);
    CHECK(r.untouched());
  }

  TEST_CASE("an error in any part leaves every output unchanged") {
    sample_batch<> const batch{group_of({correct(1), correct(2), wrong()})};
    struct step {
      rollout_view view;
      recipe::step_inputs<double, double, double> inputs;
      kernel_zero_options options{};
    };
    std::vector<double> const infinite{infinity, 1, 1};
    std::vector<double> const two(2);
    std::vector<std::int64_t> const overlapping{0, 0, 2};
    std::vector<std::pair<std::string, std::function<void(step&)>>> const errors{
        {"alpha above 1", [&](step& s) { s.options.reward.alpha = 1.5; }},
        {"negative beta", [&](step& s) { s.options.reward.beta = -1; }},
        {"min_spread that is NaN", [&](step& s) { s.options.reward.min_spread = nan_value; }},
        {"ddof 2", [&](step& s) { s.options.advantage.ddof = 2; }},
        {"negative epsilon", [&](step& s) { s.options.advantage.epsilon = -1; }},
        {"an infinite speedup", [&](step& s) { s.inputs.evaluation.speedup = infinite; }},
        {"no evaluation", [&](step& s) { s.inputs.evaluation = {}; }},
        {"evaluation of a wrong size", [&](step& s) { s.inputs.evaluation.speedup = two; }},
        {"a given reward of a wrong size", [&](step& s) { s.inputs.given_reward = two; }},
        {"log-probs of a wrong size",
         [&](step& s) { s.inputs.tokens.old_logprob = s.inputs.tokens.old_logprob.first(2); }},
        {"a reversed band", [&](step& s) { s.options.filters.ratio_band = {.low = 2, .high = 1}; }},
        {"a negative threshold", [&](step& s) { s.options.filters.token_veto = {.threshold = -1}; }},
        {"an error of the profiling filter",
         [&](step& s) {
           s.options.filters.profiling_filter = {.invalid_profile = rejection::invalid_profile_policy::error};
         }},
        {"a bad band of the metrics", [&](step& s) { s.options.metrics.band.low = 2; }},
        {"turns that overlap, found by the last part", [&](step& s) { s.view.turn_begin = overlapping; }},
    };
    for (auto const& error : errors) {
      CAPTURE(error.first);
      step s{batch.view(), inputs(batch)};
      error.second(s);
      step_result r(3, 3);
      CHECK_THROWS_AS(recipe::kernel_zero(s.view, s.inputs, s.options, key, r.outputs()), precondition_error);
      CHECK(r.untouched());
    }
  }

  TEST_CASE("everything rejected, and an empty batch") {
    kernel_zero_options options;
    options.filters.ratio_band = {scope::turn, rejection::ratio_kind::product, 2, 3};
    for (auto const members : {advantage::baseline_members::valid, advantage::baseline_members::kept}) {
      options.advantage.members = members;
      auto const r = run(group_of({correct(1), correct(2), wrong()}), options);
      CHECK(r.reasons == flags(3, reason::ratio_low));
      CHECK(r.token_advantage == std::vector<float>(3, 0));
      CHECK(r.metrics.nothing_kept);
      for (double const value : r.advantage) CHECK(std::isfinite(value));
    }
    CHECK(run(std::vector<sample_trajectory>{}, options).metrics.nothing_kept);
  }

  TEST_CASE("the same bits for any order, layout, precision and thread count") {
    auto const trajectories = test::random_trajectories(41, 40, 6, 40);
    for (auto const by : {group_by::group, group_by::turn, group_by::batch}) {
      kernel_zero_options options;
      options.groups = by;
      options.reward.alpha = 0.4;
      options.filters.token_veto.emplace();
      sample_batch<float> const batch{trajectories};
      auto const whole = run(batch, options);
      auto const same = [&](step_result const& r) {
        CHECK(bits_of(r.reward) == bits_of(whole.reward));
        CHECK(bits_of(r.advantage) == bits_of(whole.advantage));
        CHECK(r.reasons == whole.reasons);
      };
      same(run<float>(sample_batch<float>{trajectories, layout::padded}, options));
      same(run<double>(sample_batch<double>{trajectories}, options));
      for (int const threads : {1, 2}) {
        auto with_threads = options;
        with_threads.threads = threads;
        same(run<float>(batch, with_threads));
      }
      test::integers random{6};
      for (int round = 0; round < 100; ++round) {
        auto const order = test::random_order(trajectories.size(), random);
        std::vector<sample_trajectory> shuffled;
        for (std::size_t const j : order) shuffled.push_back(trajectories[j]);
        auto const r = run<float>(sample_batch<float>{shuffled}, options);
        std::vector<double> advantage, reward;
        flags reasons;
        for (std::size_t const j : order)
          for (auto s = static_cast<std::size_t>(batch.trajectory_offsets[j]);
               s < static_cast<std::size_t>(batch.trajectory_offsets[j + 1]); ++s) {
            advantage.push_back(whole.advantage[s]);
            reward.push_back(whole.reward[s]);
            reasons.push_back(whole.reasons[s]);
          }
        CHECK(bits_of(r.advantage) == bits_of(advantage));
        CHECK(bits_of(r.reward) == bits_of(reward));
        CHECK(r.reasons == reasons);
      }
    }
  }

}  // TEST_SUITE
