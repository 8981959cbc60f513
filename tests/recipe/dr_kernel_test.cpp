#include "support/batches.hpp"

#include <turnwise/recipe/dr_kernel.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace turnwise;
using recipe::dr_kernel_options;
using recipe::step_outputs;
using rejection::scope;
using test::bits_of;
using test::infinity;
using test::layout;
using test::nan_value;
using test::sample_batch;
using test::sample_trajectory;
using test::sample_turn;
using flags = std::vector<reason_flags>;

template <typename P>
using inputs_of = recipe::step_inputs<P, P, double>;

constexpr draw_key key{.seed = 3, .step = 4};

/// Everything a step can write, filled with values that no step writes.
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
    metrics.kl = -77;
  }
  [[nodiscard]] step_outputs outputs() {
    return {reward, turn_return, advantage, reasons, statistics, token_advantage, token_mask, &metrics};
  }
  [[nodiscard]] bool untouched() const {
    step_result const fresh(reward.size(), token_mask.size());
    return reward == fresh.reward && turn_return == fresh.turn_return && advantage == fresh.advantage &&
           reasons == fresh.reasons && statistics == fresh.statistics && token_advantage == fresh.token_advantage &&
           token_mask == fresh.token_mask && metrics.turns == -77 && metrics.kl == -77 && metrics.valid.turns == 0 &&
           !metrics.nothing_kept;
  }
};

template <typename P>
inputs_of<P> inputs(sample_batch<P> const& batch) {
  return {batch.tokens(), batch.evaluation(), {}};
}

template <typename P>
step_result run(sample_batch<P> const& batch, dr_kernel_options const& options) {
  step_result result(batch.turns(), batch.mask.size());
  recipe::dr_kernel(batch.view(), inputs(batch), options, key, result.outputs());
  return result;
}

/// Group 7: trajectories 0 (2 turns) and 1 (3 turns); group 9: trajectory 5 alone. Every number is exact in binary.
std::vector<sample_trajectory> by_hand() {
  auto const correct = [](double speedup, double generated, double total, std::vector<double> log_ratio) {
    return sample_turn{.log_ratio = std::move(log_ratio),
                       .correct = true,
                       .speedup = speedup,
                       .generated_us = generated,
                       .total_us = total};
  };
  auto decoy = correct(40, 8, 8, {0, 0});
  decoy.decoy = true;
  return {{.group = 7, .id = 0, .turns = {correct(2, 4, 8, {0, 0}), {.log_ratio = {0.0625}}}},
          {.group = 7, .id = 1, .turns = {correct(4, 8, 8, {0}), decoy, correct(1, 2, 8, {-10, 10})}},
          {.group = 9, .id = 5, .turns = {correct(50, 0, 8, {0, 0, 0})}}};
}

/// Turn results of a batch in the order of its trajectories, for comparing batches that order them differently.
struct turn_bits {
  std::vector<std::uint64_t> reward, turn_return, advantage;
  flags reasons;
  std::vector<importance::turn_statistics> statistics;
  friend bool operator==(turn_bits const&, turn_bits const&) = default;
};

turn_bits bits(step_result const& r) {
  return {bits_of(r.reward), bits_of(r.turn_return), bits_of(r.advantage), r.reasons, r.statistics};
}

/// Picks the turns of trajectories in an order.
turn_bits picked(turn_bits const& all, std::vector<std::int64_t> const& offsets,
                 std::vector<std::size_t> const& order) {
  turn_bits result;
  for (std::size_t const j : order)
    for (auto s = static_cast<std::size_t>(offsets[j]); s < static_cast<std::size_t>(offsets[j + 1]); ++s) {
      result.reward.push_back(all.reward[s]);
      result.turn_return.push_back(all.turn_return[s]);
      result.advantage.push_back(all.advantage[s]);
      result.reasons.push_back(all.reasons[s]);
      result.statistics.push_back(all.statistics[s]);
    }
  return result;
}

std::vector<std::pair<std::string, dr_kernel_options>> variants() {
  std::vector<std::pair<std::string, dr_kernel_options>> result{{"paper", dr_kernel_options::paper()},
                                                                {"released", dr_kernel_options::released()}};
  auto wide = dr_kernel_options::paper();
  wide.filters.ratio_band = {scope::turn, rejection::ratio_kind::product, 0.8, 1.25};
  wide.filters.profiling_filter->softness = 0.6;
  wide.turn_return = {.gamma = 0.7, .unscored = advantage::unscored_policy::zero};
  wide.advantage = {.singleton = advantage::singleton_policy::others, .members = advantage::baseline_members::kept};
  wide.filters.usable_tokens = {rejection::non_finite_policy::neutral, scope::trajectory};
  result.emplace_back("kept, others, gamma 0.7", wide);
  wide.advantage.exclude = advantage::exclude_policy::member;
  wide.filters.usable_tokens = {rejection::non_finite_policy::reject, scope::trajectory};
  result.emplace_back("member, non-finite of the trajectory", wide);
  return result;
}

}  // namespace

TEST_SUITE("recipe/dr_kernel") {
  TEST_CASE("the presets hold the published numbers") {
    auto const paper = dr_kernel_options::paper();
    CHECK(paper.reward.correct_weight == 1);
    CHECK(paper.reward.speedup_weight == 1);
    CHECK(paper.reward.profiling_weight == 1);
    CHECK(paper.reward.speedup_cap == infinity);
    CHECK(paper.reward.speedup_floor == 0);
    CHECK(paper.reward.incorrect_penalty == 0);
    CHECK(paper.turn_return.gamma == 1);
    CHECK(paper.turn_return.unscored == advantage::unscored_policy::exclude);
    CHECK(paper.advantage.singleton == advantage::singleton_policy::keep);
    CHECK(paper.advantage.exclude == advantage::exclude_policy::trajectory);
    CHECK(paper.advantage.members == advantage::baseline_members::valid);
    CHECK(paper.filters.usable_tokens.non_finite == rejection::non_finite_policy::reject);
    CHECK(paper.filters.usable_tokens.non_finite_scope == scope::turn);
    REQUIRE(paper.filters.ratio_band.has_value());
    CHECK(paper.filters.ratio_band->level == scope::trajectory);
    CHECK(paper.filters.ratio_band->kind == rejection::ratio_kind::geometric);
    CHECK(paper.filters.ratio_band->low == 0.999);
    CHECK(paper.filters.ratio_band->high == 1.001);
    REQUIRE(paper.filters.token_veto.has_value());
    CHECK(paper.filters.token_veto->threshold == 1e-4);
    CHECK(paper.filters.token_veto->veto_scope == scope::trajectory);
    REQUIRE(paper.filters.profiling_filter.has_value());
    CHECK(paper.filters.profiling_filter->threshold == 0.3);
    CHECK(paper.filters.profiling_filter->softness == 0.1);
    CHECK(!paper.filters.profiling_filter->all_turns);
    CHECK(paper.filters.profiling_filter->invalid_profile == rejection::invalid_profile_policy::reject);

    auto const released = dr_kernel_options::released();
    CHECK(released.reward.correct_weight == 0.5);
    CHECK(released.reward.speedup_weight == 0.5);
    CHECK(released.reward.profiling_weight == 0.5);
    CHECK(released.reward.speedup_cap == 3);
    CHECK(released.turn_return.gamma == 1);
    CHECK(released.filters.token_veto->threshold == 1e-4);
    CHECK(released.filters.token_veto->veto_scope == scope::turn);
    CHECK(released.filters.ratio_band->level == scope::trajectory);
    CHECK(released.filters.profiling_filter->threshold == 0.3);
    CHECK(!dr_kernel_options{}.filters.ratio_band.has_value());
    CHECK(!dr_kernel_options{}.filters.profiling_filter.has_value());
  }

  TEST_CASE_TEMPLATE("preset paper by hand", P, float, double) {
    auto const r = run(sample_batch<P>{by_hand()}, dr_kernel_options::paper());
    CHECK(r.reward == std::vector<double>{3.5, 0, 6, 0, 2.25, 51});
    CHECK(r.turn_return == std::vector<double>{3.5, 0, 8.25, 2.25, 2.25, 51});
    CHECK(r.advantage == std::vector<double>{-4.75, -2.25, 4.75, 2.25, 2.25, 51});
    reason_flags const high = reason::ratio_high;
    reason_flags const veto = reason::token_veto;
    CHECK(r.reasons == flags{high, high, veto, veto, veto | reason::profiling, reason::profiling});
    CHECK(r.token_mask == std::vector<std::uint8_t>(11, 0));
    CHECK(r.token_advantage == std::vector<float>(11, 0));
    CHECK(r.statistics[4].min == -10);
    CHECK(r.statistics[4].count == 2);
    CHECK(r.metrics.nothing_kept);
  }

  TEST_CASE_TEMPLATE("preset released by hand", P, float, double) {
    auto const r = run(sample_batch<P>{by_hand()}, dr_kernel_options::released());
    CHECK(r.reward == std::vector<double>{1.75, 0, 2.5, 0, 1.125, 2});
    CHECK(r.turn_return == std::vector<double>{1.75, 0, 3.625, 1.125, 1.125, 2});
    CHECK(r.advantage == std::vector<double>{-1.875, -1.125, 1.875, 1.125, 1.125, 2});
    reason_flags const high = reason::ratio_high;
    CHECK(r.reasons == flags{high, high, 0, 0, reason::token_veto | reason::profiling, reason::profiling});
    // Tokens: two and one of trajectory 0; one, two and two of trajectory 1; three of trajectory 5.
    CHECK(r.token_mask == std::vector<std::uint8_t>{0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0});
    CHECK(r.token_advantage == std::vector<float>{0, 0, 0, 1.875, 1.125, 1.125, 0, 0, 0, 0, 0});
    CHECK(r.metrics.turns == 6);
    CHECK(r.metrics.valid.turns == 6);
    CHECK(r.metrics.valid.kept == 2);
    CHECK(r.metrics.kept_tokens == 3);
    CHECK(r.metrics.kept_advantage_mean == 1.5);
    CHECK(r.metrics.speedup_outliers == 2);  // speedups 4 and 50 above the cap of 3
    CHECK(r.metrics.correct.turns == 4);
    CHECK(r.metrics.high_turn_share == doctest::Approx(2.0 / 6));
    CHECK(r.metrics.rejected_to_one == 2);
    CHECK(!r.metrics.low_keep);
  }

  TEST_CASE("speedup floor and cap by hand: below the floor 0, above the cap the cap, at either the speedup itself") {
    auto options = dr_kernel_options::paper();
    options.reward.speedup_floor = 2;
    options.reward.speedup_cap = 4;
    auto r = run(sample_batch<>{by_hand()}, options);  // speedups 2, 4, 1 and 50
    CHECK(r.reward == std::vector<double>{3.5, 0, 6, 0, 1.25, 5});
    CHECK(r.metrics.speedup_outliers == 1);
    options.reward.speedup_floor = 2.5;
    options.reward.speedup_cap = 3.5;
    r = run(sample_batch<>{by_hand()}, options);
    CHECK(r.reward == std::vector<double>{1.5, 0, 5.5, 0, 1.25, 4.5});
    CHECK(r.metrics.speedup_outliers == 2);
    CHECK((r.reasons[5] & ~reason::profiling) == 0);
  }

  TEST_CASE("the metrics take the band of the filter, else their own") {
    sample_batch<> const batch{by_hand()};
    auto options = dr_kernel_options::released();
    options.metrics.band = {.low = 0.5, .high = 2};
    CHECK(run(batch, options).metrics.high_turn_share == doctest::Approx(2.0 / 6));
    options.filters.ratio_band.reset();
    CHECK(run(batch, options).metrics.high_turn_share == 0);
    options.metrics.band = {.low = 0.999, .high = 1.001};
    CHECK(run(batch, options).metrics.high_turn_share == doctest::Approx(2.0 / 6));
  }

  TEST_CASE("edge cases in one batch: flagged off, unscored, no token, non-finite") {
    auto const good = [](double speedup) {
      return sample_turn{.log_ratio = {0}, .correct = true, .speedup = speedup, .generated_us = 8, .total_us = 8};
    };
    auto off = good(nan_value);
    off.valid = false;
    auto empty = good(1);
    empty.log_ratio = {};
    auto broken = good(2);
    broken.log_ratio = {nan_value};
    // Trajectory 0: a missing speedup in the second turn makes the first one invalid. Trajectory 1: flagged off in the
    // middle. Trajectory 2: no token, then a NaN log-prob.
    std::vector<sample_trajectory> const trajectories{{.id = 0, .turns = {good(1), good(nan_value), good(4)}},
                                                      {.id = 1, .turns = {good(2), off, good(6)}},
                                                      {.id = 2, .turns = {empty, broken}}};
    sample_batch<> const batch{trajectories};
    auto const r = run(batch, dr_kernel_options::paper());
    CHECK(r.reasons == flags{reason::unscored_future, reason::unscored, 0, 0, reason::invalid, 0, reason::no_token,
                             reason::non_finite});
    CHECK(r.reward[0] == 3);
    CHECK(std::isnan(r.reward[1]));
    CHECK(std::isnan(r.reward[4]));
    CHECK(r.turn_return == std::vector<double>{9, 6, 6, 12, 8, 8, 7, 4});
    // First turns: trajectories 1 and 2 alone are valid; second: trajectory 2 alone; third: 0 and 1.
    CHECK(r.advantage == std::vector<double>{0, 0, -2, 5, 0, 2, -5, 4});
    CHECK(r.token_mask == std::vector<std::uint8_t>{0, 0, 1, 1, 0, 1, 0});

    auto options = dr_kernel_options::paper();
    options.turn_return.unscored = advantage::unscored_policy::zero;
    auto const zero = run(batch, options);
    CHECK(zero.reasons[0] == 0);
    CHECK(zero.reasons[1] == reason::unscored);
    CHECK(zero.advantage[0] == 9 - (12 + 7) / 2.0);

    options.turn_return.gamma = 0;
    options.turn_return.unscored = advantage::unscored_policy::exclude;
    auto const own = run(batch, options);
    CHECK(own.reasons[0] == 0);
    CHECK(own.turn_return == std::vector<double>{3, 0, 6, 4, 0, 8, 3, 4});
  }

  TEST_CASE("outputs are optional, each gives the same alone") {
    sample_batch<> const batch{test::random_trajectories(2, 12, 4, 20)};
    auto const options = dr_kernel_options::released();
    auto const all = run(batch, options);
    auto const only = [&](auto pick) {
      step_result part(batch.turns(), batch.mask.size());
      step_outputs const some = pick(part.outputs());
      recipe::dr_kernel(batch.view(), inputs(batch), options, key, some);
      return part;
    };
    auto r = only([](step_outputs const& o) { return step_outputs{.reward = o.reward}; });
    CHECK(bits_of(r.reward) == bits_of(all.reward));
    CHECK(r.turn_return[0] == -77);
    CHECK(r.metrics.turns == -77);
    r = only([](step_outputs const& o) { return step_outputs{.turn_return = o.turn_return}; });
    CHECK(r.turn_return == all.turn_return);
    CHECK(r.advantage[0] == -77);
    r = only([](step_outputs const& o) { return step_outputs{.advantage = o.advantage}; });
    CHECK(r.advantage == all.advantage);
    CHECK(r.reasons[0] == 0xabcdu);
    r = only([](step_outputs const& o) { return step_outputs{.reasons = o.reasons}; });
    CHECK(r.reasons == all.reasons);
    r = only([](step_outputs const& o) { return step_outputs{.statistics = o.statistics}; });
    CHECK(r.statistics == all.statistics);
    r = only([](step_outputs const& o) { return step_outputs{.token_advantage = o.token_advantage}; });
    CHECK(r.token_advantage == all.token_advantage);
    CHECK(r.token_mask[0] == 0xcd);
    r = only([](step_outputs const& o) { return step_outputs{.token_mask = o.token_mask}; });
    CHECK(r.token_mask == all.token_mask);
    CHECK(r.token_advantage[0] == -77);
    r = only([](step_outputs const& o) { return step_outputs{.metrics = o.metrics}; });
    CHECK(r.metrics.kl == all.metrics.kl);
    CHECK(r.metrics.valid.kept == all.metrics.valid.kept);
    CHECK(only([](step_outputs const&) { return step_outputs{}; }).untouched());
  }

  TEST_CASE("a given reward replaces the kernel reward, and needs no evaluation when the profiling filter is off") {
    sample_batch<> const batch{by_hand()};
    std::vector<double> const given{1, 2, 3, nan_value, 5, -6};
    auto options = dr_kernel_options::paper();
    options.filters = {};
    auto with_reward = inputs(batch);
    with_reward.given_reward = given;
    for (bool const evaluated : {true, false}) {
      if (!evaluated) with_reward.evaluation = {};
      step_result r(6, 11);
      recipe::dr_kernel(batch.view(), with_reward, options, key, r.outputs());
      CHECK(bits_of(r.reward) == bits_of(given));
      CHECK(r.turn_return == std::vector<double>{3, 2, 8, 5, 5, -6});
      CHECK(r.reasons == flags{0, 0, reason::unscored_future, reason::unscored, 0, 0});
      CHECK(r.advantage == std::vector<double>{3, 2, 0, 0, 5, -6});
      CHECK(r.metrics.correct.turns == (evaluated ? 3 : 0));
    }

    options.filters.profiling_filter.emplace();
    step_result r(6, 11);
    CHECK_THROWS_AS(recipe::dr_kernel(batch.view(), with_reward, options, key, r.outputs()), precondition_error);
    CHECK(r.untouched());
  }

  TEST_CASE("an error in any part leaves every output unchanged") {
    sample_batch<> const batch{by_hand()};
    struct step {
      rollout_view view;
      inputs_of<double> inputs;
      dr_kernel_options options = dr_kernel_options::paper();
      std::function<void(step_outputs&)> outputs = [](step_outputs&) {};
    };
    std::vector<double> const five(5);
    std::vector<double> const one_infinite{1, 1, 1, 1, infinity, 1};
    std::vector<double> const one_missing{1, 1, 1, 1, nan_value, 1};
    std::vector<double> const speedup_infinite{infinity, 1, 1, 1, 1, 1};
    std::vector<double> const no_profile{9, 8, 8, 8, 8, 8};
    std::vector<double> const old_with_nan{0, 0, 0, nan_value, 0, 0, 0, 0, 0, 0, 0};
    std::vector<std::int64_t> const overlapping{0, 1, 3, 4, 6, 8};
    std::vector<std::int64_t> const beyond{2, 3, 4, 6, 8, 12};
    std::vector<std::int64_t> const reversed{2, 3, 4, 3, 8, 11};
    std::vector<std::int64_t> const ids{0, 1, std::int64_t{1} << 32};
    std::vector<std::int64_t> const twice{0, 0, 0};
    std::vector<std::int64_t> const indices{0, 1, 0, 2, 1, 0};
    std::vector<std::int64_t> const offsets{0, 2, 1, 6};
    std::vector<std::uint8_t> const long_mask(12, 1);

    std::vector<std::pair<std::string, std::function<void(step&)>>> const errors{
        {"reward of a wrong size", [&](step& s) { s.outputs = [](auto& o) { o.reward = o.reward.first(5); }; }},
        {"turn_return of a wrong size",
         [&](step& s) { s.outputs = [](auto& o) { o.turn_return = o.turn_return.first(5); }; }},
        {"advantage of a wrong size",
         [&](step& s) { s.outputs = [](auto& o) { o.advantage = o.advantage.first(5); }; }},
        {"reasons of a wrong size", [&](step& s) { s.outputs = [](auto& o) { o.reasons = o.reasons.first(5); }; }},
        {"statistics of a wrong size",
         [&](step& s) { s.outputs = [](auto& o) { o.statistics = o.statistics.first(5); }; }},
        {"token_advantage of a wrong size",
         [&](step& s) { s.outputs = [](auto& o) { o.token_advantage = o.token_advantage.first(10); }; }},
        {"token_mask of a wrong size",
         [&](step& s) { s.outputs = [](auto& o) { o.token_mask = o.token_mask.first(10); }; }},
        {"offsets that decrease", [&](step& s) { s.view.trajectory_offsets = offsets; }},
        {"group_id of a wrong size", [&](step& s) { s.view.group_id = s.view.group_id.first(2); }},
        {"trajectory_id twice in a group", [&](step& s) { s.view.trajectory_id = twice; }},
        {"turn indices that do not increase", [&](step& s) { s.view.turn_index = indices; }},
        {"turn_valid of a wrong size", [&](step& s) { s.view.turn_valid = s.view.turn_valid.first(3); }},
        {"turn_begin of a wrong size", [&](step& s) { s.view.turn_begin = s.view.turn_begin.first(3); }},
        {"a turn beyond the tokens", [&](step& s) { s.view.turn_end = beyond; }},
        {"a turn that ends before it begins", [&](step& s) { s.view.turn_end = reversed; }},
        {"turns that overlap, found by the last part", [&](step& s) { s.view.turn_begin = overlapping; }},
        {"evaluation of a wrong size", [&](step& s) { s.inputs.evaluation.speedup = five; }},
        {"no evaluation", [&](step& s) { s.inputs.evaluation = {}; }},
        {"an infinite speedup", [&](step& s) { s.inputs.evaluation.speedup = speedup_infinite; }},
        {"a given reward of a wrong size", [&](step& s) { s.inputs.given_reward = five; }},
        {"an infinite given reward", [&](step& s) { s.inputs.given_reward = one_infinite; }},
        {"a missing reward under error",
         [&](step& s) {
           s.inputs.given_reward = one_missing;
           s.options.turn_return.unscored = advantage::unscored_policy::error;
         }},
        {"gamma above 1", [&](step& s) { s.options.turn_return.gamma = 1.5; }},
        {"a weight that is NaN", [&](step& s) { s.options.reward.speedup_weight = nan_value; }},
        {"a cap below the floor", [&](step& s) { s.options.reward = {.speedup_cap = 1, .speedup_floor = 2}; }},
        {"rollout_logprob of a wrong size",
         [&](step& s) { s.inputs.tokens.rollout_logprob = s.inputs.tokens.rollout_logprob.first(10); }},
        {"mask of a wrong size", [&](step& s) { s.inputs.tokens.mask = long_mask; }},
        {"a non-finite token under error",
         [&](step& s) {
           s.inputs.tokens.old_logprob = old_with_nan;
           s.options.filters.usable_tokens.non_finite = rejection::non_finite_policy::error;
         }},
        {"a reversed band", [&](step& s) { s.options.filters.ratio_band->low = 2; }},
        {"a veto threshold that is NaN", [&](step& s) { s.options.filters.token_veto->threshold = nan_value; }},
        {"a negative softness", [&](step& s) { s.options.filters.profiling_filter->softness = -1; }},
        {"a profile without meaning under error",
         [&](step& s) {
           s.inputs.evaluation.generated_us = no_profile;
           s.options.filters.profiling_filter->invalid_profile = rejection::invalid_profile_policy::error;
         }},
        {"a trajectory id that no draw can take", [&](step& s) { s.view.trajectory_id = ids; }},
        {"kept members with lone ones kept",
         [&](step& s) { s.options.advantage.members = advantage::baseline_members::kept; }},
        {"a bad band of the metrics",
         [&](step& s) {
           s.options.filters.ratio_band.reset();
           s.options.metrics.band.low = 2;
         }},
    };
    for (auto const& error : errors) {
      CAPTURE(error.first);
      step s{batch.view(), inputs(batch)};
      step_result r(6, 11);
      error.second(s);
      auto out = r.outputs();
      s.outputs(out);
      CHECK_THROWS_AS(recipe::dr_kernel(s.view, s.inputs, s.options, key, out), precondition_error);
      CHECK(r.untouched());
    }
    step_result r(6, 11);
    CHECK_NOTHROW(recipe::dr_kernel(batch.view(), inputs(batch), dr_kernel_options::paper(), key, r.outputs()));
    CHECK(!r.untouched());
  }

  TEST_CASE("MP-04: sizes that differ are an error that names both") {
    sample_batch<> batch{std::vector<sample_trajectory>{{.turns = {{.log_ratio = {0, 0, 0, 0}}}}}};
    batch.mask.resize(5, 1);
    step_result r(1, 4);
    std::string message;
    try {
      recipe::dr_kernel(batch.view(), inputs(batch), {}, key, r.outputs());
    } catch (precondition_error const& error) {
      message = error.what();
    }
    CHECK(message.find("mask has 5 elements, expected 4") != std::string::npos);
    CHECK(r.untouched());
  }

  TEST_CASE("MP-02: tokens of the environment enter neither statistics nor loss") {
    std::vector<sample_trajectory> const trajectories{
        {.id = 0, .turns = {{.log_ratio = {1, 10, 2, 20, 3}, .mask = {1, 0, 1, 0, 1}, .correct = true}}},
        {.id = 1, .turns = {{.log_ratio = {0}}}}};
    sample_batch<> const batch{trajectories};
    auto const r = run(batch, {});
    CHECK(r.statistics[0].count == 3);
    CHECK(r.statistics[0].log_mean() == 2);
    CHECK(r.statistics[0].max == 3);
    CHECK(r.token_mask == std::vector<std::uint8_t>{1, 0, 1, 0, 1, 1});
    CHECK(r.token_advantage == std::vector<float>{1, 0, 1, 0, 1, -1});
  }

  TEST_CASE("MP-05: only generated tokens are trained, not earlier messages of the assistant") {
    sample_batch<> batch{std::vector<sample_trajectory>{{.turns = {{.log_ratio = {0, 0, 0}}}}}};
    // Messages of 3, 2, 1 and 3 tokens; the last one is the turn, the others lie in no turn.
    batch.turn_begin = {6};
    batch.turn_end = {9};
    batch.old_logprob = batch.rollout_logprob = {nan_value, nan_value, nan_value, 5, 5, 5, -1, -1, -1};
    batch.mask.clear();
    step_result r(1, 9);
    recipe::dr_kernel(batch.view(), inputs(batch), {}, key, r.outputs());
    CHECK(r.token_mask == std::vector<std::uint8_t>{0, 0, 0, 0, 0, 0, 1, 1, 1});
    CHECK(r.statistics[0].count == 3);
  }

  TEST_CASE("everything rejected: no exception, nothing kept, all token outputs 0") {
    auto options = dr_kernel_options::paper();
    options.filters.ratio_band = {scope::turn, rejection::ratio_kind::geometric, 100, 200};
    options.advantage = {.singleton = advantage::singleton_policy::zero, .members = advantage::baseline_members::kept};
    auto const r = run(sample_batch<>{by_hand()}, options);
    for (reason_flags const reasons : r.reasons) CHECK((reasons & reason::ratio_low) != 0);
    CHECK(r.token_mask == std::vector<std::uint8_t>(11, 0));
    CHECK(r.token_advantage == std::vector<float>(11, 0));
    for (double const value : r.advantage) CHECK(std::isfinite(value));
    CHECK(r.metrics.nothing_kept);
    CHECK(r.metrics.low_keep);
    CHECK(r.metrics.kept_advantage_mean == 0);
  }

  TEST_CASE("an empty batch, and trajectories without turns") {
    sample_batch<> const empty{std::vector<sample_trajectory>{}};
    auto r = run(empty, dr_kernel_options::paper());
    CHECK(r.metrics.turns == 0);
    CHECK(r.metrics.nothing_kept);
    CHECK(!r.metrics.low_keep);
    r = run(sample_batch<>{std::vector<sample_trajectory>{{.id = 1}, {.id = 2}}}, dr_kernel_options::paper());
    CHECK(r.metrics.turns == 0);
    step_result untouched(0, 0);
    recipe::dr_kernel(rollout_view{}, inputs_of<float>{}, dr_kernel_options::paper(), key, untouched.outputs());
    CHECK(untouched.metrics.turns == 0);
  }

  TEST_CASE("a group of one: keep, zero, others") {
    auto const good = [](double speedup) {
      return sample_turn{.log_ratio = {0}, .correct = true, .speedup = speedup, .generated_us = 8, .total_us = 8};
    };
    // Turn 1 exists in trajectory 0 alone.
    std::vector<sample_trajectory> const trajectories{{.group = 1, .id = 0, .turns = {good(1), good(2)}},
                                                      {.group = 1, .id = 1, .turns = {good(8)}},
                                                      {.group = 2, .id = 0, .turns = {good(3)}}};
    auto const with = [&](advantage::singleton_policy policy) {
      auto options = dr_kernel_options::paper();
      options.advantage.singleton = policy;
      return run(sample_batch<>{trajectories}, options).advantage;
    };
    CHECK(with(advantage::singleton_policy::keep) == std::vector<double>{-3, 4, 3, 5});
    CHECK(with(advantage::singleton_policy::zero) == std::vector<double>{-3, 0, 3, 0});
    CHECK(with(advantage::singleton_policy::others) == std::vector<double>{-3, 4 - 10, 3, 5});
  }

  TEST_CASE("the same bits for 100 random orders of trajectories") {
    auto const trajectories = test::random_trajectories(31, 40, 6, 60);
    for (auto const& variant : variants()) {
      auto const& options = variant.second;
      CAPTURE(variant.first);
      sample_batch<float> const batch{trajectories};
      auto const whole = run(batch, options);
      std::size_t kept = 0;
      for (reason_flags const reasons : whole.reasons) kept += is_kept(reasons);
      CHECK(kept > 10);
      CHECK(kept < whole.reasons.size());
      test::integers random{1};
      for (int round = 0; round < 100; ++round) {
        auto const order = test::random_order(trajectories.size(), random);
        std::vector<sample_trajectory> shuffled;
        for (std::size_t const j : order) shuffled.push_back(trajectories[j]);
        auto const r = run(sample_batch<float>{shuffled}, options);
        CHECK(bits(r) == picked(bits(whole), batch.trajectory_offsets, order));
        CHECK(r.metrics.kl == whole.metrics.kl);
        CHECK(r.metrics.k3 == whole.metrics.k3);
        CHECK(r.metrics.kept_advantage_mean == whole.metrics.kept_advantage_mean);
      }
    }
  }

  TEST_CASE("packed and padded layouts, float and double log-probs, 1 and 2 threads give the same bits") {
    auto const trajectories = test::random_trajectories(32, 60, 6, 90);
    for (auto const& variant : variants()) {
      auto const& options = variant.second;
      CAPTURE(variant.first);
      sample_batch<float> const batch{trajectories};
      auto const whole = run(batch, options);
      CHECK(bits(run(sample_batch<float>{trajectories, layout::padded}, options)) == bits(whole));
      CHECK(bits(run(sample_batch<double>{trajectories}, options)) == bits(whole));
      CHECK(bits(run(sample_batch<double>{trajectories, layout::padded}, options)) == bits(whole));
      for (int const threads : {1, 2, 3}) {
        auto with_threads = options;
        with_threads.threads = threads;
        auto const r = run(batch, with_threads);
        CHECK(bits(r) == bits(whole));
        CHECK(bits_of(r.token_advantage) == bits_of(whole.token_advantage));
        CHECK(r.token_mask == whole.token_mask);
      }
    }
  }

  TEST_CASE("two threads on enough tokens that they share the work") {
    auto trajectories = test::random_trajectories(33, 300, 8, 600);
    sample_batch<float> const batch{trajectories};
    auto options = dr_kernel_options::released();
    options.threads = 1;
    auto const one = run(batch, options);
    options.threads = 2;
    auto const two = run(batch, options);
    CHECK(batch.mask.size() > 200000);
    CHECK(bits(one) == bits(two));
    CHECK(bits_of(one.token_advantage) == bits_of(two.token_advantage));
    CHECK(one.token_mask == two.token_mask);
    CHECK(one.metrics.k3 == two.metrics.k3);
  }

  TEST_CASE(
      "shards: statistics, returns and filters on each, then baselines on the returns of all, give the same bits") {
    auto const trajectories = test::random_trajectories(34, 40, 6, 60);
    for (auto const& variant : variants()) {
      auto const& options = variant.second;
      CAPTURE(variant.first);
      auto const whole = run(sample_batch<float>{trajectories}, options);
      sample_batch<float> const batch{trajectories};
      for (std::size_t const shards : {1u, 2u, 8u}) {
        CAPTURE(shards);
        // Trajectories of one group land on different ranks.
        std::vector<std::vector<sample_trajectory>> of_rank(shards);
        std::vector<std::vector<std::size_t>> order_of_rank(shards);
        for (std::size_t j = 0; j < trajectories.size(); ++j) {
          of_rank[(5 * j + j / 7) % shards].push_back(trajectories[j]);
          order_of_rank[(5 * j + j / 7) % shards].push_back(j);
        }
        turn_bits all;
        std::vector<double> turn_return;
        std::vector<std::int64_t> offsets{0}, group_id, trajectory_id, turn_index;
        std::vector<std::size_t> order;
        for (std::size_t rank = 0; rank < shards; ++rank) {
          sample_batch<float> const part{of_rank[rank]};
          std::size_t const turns = part.turns();
          flags reasons(turns);
          std::vector<double> reward(turns), returns(turns);
          std::vector<importance::turn_statistics> statistics(turns);
          begin_reasons(part.view(), reasons);
          reward::kernel_reward(part.evaluation(), options.reward, reasons, std::span{reward});
          advantage::discounted_return(part.view(), reward, options.turn_return, reasons, std::span{returns});
          importance::log_ratio_statistics(part.view(), part.tokens(), statistics);
          rejection::usable_tokens(part.view(), statistics, options.filters.usable_tokens, reasons);
          rejection::ratio_band(part.view(), statistics, *options.filters.ratio_band, reasons);
          rejection::token_veto(part.view(), statistics, *options.filters.token_veto, reasons);
          rejection::profiling_filter(part.view(), part.evaluation(), *options.filters.profiling_filter, key, reasons);

          auto const append = [](auto& to, auto const& from) { to.insert(to.end(), from.begin(), from.end()); };
          append(all.reward, bits_of(reward));
          append(all.turn_return, bits_of(returns));
          append(all.reasons, reasons);
          append(all.statistics, statistics);
          append(turn_return, returns);
          append(group_id, part.group_id);
          append(trajectory_id, part.trajectory_id);
          append(turn_index, part.turn_index);
          append(order, order_of_rank[rank]);
          for (std::size_t j = 1; j < part.trajectory_offsets.size(); ++j)
            offsets.push_back(offsets.back() + part.trajectory_offsets[j] - part.trajectory_offsets[j - 1]);
        }
        rollout_view const gathered{.trajectory_offsets = offsets,
                                    .group_id = group_id,
                                    .trajectory_id = trajectory_id,
                                    .turn_index = turn_index};
        std::vector<double> advantage(turn_return.size());
        advantage::leave_one_out(make_grouping(gathered, group_by::turn), turn_return, all.reasons, options.advantage,
                                 std::span{advantage});
        all.advantage = bits_of(advantage);
        CHECK(all == picked(bits(whole), batch.trajectory_offsets, order));
      }
    }
  }

  TEST_CASE("the profiling draws follow the key") {
    auto const trajectories = test::random_trajectories(35, 60, 6, 5);
    sample_batch<> const batch{trajectories};
    auto options = dr_kernel_options::paper();
    options.filters.profiling_filter = {.threshold = 0.1, .softness = 0.8};
    auto const with = [&](draw_key k) {
      step_result r(batch.turns(), batch.mask.size());
      recipe::dr_kernel(batch.view(), inputs(batch), options, k, r.outputs());
      return r.reasons;
    };
    CHECK(with({.seed = 1, .step = 1}) == with({.seed = 1, .step = 1}));
    CHECK(with({.seed = 1, .step = 1}) != with({.seed = 1, .step = 2}));
    CHECK(with({.seed = 1, .step = 1}) != with({.seed = 2, .step = 1}));
  }

}  // TEST_SUITE
