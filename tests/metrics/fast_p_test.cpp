#include "support/batches.hpp"
#include "support/ragged.hpp"

#include <turnwise/metrics/best_at_k.hpp>
#include <turnwise/metrics/fast_p.hpp>

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

namespace {

using namespace turnwise;
using metrics::fast_p_options;
using metrics::group_estimate;
using metrics::group_mean;
using metrics::kernel_score_options;
using metrics::score_kind;
using metrics::too_few_policy;
using refinement::turn_choice;
using test::infinity;
using test::nan_value;
using test::sample_batch;
using test::sample_trajectory;
using test::sample_turn;
using flags = std::vector<reason_flags>;

sample_turn kernel(double speedup) { return {.correct = true, .speedup = speedup}; }
sample_turn wrong(double speedup = 0) { return {.correct = false, .speedup = speedup}; }

group_mean fast(std::vector<sample_trajectory> const& trajectories, fast_p_options const& options,
                flags const& reasons = {}, std::vector<group_estimate>* out = nullptr) {
  sample_batch<> const batch{trajectories};
  if (out != nullptr) out->assign(out->size(), {-7, -7, true});
  return metrics::fast_p(batch.view(), batch.evaluation(), reasons, options,
                         out != nullptr ? std::span{*out} : std::span<group_estimate>{});
}

/// Single-turn samples of one prompt.
std::vector<sample_trajectory> samples(std::vector<sample_turn> const& turns) {
  std::vector<sample_trajectory> result;
  for (auto const& turn : turns) result.push_back({.id = static_cast<std::int64_t>(result.size()), .turns = {turn}});
  return result;
}

std::vector<double> scores(std::vector<sample_turn> const& turns, kernel_score_options const& options,
                           flags const& reasons = {}) {
  sample_batch<> const batch{std::vector<sample_trajectory>{{.turns = turns}}};
  std::vector<double> result(turns.size());
  metrics::kernel_score(batch.evaluation(), reasons, options, std::span{result});
  return result;
}

}  // namespace

TEST_SUITE("metrics/fast_p") {
  TEST_CASE("strictly above p, correct kernels only") {
    auto const five = samples({kernel(1), kernel(1.5), wrong(9), kernel(2), kernel(0)});
    CHECK(fast(five, {.threshold = 0}).mean == 0.6);
    CHECK(fast(five, {.threshold = 1}).mean == 0.4);  // 1 is not above 1
    CHECK(fast(five, {.threshold = 1.5}).mean == 0.2);
    CHECK(fast(five, {.threshold = 2}).mean == 0);
    auto const above = samples({kernel(std::nextafter(1.2, 2)), kernel(1.2)});
    CHECK(fast(above, {.threshold = 1.2}).mean == 0.5);
  }

  TEST_CASE("C as in the reward: compiled, correct, no decoy, no rule broken") {
    auto decoy = kernel(5), broken = kernel(5);
    decoy.decoy = true;
    broken.compiled = false;
    CHECK(fast(samples({decoy, broken, kernel(5), kernel(5)}), {}).mean == 0.5);
    sample_batch<> const batch{samples({kernel(5), kernel(5)})};
    auto evaluation = batch.evaluation();
    std::vector<std::uint8_t> const violation{0, 1};
    evaluation.rule_violation = violation;
    CHECK(metrics::fast_p(batch.view(), evaluation, {}, {}).mean == 0.5);
  }

  TEST_CASE("best of turns, last turn, by turn index") {
    std::vector<sample_trajectory> const two{{.id = 1, .turns = {kernel(3), wrong(), kernel(1.1)}},
                                             {.id = 2, .turns = {wrong(), kernel(2)}}};
    auto const share = [&](double p, turn_choice turns, std::int64_t index = 0,
                           std::int64_t limit = refinement::all_turns) {
      return fast(two, {.threshold = p, .turns = turns, .turn_limit = limit, .turn_index = index});
    };
    CHECK(share(1.5, turn_choice::best).mean == 1);
    CHECK(share(2.5, turn_choice::best).mean == 0.5);
    CHECK(share(1.5, turn_choice::best, 0, 1).mean == 0.5);
    CHECK(share(1.0, turn_choice::last).mean == 1);
    CHECK(share(1.5, turn_choice::last).mean == 0.5);
    CHECK(share(1.5, turn_choice::last, 0, 2).mean == 0.5);
    CHECK(share(1.5, turn_choice::at_index, 0).mean == 0.5);
    CHECK(share(1.5, turn_choice::at_index, 1).mean == 0.5);
    CHECK(share(1.0, turn_choice::at_index, 2) == group_mean{1, 1, 0});  // of the one that got there
    CHECK(share(1.0, turn_choice::at_index, 3) == group_mean{0, 0, 1});
  }

  TEST_CASE("at k as pass@k, each prompt once, in the order of group ids") {
    std::vector<sample_trajectory> all;
    for (std::int64_t i = 0; i < 4; ++i) all.push_back({.group = 8, .id = i, .turns = {i == 2 ? kernel(2) : wrong()}});
    for (std::int64_t i = 0; i < 2; ++i) all.push_back({.group = -8, .id = i, .turns = {kernel(2)}});
    std::vector<group_estimate> out(2);
    CHECK(fast(all, {}, {}, &out) == group_mean{(1 + 0.25) / 2, 2, 0});
    CHECK(out == std::vector<group_estimate>{{1, 2, true}, {0.25, 4, true}});
    CHECK(fast(all, {.k = 2}, {}, &out) == group_mean{0.75, 2, 0});
    CHECK(fast(all, {.k = 3}, {}, &out) == group_mean{0.75, 1, 1});
    CHECK(out == std::vector<group_estimate>{{0, 2, false}, {0.75, 4, true}});
    CHECK(fast(all, {.k = 3, .too_few = too_few_policy::all}) == group_mean{0.875, 2, 0});
    CHECK_THROWS_AS(fast(all, {.k = 3, .too_few = too_few_policy::error}, {}, &out), precondition_error);
    CHECK(out == std::vector<group_estimate>(2, {-7, -7, true}));
  }

  TEST_CASE("at k against every subset: the share of the sets of k samples with a fast kernel among them") {
    // Each sample is wrong, correct and slow, or correct and fast: all 3^n batches of n samples.
    sample_turn const kinds[]{wrong(9), kernel(1), kernel(2)};
    for (int n = 1, batches = 3; n <= 5; ++n, batches *= 3)
      for (int code = 0; code < batches; ++code) {
        std::vector<sample_turn> turns;
        unsigned fast_ones = 0;
        for (int i = 0, rest = code; i < n; ++i, rest /= 3) {
          turns.push_back(kinds[rest % 3]);
          if (rest % 3 == 2) fast_ones |= 1u << i;
        }
        auto const batch = samples(turns);
        for (int k = 1; k <= n; ++k) {
          int sets = 0, hits = 0;
          for (unsigned set = 0; set < 1u << n; ++set) {
            if (std::popcount(set) != k) continue;
            ++sets;
            hits += (set & fast_ones) != 0;
          }
          CAPTURE(n);
          CAPTURE(code);
          CAPTURE(k);
          group_mean const got = fast(batch, {.k = k});
          REQUIRE(got.groups == 1);
          REQUIRE(std::abs(got.mean - static_cast<double>(hits) / sets) <= 0x1p-52);
        }
      }
  }

  TEST_CASE("unscored and invalid turns do not count; rejected ones do") {
    auto off = kernel(infinity);
    off.valid = false;
    // A correct kernel without a speedup is unscored; a wrong one is wrong, whatever its speedup.
    CHECK(fast(samples({kernel(nan_value), wrong(nan_value), kernel(2), off, wrong(infinity)}), {}).mean ==
          doctest::Approx(1.0 / 3));
    std::vector<sample_trajectory> const one{{.turns = {kernel(2), kernel(0.5), kernel(nan_value)}}};
    CHECK(fast(one, {.turns = turn_choice::last}).mean == 0);
    CHECK(fast(one, {}).mean == 1);
    CHECK(fast(one, {}, {reason::unscored_future, reason::ratio_high, 0}).mean == 0);
    CHECK(fast(one, {}, flags(3, reason::invalid)) == group_mean{0, 0, 1});
    CHECK(fast(samples({kernel(nan_value)}), {}) == group_mean{0, 0, 1});
  }

  TEST_CASE("the order of trajectories does not show; the recorded batches by a count of their files") {
    auto trajectories = test::random_trajectories(11, 9, 8, 3);
    auto const forward = fast(trajectories, {.k = 2});
    std::ranges::reverse(trajectories);
    CHECK(fast(trajectories, {.k = 2}) == forward);

    for (char const* const name : {"kernel_rollouts_a", "kernel_rollouts_b"}) {
      auto const batch = test::load_batch(name);
      auto const view = batch.turns.view();
      // Each prompt has 16 trajectories, so that the mean over prompts is the share of all trajectories.
      double solved = 0;
      for (std::size_t j = 0; j < view.trajectories(); ++j) {
        bool any = false;
        for (std::size_t s = view.first_turn(j); s < view.first_turn(j + 1); ++s)
          any |=
              batch.compiled[s] && batch.correct[s] && !batch.decoy[s] && static_cast<double>(batch.speedup[s]) > 1.2;
        solved += any;
      }
      CHECK(solved > 0);
      auto const got = metrics::fast_p(view, batch.evaluation(), {}, {.threshold = 1.2});
      CHECK(got.groups == 16);
      CHECK(got.mean == doctest::Approx(solved / 256).epsilon(1e-14));
    }
  }

  TEST_CASE("kernel_score: correct, fast, speedup") {
    std::vector<sample_turn> const turns{kernel(2), wrong(9), kernel(1), kernel(-3), kernel(nan_value), kernel(4)};
    flags const reasons{0, 0, 0, 0, 0, reason::invalid};
    auto const same = [](std::vector<double> const& got, std::vector<double> const& expected) {
      CHECK(test::bits_of(got) == test::bits_of(expected));
    };
    same(scores(turns, {.kind = score_kind::correct}, reasons), {1, 0, 1, 1, 1, nan_value});
    same(scores(turns, {.kind = score_kind::fast}, reasons), {1, 0, 0, 0, nan_value, nan_value});
    same(scores(turns, {}, reasons), {2, 0, 1, 0, nan_value, nan_value});
    same(scores(turns, {}), {2, 0, 1, 0, nan_value, 4});
    CHECK(scores({kernel(infinity)}, {.kind = score_kind::correct}) == std::vector<double>{1});
    CHECK_THROWS_AS(scores({kernel(infinity)}, {.kind = score_kind::speedup}), precondition_error);
  }

  TEST_CASE("expected best-of-k speedup: kernel_score and best_at_k") {
    // Speedups 2, 0 (wrong), 1: pairs 2, 2, 1.
    sample_batch<> const batch{samples({kernel(2), wrong(7), kernel(1)})};
    std::vector<double> score(3);
    metrics::kernel_score(batch.evaluation(), {}, {}, std::span{score});
    auto const groups = make_grouping(batch.group_id);
    CHECK(metrics::best_at_k<double>(groups, score, {}, {.k = 2}).mean == doctest::Approx(5.0 / 3).epsilon(1e-15));
  }

  TEST_CASE("no trajectories; trajectories without turns") {
    CHECK(metrics::fast_p<double>({}, {}, {}, {}) == group_mean{});
    CHECK(fast({{.id = 1}, {.id = 2}}, {}) == group_mean{0, 0, 1});
  }

  TEST_CASE("errors") {
    auto const one = samples({kernel(2), wrong()});
    CHECK_THROWS_AS(fast(one, {.threshold = -1}), precondition_error);
    CHECK_THROWS_AS(fast(one, {.threshold = nan_value}), precondition_error);
    CHECK_THROWS_AS(fast(one, {.threshold = infinity}), precondition_error);
    CHECK_THROWS_AS(fast(one, {.k = 0}), precondition_error);
    CHECK_THROWS_AS(fast(one, {.turn_limit = 0}), precondition_error);
    CHECK_THROWS_AS(fast(one, {.turns = turn_choice::last, .turn_index = 1}), precondition_error);
    CHECK_THROWS_AS(fast(one, {}, {0}), precondition_error);
    CHECK_THROWS_WITH_AS(fast(samples({wrong(infinity), kernel(infinity)}), {}),
                         "fast_p: speedup[1] = inf is infinite or beyond the magnitude limit", precondition_error);
    CHECK_THROWS_AS(fast({{.id = 1, .turns = {kernel(1)}}, {.id = 1, .turns = {kernel(1)}}}, {}), precondition_error);
    std::vector<group_estimate> two(2);
    CHECK_THROWS_AS(fast(one, {}, {}, &two), precondition_error);
    sample_batch<> const batch{one};
    auto evaluation = batch.evaluation();
    evaluation.speedup = evaluation.speedup.first(1);
    CHECK_THROWS_AS(metrics::fast_p(batch.view(), evaluation, {}, {}), precondition_error);
    std::vector<double> score(2);
    CHECK_THROWS_AS(metrics::kernel_score(evaluation, {}, {}, std::span{score}), precondition_error);
    CHECK_THROWS_AS(metrics::kernel_score(batch.evaluation(), flags{0}, {}, std::span{score}), precondition_error);
  }
}
