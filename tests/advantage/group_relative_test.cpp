#include "support/ragged.hpp"

#include <turnwise/advantage/discounted_return.hpp>
#include <turnwise/advantage/group_relative.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

using doctest::Approx;
using doctest::Contains;
using turnwise::group_by;
using turnwise::grouping;
using turnwise::make_grouping;
using turnwise::precondition_error;
using turnwise::reason_flags;
using turnwise::advantage::baseline_members;
using turnwise::advantage::group_relative;
using turnwise::advantage::group_relative_options;
using turnwise::test::ragged_batch;
namespace reason = turnwise::reason;

namespace {

using numbers = std::vector<double>;
using ids = std::vector<std::int64_t>;
using flags = std::vector<reason_flags>;

constexpr group_relative_options centred{.scale = false};

template <typename T>
std::vector<T> advantages(grouping const& groups, std::vector<T> const& returns, flags const& reasons = {},
                          group_relative_options const& options = {}) {
  std::vector<T> out(returns.size(), T{-77});
  group_relative(groups, returns, reasons, options, std::span{out});
  return out;
}

template <typename T>
void check_near(std::vector<T> const& got, numbers const& wanted) {
  REQUIRE(got.size() == wanted.size());
  double const tolerance = std::is_same_v<T, float> ? 1e-6 : 1e-13;
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(static_cast<double>(got[i]) - wanted[i]) < tolerance);
  }
}

}  // namespace

TEST_SUITE("advantage/group_relative") {
  TEST_CASE_TEMPLATE("hand numbers: mean 3, squares 4 + 1 + 9", T, float, double) {
    auto const groups = make_grouping(ids{1, 1, 1});
    std::vector<T> const returns{1, 2, 6};
    CHECK(advantages(groups, returns, {}, centred) == std::vector<T>{-2, -1, 3});
    double const sample = std::sqrt(7.0), population = std::sqrt(14.0 / 3);
    check_near(advantages(groups, returns, {}, {.epsilon = 0}), {-2 / sample, -1 / sample, 3 / sample});
    check_near(advantages(groups, returns, {}, {.ddof = 0, .epsilon = 0}),
               {-2 / population, -1 / population, 3 / population});
    // epsilon is added to the deviation, outside the root.
    check_near(advantages(groups, returns, {}, {.epsilon = 2}),
               {-2 / (sample + 2), -1 / (sample + 2), 3 / (sample + 2)});
    check_near(advantages(groups, returns, {}, {.ddof = 0, .epsilon = 0.5}),
               {-2 / (population + 0.5), -1 / (population + 0.5), 3 / (population + 0.5)});
  }

  TEST_CASE("the defaults: scaled, ddof 1, epsilon 1e-6, valid members") {
    group_relative_options const options;
    CHECK(options.scale);
    CHECK(options.ddof == 1);
    CHECK(options.epsilon == 1e-6);
    CHECK(options.members == baseline_members::valid);
    // A deviation of 1e-6 shows the default epsilon.
    double const step = 1e-6;
    check_near(advantages(make_grouping(ids{1, 1, 1}), numbers{0, step, 2 * step}), {-0.5, 0, 0.5});
  }

  TEST_CASE_TEMPLATE("over all turns of the prompt, or turn by turn", T, float, double) {
    // A = (4, 1), B = (2), D = (10, 6, 7); all: mean 5; turn 0: 16 / 3; turn 1: 3.5; turn 2: alone.
    ragged_batch<T> const batch{{{.group = 7, .id = 30, .turns = {10, 6, 7}},
                                 {.group = 7, .id = 10, .turns = {4, 1}},
                                 {.group = 7, .id = 20, .turns = {2}}}};
    CHECK(advantages(make_grouping(batch.view(), group_by::group), batch.value, {}, centred) ==
          std::vector<T>{5, 1, 2, -1, -4, -3});
    check_near(advantages(make_grouping(batch.view(), group_by::turn), batch.value, {}, centred),
               {10 - 16.0 / 3, 2.5, 0, 4 - 16.0 / 3, -2.5, 2 - 16.0 / 3});
    // Squares 25 + 1 + 4 + 1 + 16 + 9 = 56.
    double const deviation = std::sqrt(56.0 / 5) + 1e-6;
    check_near(advantages(make_grouping(batch.view(), group_by::group), batch.value),
               {5 / deviation, 1 / deviation, 2 / deviation, -1 / deviation, -4 / deviation, -3 / deviation});
  }

  TEST_CASE_TEMPLATE("GB-02: a lone sample gets exactly 0 and borrows nothing", T, float, double) {
    auto const got = advantages<T>(make_grouping(ids{0, 0, 1}), {4, 6, 9}, {}, {.epsilon = 1e-6});
    check_near(got, {-0.7071062811869011, 0.7071062811869011, 0.0});
    CHECK(got[2] == 0);
    // In general: any number of lone samples, any option.
    for (bool const scale : {true, false})
      for (int const ddof : {0, 1})
        for (double const epsilon : {0.0, 1e-6})
          CHECK(advantages<T>(make_grouping(ids{3, 1, 2}), {4, -6, T{0.5}}, {}, {scale, ddof, epsilon}) ==
                std::vector<T>{0, 0, 0});
  }

  TEST_CASE_TEMPLATE("GB-03: mean-centred groups of any size by their ids", T, float, double) {
    CHECK(advantages<T>(make_grouping(ids{0, 0, 1, 1, 1, 1, 2, 2, 2}), {3, 5, 0, 0, 0, 8, 6, 6, 6}, {}, centred) ==
          std::vector<T>{-1, 1, -2, -2, -2, 6, 0, 0, 0});
  }

  TEST_CASE_TEMPLATE("GB-05: mean and deviation of the own group, not of the batch", T, float, double) {
    check_near(
        advantages<T>(make_grouping(ids{0, 0, 0, 1, 1, 1}), {0, 1, 2, 10, 10, 13}, {}, {.epsilon = 1e-4}),
        {-0.9999000099990001, 0.0, 0.9999000099990001, -0.5773169377806823, -0.5773169377806823, 1.1546338755613645});
  }

  TEST_CASE_TEMPLATE("GB-06: the key is the group id: two constant groups get 0", T, float, double) {
    for (bool const scale : {true, false})
      CHECK(advantages<T>(make_grouping(ids{0, 0, 0, 1, 1, 1}), {0, 0, 0, 2, 2, 2}, {}, {.scale = scale}) ==
            std::vector<T>(6, T{0}));
  }

  TEST_CASE_TEMPLATE("GB-13: an unscored sample leaves the mean and gets 0", T, float, double) {
    T const nan = std::numeric_limits<T>::quiet_NaN();
    CHECK(advantages<T>(make_grouping(ids(4, 0)), {2, nan, 5, 8}, {0, reason::unscored, 0, 0}, centred) ==
          std::vector<T>{-3, 0, 0, 3});
  }

  TEST_CASE_TEMPLATE("GB-14: each reward over its scored samples, 0 for an unscored one, then the sum", T, float,
                     double) {
    T const nan = std::numeric_limits<T>::quiet_NaN();
    auto const of_reward = [](std::vector<T> const& rewards) {
      flags reasons(rewards.size());
      ragged_batch<T> const batch{{{.group = 0, .id = 0, .turns = {rewards[0]}},
                                   {.group = 0, .id = 1, .turns = {rewards[1]}},
                                   {.group = 0, .id = 2, .turns = {rewards[2]}}}};
      std::vector<T> returns(rewards.size());
      turnwise::advantage::discounted_return(batch.view(), rewards, {}, std::span{reasons}, std::span{returns});
      return advantages(make_grouping(batch.view(), group_by::group), returns, reasons, {.epsilon = 0});
    };
    auto const a = of_reward({1, nan, 3});
    auto const b = of_reward({0, 2, 1});
    check_near(std::vector<T>{a[0] + b[0], a[1] + b[1], a[2] + b[2]}, {-1.7071067811865475, 1.0, 0.7071067811865476});
  }

  TEST_CASE_TEMPLATE("GB-08: a reward on a masked token decides nothing", T, float, double) {
    // The rewards are summed over the current mask before they come here.
    std::array<std::array<T, 3>, 2> const token_rewards{{{0, 0, 5}, {0, 2, 0}}};
    std::array<std::array<T, 3>, 2> const mask{{{1, 1, 0}, {1, 1, 1}}};
    std::vector<T> scores(2, T{0});
    for (std::size_t i = 0; i < 2; ++i)
      for (std::size_t n = 0; n < 3; ++n) scores[i] += token_rewards[i][n] * mask[i][n];
    CHECK(scores == std::vector<T>{0, 2});
    CHECK(advantages(make_grouping(ids{0, 0}), scores, {}, centred) == std::vector<T>{-1, 1});
  }

  TEST_CASE_TEMPLATE("RG-03: the baseline comes from the shaped rewards that are centred, so they sum to 0", T, float,
                     double) {
    std::vector<T> const rewards{1, 1, 0}, factor{1, T{0.5}, 1};
    std::vector<T> shaped;
    for (std::size_t i = 0; i < 3; ++i) shaped.push_back(rewards[i] * factor[i]);
    auto const got = advantages(make_grouping(ids{0, 0, 0}), shaped, {}, centred);
    CHECK(got == std::vector<T>{T{0.5}, 0, T{-0.5}});
    CHECK(got[0] + got[1] + got[2] == 0);
  }

  TEST_CASE_TEMPLATE("TL-04: built once per trajectory, not once per turn that repeats its reward", T, float, double) {
    // Rows per trajectory: 1, 4, 3; the reward belongs to the trajectory.
    std::vector<std::size_t> const rows{1, 4, 3};
    std::vector<T> const reward{1, 0, T{0.5}};
    auto const per_trajectory = advantages(make_grouping(ids{0, 0, 0}), reward, {}, centred);
    std::vector<T> by_row;
    for (std::size_t j = 0; j < 3; ++j) by_row.insert(by_row.end(), rows[j], per_trajectory[j]);
    CHECK(by_row == std::vector<T>{T{0.5}, T{-0.5}, T{-0.5}, T{-0.5}, T{-0.5}, 0, 0, 0});
    // Turn groups count each trajectory once too, here at the first turn.
    ragged_batch<T> batch{{{.group = 0, .id = 0, .turns = {1}},
                           {.group = 0, .id = 1, .turns = {0, 0, 0, 0}},
                           {.group = 0, .id = 2, .turns = {T{0.5}, T{0.5}, T{0.5}}}}};
    auto const by_turn = advantages(make_grouping(batch.view(), group_by::turn), batch.value, {}, centred);
    CHECK(by_turn[0] == T{0.5});
    CHECK(by_turn[1] == T{-0.5});
    CHECK(by_turn[5] == T{0});
  }

  TEST_CASE_TEMPLATE("equal returns give exactly 0: no noise over epsilon, no 0 / 0", T, float, double) {
    for (std::size_t const n : {2u, 3u, 7u, 10u, 33u, 100u, 4097u, 5000u})
      for (double const value : {0.1, 0.7, 1e-30, -12345.678})
        for (bool const scale : {true, false})
          for (int const ddof : {0, 1})
            for (double const epsilon : {0.0, 1e-12}) {
              std::vector<T> const returns(n, static_cast<T>(value));
              REQUIRE(advantages(make_grouping(ids(n, 4)), returns, {}, {scale, ddof, epsilon}) ==
                      std::vector<T>(n, T{0}));
            }
  }

  TEST_CASE("invalid and rejected turns among equal ones do not break the rule") {
    numbers const returns{0.1, 55, 0.1, 0.1, 7};
    flags const reasons{0, reason::unscored, 0, 0, reason::ratio_low};
    auto const groups = make_grouping(ids(5, 0));
    // With `kept` members only the 0.1s count; the rejected 7 gets its undivided distance.
    CHECK(advantages(groups, returns, reasons, {.members = baseline_members::kept}) == numbers{0, 0, 0, 0, 7 - 0.1});
    // With `valid` the 7 is a member and spreads the group: mean 1.825.
    check_near(advantages(groups, returns, reasons, centred), {-1.725, 0, -1.725, -1.725, 5.175});
  }

  TEST_CASE("returns that differ by almost nothing stay finite") {
    for (double const epsilon : {0.0, 1e-6}) {
      auto const got =
          advantages(make_grouping(ids{0, 0, 0}), numbers{1e-200, 2e-200, 3e-200}, {}, {.epsilon = epsilon});
      for (double const value : got) CHECK(std::isfinite(value));
      auto const neighbours =
          advantages(make_grouping(ids{0, 0}), numbers{1, std::nextafter(1.0, 2)}, {}, {.epsilon = epsilon});
      CHECK(std::isfinite(neighbours[0]));
      CHECK(neighbours[0] <= 0);
      CHECK(neighbours[1] >= 0);
    }
  }

  TEST_CASE("two passes: a large common offset does not destroy the deviation") {
    auto const got = advantages(make_grouping(ids{0, 0, 0}), numbers{1e9 + 1, 1e9 + 2, 1e9 + 6}, {}, {.epsilon = 0});
    double const sample = std::sqrt(7.0);
    for (std::size_t i = 0; i < 3; ++i) CHECK(got[i] == Approx(numbers{-2, -1, 3}[i] / sample).epsilon(1e-12));
  }

  TEST_CASE("rejected turns: members with `valid`, judged from outside with `kept`") {
    auto const groups = make_grouping(ids(4, 0));
    numbers const returns{1, 2, 6, 9};
    flags const reasons{0, 0, 0, reason::profiling};
    CHECK(advantages(groups, returns, reasons, centred) == numbers{-3.5, -2.5, 1.5, 4.5});
    CHECK(advantages(groups, returns, reasons, {.scale = false, .members = baseline_members::kept}) ==
          numbers{-2, -1, 3, 6});
    double const sample = std::sqrt(7.0) + 1e-6;
    check_near(advantages(groups, returns, reasons, {.members = baseline_members::kept}),
               {-2 / sample, -1 / sample, 3 / sample, 6 / sample});
  }

  TEST_CASE("fewer than two members: 0 for every turn of the group") {
    auto const groups = make_grouping(ids(3, 0));
    for (bool const scale : {true, false}) {
      group_relative_options const kept{.scale = scale, .members = baseline_members::kept};
      CHECK(advantages(groups, numbers{1, 2, 6}, {0, reason::invalid, reason::unscored}, {.scale = scale}) ==
            numbers{0, 0, 0});
      CHECK(advantages(groups, numbers{1, 2, 6}, {0, reason::profiling, reason::profiling}, kept) == numbers{0, 0, 0});
      CHECK(advantages(groups, numbers{1, 2, 6}, flags(3, reason::profiling), kept) == numbers{0, 0, 0});
      CHECK(advantages(groups, numbers{1, 2, 6}, flags(3, reason::invalid), kept) == numbers{0, 0, 0});
    }
  }

  TEST_CASE_TEMPLATE("invalid turns: advantage 0, and nothing of their value leaks", T, float, double) {
    turnwise::test::integers random{22};
    ids const sizes{1, 2, 3, 9, 40, 100};
    T const garbage[] = {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity(),
                         -std::numeric_limits<T>::infinity(), std::numeric_limits<T>::max(), T{3}};
    ragged_batch<T> const batch{turnwise::test::random_values<T>(random, sizes, 4)};
    flags reasons(batch.turns());
    std::vector<T> clean(batch.turns()), dirty(batch.turns());
    for (std::size_t s = 0; s < batch.turns(); ++s) {
      reason_flags const kinds[] = {reason::invalid, reason::unscored, reason::unscored_future};
      bool const invalid = random.below(4) == 0;
      if (invalid) reasons[s] = kinds[random.below(3)];
      if (!invalid && random.below(4) == 0) reasons[s] = reason::profiling;
      clean[s] = invalid ? T{0} : turnwise::test::uneven_number<T>(random);
      dirty[s] = invalid ? garbage[random.below(5)] : clean[s];
    }
    for (auto const by : {group_by::group, group_by::turn, group_by::batch})
      for (bool const scale : {true, false})
        for (auto const members : {baseline_members::valid, baseline_members::kept}) {
          auto const groups = make_grouping(batch.view(), by);
          group_relative_options const options{.scale = scale, .members = members};
          auto const got = advantages(groups, dirty, reasons, options);
          REQUIRE(got == advantages(groups, clean, reasons, options));
          for (std::size_t s = 0; s < got.size(); ++s) {
            REQUIRE(std::isfinite(got[s]));
            if (!turnwise::is_valid(reasons[s])) REQUIRE(got[s] == 0);
          }
        }
  }

  TEST_CASE("mean 0 and deviation 1 in each group") {
    turnwise::test::integers random{4};
    for (std::size_t const n : {2u, 3u, 16u, 33u, 100u, 5000u}) {
      numbers returns(n);
      for (double& value : returns) value = turnwise::test::uneven_number(random);
      for (int const ddof : {0, 1}) {
        auto const got = advantages(make_grouping(ids(n, 1)), returns, {}, {.ddof = ddof, .epsilon = 0});
        double sum = 0, squares = 0;
        for (double const value : got) {
          sum += value;
          squares += value * value;
        }
        CHECK(std::abs(sum) < 1e-10);
        CHECK(squares == Approx(static_cast<double>(n) - ddof).epsilon(1e-10));
      }
    }
  }

  TEST_CASE("no turns") { CHECK(advantages(make_grouping(ids{}), numbers{}).empty()); }

  TEST_CASE_TEMPLATE("every error names the argument and leaves the advantage alone", T, float, double) {
    auto const groups = make_grouping(ids{1, 1, 2});
    std::vector<T> returns{1, 2, 3}, out(3, T{9});
    flags reasons;
    group_relative_options options;
    auto const refused = [&](char const* text) {
      auto const before = out;
      CHECK_THROWS_WITH_AS(group_relative(groups, returns, reasons, options, std::span{out}), Contains(text),
                           precondition_error);
      CHECK(out == before);
    };
    SUBCASE("return") {
      returns.push_back(0);
      refused("group_relative: turn_return has 4 elements, expected 3");
    }
    SUBCASE("reasons") {
      reasons = {0};
      refused("group_relative: reasons has 1 elements, expected 3");
    }
    SUBCASE("advantage") {
      out.pop_back();
      refused("group_relative: advantage has 2 elements, expected 3");
    }
    SUBCASE("ddof") {
      for (int const bad : {-1, 2}) {
        options.ddof = bad;
        refused("group_relative: ddof = ");
      }
    }
    SUBCASE("epsilon") {
      for (double const bad :
           {-1e-9, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
        options.epsilon = bad;
        refused("group_relative: epsilon = ");
      }
    }
    SUBCASE("a return of a valid turn that is not finite or too large") {
      for (T const bad : {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity(),
                          static_cast<T>(turnwise::magnitude_limit<T>) * 2}) {
        returns[2] = bad;
        reasons = {0, 0, reason::profiling};
        refused("group_relative: turn_return[2] = ");
        reasons = {0, 0, reason::unscored_future};
        CHECK_NOTHROW(group_relative(groups, returns, reasons, options, std::span{out}));
        out.assign(3, T{9});
      }
    }
    SUBCASE("advantage over the returns") {
      CHECK_THROWS_WITH_AS(group_relative(groups, returns, reasons, options, std::span{returns}),
                           Contains("advantage must not overlap turn_return"), precondition_error);
      CHECK(returns == std::vector<T>{1, 2, 3});
    }
  }

}  // TEST_SUITE
