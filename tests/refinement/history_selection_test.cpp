#include "support/batches.hpp"

#include <turnwise/refinement/history_selection.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

namespace {

using namespace turnwise;
using refinement::history_rule;
using refinement::history_selection_options;
using test::infinity;
using test::nan_value;
using ids = std::vector<std::int64_t>;
using flags = std::vector<reason_flags>;

template <typename T = double>
ids selected(std::vector<T> const& reward, ids tokens, history_selection_options const& options,
             flags const& reasons = {}) {
  if (tokens.empty()) tokens.assign(reward.size(), 1);
  auto const result = refinement::history_selection<T>(reward, tokens, reasons, options);
  std::int64_t carried = 0;
  for (auto const turn : result.turns) carried += tokens[static_cast<std::size_t>(turn)];
  CHECK(carried == result.tokens);
  return result.turns;
}

history_selection_options window(std::int64_t most, std::int64_t budget = 1000) {
  return {.rule = history_rule::best_window, .most_turns = most, .token_budget = budget};
}

}  // namespace

TEST_SUITE("refinement/history_selection") {
  TEST_CASE_TEMPLATE("the best four turns, in time order", T, float, double) {
    CHECK(selected<T>({3, 1, 5, 0, 2, 4}, {}, {}) == ids{0, 2, 4, 5});
    CHECK(selected<T>({3, 1, 5, 0, 2, 4}, {}, {.most_turns = 1}) == ids{2});
    CHECK(selected<T>({3, 1}, {}, {}) == ids{0, 1});
    CHECK(selected<T>({}, {}, {}) == ids{});
    CHECK(selected<T>({3, 1}, {}, {.most_turns = 0}) == ids{});
    CHECK(selected<T>({-3, -1, -2}, {}, {.most_turns = 2}) == ids{1, 2});
  }

  TEST_CASE("of equal rewards the later turns") {
    CHECK(selected({1, 1, 1, 1, 1, 1}, {}, {}) == ids{2, 3, 4, 5});
    CHECK(selected({2, 1, 2, 1, 2}, {}, {.most_turns = 2}) == ids{2, 4});
    CHECK(selected({0.0, -0.0, 0.0, -0.0}, {}, {.most_turns = 2}) == ids{2, 3});
  }

  TEST_CASE("a turn that does not fit is skipped, and the search goes on") {
    // By reward: turn 0 (60 tokens), turn 1 (50, too many), turn 2 (40, fits to the token), turn 3 (0).
    CHECK(selected({4, 3, 2, 1}, {60, 50, 40, 0}, {.token_budget = 100}) == ids{0, 2, 3});
    CHECK(selected({4, 3, 2, 1}, {60, 50, 41, 40}, {.token_budget = 100}) == ids{0, 3});
    CHECK(selected({4, 3, 2, 1}, {60, 50, 40, 1}, {.most_turns = 2, .token_budget = 100}) == ids{0, 2});
    CHECK(selected({4, 3}, {10, 20}, {.token_budget = 9}) == ids{});
    CHECK(selected({4, 3}, {0, 20}, {.token_budget = 0}) == ids{0});
    std::int64_t const huge = std::int64_t{1} << 62;
    CHECK(selected({4, 3, 2}, {huge, huge, huge - 1}, {}) == ids{0, 2});  // the third sum would overflow
  }

  TEST_CASE("unscored and invalid turns are never chosen; what stands there is not read") {
    CHECK(selected({nan_value, 1, infinity, 2}, {}, {}, {0, 0, reason::invalid, 0}) == ids{1, 3});
    CHECK(selected({nan_value, nan_value}, {}, {}) == ids{});
    CHECK(selected({1, 2, 3}, {}, {}, {reason::unscored, reason::ratio_low, reason::unscored_future}) == ids{1});
  }

  TEST_CASE("best window, by hand") {
    CHECK(selected({3, -9, 2, 2, -1}, {}, window(2)) == ids{2, 3});
    CHECK(selected({5, -9, 2, 2, -1}, {}, window(2)) == ids{0});
    CHECK(selected({5, -9, 2, 2, 2}, {}, window(3)) == ids{2, 3, 4});
    CHECK(selected({-3, -1, -2}, {}, window(3)) == ids{1});
    CHECK(selected({0, 0, 0, 0, 0}, {}, window(3)) == ids{2, 3, 4});  // longer, then later
    CHECK(selected({2, 1, 1}, {}, window(2)) == ids{0, 1});           // 3 beats 2
    CHECK(selected({2, 0, 1, 1}, {}, window(2)) == ids{2, 3});        // 2 = 2, as long, later
    CHECK(selected({2, -5, 1, 1}, {}, window(2)) == ids{2, 3});       // 2 = 2, longer
    CHECK(selected({1, 1, -5, 2}, {}, window(2)) == ids{0, 1});       // longer before later
    CHECK(selected({1, 1}, {}, window(0)) == ids{});
    CHECK(selected({}, {}, window(4)) == ids{});
  }

  TEST_CASE("a window is of consecutive turns: turns that cannot be chosen or do not fit end it") {
    CHECK(selected({4, nan_value, 4, 3}, {}, window(4)) == ids{2, 3});
    CHECK(selected({4, 4, 4}, {}, window(4), {0, reason::invalid, 0}) == ids{2});
    CHECK(selected({9, 1, 1, 1}, {5, 2, 2, 2}, window(4, 4)) == ids{2, 3});
    CHECK(selected({9, 1, 1, 1}, {4, 2, 2, 2}, window(4, 4)) == ids{0});
    CHECK(selected({9, 1}, {5, 5}, window(4, 4)) == ids{});
  }

  TEST_CASE("both rules against all subsets of small trajectories") {
    test::integers random{5};
    for (int round = 0; round < 400; ++round) {
      auto const turns = static_cast<std::size_t>(1 + random.below(7));
      std::vector<double> reward;
      ids tokens;
      for (std::size_t s = 0; s < turns; ++s) {
        reward.push_back(random.below(6) == 0 ? nan_value : static_cast<double>(random.below(7) - 2));
        tokens.push_back(random.below(5));
      }
      std::int64_t const most = random.below(5);
      std::int64_t const budget = random.below(12);

      // Windows: the best by (sum, length, end) of all runs that may be shown.
      ids best;
      double best_sum = 0;
      // Turns: the subset whose sorted (reward, position) sequence is the greatest, entry by entry, longer first.
      std::vector<std::pair<double, std::int64_t>> best_order;
      for (unsigned set = 1; set < 1u << turns; ++set) {
        ids members;
        std::vector<std::pair<double, std::int64_t>> order;
        double sum = 0;
        std::int64_t carried = 0;
        bool allowed = true;
        for (std::size_t s = 0; s < turns; ++s) {
          if ((set >> s & 1) == 0) continue;
          members.push_back(static_cast<std::int64_t>(s));
          order.emplace_back(reward[s], static_cast<std::int64_t>(s));
          sum += reward[s];
          carried += tokens[s];
          allowed = allowed && reward[s] == reward[s];
        }
        if (!allowed || carried > budget || static_cast<std::int64_t>(members.size()) > most) continue;
        std::ranges::sort(order, std::greater{});
        best_order = std::max(best_order, order);
        if (members.back() - members.front() + 1 != static_cast<std::int64_t>(members.size())) continue;
        auto const key = [](double s, ids const& m) { return std::tuple{s, m.size(), m.back()}; };
        if (best.empty() || key(sum, members) > key(best_sum, best)) {
          best = members;
          best_sum = sum;
        }
      }
      ids greedy;
      for (auto const& one : best_order) greedy.push_back(one.second);
      std::ranges::sort(greedy);
      CHECK(selected(reward, tokens, window(most, budget)) == best);
      CHECK(selected(reward, tokens, {.most_turns = most, .token_budget = budget}) == greedy);
    }
  }

  TEST_CASE("errors") {
    CHECK_THROWS_AS(selected({1, 2}, {1}, {}), precondition_error);
    CHECK_THROWS_AS(selected({1, 2}, {1, 1}, {}, {0}), precondition_error);
    CHECK_THROWS_AS(selected({1}, {1}, {.most_turns = -1}), precondition_error);
    CHECK_THROWS_AS(selected({1}, {1}, {.token_budget = -1}), precondition_error);
    CHECK_THROWS_WITH_AS(selected({1, 2}, {1, -1}, {}), "history_selection: tokens[1] = -1, expected at least 0",
                         precondition_error);
    CHECK_THROWS_WITH_AS(selected({1, infinity}, {1, 1}, {}),
                         "history_selection: reward[1] = inf is infinite or beyond the magnitude limit",
                         precondition_error);
  }
}
