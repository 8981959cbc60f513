#include "support/batches.hpp"

#include <turnwise/recipe/kevin.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace turnwise;
using advantage::return_kind;
using recipe::kevin_options;
using rejection::scope;
using test::bits_of;
using test::infinity;
using test::layout;
using test::nan_value;
using test::sample_batch;
using test::sample_trajectory;
using test::sample_turn;
using flags = std::vector<reason_flags>;
using numbers = std::vector<double>;

constexpr draw_key key{.seed = 3, .step = 4};

struct step_result {
  numbers reward, turn_return, advantage;
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
step_result run(sample_batch<P> const& batch, kevin_options const& options = {}) {
  step_result result(batch.turns(), batch.mask.size());
  recipe::kevin(batch.view(), inputs(batch), options, key, result.outputs());
  return result;
}

template <typename P = double>
step_result run(std::vector<sample_trajectory> const& trajectories, kevin_options const& options = {}) {
  return run(sample_batch<P>{trajectories}, options);
}

sample_turn correct(double speedup) { return {.log_ratio = {0}, .correct = true, .speedup = speedup}; }
sample_turn wrong() { return {.log_ratio = {0}}; }

/// Two trajectories of a prompt: wrong, then 1.7 (score 2), then 0.7 (score 1); and one turn of score 3.
std::vector<sample_trajectory> two_trajectories() {
  return {{.group = 1, .id = 0, .turns = {wrong(), correct(1.7), correct(0.7)}},
          {.group = 1, .id = 1, .turns = {correct(2.7)}}};
}

void check_close(numbers const& got, numbers const& want, double tolerance = 1e-12) {
  REQUIRE(got.size() == want.size());
  for (std::size_t s = 0; s < got.size(); ++s) {
    CAPTURE(s);
    CHECK(std::abs(got[s] - want[s]) < tolerance);
  }
}

}  // namespace

TEST_SUITE("recipe/kevin") {
  TEST_CASE("the defaults are the paper's: 0.3 and the speedup, gamma 0.4, by prompt, no filters") {
    kevin_options const options;
    CHECK(options.reward.correct_weight == 0.3);
    CHECK(options.reward.speedup_weight == 1);
    CHECK(options.reward.speedup_cap == infinity);
    CHECK(options.turn_return.kind == return_kind::discounted_sum);
    CHECK(options.turn_return.gamma == 0.4);
    CHECK(options.advantage.scale);
    CHECK(options.advantage.ddof == 1);
    CHECK(options.advantage.epsilon == 1e-6);
    CHECK(!options.filters.ratio_band);
    CHECK(!options.filters.token_veto);
    CHECK(!options.filters.profiling_filter);
  }

  TEST_CASE_TEMPLATE("hand numbers", P, float, double) {
    auto const r = run<P>(two_trajectories());
    check_close(r.reward, {0, 2, 1, 3});
    check_close(r.turn_return, {0.96, 2.4, 1, 3});  // 0.4 (2 + 0.4), 2 + 0.4
    // Mean 1.84; squares 0.7744 + 0.3136 + 0.7056 + 1.3456 = 3.1392.
    double const deviation = std::sqrt(3.1392 / 3) + 1e-6;
    check_close(r.advantage, {-0.88 / deviation, 0.56 / deviation, -0.84 / deviation, 1.16 / deviation});
    CHECK(r.reasons == flags(4, 0));
    CHECK(r.token_mask == std::vector<std::uint8_t>(4, 1));
    for (std::size_t s = 0; s < 4; ++s) CHECK(r.token_advantage[s] == static_cast<float>(r.advantage[s]));
    CHECK(r.metrics.valid.kept == 4);
  }

  TEST_CASE("the kind of return is an option") {
    kevin_options options;
    auto const of = [&](return_kind kind) {
      options.turn_return = {kind, advantage::uses_gamma(kind) ? 0.4 : 1.0};
      return run(two_trajectories(), options).turn_return;
    };
    check_close(of(return_kind::max), {0.8, 2, 1, 3});
    check_close(of(return_kind::last), {0.16, 0.4, 1, 3});
    check_close(of(return_kind::current), {0, 2, 1, 3});
    check_close(of(return_kind::best_so_far), {0, 2, 2, 3});
  }

  TEST_CASE("published: reward, return and advantage of the recorded batches") {
    for (std::string const name : {"kernel_rollouts_a", "kernel_rollouts_b", "stress"}) {
      CAPTURE(name);
      auto const batch = test::load_batch(name);
      auto const view = batch.turns.view();
      std::size_t const turns = view.turns();
      numbers reward(turns), turn_return(turns), advantage(turns);
      recipe::kevin(view, recipe::step_inputs<float, float, float>{batch.tokens(), batch.evaluation(), {}}, {}, key,
                    {.reward = reward, .turn_return = turn_return, .advantage = advantage});
      check_close(reward, batch.expected<double>("kevin_reward"), 1e-6);
      check_close(turn_return, batch.expected<double>("kevin_return"), 1e-6);
      // A lone valid turn of a prompt: published is its return over 1 + epsilon, ours 0.
      auto expected = batch.expected<double>("kevin_advantage");
      std::map<std::int64_t, std::vector<std::size_t>> valid;
      for (std::size_t j = 0; j < view.trajectories(); ++j)
        for (std::size_t s = view.first_turn(j); s < view.first_turn(j + 1); ++s)
          if (!view.flagged_off(s)) valid[view.group_id[j]].push_back(s);
      std::size_t lone = 0;
      for (auto const& [group, members] : valid) {
        if (members.size() != 1) continue;
        ++lone;
        CHECK(expected[members[0]] == doctest::Approx(turn_return[members[0]] / (1 + 1e-6)));
        CHECK(advantage[members[0]] == 0);
        expected[members[0]] = 0;
      }
      CHECK((lone > 0) == (name == "stress"));
      check_close(advantage, expected, 1e-6);
    }
  }

  TEST_CASE("weights, cap and the advantage's options are handed on") {
    kevin_options options;
    options.reward = {.correct_weight = 1, .speedup_weight = 2, .speedup_cap = 2, .failure_penalty = -1};
    options.turn_return.gamma = 0;
    options.advantage.scale = false;
    auto const r = run({{.group = 1, .id = 0, .turns = {wrong(), correct(9), correct(0.5)}}}, options);
    check_close(r.reward, {-1, 5, 2});
    check_close(r.advantage, {-3, 3, 0});
    CHECK(r.metrics.speedup_outliers == 1);  // the metrics know the cap
  }

  TEST_CASE("over all turns of the prompt, and of no other") {
    std::vector<sample_trajectory> batch = two_trajectories();
    auto const alone = run(batch).advantage;
    batch.push_back({.group = 2, .id = 0, .turns = {correct(100), wrong()}});
    auto const beside = run(batch).advantage;
    CHECK(numbers{beside.begin(), beside.begin() + 4} == alone);
  }

  TEST_CASE("a lone member and an all-equal prompt get exactly 0") {
    CHECK(run({{.turns = {correct(3)}}}).advantage == numbers{0});
    CHECK(run({{.id = 0, .turns = {correct(0.1)}}, {.id = 1, .turns = {correct(0.1)}}}).advantage == numbers{0, 0});
    CHECK(run({{.id = 0, .turns = {wrong(), wrong()}}}).advantage == numbers{0, 0});
  }

  TEST_CASE("filters only where asked for; no profile needed without the one that reads it") {
    auto far = correct(1);
    far.log_ratio = {-30, 5};
    auto broken = correct(2);
    broken.log_ratio = {nan_value};
    std::vector<sample_trajectory> const trajectories{{.id = 0, .turns = {far}}, {.id = 1, .turns = {broken, wrong()}}};
    CHECK(run(trajectories).reasons == flags{0, reason::non_finite, 0});
    kevin_options options;
    options.filters.ratio_band = {scope::turn, rejection::ratio_kind::geometric, 0.5, 2};
    options.filters.token_veto.emplace();
    options.filters.profiling_filter.emplace();
    CHECK(run(trajectories, options).reasons == flags{reason::ratio_low | reason::token_veto | reason::invalid_profile,
                                                      reason::non_finite | reason::invalid_profile, 0});
    sample_batch<> const batch{two_trajectories()};
    auto in = inputs(batch);
    in.evaluation.generated_us = in.evaluation.total_us = {};
    step_result r(4, 4);
    recipe::kevin(batch.view(), in, {}, key, r.outputs());
    CHECK(r.advantage == run(batch).advantage);
    options.filters.ratio_band.reset();
    CHECK_THROWS_AS(recipe::kevin(batch.view(), in, options, key, r.outputs()), precondition_error);
  }

  TEST_CASE("unscored turns: excluded with those before them, or counted as 0; error throws") {
    std::vector<sample_trajectory> const batch{{.id = 0, .turns = {correct(1), correct(nan_value), wrong()}},
                                               {.id = 1, .turns = {wrong()}}};
    kevin_options options;
    CHECK(run(batch, options).reasons == flags{reason::unscored_future, reason::unscored, 0, 0});
    options.turn_return.unscored = advantage::unscored_policy::zero;
    CHECK(run(batch, options).reasons == flags{0, reason::unscored, 0, 0});
    options.turn_return = {return_kind::current, 1.0, advantage::unscored_policy::exclude};
    CHECK(run(batch, options).reasons == flags{0, reason::unscored, 0, 0});
    options.turn_return.unscored = advantage::unscored_policy::error;
    CHECK_THROWS_AS(run(batch, options), precondition_error);
  }

  TEST_CASE("a given reward replaces the score, and needs no evaluation without the profiling filter") {
    sample_batch<> const batch{two_trajectories()};
    numbers const given{5, 2, nan_value, 1};
    auto in = inputs(batch);
    in.given_reward = given;
    kevin_options options;
    options.turn_return.gamma = 0;
    options.advantage.scale = false;
    for (bool const evaluated : {true, false}) {
      if (!evaluated) in.evaluation = {};
      step_result r(4, 4);
      recipe::kevin(batch.view(), in, options, key, r.outputs());
      CHECK(bits_of(r.reward) == bits_of(given));
      check_close(r.advantage, {5 - 8.0 / 3, 2 - 8.0 / 3, 0, 1 - 8.0 / 3});
      CHECK(r.reasons == flags{0, 0, reason::unscored, 0});
    }
  }

  TEST_CASE("an error in any part leaves every output unchanged") {
    sample_batch<> const batch{two_trajectories()};
    struct step {
      rollout_view view;
      recipe::step_inputs<double, double, double> inputs;
      kevin_options options{};
    };
    numbers const infinite{1, infinity, 1, 1}, two(2);
    std::vector<std::int64_t> const overlapping{0, 0, 2, 3};
    std::vector<std::pair<std::string, std::function<void(step&)>>> const errors{
        {"a weight that is not finite", [&](step& s) { s.options.reward.correct_weight = nan_value; }},
        {"a cap below the floor", [&](step& s) { s.options.reward.speedup_cap = -1; }},
        {"gamma", [&](step& s) { s.options.turn_return.gamma = 2; }},
        {"ddof 2", [&](step& s) { s.options.advantage.ddof = 2; }},
        {"an infinite speedup", [&](step& s) { s.inputs.evaluation.speedup = infinite; }},
        {"no evaluation", [&](step& s) { s.inputs.evaluation = {}; }},
        {"a given reward of a wrong size", [&](step& s) { s.inputs.given_reward = two; }},
        {"log-probs of a wrong size",
         [&](step& s) { s.inputs.tokens.old_logprob = s.inputs.tokens.old_logprob.first(2); }},
        {"a reversed band", [&](step& s) { s.options.filters.ratio_band = {.low = 2, .high = 1}; }},
        {"a bad band of the metrics", [&](step& s) { s.options.metrics.band.low = 2; }},
        {"turns that overlap, found by the last part", [&](step& s) { s.view.turn_begin = overlapping; }},
    };
    for (auto const& error : errors) {
      CAPTURE(error.first);
      step s{batch.view(), inputs(batch)};
      error.second(s);
      step_result r(4, 4);
      CHECK_THROWS_AS(recipe::kevin(s.view, s.inputs, s.options, key, r.outputs()), precondition_error);
      CHECK(r.untouched());
    }
  }

  TEST_CASE("everything rejected, and an empty batch") {
    kevin_options options;
    options.filters.ratio_band = {scope::turn, rejection::ratio_kind::product, 2, 3};
    auto const r = run(two_trajectories(), options);
    CHECK(r.reasons == flags(4, reason::ratio_low));
    CHECK(r.token_advantage == std::vector<float>(4, 0));
    CHECK(r.metrics.nothing_kept);
    CHECK(run(std::vector<sample_trajectory>{}, options).metrics.nothing_kept);
  }

  TEST_CASE("the same bits for any order, layout, precision and thread count") {
    auto const trajectories = test::random_trajectories(41, 40, 6, 40);
    for (auto const kind : {return_kind::discounted_sum, return_kind::max, return_kind::best_so_far}) {
      kevin_options options;
      options.turn_return = {kind, advantage::uses_gamma(kind) ? 0.4 : 1.0};
      options.filters.token_veto.emplace();
      sample_batch<float> const batch{trajectories};
      auto const whole = run(batch, options);
      auto const same = [&](step_result const& r) {
        CHECK(bits_of(r.reward) == bits_of(whole.reward));
        CHECK(bits_of(r.turn_return) == bits_of(whole.turn_return));
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
      for (int round = 0; round < 20; ++round) {
        auto const order = test::random_order(trajectories.size(), random);
        std::vector<sample_trajectory> shuffled;
        for (std::size_t const j : order) shuffled.push_back(trajectories[j]);
        auto const r = run<float>(sample_batch<float>{shuffled}, options);
        numbers advantage;
        flags reasons;
        for (std::size_t const j : order)
          for (auto s = static_cast<std::size_t>(batch.trajectory_offsets[j]);
               s < static_cast<std::size_t>(batch.trajectory_offsets[j + 1]); ++s) {
            advantage.push_back(whole.advantage[s]);
            reasons.push_back(whole.reasons[s]);
          }
        CHECK(bits_of(r.advantage) == bits_of(advantage));
        CHECK(r.reasons == reasons);
      }
    }
  }

}  // TEST_SUITE
