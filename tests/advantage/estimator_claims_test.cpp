#include "support/ragged.hpp"
#include "support/rational.hpp"

#include <turnwise/advantage/discounted_return.hpp>
#include <turnwise/advantage/gpg.hpp>
#include <turnwise/advantage/group_relative.hpp>
#include <turnwise/advantage/leave_one_out.hpp>
#include <turnwise/advantage/max_rl.hpp>
#include <turnwise/advantage/median_mad.hpp>
#include <turnwise/advantage/opo.hpp>
#include <turnwise/advantage/pass_at_k.hpp>
#include <turnwise/advantage/remax.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <ostream>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

using turnwise::group_by;
using turnwise::grouping;
using turnwise::make_grouping;
using turnwise::reason_flags;
using turnwise::advantage::baseline_members;
using turnwise::advantage::exclude_policy;
using turnwise::advantage::leave_one_out_options;
using turnwise::advantage::singleton_policy;
using turnwise::test::exactly;
using turnwise::test::power;
using turnwise::test::ragged_batch;
using turnwise::test::rational;
using turnwise::test::turn_values;

namespace {

/// Turn 1 stops (pays 1, ends) or goes on with probability `go`; turn 2 pays 3 with probability `success`, else 0.
struct world {
  rational go, success;
};
constexpr world of_the_table{rational{1, 2}, rational{1, 4}};
constexpr world of_the_wrong_sign{rational{1, 4}, rational{1, 2}};
constexpr world uneven{rational{2, 3}, rational{1, 5}};

enum class outcome { stop, failure, success };
constexpr std::array outcomes{outcome::stop, outcome::failure, outcome::success};

rational probability(world const& w, outcome what) {
  if (what == outcome::stop) return rational{1} - w.go;
  return w.go * (what == outcome::success ? w.success : rational{1} - w.success);
}

/// Rewards of the turns of one trajectory.
std::vector<double> rewards(outcome what) {
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
gradient scores(world const& w, outcome what) {
  if (what == outcome::stop) return {-w.go, 0};
  return {rational{1} - w.go, what == outcome::success ? rational{1} - w.success : -w.success};
}

rational value(world const& w) {
  rational sum;
  for (outcome const what : outcomes)
    for (double const reward : rewards(what)) sum += probability(w, what) * exactly(reward, 1);
  return sum;
}

/// The value is linear in each probability, so its slope is a difference of values at 1 and 0.
gradient true_gradient(world const& w) {
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
gradient expected_gradient(world const& w, std::size_t k, estimator const& advantage) {
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

double as_double(rational value) {
  return static_cast<double>(value.numerator()) / static_cast<double>(value.denominator());
}

/// The same in doubles, for advantages that are no fractions.
std::array<double, 2> approximate_gradient(world const& w, std::size_t k,
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
std::vector<rational> as_fractions(std::vector<double> const& values) {
  std::vector<rational> result;
  for (double const value : values) result.push_back(exactly(value, 2520));
  return result;
}

std::vector<double> returns_of(ragged_batch<> const& batch, double gamma = 1) {
  std::vector<double> returns(batch.turns());
  auto reasons = batch.reasons();
  turnwise::advantage::discounted_return(batch.view(), batch.value, {.gamma = gamma}, std::span{reasons},
                                         std::span{returns});
  return returns;
}

std::vector<double> left_out(grouping const& groups, std::vector<double> const& returns,
                             leave_one_out_options const& options, std::vector<reason_flags> const& reasons = {}) {
  std::vector<double> advantage(returns.size());
  turnwise::advantage::leave_one_out(groups, returns, reasons, options, std::span{advantage});
  return advantage;
}

std::vector<double> centred(grouping const& groups, std::vector<double> const& returns) {
  std::vector<double> advantage(returns.size());
  turnwise::advantage::group_relative(groups, returns, {}, {.scale = false}, std::span{advantage});
  return advantage;
}

// The estimators of the table, by the library.

estimator leave_one_out(group_by by, leave_one_out_options const& options) {
  return [=](sample const& drawn) {
    return as_fractions(left_out(make_grouping(drawn.batch.view(), by), returns_of(drawn.batch), options));
  };
}

std::vector<rational> group_mean_by_turn(sample const& drawn) {
  return as_fractions(centred(make_grouping(drawn.batch.view(), group_by::turn), returns_of(drawn.batch)));
}

std::vector<rational> group_mean_by_turn_lone_kept(sample const& drawn) {
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

std::vector<rational> mean_over_all_turns(sample const& drawn) {
  return as_fractions(centred(make_grouping(drawn.batch.view(), group_by::group), returns_of(drawn.batch)));
}

std::vector<rational> single_rewards_summed(sample const& drawn) {
  auto const view = drawn.batch.view();
  auto advantage = left_out(make_grouping(view, group_by::turn), returns_of(drawn.batch, 0), {});
  for (std::size_t j = 0; j < view.trajectories(); ++j)
    for (std::size_t s = view.first_turn(j + 1) - 1; s-- > view.first_turn(j);) advantage[s] += advantage[s + 1];
  return as_fractions(advantage);
}

// Prompt-level baselines once more, in fractions and without the library.

std::vector<rational> exact_returns(sample const& drawn) {
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

std::vector<rational> exact_prompt_level(sample const& drawn, bool without_the_turn) {
  auto returns = exact_returns(drawn);
  rational sum;
  for (rational const value : returns) sum += value;
  auto const n = static_cast<std::int64_t>(returns.size());
  for (rational& value : returns)
    value = without_the_turn ? value - (sum - value) / rational{n - 1} : value - sum / rational{n};
  return returns;
}

// The other baselines, over turn groups.

/// An estimator of the library: method(groups, returns, advantage).
template <typename Method>
std::vector<double> by_turn(sample const& drawn, Method method) {
  auto const returns = returns_of(drawn.batch);
  std::vector<double> advantage(returns.size());
  method(make_grouping(drawn.batch.view(), group_by::turn), returns, std::span{advantage});
  return advantage;
}

/// Tokens of the turns of one trajectory: they depend on the action.
std::vector<double> tokens(outcome what) {
  if (what == outcome::stop) return {2};
  return {5, what == outcome::success ? 1.0 : 3.0};
}
std::vector<double> tokens_of(sample const& drawn) {
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
std::array<turn_group, 2> turn_groups(sample const& drawn, std::vector<rational> const& value) {
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
std::vector<rational> exact_by_turn(sample const& drawn, Baseline baseline) {
  auto const returns = exact_returns(drawn);
  std::vector<rational> result(returns.size());
  for (auto const& group : turn_groups(drawn, returns))
    for (std::size_t const s : group.turn)
      if (group.turn.size() > 1) result[s] = returns[s] - baseline(group);
  return result;
}

/// Slope of the expected best total return of k trajectories along the logit of going on.
rational slope_of_best(world const& w, std::size_t k) {
  rational result;
  for_each_outcome(w, k, [&](sample const& drawn, rational weight) {
    rational best, score;
    for (outcome const what : drawn.what) {
      rational const total = what == outcome::stop ? 1 : what == outcome::success ? 3 : 0;
      best = best < total ? total : best;
      score += scores(w, what).turn_1;
    }
    result += weight * best * score;
  });
  return result;
}

/// Samples that succeed with probability p, `prompts` groups of k: expectation of the mean over all samples of
/// advantage * d log probability / d logit, over all outcomes. method(groups, returns, advantage).
template <typename Method>
rational expected_slope(rational p, std::size_t prompts, std::size_t k, std::int64_t common, Method method) {
  std::size_t const samples = prompts * k;
  std::vector<std::int64_t> group(samples);
  for (std::size_t i = 0; i < samples; ++i) group[i] = static_cast<std::int64_t>(i / k);
  auto const groups = make_grouping(group);
  rational result;
  for (unsigned set = 0; set < 1u << samples; ++set) {
    std::vector<double> returns(samples), advantage(samples);
    rational weight{1, static_cast<std::int64_t>(samples)};
    for (std::size_t i = 0; i < samples; ++i) {
      bool const success = (set >> i & 1) != 0;
      returns[i] = success ? 1 : 0;
      weight *= success ? p : rational{1} - p;
    }
    method(groups, returns, std::span{advantage});
    for (std::size_t i = 0; i < samples; ++i)
      result += weight * exactly(advantage[i], common) * (returns[i] > 0 ? rational{1} - p : -p);
  }
  return result;
}

constexpr leave_one_out_options keep{.singleton = singleton_policy::keep};
constexpr leave_one_out_options zero{.singleton = singleton_policy::zero};
constexpr leave_one_out_options others{.singleton = singleton_policy::others};
constexpr leave_one_out_options without_member{.exclude = exclude_policy::member};

/// Probability, for one who goes on, that none of the other k - 1 does; and the mean of (N - 1) / N, N those who go on.
rational alone(world const& w, std::size_t k) { return power(rational{1} - w.go, static_cast<int>(k) - 1); }
rational mean_shrinkage(world const& w, std::size_t k) {
  rational const none = power(rational{1} - w.go, static_cast<int>(k));
  return rational{1} - (rational{1} - none) / (rational{static_cast<std::int64_t>(k)} * w.go);
}

// Two or three kinds of samples in a group of 16, all counts enumerated.

struct kind {
  long double probability;
  double reward;
  reason_flags reasons;
  std::size_t action;
};

/// Expected logit gradient of each action: (1 / 16) sum over kept samples of advantage * (1{its action} - probability).
std::array<double, 3> softmax_gradient(std::array<kind, 3> const& kinds, std::array<long double, 3> const& policy,
                                       leave_one_out_options const& options) {
  constexpr std::size_t k = 16;
  std::array<long double, k + 1> factorial{1};
  for (std::size_t i = 1; i <= k; ++i) factorial[i] = factorial[i - 1] * static_cast<long double>(i);
  auto const groups = make_grouping(std::vector<std::int64_t>(k, 0));
  std::array<long double, 3> sum{};
  for (std::size_t a = 0; a <= k; ++a)
    for (std::size_t b = 0; a + b <= k; ++b) {
      std::array const counts{a, b, k - a - b};
      long double weight = factorial[k];
      std::vector<std::size_t> drawn;
      for (std::size_t i = 0; i < 3; ++i) {
        weight *= std::pow(kinds[i].probability, static_cast<long double>(counts[i])) / factorial[counts[i]];
        drawn.insert(drawn.end(), counts[i], i);
      }
      std::vector<double> returns;
      std::vector<reason_flags> reasons;
      for (std::size_t const i : drawn) {
        returns.push_back(kinds[i].reward);
        reasons.push_back(kinds[i].reasons);
      }
      auto const advantage = left_out(groups, returns, options, reasons);
      for (std::size_t n = 0; n < k; ++n) {
        if (!turnwise::is_kept(reasons[n])) continue;
        for (std::size_t action = 0; action < 3; ++action)
          sum[action] += weight / k * static_cast<long double>(advantage[n]) *
                         ((kinds[drawn[n]].action == action ? 1 : 0) - policy[action]);
      }
    }
  return {static_cast<double>(sum[0]), static_cast<double>(sum[1]), static_cast<double>(sum[2])};
}

void check_triple(std::array<double, 3> const& got, std::array<double, 3> const& wanted, double tolerance) {
  for (std::size_t i = 0; i < 3; ++i) {
    CAPTURE(i);
    CAPTURE(got[i]);
    CHECK(std::abs(got[i] - wanted[i]) <= tolerance);
  }
}

/// Wrong, lazy and real kernels; the filter rejects the lazy ones.
std::array<double, 3> kernels(bool filtered, leave_one_out_options const& options) {
  reason_flags const lazy = filtered ? turnwise::reason::profiling : 0;
  return softmax_gradient({{{0.5L, 0, 0, 0}, {0.45L, 2, lazy, 1}, {0.05L, 3.4, 0, 2}}}, {0.5L, 0.45L, 0.05L}, options);
}

}  // namespace

TEST_SUITE("advantage/estimator_claims") {
  TEST_CASE("fractions: the arithmetic that the claims rest on") {
    CHECK(rational{6, -8} == rational{-3, 4});
    CHECK(rational{1, 3} + rational{1, 6} == rational{1, 2});
    CHECK(rational{1, 3} - rational{1, 2} == rational{-1, 6});
    CHECK(rational{2, 3} * rational{9, 4} == rational{3, 2});
    CHECK(rational{2, 3} / rational{-4, 9} == rational{-3, 2});
    CHECK(power(rational{2, 3}, 3) == rational{8, 27});
    CHECK(rational{-1, 2} < rational{-1, 3});
    CHECK(rational{0, 5} == rational{});
    CHECK(exactly(-3.0 / 7, 2520) == rational{-3, 7});
    CHECK_THROWS_AS(static_cast<void>(exactly(1.0 / 11, 2520)), std::domain_error);
    CHECK_THROWS_AS(static_cast<void>(exactly(1.0 / 7 + 1e-11, 2520)), std::domain_error);
    CHECK_THROWS_AS((rational{1, 0}), std::domain_error);
    CHECK_THROWS_AS(static_cast<void>(power(rational{10}, 19)), std::overflow_error);
  }

  TEST_CASE("the true gradient is the slope of the value") {
    CHECK(value(of_the_table) == rational{7, 8});  // 1/2 + 1/2 * 1/4 * 3
    CHECK(true_gradient(of_the_table) == gradient{{-1, 16}, {9, 32}});
    CHECK(true_gradient(of_the_wrong_sign) == gradient{{3, 32}, {3, 16}});
    // And the expectation of return * score without any baseline.
    for (world const& w : {of_the_table, of_the_wrong_sign, uneven})
      CHECK(expected_gradient(w, 1, [](sample const& drawn) { return as_fractions(returns_of(drawn.batch)); }) ==
            true_gradient(w));
  }

  TEST_CASE("K = 4: every row of the table") {
    auto const row = [](estimator const& advantage) { return expected_gradient(of_the_table, 4, advantage); };
    // Turn-level leave-one-out.
    CHECK(row(leave_one_out(group_by::turn, keep)) == gradient{{-1, 16}, {9, 32}});
    CHECK(row(leave_one_out(group_by::turn, others)) == gradient{{-1, 16}, {9, 32}});
    CHECK(row(leave_one_out(group_by::turn, zero)) == gradient{{-1, 16}, {63, 256}});
    // Group mean by turn, lone member kept or zeroed.
    CHECK(row(group_mean_by_turn_lone_kept) == gradient{{-3, 64}, {189, 1024}});
    CHECK(row(group_mean_by_turn) == gradient{{-3, 64}, {153, 1024}});
    // Prompt-level leave-one-out, the trajectory or the turn left out.
    CHECK(row(leave_one_out(group_by::group, {})) == gradient{{-1, 16}, {9, 32}});
    CHECK(row(leave_one_out(group_by::group, without_member)) == gradient{{-147, 2560}, {8199, 35840}});
    // Mean over all turns of the prompt.
    CHECK(row(mean_over_all_turns) == gradient{{-213, 4480}, {6921, 35840}});
    // Leave-one-out of single rewards, summed to the own last turn.
    CHECK(row(single_rewards_summed) == gradient{{-29, 128}, {9, 32}});
  }

  TEST_CASE("unbiased for every K: turn-level with keep or others, prompt-level without the own trajectory") {
    for (world const& w : {of_the_table, of_the_wrong_sign, uneven})
      for (std::size_t k = 2; k <= 5; ++k) {
        CAPTURE(k);
        for (leave_one_out_options const& options : {keep, others}) {
          CHECK(expected_gradient(w, k, leave_one_out(group_by::turn, options)) == true_gradient(w));
          CHECK(expected_gradient(w, k, leave_one_out(group_by::group, options)) == true_gradient(w));
        }
        // In a turn group each trajectory has one turn, so both exclusions are the same.
        CHECK(expected_gradient(w, k, leave_one_out(group_by::turn, without_member)) == true_gradient(w));
      }
  }

  TEST_CASE("the shrinkage of the others, for every K") {
    for (world const& w : {of_the_table, of_the_wrong_sign, uneven})
      for (std::size_t k = 2; k <= 5; ++k) {
        CAPTURE(k);
        gradient const truth = true_gradient(w);
        auto const count = static_cast<std::int64_t>(k);
        rational const one{1};
        CHECK(expected_gradient(w, k, leave_one_out(group_by::turn, zero)) ==
              gradient{truth.turn_1, truth.turn_2 * (one - alone(w, k))});
        rational const centred_turn_1 = truth.turn_1 * rational{count - 1, count};
        CHECK(expected_gradient(w, k, group_mean_by_turn) ==
              gradient{centred_turn_1, truth.turn_2 * mean_shrinkage(w, k)});
        CHECK(expected_gradient(w, k, group_mean_by_turn_lone_kept) ==
              gradient{centred_turn_1, truth.turn_2 * (mean_shrinkage(w, k) + alone(w, k))});
        // Worse than (N - 1) / N at the mean N.
        rational const mean_n = one + rational{count - 1} * w.go;
        CHECK(mean_shrinkage(w, k) < (mean_n - one) / mean_n);
      }
  }

  TEST_CASE("prompt-level baselines that contain the own trajectory are biased, for every K") {
    for (world const& w : {of_the_table, of_the_wrong_sign, uneven})
      for (std::size_t k = 2; k <= 5; ++k) {
        CAPTURE(k);
        auto const member = expected_gradient(w, k, leave_one_out(group_by::group, without_member));
        auto const mean = expected_gradient(w, k, mean_over_all_turns);
        CHECK(member == expected_gradient(w, k, [](sample const& s) { return exact_prompt_level(s, true); }));
        CHECK(mean == expected_gradient(w, k, [](sample const& s) { return exact_prompt_level(s, false); }));
        gradient const truth = true_gradient(w);
        CHECK(member.turn_1 != truth.turn_1);
        CHECK(member.turn_2 < truth.turn_2);
        CHECK(mean.turn_2 < member.turn_2);
      }
  }

  TEST_CASE("single rewards summed to the own last turn: wrong where going on is rare") {
    // Going on earns the lone member's reward of turn 2 and no baseline: q (1 - q) (-1 + 3 p (1 - q)^(K - 1)).
    for (world const& w : {of_the_table, of_the_wrong_sign, uneven})
      for (std::size_t k = 2; k <= 5; ++k) {
        CAPTURE(k);
        rational const slope = w.go * (rational{1} - w.go) * (rational{3} * w.success * alone(w, k) - rational{1});
        CHECK(expected_gradient(w, k, single_rewards_summed) == gradient{slope, true_gradient(w).turn_2});
      }
    auto const wrong = expected_gradient(of_the_wrong_sign, 4, single_rewards_summed);
    CHECK(wrong.turn_1 == rational{-141, 2048});
    CHECK(rational{0} < true_gradient(of_the_wrong_sign).turn_1);
  }

  TEST_CASE("a filter on the action: the lazy kernel grows although it is filtered out, unless only kept turns count") {
    // Without the filter: p (reward - 1.07).
    check_triple(kernels(false, {}), {-0.535, 0.4185, 0.1165}, 1e-12);
    // Filtered, all valid members: the kept advantages sum to -0.4185, of which each action's logit takes its share.
    check_triple(kernels(true, {}), {-0.32575, 0.188325, 0.137425}, 1e-12);
    check_triple(kernels(true, {}), {-0.326, 0.188, 0.137}, 0.0005);
    for (auto const singleton : {singleton_policy::zero, singleton_policy::others})
      check_triple(kernels(true, {.singleton = singleton}), {-0.326, 0.188, 0.137}, 0.0005);
  }

  TEST_CASE("the same filter with kept members alone") {
    // Lone survivors zeroed: advantages sum to 0 in each outcome, so exactly 0 for lazy, and for the others
    // 3.4 * 10/121 * 0.55 (1 - 0.45^15).
    double const by_hand = 17.0 / 110 * (1 - std::pow(0.45, 15));
    check_triple(kernels(true, {.singleton = singleton_policy::zero, .members = baseline_members::kept}),
                 {-by_hand, 0, by_hand}, 1e-12);
    check_triple({-by_hand, 0, by_hand}, {-0.155, 0, 0.155}, 0.0005);
    // Lone survivors are rare here: the other policies agree in three digits, but lazy moves a little.
    for (auto const singleton : {singleton_policy::keep, singleton_policy::others}) {
      auto const got =
          kernels(true, {.singleton = singleton, .members = baseline_members::kept, .allow_kept_with_keep = true});
      check_triple(got, {-0.155, 0, 0.155}, 0.0005);
      CHECK(std::abs(got[1]) > 1e-8);
    }
  }

  TEST_CASE("masking failures turns the slope round: safe pays 1, risky pays 2 with probability 0.3") {
    auto const slope = [](reason_flags of_failure, leave_one_out_options const& options) {
      return softmax_gradient({{{0.5L, 1, 0, 0}, {0.15L, 2, 0, 1}, {0.35L, 0, of_failure, 1}}}, {0.5L, 0.5L, 0},
                              options)[1];
    };
    for (leave_one_out_options const& options : {keep, zero, others})
      CHECK(std::abs(slope(0, options) - -0.1) < 1e-12);  // 1/4 (0.6 - 1)
    // Among valid samples 0.15 risky ones win against 0.5 safe ones: 0.15 * 0.5 / 0.65, less the lone ones.
    CHECK(std::abs(slope(turnwise::reason::invalid, zero) - 0.075 / 0.65 * (1 - std::pow(0.35, 15))) < 1e-12);
    for (leave_one_out_options const& options : {keep, zero, others})
      CHECK(std::abs(slope(turnwise::reason::invalid, options) - 0.115) < 0.0005);
  }

  TEST_CASE("remax: unbiased with any greedy returns that do not depend on the action, for every K") {
    for (world const& w : {of_the_table, of_the_wrong_sign, uneven})
      for (std::size_t k = 1; k <= 3; ++k)
        // The greedy rollout stops, fails or succeeds, or its return is any number.
        for (auto const& [greedy_1, greedy_2] :
             {std::pair{1.0, 0.0}, std::pair{0.0, 0.0}, std::pair{3.0, 3.0}, std::pair{-2.5, 0.75}}) {
          auto const remax = [&, first = greedy_1, second = greedy_2](sample const& drawn) {
            std::vector<double> greedy;
            for (outcome const what : drawn.what) {
              greedy.push_back(first);
              if (what != outcome::stop) greedy.push_back(second);
            }
            std::vector<double> advantage(greedy.size());
            turnwise::advantage::remax(returns_of(drawn.batch), greedy, {}, std::span{advantage});
            return as_fractions(advantage);
          };
          CHECK(expected_gradient(w, k, remax) == true_gradient(w));
        }
  }

  TEST_CASE("opo: biased; the group mean where tokens are equal") {
    auto const opo = [](auto tokens_of_sample) {
      return [=](sample const& drawn) {
        auto const got = by_turn(drawn, [&](auto const& groups, auto const& returns, auto advantage) {
          turnwise::advantage::opo(groups, returns, tokens_of_sample(drawn), {}, {}, advantage);
        });
        std::vector<rational> result;
        for (double const value : got) result.push_back(exactly(value, 5354228880));  // the least multiple of 1 .. 24
        return result;
      };
    };
    auto const by_hand = [](sample const& drawn) {
      std::vector<rational> weight;
      for (double const count : tokens_of(drawn)) weight.push_back(exactly(count, 1));
      return exact_by_turn(drawn, [&](turn_group const& group) {
        rational sum, total;
        for (std::size_t i = 0; i < group.turn.size(); ++i) {
          sum += weight[group.turn[i]] * group.value[i];
          total += weight[group.turn[i]];
        }
        return sum / total;
      });
    };
    for (world const& w : {of_the_table, of_the_wrong_sign, uneven})
      for (std::size_t k = 2; k <= 4; ++k) {
        CAPTURE(k);
        auto const got = expected_gradient(w, k, opo(tokens_of));
        CHECK(got == expected_gradient(w, k, by_hand));
        CHECK(got.turn_1 != true_gradient(w).turn_1);
        CHECK(got.turn_2 != true_gradient(w).turn_2);
        CHECK(expected_gradient(w, k, opo([](sample const& drawn) {
                                  return std::vector<double>(drawn.batch.turns(), 7.0);
                                })) == expected_gradient(w, k, group_mean_by_turn));
      }
  }

  TEST_CASE("median_mad: biased, scaled or not; without scale the group mean for K = 2") {
    auto const method = [](bool scale) {
      return [=](sample const& drawn) {
        return by_turn(drawn, [&](auto const& groups, auto const& returns, auto advantage) {
          turnwise::advantage::median_mad(groups, returns, {}, {.scale = scale}, advantage);
        });
      };
    };
    auto const by_hand = [](sample const& drawn) {
      return exact_by_turn(drawn, [](turn_group group) {
        std::sort(group.value.begin(), group.value.end());
        std::size_t const n = group.value.size();
        return (group.value[(n - 1) / 2] + group.value[n / 2]) * rational{1, 2};
      });
    };
    auto const of_centred = [&](sample const& drawn) { return as_fractions(method(false)(drawn)); };
    for (world const& w : {of_the_table, of_the_wrong_sign, uneven})
      for (std::size_t k = 2; k <= 5; ++k) {
        CAPTURE(k);
        gradient const truth = true_gradient(w);
        auto const got = expected_gradient(w, k, of_centred);
        CHECK(got == expected_gradient(w, k, by_hand));
        CHECK(got.turn_2 < truth.turn_2);
        if (k == 2) CHECK(got == expected_gradient(w, k, group_mean_by_turn));
        auto const scaled = approximate_gradient(w, k, method(true));
        CHECK(std::abs(scaled[1] - as_double(truth.turn_2)) > 1e-3);
      }
  }

  TEST_CASE("division by a deviation is biased; leave-one-out with scale has none to divide by for K = 2") {
    auto const left_out_scaled = [](sample const& drawn) {
      return left_out(make_grouping(drawn.batch.view(), group_by::turn), returns_of(drawn.batch), {.scale = true});
    };
    auto const relative = [](sample const& drawn) {
      return by_turn(drawn, [](auto const& groups, auto const& returns, auto advantage) {
        turnwise::advantage::group_relative(groups, returns, {}, {}, advantage);
      });
    };
    for (world const& w : {of_the_table, of_the_wrong_sign, uneven}) {
      gradient const truth = true_gradient(w);
      CHECK(expected_gradient(w, 2, [&](sample const& drawn) { return as_fractions(left_out_scaled(drawn)); }) ==
            truth);
      for (std::size_t k = 3; k <= 5; ++k) {
        CHECK(std::abs(approximate_gradient(w, k, left_out_scaled)[1] - as_double(truth.turn_2)) > 1e-3);
        CHECK(std::abs(approximate_gradient(w, k, relative)[1] - as_double(truth.turn_2)) > 1e-3);
      }
    }
  }

  TEST_CASE("pass_at_k: 1/k of the slope of the expected best of k, for every K >= k") {
    for (world const& w : {of_the_table, of_the_wrong_sign, uneven}) {
      CHECK(slope_of_best(w, 1) == true_gradient(w).turn_1);
      for (std::size_t k = 2; k <= 5; ++k)
        for (std::size_t samples = 2; samples <= 5; ++samples) {
          CAPTURE(k);
          CAPTURE(samples);
          auto const method = [&](sample const& drawn) {
            return as_fractions(by_turn(drawn, [&](auto const& groups, auto const& returns, auto advantage) {
              turnwise::advantage::pass_at_k(groups, returns, {}, {.k = static_cast<std::int64_t>(k)}, advantage);
            }));
          };
          // More than there are: the best of all of them.
          std::size_t const best_of = std::min(k, samples);
          CHECK(expected_gradient(w, samples, method).turn_1 * rational{static_cast<std::int64_t>(best_of)} ==
                slope_of_best(w, best_of));
        }
    }
  }

  TEST_CASE("max_rl: single turns of 0 and 1, the slope of sum of pass@k / k for k below the group's size") {
    auto const method = [](auto const& groups, auto const& returns, auto advantage) {
      turnwise::advantage::max_rl(groups, returns, {}, {}, advantage);
    };
    for (rational const p : {rational{1, 4}, rational{1, 2}, rational{4, 5}})
      for (std::size_t n = 1; n <= 6; ++n) {
        rational const failure = rational{1} - p;
        // d pass@k / d logit = k (1 - p)^(k - 1) p (1 - p).
        rational wanted;
        for (std::size_t k = 1; k < n; ++k) wanted += power(failure, static_cast<int>(k)) * p;
        CHECK(expected_slope(p, 1, n, 60, method) == wanted);
        CHECK(wanted == failure - power(failure, static_cast<int>(n)));  // towards that of log p
      }
  }

  TEST_CASE("gpg: biased; mean-centred for one prompt, up to twice as long for two") {
    auto const method = [](turnwise::advantage::gpg_signal signal) {
      return [=](auto const& groups, auto const& returns, auto advantage) {
        turnwise::advantage::gpg(groups, returns, {}, {.signal = signal}, advantage);
      };
    };
    auto const published = method(turnwise::advantage::gpg_signal::group);
    auto const nonzero = method(turnwise::advantage::gpg_signal::nonzero);
    auto const centre = [](auto const& groups, auto const& returns, auto advantage) {
      turnwise::advantage::group_relative(groups, returns, {}, {.scale = false}, advantage);
    };
    for (rational const p : {rational{1, 4}, rational{1, 2}, rational{4, 5}}) {
      rational const one{1}, failure = one - p, mixed = rational{2} * p * failure;
      for (std::size_t k = 1; k <= 5; ++k) {
        rational const shrunk = p * failure * rational{static_cast<std::int64_t>(k) - 1, static_cast<std::int64_t>(k)};
        CHECK(expected_slope(p, 1, k, 60, centre) == shrunk);
        CHECK(expected_slope(p, 1, k, 60, published) == shrunk);
      }
      // Two prompts of two: a mixed pair gives 1/2 times alpha, alpha = 1 if both are mixed, else 2.
      CHECK(expected_slope(p, 2, 2, 60, published) == mixed * (rational{2} - mixed) * rational{1, 4});
      // Successes: two if both are mixed; else one, or three.
      CHECK(expected_slope(p, 2, 2, 60, nonzero) ==
            (rational{2} * mixed * mixed + mixed * (rational{4, 3} * p * p + rational{4} * failure * failure)) *
                rational{1, 4});
    }
  }

}  // TEST_SUITE
