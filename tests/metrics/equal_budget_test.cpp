#include "support/ragged.hpp"
#include "support/rational.hpp"

#include <turnwise/metrics/equal_budget.hpp>
#include <turnwise/metrics/fast_p.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

namespace {

using namespace turnwise;
using metrics::budget_split;
using metrics::budget_table;
using metrics::equal_budget_options;
using test::infinity;
using test::nan_value;
using test::ragged_batch;
using test::rational;
using flags = std::vector<reason_flags>;
using trajectories = std::vector<test::turn_values<double>>;

budget_table table(trajectories const& given, equal_budget_options const& options, flags const& reasons = {}) {
  ragged_batch<> const batch{given};
  return metrics::equal_budget<double>(batch.view(), batch.value, reasons, options);
}

/// Best score of N trajectories cut after M turns, on average over all subsets.
rational by_subsets(std::vector<std::vector<std::int64_t>> const& group, int n, std::size_t m) {
  std::int64_t subsets = 0, sum = 0;
  for (unsigned set = 0; set < 1u << group.size(); ++set) {
    if (std::popcount(set) != n) continue;
    ++subsets;
    std::int64_t best = INT64_MIN;
    for (std::size_t j = 0; j < group.size(); ++j)
      if (set >> j & 1)
        for (std::size_t t = 0; t < std::min(m, group[j].size()); ++t) best = std::max(best, group[j][t]);
    sum += best;
  }
  return {sum, subsets};
}

/// Breadth wins at first, depth later.
trajectories const two_prompts{{.group = 1, .id = 1, .turns = {0, 0, 1}},
                               {.group = 1, .id = 2, .turns = {1, 0, 0}},
                               {.group = 2, .id = 1, .turns = {0, 1}},
                               {.group = 2, .id = 2, .turns = {0, 0}},
                               {.group = 2, .id = 3, .turns = {0}}};

}  // namespace

TEST_SUITE("metrics/equal_budget") {
  TEST_CASE("two prompts by hand") {
    auto const got = table(two_prompts, {.budget = 4});
    CHECK(got.groups == 2);
    CHECK(got.left_out == 0);
    // N up to 2, the smaller prompt's. M = 1: scores (0, 1) and (0, 0, 0); M = 2: (0, 1) and (1, 0, 0); M = 3: (1, 1).
    auto const third = 1.0 / 3;
    std::vector<budget_split> const expected{
        {1, 1, 0.25}, {2, 1, 0.5}, {1, 2, (0.5 + third) / 2}, {2, 2, (1 + 2 * third) / 2}, {1, 3, (1 + third) / 2}};
    REQUIRE(got.splits.size() == expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CHECK(got.splits[i].trajectories == expected[i].trajectories);
      CHECK(got.splits[i].turns == expected[i].turns);
      CHECK(got.splits[i].expected_best == doctest::Approx(expected[i].expected_best).epsilon(1e-15));
    }
  }

  TEST_CASE("exact: only splits that spend all") {
    auto const got = table(two_prompts, {.budget = 2, .exact = true});
    REQUIRE(got.splits.size() == 2);
    CHECK(got.splits[0] == budget_split{2, 1, 0.5});
    CHECK(got.splits[1].trajectories == 1);
    CHECK(got.splits[1].turns == 2);
    CHECK(table(two_prompts, {.budget = 5, .exact = true}).splits.empty());  // 5 x 1 and 1 x 5 are out of reach
  }

  TEST_CASE("every split is over the same prompts: those with too few trajectories are left out of all") {
    auto const got = table(two_prompts, {.budget = 3, .trajectories = 3});
    CHECK(got.groups == 1);
    CHECK(got.left_out == 1);
    for (auto const& split : got.splits) {
      if (split.trajectories == 3) CHECK(split == budget_split{3, 1, 0});
      if (split.turns == 2) CHECK(split.expected_best == doctest::Approx(1.0 / 3).epsilon(1e-15));
    }
    CHECK(got.splits.size() == 4);  // 1 2 3 x 1, 1 x 2
    // The budget allows two: a prompt of two is enough.
    CHECK(table(two_prompts, {.budget = 2, .trajectories = 3}).groups == 2);
    CHECK(table(two_prompts, {.budget = 100, .trajectories = 4}).splits.empty());
    CHECK(table(two_prompts, {.budget = 100, .trajectories = 4}).left_out == 2);
  }

  TEST_CASE("all subsets of random prompts; more turns and more trajectories never hurt") {
    test::integers random{17};
    for (int round = 0; round < 60; ++round) {
      trajectories given;
      std::vector<std::vector<std::vector<std::int64_t>>> groups(static_cast<std::size_t>(1 + random.below(3)));
      std::size_t smallest = 99;
      for (std::size_t g = 0; g < groups.size(); ++g) {
        std::int64_t const members = 1 + random.below(5);
        for (std::int64_t j = 0; j < members; ++j) {
          std::vector<std::int64_t> scores;
          std::int64_t const turns = 1 + random.below(4);
          for (std::int64_t t = 0; t < turns; ++t) scores.push_back(random.below(9) - 4);
          groups[g].push_back(scores);
          given.push_back({.group = static_cast<std::int64_t>(g), .id = j, .turns = {scores.begin(), scores.end()}});
        }
        smallest = std::min(smallest, groups[g].size());
      }
      auto const got = table(given, {.budget = 1 + random.below(14)});
      for (auto const& split : got.splits) {
        CHECK(split.trajectories <= static_cast<std::int64_t>(smallest));
        rational mean{0};
        for (auto const& group : groups)
          mean += by_subsets(group, static_cast<int>(split.trajectories), static_cast<std::size_t>(split.turns)) /
                  rational{static_cast<std::int64_t>(groups.size())};
        double const expected = static_cast<double>(mean.numerator()) / static_cast<double>(mean.denominator());
        REQUIRE(std::abs(split.expected_best - expected) < 1e-13);
        for (auto const& other : got.splits)
          if (other.trajectories >= split.trajectories && other.turns >= split.turns)
            REQUIRE(other.expected_best >= split.expected_best - 1e-13);
      }
      std::ranges::reverse(given);
      auto const again = table(given, {.budget = 6});
      std::ranges::reverse(given);
      CHECK(again.splits == table(given, {.budget = 6}).splits);
    }
  }

  TEST_CASE("turns flagged off cost nothing, turns that do not count cost one") {
    trajectories const given{{.turns = {9, 1, nan_value, 4}, .valid = {0, 1, 1, 1}}};
    auto const got = table(given, {.budget = 9});
    CHECK(got.splits == std::vector<budget_split>{{1, 1, 1}, {1, 2, 1}, {1, 3, 4}});
    CHECK(table(given, {.budget = 9}, {reason::invalid, 0, 0, reason::unscored_future}).splits ==
          std::vector<budget_split>{{1, 1, 1}, {1, 2, 1}, {1, 3, 1}});
    CHECK(table(given, {.budget = 9}, {reason::invalid, 0, 0, reason::ratio_low}).splits.back().expected_best == 4);
  }

  TEST_CASE("a trajectory whose first turn is not scored takes no part, and its prompt may be left out") {
    trajectories const given{{.group = 1, .id = 1, .turns = {nan_value, 8}},
                             {.group = 1, .id = 2, .turns = {2}},
                             {.group = 2, .id = 1, .turns = {nan_value}},
                             {.group = 3, .id = 1, .turns = {}}};
    auto const got = table(given, {.budget = 4});
    CHECK(got.groups == 1);
    CHECK(got.left_out == 2);
    CHECK(got.splits == std::vector<budget_split>{{1, 1, 2}});
  }

  TEST_CASE("one turn each and the whole prompt: fast_p at k") {
    auto const batch = test::load_batch("kernel_rollouts_b");
    auto const view = batch.turns.view();
    std::vector<double> score(view.turns());
    metrics::kernel_score(batch.evaluation(), {}, {metrics::score_kind::fast, 1.0}, std::span{score});
    auto const got = metrics::equal_budget<double>(view, score, {}, {.budget = 48});
    CHECK(got.groups == 16);
    CHECK(got.splits.size() == 16 + 16 + 16);
    for (auto const& split : got.splits) {
      auto const same = metrics::fast_p(view, batch.evaluation(), {},
                                        {.threshold = 1.0, .k = split.trajectories, .turn_limit = split.turns});
      CHECK(split.expected_best == doctest::Approx(same.mean).epsilon(1e-12));
    }
  }

  TEST_CASE("nothing at all; errors") {
    CHECK(metrics::equal_budget<double>({}, {}, {}, {}).splits.empty());
    CHECK(table({}, {}).groups == 0);
    CHECK(table({{.turns = {}}}, {}).left_out == 1);
    CHECK_THROWS_AS(table(two_prompts, {.budget = 0}), precondition_error);
    CHECK_THROWS_AS(table(two_prompts, {.trajectories = -1}), precondition_error);
    CHECK_THROWS_AS(table(two_prompts, {}, {0}), precondition_error);
    CHECK_THROWS_AS(table({{.turns = {infinity}}}, {}), precondition_error);
    CHECK_THROWS_AS(table({{.id = 1, .turns = {1}}, {.id = 1, .turns = {1}}}, {}), precondition_error);
    ragged_batch<> const batch{two_prompts};
    CHECK_THROWS_AS((void)metrics::equal_budget<double>(batch.view(), std::span{batch.value}.first(3), {}, {}),
                    precondition_error);
  }
}
