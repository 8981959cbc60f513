/// @file
/// The problem that claims about baselines are checked on, with the expected gradient of an estimator over all outcomes.
#pragma once

#include "ragged.hpp"
#include "rational.hpp"

#include <turnwise/advantage/discounted_return.hpp>
#include <turnwise/advantage/group_relative.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <ostream>
#include <span>
#include <vector>

namespace turnwise::test::two_turns {

/// Turn 1 stops (pays 1, ends) or goes on with probability `go`; turn 2 pays 3 with probability `success`, else 0.
struct world {
  rational go, success;
};
constexpr world of_the_table{rational{1, 2}, rational{1, 4}};
constexpr world of_the_wrong_sign{rational{1, 4}, rational{1, 2}};
constexpr world uneven{rational{2, 3}, rational{1, 5}};

enum class outcome { stop, failure, success };
constexpr std::array outcomes{outcome::stop, outcome::failure, outcome::success};

inline rational probability(world const& w, outcome what) {
  if (what == outcome::stop) return rational{1} - w.go;
  return w.go * (what == outcome::success ? w.success : rational{1} - w.success);
}

/// Rewards of the turns of one trajectory.
inline std::vector<double> rewards(outcome what) {
  if (what == outcome::stop) return {1};
  return {0, what == outcome::success ? 3.0 : 0.0};
}

/// The gradients at the two turns with respect to the logits of going on and of success.
struct gradient {
  rational turn_1, turn_2;
  friend bool operator==(gradient const&, gradient const&) = default;
  friend std::ostream& operator<<(std::ostream& out, gradient const& g) {
    return out << '(' << g.turn_1 << ", " << g.turn_2 << ')';
  }
};

/// d log probability / d logit: 1 - p for what has probability p, -p for its opposite.
inline gradient scores(world const& w, outcome what) {
  if (what == outcome::stop) return {-w.go, 0};
  return {rational{1} - w.go, what == outcome::success ? rational{1} - w.success : -w.success};
}

inline rational value(world const& w) {
  rational sum;
  for (outcome const what : outcomes)
    for (double const reward : rewards(what)) sum += probability(w, what) * exactly(reward, 1);
  return sum;
}

/// The value is linear in each probability, so its slope is a difference of values at 1 and 0.
inline gradient true_gradient(world const& w) {
  rational const by_go = value({1, w.success}) - value({0, w.success});
  rational const by_success = value({w.go, 1}) - value({w.go, 0});
  return {by_go * w.go * (rational{1} - w.go), by_success * w.success * (rational{1} - w.success)};
}

/// Trajectories of one prompt and how they came out.
struct sample {
  std::vector<outcome> what;
  ragged_batch<> batch;
};

/// The advantage of each turn, as fractions.
using estimator = std::function<std::vector<rational>(sample const&)>;

/// Calls visit(sample, probability) for all 3^K outcomes of K trajectories.
template <typename Visit>
void for_each_outcome(world const& w, std::size_t k, Visit visit) {
  rational all;
  std::size_t count = 1;
  for (std::size_t i = 0; i < k; ++i) count *= 3;
  for (std::size_t code = 0; code < count; ++code) {
    std::vector<outcome> what;
    std::vector<turn_values<>> trajectories;
    rational weight{1};
    for (std::size_t i = 0, rest = code; i < k; ++i, rest /= 3) {
      what.push_back(outcomes[rest % 3]);
      weight *= probability(w, what.back());
      trajectories.push_back({.group = -4, .id = static_cast<std::int64_t>(i), .turns = rewards(what.back())});
    }
    all += weight;
    visit(sample{what, ragged_batch<>{trajectories}}, weight);
  }
  REQUIRE(all == rational{1});
}

/// Expectation of (1 / K) sum over trajectories of advantage * score.
inline gradient expected_gradient(world const& w, std::size_t k, estimator const& advantage) {
  gradient result{0, 0};
  for_each_outcome(w, k, [&](sample const& drawn, rational weight) {
    auto const of_turn = advantage(drawn);
    weight *= rational{1, static_cast<std::int64_t>(k)};
    for (std::size_t i = 0; i < k; ++i) {
      std::size_t const first = drawn.batch.view().first_turn(i);
      gradient const score = scores(w, drawn.what[i]);
      result.turn_1 += weight * of_turn[first] * score.turn_1;
      if (drawn.what[i] != outcome::stop) result.turn_2 += weight * of_turn[first + 1] * score.turn_2;
    }
  });
  return result;
}

inline double as_double(rational value) {
  return static_cast<double>(value.numerator()) / static_cast<double>(value.denominator());
}

/// The same in doubles, for advantages that are no fractions.
inline std::array<double, 2> approximate_gradient(world const& w, std::size_t k,
                                                  std::function<std::vector<double>(sample const&)> const& advantage) {
  std::array<double, 2> result{};
  for_each_outcome(w, k, [&](sample const& drawn, rational weight) {
    auto const of_turn = advantage(drawn);
    for (std::size_t i = 0; i < k; ++i) {
      std::size_t const first = drawn.batch.view().first_turn(i);
      gradient const score = scores(w, drawn.what[i]);
      double const share = as_double(weight) / static_cast<double>(k);
      result[0] += share * of_turn[first] * as_double(score.turn_1);
      if (drawn.what[i] != outcome::stop) result[1] += share * of_turn[first + 1] * as_double(score.turn_2);
    }
  });
  return result;
}

/// Baselines over at most 10 turns have denominators up to 10.
inline std::vector<rational> as_fractions(std::vector<double> const& values) {
  std::vector<rational> result;
  for (double const value : values) result.push_back(exactly(value, 2520));
  return result;
}

inline std::vector<double> returns_of(ragged_batch<> const& batch, double gamma = 1) {
  std::vector<double> returns(batch.turns());
  auto reasons = batch.reasons();
  advantage::discounted_return(batch.view(), batch.value, {.gamma = gamma}, std::span{reasons}, std::span{returns});
  return returns;
}

inline std::vector<double> centred(grouping const& groups, std::vector<double> const& returns) {
  std::vector<double> advantage(returns.size());
  advantage::group_relative(groups, returns, {}, {.scale = false}, std::span{advantage});
  return advantage;
}

inline std::vector<rational> group_mean_by_turn(sample const& drawn) {
  return as_fractions(centred(make_grouping(drawn.batch.view(), group_by::turn), returns_of(drawn.batch)));
}

inline std::vector<rational> group_mean_by_turn_lone_kept(sample const& drawn) {
  auto const groups = make_grouping(drawn.batch.view(), group_by::turn);
  auto const returns = returns_of(drawn.batch);
  auto advantage = centred(groups, returns);
  for (std::size_t g = 0; g < groups.groups(); ++g)
    if (groups.members(g).size() == 1) {
      auto const lone = static_cast<std::size_t>(groups.members(g)[0]);
      advantage[lone] = returns[lone];
    }
  return as_fractions(advantage);
}

inline std::vector<rational> mean_over_all_turns(sample const& drawn) {
  return as_fractions(centred(make_grouping(drawn.batch.view(), group_by::group), returns_of(drawn.batch)));
}

inline std::vector<rational> exact_returns(sample const& drawn) {
  std::vector<rational> result;
  for (outcome const what : drawn.what) {
    if (what == outcome::stop) {
      result.push_back(1);
      continue;
    }
    result.insert(result.end(), 2, what == outcome::success ? 3 : 0);
  }
  return result;
}

/// An estimator of the library: method(groups, returns, advantage).
template <typename Method>
inline std::vector<double> by_turn(sample const& drawn, Method method) {
  auto const returns = returns_of(drawn.batch);
  std::vector<double> advantage(returns.size());
  method(make_grouping(drawn.batch.view(), group_by::turn), returns, std::span{advantage});
  return advantage;
}

/// Tokens of the turns of one trajectory: they depend on the action.
inline std::vector<double> tokens(outcome what) {
  if (what == outcome::stop) return {2};
  return {5, what == outcome::success ? 1.0 : 3.0};
}
inline std::vector<double> tokens_of(sample const& drawn) {
  std::vector<double> result;
  for (outcome const what : drawn.what)
    for (double const count : tokens(what)) result.push_back(count);
  return result;
}

/// The values of all turns with index t, and where they stand.
struct turn_group {
  std::vector<std::size_t> turn;
  std::vector<rational> value;
};
inline std::array<turn_group, 2> turn_groups(sample const& drawn, std::vector<rational> const& value) {
  std::array<turn_group, 2> result;
  for (std::size_t j = 0; j < drawn.what.size(); ++j)
    for (std::size_t s = drawn.batch.view().first_turn(j); s < drawn.batch.view().first_turn(j + 1); ++s) {
      auto& group = result[s - drawn.batch.view().first_turn(j)];
      group.turn.push_back(s);
      group.value.push_back(value[s]);
    }
  return result;
}

/// Returns minus baseline(group, returns of it) of the own turn group, in fractions and without the library; lone: 0.
template <typename Baseline>
inline std::vector<rational> exact_by_turn(sample const& drawn, Baseline baseline) {
  auto const returns = exact_returns(drawn);
  std::vector<rational> result(returns.size());
  for (auto const& group : turn_groups(drawn, returns))
    for (std::size_t const s : group.turn)
      if (group.turn.size() > 1) result[s] = returns[s] - baseline(group);
  return result;
}

}  // namespace turnwise::test::two_turns
