#include "support/ragged.hpp"

#include <turnwise/advantage/discounted_return.hpp>
#include <turnwise/advantage/group_relative.hpp>
#include <turnwise/advantage/leave_one_out.hpp>

#include <doctest/doctest.h>

#include <algorithm>
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
using turnwise::advantage::exclude_policy;
using turnwise::advantage::leave_one_out;
using turnwise::advantage::leave_one_out_options;
using turnwise::advantage::singleton_policy;
using turnwise::test::ragged_batch;
namespace reason = turnwise::reason;

namespace {

using numbers = std::vector<double>;
using ids = std::vector<std::int64_t>;
using flags = std::vector<reason_flags>;

template <typename T>
std::vector<T> advantages(grouping const& groups, std::vector<T> const& returns, flags const& reasons = {},
                          leave_one_out_options const& options = {}) {
  std::vector<T> out(returns.size(), T{-77});
  leave_one_out(groups, returns, reasons, options, std::span{out});
  return out;
}

template <typename T>
void check_near(std::vector<T> const& got, numbers const& wanted) {
  REQUIRE(got.size() == wanted.size());
  double const scale = std::is_same_v<T, float> ? 1e-6 : 1e-14;
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK(static_cast<double>(got[i]) == Approx(wanted[i]).epsilon(scale));
  }
}

/// One prompt: A = (4, 1), B = (2), D = (10, 6, 5); in memory D, A, B.
template <typename T = double>
ragged_batch<T> one_prompt() {
  return ragged_batch<T>{{{.group = 7, .id = 30, .turns = {10, 6, 5}},
                          {.group = 7, .id = 10, .turns = {4, 1}},
                          {.group = 7, .id = 20, .turns = {2}}}};
}

}  // namespace

TEST_SUITE("advantage/leave_one_out") {
  TEST_CASE_TEMPLATE("subtracts the mean of the other samples", T, float, double) {
    CHECK(advantages<T>(make_grouping(ids{1, 1, 1, 2, 2, 2}), {1, 2, 6, 0, 0, 3}) ==
          std::vector<T>{-3, T{-1.5}, T{4.5}, T{-1.5}, T{-1.5}, 3});
  }

  TEST_CASE_TEMPLATE("turn-level: against the others at the same turn, with each lone member policy", T, float,
                     double) {
    auto const batch = one_prompt<T>();
    auto const groups = make_grouping(batch.view(), group_by::turn);
    for (auto const exclude : {exclude_policy::trajectory, exclude_policy::member}) {
      // Turn 0: 10 - 3, 4 - 6, 2 - 7; turn 1: 6 - 1, 1 - 6; turn 2: 5 alone.
      CHECK(advantages(groups, batch.value, {}, {.singleton = singleton_policy::keep, .exclude = exclude}) ==
            std::vector<T>{7, 5, 5, -2, -5, -5});
      CHECK(advantages(groups, batch.value, {}, {.singleton = singleton_policy::zero, .exclude = exclude}) ==
            std::vector<T>{7, 5, 0, -2, -5, -5});
      // The others' first turns: (4 + 2) / 2.
      CHECK(advantages(groups, batch.value, {}, {.singleton = singleton_policy::others, .exclude = exclude}) ==
            std::vector<T>{7, 5, 2, -2, -5, -5});
    }
  }

  TEST_CASE_TEMPLATE("prompt-level: without the own trajectory, or without the turn alone", T, float, double) {
    auto const batch = one_prompt<T>();
    auto const groups = make_grouping(batch.view(), group_by::group);
    for (auto const singleton : {singleton_policy::keep, singleton_policy::zero, singleton_policy::others}) {
      // D without its own 21: 7 / 3; A without 5: 23 / 4; B without 2: 26 / 5.
      check_near(advantages(groups, batch.value, {}, {.singleton = singleton, .exclude = exclude_policy::trajectory}),
                 {23.0 / 3, 11.0 / 3, 8.0 / 3, -1.75, -4.75, -3.2});
      check_near(advantages(groups, batch.value, {}, {.singleton = singleton, .exclude = exclude_policy::member}),
                 {6.4, 1.6, 0.4, -0.8, -4.4, -3.2});
    }
  }

  TEST_CASE("the defaults are keep, trajectory, valid") {
    auto const batch = one_prompt();
    CHECK(advantages(make_grouping(batch.view(), group_by::turn), batch.value) == numbers{7, 5, 5, -2, -5, -5});
    CHECK(advantages(make_grouping(batch.view(), group_by::group), batch.value)[3] == -1.75);
    CHECK(leave_one_out_options{}.members == baseline_members::valid);
    CHECK(!leave_one_out_options{}.scale);
    CHECK(leave_one_out_options{}.epsilon == 1e-6);
  }

  TEST_CASE_TEMPLATE("rejected turns: in the baseline with `valid`, out of it with `kept`", T, float, double) {
    // Rejected: B (profiling) and the second turn of D (ratio).
    auto const batch = one_prompt<T>();
    flags const reasons{0, reason::ratio_high, 0, 0, 0, reason::profiling};
    auto const by_turn = make_grouping(batch.view(), group_by::turn);
    auto const by_group = make_grouping(batch.view(), group_by::group);
    auto const got = [&](grouping const& groups, singleton_policy singleton, exclude_policy exclude,
                         baseline_members members) {
      return advantages(groups, batch.value, reasons, {singleton, exclude, members, true});
    };
    using enum singleton_policy;
    constexpr auto trajectory = exclude_policy::trajectory, member = exclude_policy::member;

    for (auto const singleton : {keep, zero, others})
      for (auto const exclude : {trajectory, member})
        for (auto const& groups : {by_turn, by_group})
          CHECK(got(groups, singleton, exclude, baseline_members::valid) ==
                advantages(groups, batch.value, {}, {singleton, exclude}));

    constexpr auto kept = baseline_members::kept;
    for (auto const exclude : {trajectory, member}) {
      // Turn 0: members 10 and 4, 2 is judged against both. Turn 1: member 1, alone; 6 is judged against it.
      // Turn 2: 5, alone. First kept turns of the others: of A's, D's 10 (B has none); of D's, A's 4.
      CHECK(got(by_turn, keep, exclude, kept) == std::vector<T>{6, 5, 5, -6, 1, -5});
      CHECK(got(by_turn, zero, exclude, kept) == std::vector<T>{6, 5, 0, -6, 0, -5});
      CHECK(got(by_turn, others, exclude, kept) == std::vector<T>{6, 5, 1, -6, -9, -5});
    }
    for (auto const singleton : {keep, zero, others}) {
      // Members 10, 5, 4, 1. D without its own 15: 5 / 2; A without 5: 15 / 2; B against all: 20 / 4.
      CHECK(got(by_group, singleton, trajectory, kept) == std::vector<T>{T{7.5}, T{3.5}, T{2.5}, T{-3.5}, T{-6.5}, -3});
      check_near(got(by_group, singleton, member, kept), {20.0 / 3, 1, 0, -4.0 / 3, -16.0 / 3, -3});
    }
  }

  TEST_CASE("a rejected turn without any kept turn in its group is a lone member") {
    auto const batch = one_prompt();
    auto const groups = make_grouping(batch.view(), group_by::turn);
    flags const reasons{0, 0, reason::token_veto, 0, 0, 0};
    auto const got = [&](singleton_policy singleton) {
      return advantages(groups, batch.value, reasons,
                        {.singleton = singleton, .members = baseline_members::kept, .allow_kept_with_keep = true})[2];
    };
    CHECK(got(singleton_policy::keep) == 5);
    CHECK(got(singleton_policy::zero) == 0);
    CHECK(got(singleton_policy::others) == 2);
  }

  TEST_CASE("exclude = trajectory: a rejected turn is not judged against kept turns of its own trajectory") {
    ragged_batch<> const batch{{{.group = 1, .id = 0, .turns = {8, 2}}, {.group = 1, .id = 1, .turns = {4}}}};
    auto const groups = make_grouping(batch.view(), group_by::group);
    leave_one_out_options const kept{.singleton = singleton_policy::zero, .members = baseline_members::kept};
    CHECK(advantages(groups, batch.value, {0, reason::stale, 0}, kept) == numbers{4, -2, -4});
    // With the other trajectory rejected, everything of this one is alone.
    CHECK(advantages(groups, batch.value, {0, reason::stale, reason::stale}, kept) == numbers{0, 0, -4});
  }

  TEST_CASE("`kept` with `keep` is refused unless the caller insists") {
    auto const groups = make_grouping(ids{1, 1});
    numbers const returns{1, 2};
    numbers out{9, 9};
    leave_one_out_options options{.members = baseline_members::kept};
    CHECK_THROWS_WITH_AS(leave_one_out(groups, returns, {}, options, std::span{out}), Contains("singleton = keep"),
                         precondition_error);
    CHECK(out == numbers{9, 9});
    for (auto const singleton : {singleton_policy::zero, singleton_policy::others})
      CHECK_NOTHROW(advantages(groups, returns, {}, {.singleton = singleton, .members = baseline_members::kept}));
    options.allow_kept_with_keep = true;
    CHECK(advantages(groups, returns, flags{0, reason::profiling}, options) == numbers{1, 1});
  }

  TEST_CASE_TEMPLATE("GB-01: a lone sample keeps its reward or gets 0, and every overload agrees", T, float, double) {
    std::vector<T> const rewards{T{1.75}, T{-0.5}, T{0.25}, T{0.25}, 3};
    ids const group{7, 2, 2, 2, 9};
    std::vector<T> const keep{T{1.75}, T{-0.75}, T{0.375}, T{0.375}, 3};
    std::vector<T> const zero{0, T{-0.75}, T{0.375}, T{0.375}, 0};
    CHECK(advantages(make_grouping(group), rewards) == keep);
    CHECK(advantages(make_grouping(group), rewards, {}, {.singleton = singleton_policy::zero}) == zero);
    // A lone sample with no other trajectory: `others` subtracts 0.
    CHECK(advantages(make_grouping(group), rewards, {}, {.singleton = singleton_policy::others}) == keep);
    // The same samples as trajectories of one turn.
    ids const offsets{0, 1, 2, 3, 4, 5}, id{0, 1, 2, 3, 4};
    turnwise::rollout_view const view{.trajectory_offsets = offsets, .group_id = group, .trajectory_id = id};
    for (auto const by : {group_by::group, group_by::turn}) {
      CHECK(advantages(make_grouping(view, by), rewards) == keep);
      CHECK(advantages(make_grouping(view, by), rewards, {}, {.singleton = singleton_policy::zero}) == zero);
    }
  }

  TEST_CASE("GB-01 in general: one rollout a prompt trains on the reward or on nothing, never on NaN") {
    for (std::size_t const prompts : {std::size_t{1}, std::size_t{2}, std::size_t{33}, std::size_t{1000}}) {
      ids group;
      numbers rewards;
      for (std::size_t i = 0; i < prompts; ++i) {
        group.push_back(static_cast<std::int64_t>(i) * 12345 - 99);
        rewards.push_back(0.5 + static_cast<double>(i));
      }
      CHECK(advantages(make_grouping(group), rewards) == rewards);
      CHECK(advantages(make_grouping(group), rewards, {}, {.singleton = singleton_policy::zero}) ==
            numbers(prompts, 0.0));
    }
  }

  TEST_CASE_TEMPLATE("GB-03: groups of any size by their ids", T, float, double) {
    // The case's centred values (group_relative_test) times n / (n - 1).
    check_near(advantages<T>(make_grouping(ids{0, 0, 1, 1, 1, 1, 2, 2, 2}), {3, 5, 0, 0, 0, 8, 6, 6, 6}),
               {-2, 2, -8.0 / 3, -8.0 / 3, -8.0 / 3, 8, 0, 0, 0});
  }

  TEST_CASE_TEMPLATE("GB-06: the key is the group id, so two constant groups of one prompt text get 0", T, float,
                     double) {
    std::vector<T> const rewards{0, 0, 0, 2, 2, 2};
    CHECK(advantages(make_grouping(ids{0, 0, 0, 1, 1, 1}), rewards) == std::vector<T>(6, T{0}));
    check_near(advantages(make_grouping(ids(6, 5)), rewards), {-1.2, -1.2, -1.2, 1.2, 1.2, 1.2});
  }

  TEST_CASE_TEMPLATE("GB-13: an unscored sample leaves the baseline and gets 0", T, float, double) {
    T const nan = std::numeric_limits<T>::quiet_NaN();
    flags const unscored{0, reason::unscored, 0, 0};
    CHECK(advantages<T>(make_grouping(ids(4, 0)), {2, nan, 5, 8}, unscored) == std::vector<T>{T{-4.5}, 0, 0, T{4.5}});
    // The whole way from rewards.
    ragged_batch<T> const batch{{{.group = 0, .id = 0, .turns = {2}},
                                 {.group = 0, .id = 1, .turns = {nan}},
                                 {.group = 0, .id = 2, .turns = {5}},
                                 {.group = 0, .id = 3, .turns = {8}}}};
    flags reasons = batch.reasons();
    std::vector<T> returns(4);
    turnwise::advantage::discounted_return(batch.view(), batch.value, {}, std::span{reasons}, std::span{returns});
    CHECK(reasons == unscored);
    for (auto const by : {group_by::group, group_by::turn})
      CHECK(advantages(make_grouping(batch.view(), by), returns, reasons) == std::vector<T>{T{-4.5}, 0, 0, T{4.5}});
  }

  TEST_CASE_TEMPLATE("TL-01: turn-level returns leave the decision to go on unbiased", T, float, double) {
    // Turn 1 pays 1, going on pays 1 more. G(o)ing on against S(topping).
    auto const turn_1 = [](bool first_goes_on, bool second_goes_on) {
      ragged_batch<T> const batch{
          {{.group = 3, .id = 0, .turns = first_goes_on ? std::vector<T>{1, 1} : std::vector<T>{1}},
           {.group = 3, .id = 1, .turns = second_goes_on ? std::vector<T>{1, 1} : std::vector<T>{1}}}};
      flags reasons = batch.reasons();
      std::vector<T> returns(batch.turns());
      turnwise::advantage::discounted_return(batch.view(), batch.value, {}, std::span{reasons}, std::span{returns});
      auto const advantage = advantages(make_grouping(batch.view(), group_by::turn), returns, reasons);
      return std::array{advantage[0], advantage[batch.view().first_turn(1)]};
    };
    CHECK(turn_1(true, true) == std::array<T, 2>{0, 0});
    CHECK(turn_1(true, false) == std::array<T, 2>{1, -1});
    CHECK(turn_1(false, true) == std::array<T, 2>{-1, 1});
    CHECK(turn_1(false, false) == std::array<T, 2>{0, 0});
    T gradient = 0;
    for (bool const first : {false, true})
      for (bool const second : {false, true}) {
        auto const advantage = turn_1(first, second);
        T const score_1 = first ? T{0.5} : T{-0.5}, score_2 = second ? T{0.5} : T{-0.5};
        gradient += T{0.25} * T{0.5} * (advantage[0] * score_1 + advantage[1] * score_2);
      }
    CHECK(gradient == T{0.25});
  }

  TEST_CASE_TEMPLATE("equal returns give exactly 0, also values that do not add up exactly", T, float, double) {
    for (std::size_t const n : {2u, 3u, 7u, 10u, 33u, 100u, 4097u, 5000u})
      for (double const value : {0.1, 0.7, 1e-30, -12345.678}) {
        std::vector<T> const returns(n, static_cast<T>(value));
        for (auto const exclude : {exclude_policy::trajectory, exclude_policy::member})
          CHECK(advantages(make_grouping(ids(n, 4)), returns, {}, {.exclude = exclude}) == std::vector<T>(n, T{0}));
      }
  }

  TEST_CASE("equal returns within one trajectory: `trajectory` finds it alone, `member` finds others") {
    ragged_batch<> const batch{{{.group = 1, .id = 0, .turns = {0.1, 0.1, 0.1}}, {.group = 2, .id = 0, .turns = {5}}}};
    auto const groups = make_grouping(batch.view(), group_by::group);
    auto const got = [&](singleton_policy singleton, exclude_policy exclude) {
      return advantages(groups, batch.value, {}, {singleton, exclude});
    };
    CHECK(got(singleton_policy::keep, exclude_policy::trajectory) == numbers{0.1, 0.1, 0.1, 5});
    CHECK(got(singleton_policy::zero, exclude_policy::trajectory) == numbers{0, 0, 0, 0});
    CHECK(got(singleton_policy::others, exclude_policy::trajectory) == numbers{0.1, 0.1, 0.1, 5});
    CHECK(got(singleton_policy::zero, exclude_policy::member) == numbers{0, 0, 0, 0});
    CHECK(got(singleton_policy::keep, exclude_policy::member) == numbers{0, 0, 0, 5});
  }

  TEST_CASE("equal members and a rejected turn of another value: 0 for them, its distance for it") {
    auto const groups = make_grouping(ids(4, 0));
    CHECK(advantages(groups, numbers{0.1, 0.1, 7, 0.1}, flags{0, 0, reason::ratio_low, 0},
                     {.singleton = singleton_policy::zero, .members = baseline_members::kept}) ==
          numbers{0, 0, 7 - 0.1, 0});
  }

  TEST_CASE_TEMPLATE("invalid turns: advantage 0, and nothing of their value leaks", T, float, double) {
    turnwise::test::integers random{21};
    ids const sizes{1, 2, 3, 9, 40, 100};
    T const garbage[] = {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity(),
                         -std::numeric_limits<T>::infinity(), std::numeric_limits<T>::max(), T{3}};
    ragged_batch<T> batch{turnwise::test::random_values<T>(random, sizes, 4)};
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
      for (auto const singleton : {singleton_policy::zero, singleton_policy::others})
        for (auto const exclude : {exclude_policy::trajectory, exclude_policy::member})
          for (auto const members : {baseline_members::valid, baseline_members::kept}) {
            auto const groups = make_grouping(batch.view(), by);
            leave_one_out_options const options{singleton, exclude, members};
            auto const got = advantages(groups, dirty, reasons, options);
            REQUIRE(got == advantages(groups, clean, reasons, options));
            for (std::size_t s = 0; s < got.size(); ++s) {
              REQUIRE(std::isfinite(got[s]));
              if (!turnwise::is_valid(reasons[s])) {
                REQUIRE(got[s] == 0);
                REQUIRE(!std::signbit(got[s]));
              }
            }
          }
  }

  TEST_CASE("an invalid member makes the other one lone, and a group of invalid turns is all 0") {
    auto const groups = make_grouping(ids{1, 1, 2, 2});
    flags const reasons{0, reason::invalid, reason::unscored, reason::unscored_future};
    CHECK(advantages(groups, numbers{3, 8, 1, 2}, reasons) == numbers{3, 0, 0, 0});
    CHECK(advantages(groups, numbers{3, 8, 1, 2}, reasons, {.singleton = singleton_policy::zero}) ==
          numbers{0, 0, 0, 0});
  }

  TEST_CASE("`others` takes each other trajectory's first member turn, once") {
    // Turn 2 of A is alone. B's first turn is flagged off, so its second counts; C has nothing valid; E has no turn.
    ragged_batch<> const batch{{{.group = 1, .id = 0, .turns = {90, 80, 7}},
                                {.group = 1, .id = 1, .turns = {1000, 3}, .valid = {0, 1}},
                                {.group = 1, .id = 2, .turns = {2000}, .valid = {0}},
                                {.group = 1, .id = 3, .turns = {}},
                                {.group = 1, .id = 4, .turns = {6, 100}},
                                {.group = 2, .id = 0, .turns = {50}}}};
    auto const got = advantages(make_grouping(batch.view(), group_by::turn), batch.value, batch.reasons(),
                                {.singleton = singleton_policy::others});
    CHECK(got[2] == 7 - 4.5);
    CHECK(got[0] == 84);  // turn 0: 90 against 6
    CHECK(got[8] == 50);  // the other prompt has no other trajectory
  }

  TEST_CASE("over the whole batch, every other trajectory is in the pool") {
    ragged_batch<> const batch{{{.group = 1, .id = 0, .turns = {8, 6}},
                                {.group = 2, .id = 0, .turns = {2}},
                                {.group = 3, .id = 0, .turns = {5}}}};
    auto const groups = make_grouping(batch.view(), group_by::batch);
    CHECK(advantages(groups, batch.value) == numbers{4.5, 2.5, 2 - 19.0 / 3, 5 - 16.0 / 3});
    flags const all_but_first_rejected{0, reason::stale, reason::stale, reason::stale};
    CHECK(advantages(groups, batch.value, all_but_first_rejected,
                     {.singleton = singleton_policy::others, .members = baseline_members::kept}) ==
          numbers{8, 6, -6, -3});
  }

  TEST_CASE_TEMPLATE("single-turn groups sum to zero and are n / (n - 1) times mean-centred", T, float, double) {
    turnwise::test::integers random{2};
    for (std::size_t const n : {2u, 3u, 4u, 16u, 31u, 32u, 33u, 100u, 4096u, 4097u}) {
      CAPTURE(n);
      std::vector<T> returns(n);
      double largest = 0;
      for (T& value : returns) {
        value = turnwise::test::uneven_number<T>(random);
        largest = std::max(largest, std::abs(static_cast<double>(value)));
      }
      auto const groups = make_grouping(ids(n, -3));
      auto const got = advantages(groups, returns);
      std::vector<T> centred(n);
      turnwise::advantage::group_relative(groups, returns, {}, {.scale = false}, std::span{centred});
      auto const count = static_cast<double>(n);
      double const tolerance = std::is_same_v<T, float> ? 1e-6 : 1e-13;
      double sum = 0;
      for (std::size_t i = 0; i < n; ++i) {
        sum += static_cast<double>(got[i]);
        double const scaled = count / (count - 1) * static_cast<double>(centred[i]);
        REQUIRE(std::abs(static_cast<double>(got[i]) - scaled) < tolerance * largest);
      }
      CHECK(std::abs(sum) < count * tolerance * largest);
    }
  }

  TEST_CASE("large finite returns overflow nowhere") {
    double const limit = turnwise::magnitude_limit<double>;
    CHECK(advantages(make_grouping(ids{1, 1, 1}), numbers{limit, -limit, -limit}) ==
          numbers{2 * limit, -limit, -limit});
    CHECK(advantages(make_grouping(ids{1, 1}), std::vector<float>{0x1p100f, -0x1p100f}) ==
          std::vector<float>{0x1p101f, -0x1p101f});
  }

  TEST_CASE_TEMPLATE("scale: divided by the deviation of the others, by hand", T, float, double) {
    // 1 2 6 5: the others of 6 are 1 2 5, mean 8/3, squares 26/3; of 1: 2 5 6, mean 13/3, squares 26/3.
    auto const groups = make_grouping(ids(4, 1));
    auto const got = advantages<T>(groups, {1, 2, 6, 5}, {}, {.scale = true, .epsilon = 0});
    CHECK(static_cast<double>(got[2]) == Approx(10.0 / 3 / std::sqrt(13.0 / 3)).epsilon(1e-6));
    CHECK(static_cast<double>(got[0]) == Approx(-10.0 / 3 / std::sqrt(13.0 / 3)).epsilon(1e-6));
    // epsilon is added outside the root.
    auto const more = advantages<T>(groups, {1, 2, 6, 5}, {}, {.scale = true, .epsilon = 0.5});
    CHECK(static_cast<double>(more[2]) == Approx(10.0 / 3 / (std::sqrt(13.0 / 3) + 0.5)).epsilon(1e-6));
  }

  TEST_CASE_TEMPLATE("GB-10: one odd sample among equal siblings is not divided by epsilon", T, float, double) {
    auto const got = advantages<T>(make_grouping(ids(5, 0)), {0, 1, 1, 1, 1}, {}, {.scale = true});
    CHECK(got[0] == -1);
    for (std::size_t i = 1; i < 5; ++i) CHECK(static_cast<double>(got[i]) == Approx(0.499999000002).epsilon(1e-7));
    // The same whatever the equal value, though its mean may not be exact.
    for (double const value : {0.1, 0.7, -1e-30}) {
      T const equal = static_cast<T>(value);
      CHECK(advantages<T>(make_grouping(ids(8, 0)), {0, equal, equal, equal, equal, equal, equal, equal}, {},
                          {.scale = true, .epsilon = 0})[0] == -equal);
    }
  }

  TEST_CASE_TEMPLATE("scale: fewer than two others, or none that differ, leave it undivided", T, float, double) {
    leave_one_out_options const scaled{.scale = true, .epsilon = 0};
    CHECK(advantages<T>(make_grouping(ids{1, 1, 2}), {3, 7, 5}, {}, scaled) == std::vector<T>{-4, 4, 5});
    CHECK(advantages<T>(make_grouping(ids(3, 1)), {2, 2, 2}, {}, scaled) == std::vector<T>{0, 0, 0});
    // Lone members as without scale.
    auto const batch = one_prompt<T>();
    auto const groups = make_grouping(batch.view(), group_by::turn);
    for (auto const singleton : {singleton_policy::keep, singleton_policy::zero, singleton_policy::others}) {
      leave_one_out_options options{.singleton = singleton};
      auto const plain = advantages(groups, batch.value, {}, options);
      options.scale = true;
      CHECK(advantages(groups, batch.value, {}, options)[2] == plain[2]);
      CHECK(advantages(groups, batch.value, {}, options)[1] == plain[1]);  // one other
    }
  }

  TEST_CASE("scale: every turn against its others, once more by brute force") {
    turnwise::test::integers random{23};
    ids const sizes{1, 2, 3, 5, 9, 40};
    ragged_batch<> const batch{turnwise::test::random_values<double>(random, sizes, 4)};
    flags reasons = batch.reasons();
    for (std::size_t s = 0; s < batch.turns(); ++s) {
      if (std::isnan(batch.value[s]) && reasons[s] == 0) reasons[s] = reason::unscored;
      if (reasons[s] == 0 && random.below(4) == 0) reasons[s] = reason::ratio_low;
    }
    for (auto const by : {group_by::group, group_by::turn, group_by::batch})
      for (auto const exclude : {exclude_policy::trajectory, exclude_policy::member})
        for (auto const members : {baseline_members::valid, baseline_members::kept}) {
          auto const groups = make_grouping(batch.view(), by);
          leave_one_out_options options{.singleton = singleton_policy::zero, .exclude = exclude, .members = members};
          auto const plain = advantages(groups, batch.value, reasons, options);
          options.scale = true;
          auto const got = advantages(groups, batch.value, reasons, options);
          for (std::size_t g = 0; g < groups.groups(); ++g)
            for (std::size_t i = 0; i < groups.members(g).size(); ++i) {
              auto const one = static_cast<std::size_t>(groups.members(g)[i]);
              if (!turnwise::is_valid(reasons[one])) {
                CHECK(got[one] == 0);
                continue;
              }
              std::vector<long double> rest;
              long double mean = 0, squares = 0;
              for (std::size_t k = 0; k < groups.members(g).size(); ++k) {
                auto const other = static_cast<std::size_t>(groups.members(g)[k]);
                bool const out =
                    exclude == exclude_policy::member ? k == i : groups.trajectories(g)[k] == groups.trajectories(g)[i];
                bool const counts = members == baseline_members::valid ? turnwise::is_valid(reasons[other])
                                                                       : turnwise::is_kept(reasons[other]);
                if (!out && counts) rest.push_back(static_cast<long double>(batch.value[other]));
              }
              auto const [low, high] = std::minmax_element(rest.begin(), rest.end());
              if (rest.size() < 2 || *low == *high) {
                CHECK(got[one] == plain[one]);
                continue;
              }
              for (long double const value : rest) mean += value / static_cast<long double>(rest.size());
              for (long double const value : rest) squares += (value - mean) * (value - mean);
              long double const deviation = std::sqrt(squares / static_cast<long double>(rest.size() - 1));
              long double const wanted = (static_cast<long double>(batch.value[one]) - mean) / (deviation + 1e-6L);
              CHECK(std::abs(got[one] - static_cast<double>(wanted)) < 1e-9 * (1 + std::abs(got[one])));
            }
        }
  }

  TEST_CASE("scale: others that differ by less than a square can hold are taken as equal") {
    numbers const returns{1, 1e-200, 2e-200};
    CHECK(advantages(make_grouping(ids(3, 1)), returns, {}, {.scale = true, .epsilon = 0})[0] ==
          advantages(make_grouping(ids(3, 1)), returns)[0]);
  }

  TEST_CASE("no turns") { CHECK(advantages(make_grouping(ids{}), numbers{}).empty()); }

  TEST_CASE_TEMPLATE("every error names the argument and leaves the advantage alone", T, float, double) {
    auto const groups = make_grouping(ids{1, 1, 2});
    std::vector<T> returns{1, 2, 3}, out(3, T{9});
    flags reasons;
    auto const refused = [&](char const* text) {
      auto const before = out;
      CHECK_THROWS_WITH_AS(leave_one_out(groups, returns, reasons, {}, std::span{out}), Contains(text),
                           precondition_error);
      CHECK(out == before);
    };
    SUBCASE("return") {
      returns.pop_back();
      refused("leave_one_out: turn_return has 2 elements, expected 3");
    }
    SUBCASE("reasons") {
      reasons = {0, 0, 0, 0};
      refused("leave_one_out: reasons has 4 elements, expected 3");
    }
    SUBCASE("advantage") {
      out.push_back(9);
      refused("leave_one_out: advantage has 4 elements, expected 3");
    }
    SUBCASE("a return of a valid turn that is not finite or too large") {
      T const limit = static_cast<T>(turnwise::magnitude_limit<T>);
      for (T const bad : {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity(),
                          -std::numeric_limits<T>::infinity(), limit * 2, -limit * 2}) {
        returns[1] = bad;
        reasons.clear();
        refused("leave_one_out: turn_return[1] = ");
        reasons = {0, reason::profiling, 0};  // rejected is still valid
        refused("leave_one_out: turn_return[1] = ");
        reasons = {0, reason::unscored, 0};
        CHECK_NOTHROW(leave_one_out(groups, returns, reasons, {}, std::span{out}));
        out.assign(3, T{9});
      }
    }
    SUBCASE("epsilon") {
      for (double const bad :
           {-1e-9, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
        CHECK_THROWS_WITH_AS(leave_one_out(groups, returns, reasons, {.epsilon = bad}, std::span{out}),
                             Contains("leave_one_out: epsilon = "), precondition_error);
        CHECK(out == std::vector<T>(3, T{9}));
      }
    }
    SUBCASE("advantage over the returns") {
      auto const before = returns;
      CHECK_THROWS_WITH_AS(leave_one_out(groups, returns, reasons, {}, std::span{returns}),
                           Contains("advantage must not overlap turn_return"), precondition_error);
      CHECK(returns == before);
    }
  }

}  // TEST_SUITE
