#include "support/two_turn_problem.hpp"

#include <turnwise/advantage/gpg.hpp>
#include <turnwise/advantage/leave_one_out.hpp>
#include <turnwise/advantage/max_rl.hpp>
#include <turnwise/advantage/median_mad.hpp>
#include <turnwise/advantage/opo.hpp>
#include <turnwise/advantage/optimal_token_baseline.hpp>
#include <turnwise/advantage/pass_at_k.hpp>
#include <turnwise/advantage/remax.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

using namespace turnwise::test::two_turns;
using turnwise::group_by;
using turnwise::make_grouping;
using turnwise::test::exactly;
using turnwise::test::power;
using turnwise::test::rational;

namespace {

/// The least multiple of 1 .. 25, the tokens of a turn group of five.
constexpr std::int64_t lcm_25 = 26771144400;

/// Returns over the mean of the turn group weighted by tokens, in fractions.
std::vector<rational> token_weighted_mean(sample const& drawn) {
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
}

rational mean_of(turn_group const& group) {
  rational sum;
  for (rational const value : group.value) sum += value;
  return sum / rational{static_cast<std::int64_t>(group.value.size())};
}

/// Each turn is written as an opening token, the token that decides, and one more where it is long. The decision has
/// the turn's score; up to it a turn has gathered as much weight as it has tokens_of.
std::vector<double> at_the_decision(sample const& drawn,
                                    turnwise::advantage::optimal_token_baseline_options const& options,
                                    std::vector<double> const& gathered) {
  std::vector<std::int64_t> begin, end;
  std::vector<double> weight;
  for (double const total : gathered) {
    begin.push_back(static_cast<std::int64_t>(weight.size()));
    weight.insert(weight.end(), {1.0, total - 1});
    if (total > 2) weight.push_back(9);
    end.push_back(static_cast<std::int64_t>(weight.size()));
  }
  auto batch = drawn.batch.view();
  batch.turn_begin = begin;
  batch.turn_end = end;
  auto const returns = returns_of(drawn.batch);
  std::vector<double> of_token(weight.size()), result;
  turnwise::advantage::optimal_token_baseline(batch, make_grouping(batch, group_by::turn), {}, weight,
                                              std::span<double const>{returns}, {}, options, std::span{of_token});
  for (std::int64_t const first : begin) result.push_back(of_token[static_cast<std::size_t>(first) + 1]);
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

}  // namespace

TEST_SUITE("advantage/estimator_claims_group") {
  TEST_CASE("remax: unbiased with any greedy returns that do not depend on the action, for every K") {
    for (world const& w : {of_the_table, of_the_wrong_sign, uneven})
      for (std::size_t k = 1; k <= 5; ++k)
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
        for (double const value : got) result.push_back(exactly(value, lcm_25));
        return result;
      };
    };
    for (world const& w : {of_the_table, of_the_wrong_sign, uneven})
      for (std::size_t k = 2; k <= 5; ++k) {
        CAPTURE(k);
        auto const got = expected_gradient(w, k, opo(tokens_of));
        CHECK(got == expected_gradient(w, k, token_weighted_mean));
        CHECK(got.turn_1 != true_gradient(w).turn_1);
        CHECK(got.turn_2 != true_gradient(w).turn_2);
        CHECK(expected_gradient(w, k, opo([](sample const& drawn) {
                                  return std::vector<double>(drawn.batch.turns(), 7.0);
                                })) == expected_gradient(w, k, group_mean_by_turn));
      }
  }

  TEST_CASE(
      "optimal_token_baseline: biased, at the token that decides as opo; the group mean where weights are equal") {
    using turnwise::advantage::lone_position;
    auto const weighted = [](sample const& drawn) {
      std::vector<rational> result;
      for (double const value : at_the_decision(drawn, {}, tokens_of(drawn))) result.push_back(exactly(value, lcm_25));
      return result;
    };
    auto const even = [](lone_position singleton) {
      return [=](sample const& drawn) {
        return as_fractions(
            at_the_decision(drawn, {.singleton = singleton}, std::vector<double>(drawn.batch.turns(), 4.0)));
      };
    };
    for (world const& w : {of_the_table, of_the_wrong_sign, uneven})
      for (std::size_t k = 2; k <= 5; ++k) {
        CAPTURE(k);
        auto const got = expected_gradient(w, k, weighted);
        CHECK(got == expected_gradient(w, k, token_weighted_mean));
        CHECK(got.turn_1 != true_gradient(w).turn_1);
        CHECK(got.turn_2 != true_gradient(w).turn_2);
        CHECK(expected_gradient(w, k, even(lone_position::zero)) == expected_gradient(w, k, group_mean_by_turn));
        CHECK(expected_gradient(w, k, even(lone_position::keep)) ==
              expected_gradient(w, k, group_mean_by_turn_lone_kept));
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
      return by_turn(drawn, [](auto const& groups, auto const& returns, auto advantage) {
        turnwise::advantage::leave_one_out(groups, returns, {}, {.scale = true}, advantage);
      });
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

  TEST_CASE("max_rl: on two turns biased; at the second q (1 - p) (1 - (1 - q p)^(K - 1)) in place of 3 q p (1 - p)") {
    auto const method = [](sample const& drawn) {
      auto const got = by_turn(drawn, [](auto const& groups, auto const& returns, auto advantage) {
        turnwise::advantage::max_rl(groups, returns, {}, {}, advantage);
      });
      std::vector<rational> result;
      for (double const value : got) result.push_back(exactly(value, 360360));  // sums of returns are 1 .. 15
      return result;
    };
    auto const by_hand = [](sample const& drawn) {
      auto result = exact_by_turn(drawn, mean_of);
      for (auto const& group : turn_groups(drawn, exact_returns(drawn)))
        for (std::size_t const s : group.turn)
          if (rational{0} < mean_of(group)) result[s] = result[s] / mean_of(group);
      return result;
    };
    for (world const& w : {of_the_table, of_the_wrong_sign, uneven})
      for (std::size_t k = 2; k <= 5; ++k) {
        CAPTURE(k);
        auto const got = expected_gradient(w, k, method);
        CHECK(got == expected_gradient(w, k, by_hand));
        rational const one{1};
        CHECK(got.turn_2 == w.go * (one - w.success) * (one - power(one - w.go * w.success, static_cast<int>(k) - 1)));
        CHECK(got.turn_1 != true_gradient(w).turn_1);
        CHECK(got.turn_2 != true_gradient(w).turn_2);
      }
  }

  TEST_CASE("gpg: on two turns biased; over all turns of the one prompt the mean over them") {
    using turnwise::advantage::gpg_signal;
    auto const method = [](gpg_signal signal, group_by by) {
      return [=](sample const& drawn) {
        std::vector<double> advantage(drawn.batch.turns());
        turnwise::advantage::gpg(make_grouping(drawn.batch.view(), by), returns_of(drawn.batch), {}, {.signal = signal},
                                 std::span{advantage});
        std::vector<rational> result;  // alpha over at most 10 turns, means over at most 10
        for (double const value : advantage) result.push_back(exactly(value, 2520 * 2520));
        return result;
      };
    };
    auto const by_hand = [](gpg_signal signal) {
      return [=](sample const& drawn) {
        auto const returns = exact_returns(drawn);
        auto result = exact_by_turn(drawn, mean_of);
        std::int64_t counting = 0;
        for (auto const& group : turn_groups(drawn, returns))
          for (rational const value : group.value)
            counting += signal == gpg_signal::nonzero
                            ? !(value == rational{0})
                            : std::ranges::any_of(group.value, [&](rational other) { return !(other == value); });
        for (rational& value : result)
          if (counting > 0) value *= rational{static_cast<std::int64_t>(returns.size()), counting};
        return result;
      };
    };
    for (world const& w : {of_the_table, of_the_wrong_sign, uneven})
      for (std::size_t k = 2; k <= 5; ++k) {
        CAPTURE(k);
        for (auto const signal : {gpg_signal::group, gpg_signal::nonzero}) {
          auto const got = expected_gradient(w, k, method(signal, group_by::turn));
          CHECK(got == expected_gradient(w, k, by_hand(signal)));
          CHECK(got.turn_1 != true_gradient(w).turn_1);
          CHECK(got.turn_2 != true_gradient(w).turn_2);
        }
        CHECK(expected_gradient(w, k, method(gpg_signal::group, group_by::group)) ==
              expected_gradient(w, k, mean_over_all_turns));
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
