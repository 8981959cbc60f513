#include "support/batches.hpp"

#include <turnwise/advantage/discounted_return.hpp>
#include <turnwise/rejection/profiling_filter.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace turnwise;
using rejection::invalid_profile_policy;
using rejection::profiling_filter_options;
using test::infinity;
using test::nan_value;
using test::sample_batch;
using test::sample_trajectory;
using test::sample_turn;
using flags = std::vector<reason_flags>;

flags filter(std::vector<sample_trajectory> const& trajectories, profiling_filter_options const& options,
             draw_key key = {.seed = 0, .step = 0}) {
  sample_batch<> const batch{trajectories};
  flags reasons(batch.turns());
  begin_reasons(batch.view(), reasons);
  rejection::profiling_filter(batch.view(), batch.evaluation(), options, key, reasons);
  return reasons;
}

/// A correct turn with a profiling ratio of generated / total.
sample_turn profiled(double generated, double total, double speedup = 1) {
  return {.correct = true, .speedup = speedup, .generated_us = generated, .total_us = total};
}

/// The keep decisions of one such turn over steps [0, count).
std::vector<int> kept_over_steps(sample_turn const& turn, profiling_filter_options const& options,
                                 std::uint32_t count) {
  sample_batch<> const batch{std::vector<sample_trajectory>{{.group = 12, .id = 3, .turns = {turn}}}};
  std::vector<int> kept;
  for (std::uint32_t step = 0; step < count; ++step) {
    flags reasons{0};
    rejection::profiling_filter(batch.view(), batch.evaluation(), options, {.seed = 7, .step = step}, reasons);
    kept.push_back(is_kept(reasons[0]));
  }
  return kept;
}

double mean(std::vector<int> const& values) {
  double sum = 0;
  for (int const value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

/// Correlation of n pairs.
template <typename Pair>
double correlation(std::int64_t n, Pair pair) {
  double x = 0, y = 0, xx = 0, yy = 0, xy = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    auto const [a, b] = pair(i);
    x += a;
    y += b;
    xx += a * a;
    yy += b * b;
    xy += a * b;
  }
  double const count = static_cast<double>(n);
  return (xy - x * y / count) / std::sqrt((xx - x * x / count) * (yy - y * y / count));
}

}  // namespace

TEST_SUITE("rejection/profiling_filter") {
  TEST_CASE("over 10,000 steps the keep frequency is 0, a half and 1 at the start, middle and end of the ramp") {
    CHECK(mean(kept_over_steps(profiled(30, 100), {}, 10000)) == 0);
    double const half = mean(kept_over_steps(profiled(35, 100), {}, 10000));
    CHECK(half > 0.48);
    CHECK(half < 0.52);
    CHECK(mean(kept_over_steps(profiled(40, 100), {}, 10000)) == 1);
    CHECK(mean(kept_over_steps(profiled(0, 100), {}, 1000)) == 0);
    CHECK(mean(kept_over_steps(profiled(100, 100), {}, 1000)) == 1);
    double const fifth = mean(kept_over_steps(profiled(32, 100), {}, 10000));
    CHECK(fifth > 0.18);
    CHECK(fifth < 0.22);
  }

  TEST_CASE("keep_probability: clip((PR - threshold) / softness, 0, 1), a step at softness 0") {
    using rejection::keep_probability;
    CHECK(keep_probability(0.375, 0.25, 0.25) == 0.5);
    CHECK(keep_probability(0.25, 0.25, 0.25) == 0);
    CHECK(keep_probability(0.5, 0.25, 0.25) == 1);
    CHECK(keep_probability(0, 0.25, 0.25) == 0);
    CHECK(keep_probability(1, 0.25, 0.25) == 1);
    CHECK(keep_probability(0.25, 0.25, 0) == 1);
    CHECK(keep_probability(std::nextafter(0.25, 0.0), 0.25, 0) == 0);
  }

  // The known answers of Random123 for Philox4x32-10: with threshold 0 and softness 1 the probability is PR itself, and
  // PR = word / 2^32 is the draw itself.
  TEST_CASE("the draw is the first word of Philox over (group, trajectory, turn) under (seed, step), kept iff u < p") {
    struct known_answer {
      draw_key key;
      std::int64_t group, trajectory, turn;
      std::uint32_t word;
    };
    constexpr std::uint32_t ones = 0xffffffffu;
    constexpr std::int64_t pi_group = static_cast<std::int64_t>(0x85a308d3243f6a88u);
    std::vector<known_answer> const answers{
        {{.seed = 0, .step = 0}, 0, 0, 0, 0x6627e8d5u},
        {{.seed = ones, .step = ones}, -1, ones, ones, 0x408f276du},
        {{.seed = 0xa4093822u, .step = 0x299f31d0u}, pi_group, 0x13198a2e, 0x03707344, 0xd16cfe09u}};
    profiling_filter_options const ramp{.threshold = 0, .softness = 1};
    for (auto const& answer : answers) {
      double const word = answer.word;
      auto const at = [&](double generated) {
        auto turn = profiled(generated, 0x1p32);
        turn.index = answer.turn;
        return filter({{.group = answer.group, .id = answer.trajectory, .turns = {turn}}}, ramp, answer.key);
      };
      CHECK(at(word) == flags{reason::profiling});
      CHECK(at(word + 1) == flags{0});
    }
  }

  TEST_CASE("softness 0 is a hard cut, kept from the threshold on") {
    profiling_filter_options const cut{.threshold = 0.25, .softness = 0};
    std::vector<sample_trajectory> const batch{
        {.turns = {profiled(1, 4), profiled(std::nextafter(1.0, 0.0), 4), profiled(4, 4), profiled(0, 4)}}};
    for (std::uint32_t step = 0; step < 100; ++step)
      CHECK(filter(batch, cut, {.seed = 1, .step = step}) == flags{0, reason::profiling, 0, reason::profiling});
  }

  TEST_CASE("turns at least as fast as keep_speedup are kept whatever their profile") {
    profiling_filter_options const fast{.keep_speedup = 2};
    std::vector<sample_trajectory> const batch{
        {.turns = {profiled(0, 4, 2), profiled(0, 4, std::nextafter(2.0, 0.0)), profiled(0, 0, 5), profiled(0, 0, 1),
                   profiled(0, 4, nan_value)}}};
    CHECK(filter(batch, fast) == flags{0, reason::profiling, 0, reason::invalid_profile, reason::profiling});
  }

  TEST_CASE("only turns with C = 1 are judged, others too with all_turns: their profiling ratio is 0") {
    auto decoy = profiled(4, 4);
    decoy.decoy = true;
    auto broken = profiled(4, 4);
    broken.compiled = false;
    sample_turn const wrong{.correct = false, .generated_us = nan_value, .total_us = -1};
    std::vector<sample_trajectory> const batch{{.turns = {profiled(4, 4), decoy, broken, wrong}}};
    CHECK(filter(batch, {}) == flags{0, 0, 0, 0});
    CHECK(filter(batch, {.all_turns = true}) == flags{0, reason::profiling, reason::profiling, reason::profiling});
    // A profile without meaning is not read where C = 0.
    CHECK(filter(batch, {.all_turns = true, .invalid_profile = invalid_profile_policy::error}) ==
          flags{0, reason::profiling, reason::profiling, reason::profiling});
    CHECK(filter(batch, {.threshold = 0, .softness = 0, .all_turns = true}) == flags{0, 0, 0, 0});
  }

  TEST_CASE("invalid and unscored turns are not judged") {
    auto off = profiled(0, 4);
    off.valid = false;
    std::vector<sample_trajectory> const trajectories{{.turns = {profiled(0, 4), profiled(0, 0), off, profiled(0, 4)}}};
    sample_batch<> const batch{trajectories};
    flags reasons(4);
    begin_reasons(batch.view(), reasons);
    std::vector<double> turn_return(4);
    advantage::discounted_return(batch.view(), std::vector{1.0, nan_value, 1.0, 1.0}, {}, reasons,
                                 std::span{turn_return});
    for (auto const policy : {invalid_profile_policy::reject, invalid_profile_policy::error}) {
      auto judged = reasons;
      rejection::profiling_filter(batch.view(), batch.evaluation(), {.all_turns = true, .invalid_profile = policy},
                                  {.seed = 0, .step = 0}, judged);
      CHECK(judged == flags{reason::unscored_future, reason::unscored, reason::invalid, reason::profiling});
    }
  }

  TEST_CASE("turns with reasons of other rules are judged all the same") {
    sample_batch<> const batch{std::vector<sample_trajectory>{{.turns = {profiled(0, 4), profiled(0, 0)}}}};
    flags reasons{reason::ratio_low, reason::no_token};
    rejection::profiling_filter(batch.view(), batch.evaluation(), {}, {.seed = 0, .step = 0}, reasons);
    CHECK(reasons == flags{reason::ratio_low | reason::profiling, reason::no_token | reason::invalid_profile});
  }

  TEST_CASE("PF-01: a share is invalid for total <= 0, part < 0 or part > total, and follows the policy") {
    std::vector<sample_trajectory> const batch{
        {.turns = {profiled(30, 40), profiled(0, 0), profiled(12, 48), profiled(52, 40)}}};
    CHECK(reward::profiling_ratio(30, 40) == 0.75);
    CHECK(!reward::has_profile(0, 0));
    CHECK(reward::profiling_ratio(12, 48) == 0.25);
    CHECK(!reward::has_profile(52, 40));
    profiling_filter_options options{.threshold = 0.3, .softness = 0};
    CHECK(filter(batch, options) == flags{0, reason::invalid_profile, reason::profiling, reason::invalid_profile});
    options.invalid_profile = invalid_profile_policy::keep;
    CHECK(filter(batch, options) == flags{0, 0, reason::profiling, 0});
    options.invalid_profile = invalid_profile_policy::error;
    CHECK_THROWS_AS(filter(batch, options), precondition_error);
  }

  TEST_CASE("every profile without meaning: reject, keep, error; it makes no draw") {
    std::vector<std::pair<double, double>> const profiles{{0, 0},
                                                          {1, -1},
                                                          {-1, 4},
                                                          {5, 4},
                                                          {nan_value, 4},
                                                          {1, nan_value},
                                                          {nan_value, nan_value},
                                                          {1, infinity},
                                                          {infinity, infinity}};
    for (auto const& profile : profiles) {
      CAPTURE(profile.first);
      CAPTURE(profile.second);
      auto const turn = profiled(profile.first, profile.second);
      std::vector<sample_trajectory> const batch{{.turns = {profiled(4, 4), turn}}};
      for (std::uint32_t step = 0; step < 20; ++step) {
        draw_key const key{.seed = 0, .step = step};
        CHECK(filter(batch, {}, key) == flags{0, reason::invalid_profile});
        CHECK(filter(batch, {.softness = 0}, key) == flags{0, reason::invalid_profile});
        CHECK(filter(batch, {.invalid_profile = invalid_profile_policy::keep}, key) == flags{0, 0});
      }
      CHECK_THROWS_AS(filter(batch, {.invalid_profile = invalid_profile_policy::error}), precondition_error);
    }
    CHECK(filter({{.turns = {profiled(0, 1e-30), profiled(1e300, 1e300)}}}, {.threshold = 0, .softness = 0}) ==
          flags{0, 0});
  }

  TEST_CASE("the same key gives the same mask in any order of trajectories and under any split") {
    auto const trajectories = test::random_trajectories(5, 40, 6, 3);
    draw_key const key{.seed = 11, .step = 12};
    profiling_filter_options const wide{.threshold = 0.1, .softness = 0.8};
    auto const whole = filter(trajectories, wide, key);
    sample_batch<> const batch{trajectories};
    auto const of = [&](std::size_t j) {
      return flags(whole.begin() + batch.trajectory_offsets[j], whole.begin() + batch.trajectory_offsets[j + 1]);
    };
    std::size_t rejected = 0;
    for (reason_flags const reasons : whole) rejected += reasons == reason::profiling;
    CHECK(rejected > 20);

    test::integers random{3};
    for (int round = 0; round < 100; ++round) {
      auto const order = test::random_order(trajectories.size(), random);
      std::vector<sample_trajectory> shuffled;
      flags expected;
      for (std::size_t const j : order) {
        shuffled.push_back(trajectories[j]);
        auto const part = of(j);
        expected.insert(expected.end(), part.begin(), part.end());
      }
      CHECK(filter(shuffled, wide, key) == expected);
      // A split into shards of whole trajectories: two parts of the shuffled batch, then one a trajectory.
      auto const cut = static_cast<std::ptrdiff_t>(random.below(static_cast<std::int64_t>(shuffled.size())));
      auto parts = filter({shuffled.begin(), shuffled.begin() + cut}, wide, key);
      auto const second = filter({shuffled.begin() + cut, shuffled.end()}, wide, key);
      parts.insert(parts.end(), second.begin(), second.end());
      CHECK(parts == expected);
    }
    for (std::size_t j = 0; j < trajectories.size(); ++j) CHECK(filter({trajectories[j]}, wide, key) == of(j));
  }

  TEST_CASE("draws follow given turn indices, else positions") {
    profiling_filter_options const half{.threshold = 0, .softness = 1};
    auto const with_indices = [&](std::vector<std::int64_t> const& indices, std::uint32_t step) {
      sample_trajectory trajectory{.group = 4, .id = 2};
      for (std::int64_t const index : indices) {
        trajectory.turns.push_back(profiled(2, 4));
        trajectory.turns.back().index = index;
      }
      return filter({trajectory}, half, {.seed = 0, .step = step});
    };
    std::size_t different = 0;
    for (std::uint32_t step = 0; step < 64; ++step) {
      auto const positions = with_indices({-1, -1, -1}, step);
      CHECK(with_indices({0, 1, 2}, step) == positions);
      auto const given = with_indices({0, 2, 7}, step);
      CHECK(given[0] == positions[0]);
      CHECK(given[1] == positions[2]);
      different += given != positions;
    }
    CHECK(different > 16);
  }

  TEST_CASE("draws of two steps, seeds, purposes, turns, trajectories and groups are uncorrelated") {
    constexpr std::int64_t n = 1000000;
    draw_key const key{.seed = 5, .step = 100};
    auto const u = [](draw_key k, std::int64_t group, std::int64_t trajectory, std::int64_t turn,
                      draw_purpose purpose = draw_purpose::profiling_filter) {
      return turn_uniform(k, group, trajectory, turn, purpose);
    };
    auto const base = [&](std::int64_t i) { return u(key, i >> 6, (i >> 2) & 15, i & 3); };
    auto const against = [&](auto other) {
      return std::abs(correlation(n, [&](std::int64_t i) { return std::pair{base(i), other(i)}; }));
    };
    CHECK(against([&](std::int64_t i) { return u({5, 101}, i >> 6, (i >> 2) & 15, i & 3); }) < 0.01);
    CHECK(against([&](std::int64_t i) { return u({6, 100}, i >> 6, (i >> 2) & 15, i & 3); }) < 0.01);
    CHECK(against([&](std::int64_t i) { return u(key, i >> 6, (i >> 2) & 15, i & 3, draw_purpose::down_sampling); }) <
          0.01);
    CHECK(against([&](std::int64_t i) { return u(key, i >> 6, (i >> 2) & 15, (i & 3) + 4); }) < 0.01);
    CHECK(against([&](std::int64_t i) { return u(key, i >> 6, ((i >> 2) & 15) + 16, i & 3); }) < 0.01);
    CHECK(against([&](std::int64_t i) { return u(key, (i >> 6) + (std::int64_t{1} << 32), (i >> 2) & 15, i & 3); }) <
          0.01);
    CHECK(against([&](std::int64_t i) { return u(key, i >> 6, (i >> 2) & 15, i & 3); }) == doctest::Approx(1.0));
  }

  TEST_CASE("masks of two steps are uncorrelated") {
    auto const first = kept_over_steps(profiled(35, 100), {}, 20001);
    auto const lagged = correlation(20000, [&](std::int64_t i) {
      auto const k = static_cast<std::size_t>(i);
      return std::pair{double(first[k]), double(first[k + 1])};
    });
    CHECK(std::abs(lagged) < 0.03);
  }

  TEST_CASE("ids outside [0, 2^32) are an error, the largest inside is not") {
    std::int64_t const limit = std::int64_t{1} << 32;
    auto const with = [](std::int64_t id, std::int64_t index) {
      auto turn = profiled(4, 4);
      turn.index = index;
      return filter({{.id = 0, .turns = {turn}}, {.id = id, .turns = {turn}}}, {});
    };
    CHECK(with(limit - 1, limit - 1) == flags{0, 0});
    CHECK_THROWS_AS(with(limit, 0), precondition_error);
    CHECK_THROWS_AS(with(-1, 0), precondition_error);
    CHECK_THROWS_AS(with(1, limit), precondition_error);

    sample_batch<> batch{std::vector<sample_trajectory>{{.id = 0, .turns = {profiled(0, 4)}}}};
    flags reasons{0};
    batch.turn_index = {-1};
    CHECK_THROWS_AS(rejection::profiling_filter(batch.view(), batch.evaluation(), {}, {.seed = 0, .step = 0}, reasons),
                    precondition_error);
    CHECK(reasons == flags{0});
  }

  TEST_CASE("group ids are any 64-bit numbers") {
    std::vector<std::int64_t> const ids{std::numeric_limits<std::int64_t>::min(), -1, 0, std::int64_t{1} << 40,
                                        std::numeric_limits<std::int64_t>::max()};
    for (std::int64_t const group : ids) CHECK(filter({{.group = group, .turns = {profiled(4, 4)}}}, {}) == flags{0});
  }

  TEST_CASE("bad options and wrong sizes throw and change nothing") {
    sample_batch<> const batch{std::vector<sample_trajectory>{{.turns = {profiled(0, 4), profiled(0, 0)}}}};
    flags reasons{0, 0};
    auto const throws = [&](profiling_filter_options const& options) {
      CHECK_THROWS_AS(
          rejection::profiling_filter(batch.view(), batch.evaluation(), options, {.seed = 0, .step = 0}, reasons),
          precondition_error);
    };
    for (double const bad : {-0.1, nan_value, infinity}) {
      throws({.threshold = bad});
      throws({.softness = bad});
    }
    throws({.keep_speedup = nan_value});
    throws({.invalid_profile = invalid_profile_policy::error});

    auto const throws_for = [&](reward::evaluation<double> const& evaluation) {
      CHECK_THROWS_AS(rejection::profiling_filter(batch.view(), evaluation, {}, {.seed = 0, .step = 0}, reasons),
                      precondition_error);
    };
    throws_for({});
    auto evaluation = batch.evaluation();
    evaluation.total_us = {};
    throws_for(evaluation);
    evaluation.generated_us = {};  // no profile at all
    throws_for(evaluation);
    evaluation = batch.evaluation();
    evaluation.generated_us = evaluation.generated_us.first(1);
    throws_for(evaluation);
    evaluation = batch.evaluation();
    evaluation.correct = evaluation.correct.first(1);
    throws_for(evaluation);
    evaluation = batch.evaluation();
    evaluation.speedup = evaluation.speedup.first(1);
    throws_for(evaluation);
    evaluation = batch.evaluation();
    evaluation.decoy = evaluation.decoy.first(1);
    throws_for(evaluation);
    evaluation = batch.evaluation();
    evaluation.rule_violation = batch.decoy;
    evaluation.rule_violation = evaluation.rule_violation.first(1);
    throws_for(evaluation);
    flags one{0};
    CHECK_THROWS_AS(rejection::profiling_filter(batch.view(), batch.evaluation(), {}, {.seed = 0, .step = 0}, one),
                    precondition_error);
    CHECK(one == flags{0});
    CHECK(reasons == flags{0, 0});
  }

  TEST_CASE("an empty batch") { CHECK(filter({}, {}) == flags{}); }

}  // TEST_SUITE
