#include "support/ragged.hpp"

#include <turnwise/advantage/group_relative.hpp>
#include <turnwise/advantage/optimal_token_baseline.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

using doctest::Contains;
using turnwise::group_by;
using turnwise::grouping;
using turnwise::make_grouping;
using turnwise::precondition_error;
using turnwise::reason_flags;
using turnwise::rollout_view;
using turnwise::advantage::baseline_members;
using turnwise::advantage::lone_position;
using turnwise::advantage::optimal_token_baseline;
using turnwise::advantage::optimal_token_baseline_options;
using turnwise::test::integers;
namespace reason = turnwise::reason;

namespace {

using ids = std::vector<std::int64_t>;
using bytes = std::vector<std::uint8_t>;
using flags = std::vector<reason_flags>;

/// Single-turn trajectories: turn i holds `size[i]` tokens and belongs to group `group[i]`.
struct turns_of_tokens {
  ids offsets{0}, trajectory_offsets{0}, group, id;

  turns_of_tokens(ids const& size, ids const& groups) : group(groups), id(size.size()) {
    std::iota(id.begin(), id.end(), std::int64_t{0});
    for (std::int64_t const tokens : size) {
      offsets.push_back(offsets.back() + tokens);
      trajectory_offsets.push_back(static_cast<std::int64_t>(trajectory_offsets.size()));
    }
  }
  [[nodiscard]] std::size_t tokens() const { return static_cast<std::size_t>(offsets.back()); }
  [[nodiscard]] rollout_view view() const {
    std::span<std::int64_t const> const all = offsets;
    return {.turn_begin = all.first(group.size()),
            .turn_end = all.subspan(1),
            .trajectory_offsets = trajectory_offsets,
            .group_id = group,
            .trajectory_id = id};
  }
};

template <typename T>
std::vector<T> run(rollout_view const& batch, std::vector<T> const& weight, std::vector<double> const& returns,
                   optimal_token_baseline_options const& options = {}, bytes const& mask = {},
                   flags const& reasons = {}) {
  std::vector<T> advantage(weight.size(), T{-77});
  optimal_token_baseline(batch, make_grouping(batch, group_by::group), std::span<std::uint8_t const>{mask}, weight,
                         std::span<double const>{returns}, std::span<reason_flags const>{reasons}, options,
                         std::span{advantage});
  return advantage;
}

template <typename T>
void check_near(std::vector<T> const& got, std::vector<double> const& wanted) {
  REQUIRE(got.size() == wanted.size());
  double const tolerance = sizeof(T) == 4 ? 1e-6 : 1e-13;
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(static_cast<double>(got[i]) - wanted[i]) <= tolerance * (1 + std::abs(wanted[i])));
  }
}

}  // namespace

TEST_SUITE("advantage/optimal_token_baseline") {
  TEST_CASE("subnormal weights: only ratios count") {
    double const least = std::numeric_limits<double>::denorm_min();
    turns_of_tokens const batch{{1, 1}, {7, 7}};
    CHECK(run<double>(batch.view(), {least, least}, {0.25, 0.375}) == std::vector<double>{-0.0625, 0.0625});
    CHECK(run<double>(batch.view(), {least, 3 * least}, {4, 8}) == std::vector<double>{-3, 1});
  }

  TEST_CASE("members with weight that are equal get exactly 0, whatever those without weight have") {
    turns_of_tokens const batch{{1, 1, 1}, {7, 7, 7}};
    for (double const value : {0.1, 0.3, 0.7, 1.1}) {
      CAPTURE(value);
      CHECK(run<double>(batch.view(), {0, 3, 7}, {5, value, value}) == std::vector<double>{5 - value, 0, 0});
      CHECK(run<double>(batch.view(), {3, 0, 7}, {value, 5, value}) == std::vector<double>{0, 5 - value, 0});
    }
  }

  TEST_CASE_TEMPLATE("hand numbers: cumulative weights, and a tail that one member has alone", T, float, double) {
    // G = (4, 1, -2). W: (1, 3, 6), (1, 2), (2).
    // B: (4 + 1 - 4) / 4 = 1/4; (12 + 2) / 5 = 14/5; the first alone.
    turns_of_tokens const batch{{3, 2, 1}, {7, 7, 7}};
    std::vector<T> const weight{1, 2, 3, 1, 1, 2};
    std::vector<double> const returns{4, 1, -2};
    check_near(run<T>(batch.view(), weight, returns), {3.75, 1.2, 0, 0.75, -1.8, -2.25});
    check_near(run<T>(batch.view(), weight, returns, {.tail = lone_position::keep}), {3.75, 1.2, 4, 0.75, -1.8, -2.25});
    CHECK(run<T>(batch.view(), weight, returns, {.singleton = lone_position::keep}) ==
          run<T>(batch.view(), weight, returns));
  }

  TEST_CASE("1 - 2 pi + sum pi^2: two coins; a certain token weighs nothing") {
    // pi = 1/2 of two: 1 - 1 + 1/2 = 1/2. pi = 1: 0. pi = 1/4 (and 3/4): 1 - 1/2 + 5/8 = 9/8.
    turns_of_tokens const batch{{2, 2}, {1, 1}};
    auto const weight = [](double pi, double squares) { return 1 - 2 * pi + squares; };
    // W: (1/2, 1/2), (0, 9/8); B(0) = 6; B(1) = (6 / 2) / (13/8).
    check_near(run<double>(batch.view(), {weight(0.5, 0.5), weight(1, 1), weight(1, 1), weight(0.25, 0.625)}, {6, 0}),
               {0, 6 - 24.0 / 13, -6, -24.0 / 13});
  }

  TEST_CASE_TEMPLATE("equal weights at one position: the group's mean", T, float, double) {
    integers random{4};
    for (std::size_t const n : {2u, 3u, 40u}) {
      turns_of_tokens const batch{ids(n, 1), ids(n, 5)};
      std::vector<double> returns(n), centred(n);
      for (double& value : returns) value = turnwise::test::uneven_number(random);
      turnwise::advantage::group_relative(make_grouping(batch.view(), group_by::group), returns, {}, {.scale = false},
                                          std::span{centred});
      check_near(run<T>(batch.view(), std::vector<T>(n, T(0.75)), returns), centred);
    }
  }

  TEST_CASE_TEMPLATE("the definition, over many groups, sizes and gaps in the mask", T, float, double) {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      integers random{seed};
      ids size, group;
      for (int i = 0; i < 60; ++i) {
        size.push_back(random.below(4) == 0 ? 0 : random.below(150));
        group.push_back(random.below(9));
      }
      turns_of_tokens const batch{size, group};
      std::vector<T> weight(batch.tokens());
      bytes mask(batch.tokens());
      for (std::size_t n = 0; n < weight.size(); ++n) {
        mask[n] = random.below(4) != 0;
        weight[n] = mask[n] != 0 ? static_cast<T>(static_cast<double>(random.below(2001)) * 1e-3) : T(std::nan(""));
      }
      std::vector<double> returns(size.size());
      for (double& value : returns) value = turnwise::test::uneven_number(random);
      auto const got = run<T>(batch.view(), weight, returns, {}, mask);
      std::vector<std::vector<std::size_t>> token(size.size());
      for (std::size_t i = 0; i < size.size(); ++i)
        for (auto n = static_cast<std::size_t>(batch.offsets[i]); n < static_cast<std::size_t>(batch.offsets[i + 1]);
             ++n)
          if (mask[n] != 0) token[i].push_back(n);
      std::vector<double> wanted(weight.size());
      for (std::size_t i = 0; i < size.size(); ++i)
        for (std::size_t p = 0; p < token[i].size(); ++p) {
          double sum = 0, weights = 0;
          for (std::size_t j = 0; j < size.size(); ++j) {
            if (group[j] != group[i] || token[j].size() <= p) continue;
            double cumulative = 0;
            for (std::size_t q = 0; q <= p; ++q) cumulative += static_cast<double>(weight[token[j][q]]);
            sum += returns[j] * cumulative;
            weights += cumulative;
          }
          wanted[token[i][p]] = weights > 0 ? returns[i] - sum / weights : 0;
        }
      double scale = 1;
      for (double const value : returns) scale = std::max(scale, std::abs(value));
      for (std::size_t n = 0; n < wanted.size(); ++n)
        CHECK(std::abs(static_cast<double>(got[n]) - wanted[n]) <= (sizeof(T) == 4 ? 1e-6 : 1e-13) * scale);
    }
  }

  TEST_CASE_TEMPLATE("a group of one: 0, or its return", T, float, double) {
    turns_of_tokens const batch{{2, 1}, {1, 2}};
    std::vector<T> const weight{1, 1, 1};
    CHECK(run<T>(batch.view(), weight, {5, -3}) == std::vector<T>{0, 0, 0});
    CHECK(run<T>(batch.view(), weight, {5, -3}, {.singleton = lone_position::keep}) == std::vector<T>{5, 5, -3});
    CHECK(run<T>(batch.view(), weight, {5, -3}, {.tail = lone_position::keep}) == std::vector<T>{0, 0, 0});
  }

  TEST_CASE_TEMPLATE("equal returns give exactly 0, also of the few that are left at a position", T, float, double) {
    integers random{8};
    ids size;
    std::vector<double> returns;
    for (int i = 0; i < 50; ++i) {
      size.push_back(i < 25 ? 40 : 90);
      returns.push_back(i < 25 ? 0.7 : 0.1);
    }
    turns_of_tokens const batch{size, ids(50, 3)};
    std::vector<T> weight(batch.tokens());
    for (T& w : weight) w = static_cast<T>(static_cast<double>(1 + random.below(1999)) * 1.1e-3);
    auto const got = run<T>(batch.view(), weight, returns);
    for (std::size_t i = 0; i < 50; ++i)
      for (std::int64_t p = 0; p < size[i]; ++p)
        CHECK((got[static_cast<std::size_t>(batch.offsets[i] + p)] == 0) == (p >= 40));
    for (T const value : run<T>(batch.view(), weight, std::vector<double>(50, 0.1))) CHECK(value == 0);
  }

  TEST_CASE("weights that are all 0 so far: 0; a member without weight leaves the baseline to the others") {
    turns_of_tokens const batch{{2, 2}, {1, 1}};
    check_near(run<double>(batch.view(), {0, 0, 0, 2}, {3, 5}), {0, -2, 0, 0});
    CHECK(run<double>(batch.view(), {0, 0, 0, 0}, {3, 5}) == std::vector<double>(4));
  }

  TEST_CASE_TEMPLATE("invalid and rejected turns, tokens in no turn; what is not read may be anything", T, float,
                     double) {
    // Group 1: turns 0, 1 valid, 2 invalid, 3 rejected; tokens 0-1, 3-4, 5-6, 8; tokens 2, 7 and 9 in no turn.
    T const nan = std::numeric_limits<T>::quiet_NaN();
    ids const begin{0, 3, 5, 8}, end{2, 5, 7, 9}, trajectories{0, 1, 2, 3, 4}, group(4, 1), id{0, 1, 2, 3};
    rollout_view const batch{.turn_begin = begin,
                             .turn_end = end,
                             .trajectory_offsets = trajectories,
                             .group_id = group,
                             .trajectory_id = id};
    std::vector<double> const returns{1, 3, std::nan(""), 8};
    flags const reasons{0, 0, reason::unscored, reason::ratio_low};
    std::vector<T> weight{1, 1, nan, 1, 1, nan, -1, nan, 2, nan};
    // valid: B(0) = (1 + 3 + 16) / 4 = 5; B(1) = 2. kept: B(0) = 2.
    check_near(run<T>(batch, weight, returns, {}, {}, reasons), {-4, -1, 0, -2, 1, 0, 0, 0, 3, 0});
    weight[8] = nan;
    check_near(run<T>(batch, weight, returns, {.members = baseline_members::kept}, {}, reasons),
               {-1, -1, 0, 1, 1, 0, 0, 0, 6, 0});
    // One member at a position: a valid turn that is none has nothing to be judged by either.
    turns_of_tokens const two{{1, 1}, {1, 1}};
    check_near(run<T>(two.view(), {1, 1}, {3, 5}, {.members = baseline_members::kept}, {}, {0, reason::ratio_low}),
               {0, 0});
    // Everything rejected or invalid: no members.
    flags const none{reason::ratio_low, reason::invalid, reason::unscored, reason::ratio_low};
    for (auto const singleton : {lone_position::zero, lone_position::keep}) {
      double const kept = singleton == lone_position::keep ? 1 : 0;
      check_near(run<T>(batch, weight, returns, {.singleton = singleton, .members = baseline_members::kept}, {}, none),
                 {kept, kept, 0, 0, 0, 0, 0, 0, 8 * kept, 0});
    }
  }

  TEST_CASE("no turns, turns without tokens, no unmasked token") {
    CHECK(run<float>({}, {}, {}).empty());
    CHECK(run<float>({}, {1, 2}, {}) == std::vector<float>(2));
    turns_of_tokens const batch{{0, 2, 0}, {1, 1, 1}};
    CHECK(run<double>(batch.view(), {-1, -1}, {1, 2, 3}, {}, {0, 0}) == std::vector<double>(2));
  }

  TEST_CASE("the same bits for any order of trajectories, any thread count, and in place") {
    integers random{77};
    std::size_t const turns = 300;
    ids size(turns), group(turns);
    std::vector<double> returns(turns);
    for (std::size_t i = 0; i < turns; ++i) {
      size[i] = random.below(700);
      group[i] = random.below(7);
      returns[i] = turnwise::test::uneven_number(random);
    }
    turns_of_tokens const batch{size, group};
    std::vector<double> weight(batch.tokens());
    for (double& w : weight) w = static_cast<double>(random.below(1000)) * 1.7e-3;
    auto const expected = run<double>(batch.view(), weight, returns, {.threads = 1});
    CHECK(run<double>(batch.view(), weight, returns, {.threads = 2}) == expected);

    auto const order = turnwise::test::random_order(turns, random);
    turns_of_tokens moved{ids(turns), ids(turns)};
    ids begin, end;
    std::vector<double> moved_returns;
    for (std::size_t k = 0; k < turns; ++k) {
      moved.group[k] = group[order[k]];
      moved.id[k] = static_cast<std::int64_t>(order[k]);
      begin.push_back(batch.offsets[order[k]]);
      end.push_back(batch.offsets[order[k] + 1]);
      moved_returns.push_back(returns[order[k]]);
    }
    auto view = moved.view();
    view.turn_begin = begin;
    view.turn_end = end;
    CHECK(run<double>(view, weight, moved_returns) == expected);

    optimal_token_baseline(batch.view(), make_grouping(batch.view(), group_by::group), {}, weight,
                           std::span<double const>{returns}, {}, {}, std::span{weight});
    CHECK(weight == expected);
  }

  TEST_CASE_TEMPLATE("every error names the argument and leaves the advantage alone", T, float, double) {
    turns_of_tokens batch{{2, 2}, {1, 1}};
    grouping const groups = make_grouping(batch.view(), group_by::group);
    bytes mask{1, 1, 1, 0};
    std::vector<T> weight{1, 1, 1, 1}, out(4, T{9});
    std::vector<double> returns{1, 2};
    flags reasons;
    auto const call = [&] {
      optimal_token_baseline(batch.view(), groups, std::span<std::uint8_t const>{mask}, weight,
                             std::span<double const>{returns}, std::span<reason_flags const>{reasons}, {},
                             std::span{out});
    };
    auto const refused = [&](char const* text) {
      CHECK_THROWS_WITH_AS(call(), Contains(text), precondition_error);
      CHECK(out == std::vector<T>(out.size(), T{9}));
    };
    SUBCASE("sizes") {
      mask.pop_back();
      refused("optimal_token_baseline: mask has 3 elements, expected 4");
      mask.push_back(0);
      returns.pop_back();
      refused("optimal_token_baseline: turn_return has 1 elements, expected 2");
      returns.push_back(0);
      reasons = {0};
      refused("optimal_token_baseline: reasons has 1 elements, expected 2");
      reasons.clear();
      out.pop_back();
      refused("optimal_token_baseline: advantage has 3 elements, expected 4");
    }
    SUBCASE("another batch's groups") {
      batch = turns_of_tokens{{2, 1, 1}, {1, 1, 1}};
      refused("optimal_token_baseline: groups has 2 elements, expected 3");
    }
    SUBCASE("token ranges") {
      batch.offsets = {0, 2, 5};
      refused("optimal_token_baseline: turn 1 has tokens [2, 5), expected a range within [0, 4)");
    }
    SUBCASE("overlapping turns") {
      ids const begin{0, 1}, end{2, 3};
      auto view = batch.view();
      view.turn_begin = begin;
      view.turn_end = end;
      CHECK_THROWS_WITH_AS(run<T>(view, weight, returns), Contains("the tokens of turn 1 overlap those of turn 0"),
                           precondition_error);
    }
    SUBCASE("returns") {
      for (double const bad : {std::nan(""), std::numeric_limits<double>::infinity(), 0x1p501}) {
        returns[1] = bad;
        refused("optimal_token_baseline: turn_return[1] = ");
      }
    }
    SUBCASE("weights") {
      for (T const bad : {T(-1e-6), std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity(), T(2e30)}) {
        weight.assign(4, T{1});
        weight[3] = bad;  // masked
        CHECK_NOTHROW(call());
        out.assign(4, T{9});
        weight[2] = bad;
        refused("optimal_token_baseline: weight[2] = ");
      }
    }
  }

}  // TEST_SUITE
