#include "support/ragged.hpp"

#include <turnwise/reward/frontier_reward.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

using doctest::Approx;
using doctest::Contains;
using turnwise::group_by;
using turnwise::make_grouping;
using turnwise::precondition_error;
using turnwise::reward::attempts;
using turnwise::reward::evaluation;
using turnwise::reward::frontier_reward;
using turnwise::reward::frontier_reward_options;
using turnwise::reward::solved_by;
using turnwise::test::ragged_batch;

namespace {

using flags = std::vector<std::uint8_t>;
using ids = std::vector<std::int64_t>;
using numbers = std::vector<double>;

/// Attempts whose turns' values are 1 for correct, 0 for not.
template <typename T = double>
std::vector<T> rewards(ragged_batch<> const& batch, ids const& proposals, frontier_reward_options const& options = {},
                       flags const& invalid = {}) {
  auto const groups = make_grouping(batch.view(), group_by::group);
  flags const correct(batch.value.begin(), batch.value.end());
  std::vector<T> reward(proposals.size(), T{-77});
  frontier_reward(attempts<double>{batch.view(), &groups, {.correct = correct}}, proposals, invalid, options,
                  std::span{reward});
  return reward;
}

/// A group of single-turn attempts.
std::vector<turnwise::test::turn_values<>> group_of(std::int64_t group, numbers const& correct) {
  std::vector<turnwise::test::turn_values<>> result;
  for (std::size_t k = 0; k < correct.size(); ++k)
    result.push_back({.group = group, .id = static_cast<std::int64_t>(k), .turns = {correct[k]}});
  return result;
}

ragged_batch<> joined(std::vector<std::vector<turnwise::test::turn_values<>>> const& groups) {
  std::vector<turnwise::test::turn_values<>> all;
  for (auto const& one : groups) all.insert(all.end(), one.begin(), one.end());
  return ragged_batch<>{all};
}

}  // namespace

TEST_SUITE("reward/frontier_reward") {
  TEST_CASE_TEMPLATE("most for one half, nothing for all or none, in the order of the proposals", T, float, double) {
    auto const batch = joined(
        {group_of(70, {1, 0, 1, 0}), group_of(-5, {1, 1, 1, 1}), group_of(9, {0, 0}), group_of(33, {1, 0, 0, 0})});
    CHECK(rewards<T>(batch, {70, -5, 9, 33}) == std::vector<T>{1, 0, 0, T{0.5}});
    CHECK(rewards<T>(batch, {33, 70, 33}) == std::vector<T>{T{0.5}, 1, T{0.5}});
  }

  TEST_CASE("the target is an option; 1 - 2 |share - target|") {
    auto const batch = joined({group_of(1, {1, 0, 0, 0}), group_of(2, {1, 1, 1, 1}), group_of(3, {0, 0, 0})});
    CHECK(rewards(batch, {1, 2, 3}, {.target = 0.25}) == numbers{1, -0.5, 0.5});
    CHECK(rewards(batch, {1, 2, 3}, {.target = 1}) == numbers{-0.5, 1, -1});
    CHECK(rewards(batch, {1, 2, 3}, {.target = 0}) == numbers{0.5, -1, 1});
    // Every share of ten.
    for (int c = 0; c <= 10; ++c) {
      numbers correct(10, 0);
      std::fill_n(correct.begin(), c, 1.0);
      CHECK(rewards(joined({group_of(4, correct)}), {4})[0] == Approx(1 - std::abs(c - 5) / 5.0));
    }
  }

  TEST_CASE("an invalid module pays -1 whatever stands in its group, or without one") {
    auto const batch = joined({group_of(1, {1, 0})});
    auto const got = rewards(batch, {1, 1, 5, 5}, {}, {0, 1, 255, 0});
    CHECK(got[0] == 1);
    CHECK(got[1] == -1);
    CHECK(got[2] == -1);
    CHECK(std::isnan(got[3]));  // valid, and no attempts: unscored
    CHECK(rewards(batch, {1}, {.invalid_reward = -3}, {1}) == numbers{-3});
  }

  TEST_CASE("TL-04: a trajectory counts once, however many turns it has") {
    ragged_batch<> const batch{{{.group = 0, .id = 0, .turns = {1}},
                                {.group = 0, .id = 1, .turns = {0, 0, 0, 0}},
                                {.group = 0, .id = 2, .turns = {0, 0, 1}},
                                {.group = 0, .id = 3, .turns = {1, 1, 0}}}};
    CHECK(rewards(batch, {0}) == numbers{1});  // 2 of 4 end correct; by rows it would be 4 of 11
    CHECK(rewards(batch, {0}, {.solved = solved_by::any_turn}) == numbers{0.5});  // 3 of 4
  }

  TEST_CASE("turns flagged off are no attempt, and the one before them is the last") {
    ragged_batch<> const batch{{{.group = 0, .id = 0, .turns = {1, 0}, .valid = {1, 0}},
                                {.group = 0, .id = 1, .turns = {0, 1}, .valid = {1, 0}},
                                {.group = 0, .id = 2, .turns = {1, 1}, .valid = {0, 0}},
                                {.group = 0, .id = 3},
                                {.group = 1, .id = 0, .turns = {1}, .valid = {0}}}};
    auto const got = rewards(batch, {0, 1});
    CHECK(got[0] == 1);
    CHECK(std::isnan(got[1]));
    CHECK(rewards(batch, {0}, {.solved = solved_by::any_turn}) == numbers{1});
  }

  TEST_CASE("decoys, broken rules and failed builds are not correct") {
    auto const batch = joined({group_of(1, {1, 1, 1, 1})});
    auto const groups = make_grouping(batch.view(), group_by::group);
    flags const correct{1, 1, 1, 1}, compiled{1, 0, 1, 1}, decoy{0, 0, 1, 0}, broken{0, 0, 0, 1};
    numbers reward(1);
    evaluation<double> turns{.compiled = compiled, .correct = correct, .decoy = decoy, .rule_violation = broken};
    frontier_reward(attempts<double>{batch.view(), &groups, turns}, ids{1}, {}, {}, std::span{reward});
    CHECK(reward[0] == 0.5);  // one of four
  }

  TEST_CASE("the order of trajectories in memory does not show") {
    turnwise::test::integers random{2};
    auto trajectories = turnwise::test::random_values<double>(random, ids{1, 2, 3, 9, 40, 5, 7}, 4);
    ids proposals;
    for (auto& one : trajectories) {
      for (double& value : one.turns) value = static_cast<double>(random.below(2));
      proposals.push_back(one.group);
    }
    auto const whole = rewards(ragged_batch<>{trajectories}, proposals, {.target = 0.3});
    for (int round = 0; round < 10; ++round) {
      auto const order = turnwise::test::random_order(trajectories.size(), random);
      ragged_batch<> const shuffled{turnwise::test::in_order(trajectories, order)};
      CHECK(turnwise::test::bits_of(rewards(shuffled, proposals, {.target = 0.3})) == turnwise::test::bits_of(whole));
    }
  }

  TEST_CASE("no proposals, no attempts") {
    CHECK(rewards(ragged_batch<>{{}}, {}).empty());
    CHECK(std::isnan(rewards(ragged_batch<>{{}}, {7})[0]));
    numbers none;
    frontier_reward<double>({}, {}, {}, {}, std::span{none});
  }

  TEST_CASE("errors by name, with nothing written") {
    auto const batch = joined({group_of(1, {1, 0})});
    auto const groups = make_grouping(batch.view(), group_by::group);
    flags const correct{1, 0}, one{1};
    attempts<double> of{batch.view(), &groups, {.correct = correct}};
    ids proposals{1, 1};
    flags invalid;
    frontier_reward_options options;
    numbers reward(2, 9.0);
    auto const refused = [&](char const* text) {
      CHECK_THROWS_WITH_AS(frontier_reward(of, proposals, invalid, options, std::span{reward}), Contains(text),
                           precondition_error);
      CHECK(reward == numbers(2, 9.0));
    };
    proposals.pop_back();
    refused("frontier_reward: proposal_group has 1 elements, expected 2 (one a proposal)");
    proposals.push_back(1);
    invalid = {1};
    refused("frontier_reward: invalid_module has 1 elements, expected 2");
    invalid.clear();
    of.groups = nullptr;
    refused("frontier_reward: the attempts have no grouping");
    of.groups = &groups;
    of.evaluation.correct = one;
    refused("frontier_reward: correct has 1 elements, expected 2");
    of.evaluation = {.compiled = one, .correct = correct};
    refused("frontier_reward: compiled has 1 elements, expected 2");
    of.evaluation = {.correct = correct, .decoy = one};
    refused("frontier_reward: decoy has 1 elements, expected 2");
    of.evaluation = {.correct = correct, .rule_violation = one};
    refused("frontier_reward: rule_violation has 1 elements, expected 2");
    of.evaluation = {.correct = correct};
    auto const other = joined({group_of(1, {1})});
    auto const other_groups = make_grouping(other.view(), group_by::group);
    of.groups = &other_groups;
    refused("frontier_reward: groups has 1 elements, expected 2");
    of.groups = &groups;
    auto const several = joined({group_of(1, {1, 0}), group_of(2, {1})});
    ragged_batch<> const long_one{{{.group = 1, .id = 0, .turns = {1, 0}}}};
    auto const by_batch = make_grouping(several.view(), group_by::batch);
    auto const by_turn = make_grouping(long_one.view(), group_by::turn);
    flags const three{1, 0, 1};
    of = {several.view(), &by_batch, {.correct = three}};
    refused("frontier_reward: groups are not by group_id, which is 1 and 2 at the ends of group 0");
    of = {long_one.view(), &by_turn, {.correct = correct}};
    refused("frontier_reward: groups are not by group_id, which is 1 and 1 at the ends of group 1");
    of = {batch.view(), &groups, {.correct = correct}};
    for (double const bad : {-0.1, 1.1, turnwise::test::nan_value}) {
      options = {.target = bad};
      refused("frontier_reward: target = ");
    }
    options = {.invalid_reward = turnwise::test::infinity};
    refused("frontier_reward: invalid_reward = inf");
    options = {.invalid_reward = -0x1p501};
    refused("frontier_reward: invalid_reward = -6.");
    options = {.invalid_reward = -0x1p101};  // a double, and no float
    std::vector<float> narrow(2);
    CHECK_THROWS_WITH_AS(frontier_reward(of, proposals, invalid, options, std::span{narrow}),
                         Contains("expected a number within +-2^100"), precondition_error);
  }

}  // TEST_SUITE
