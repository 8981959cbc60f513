#include "support/ragged.hpp"

#include <turnwise/advantage/discounted_return.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

using doctest::Approx;
using doctest::Contains;
using turnwise::precondition_error;
using turnwise::reason_flags;
using turnwise::advantage::discounted_return;
using turnwise::advantage::discounted_return_options;
using turnwise::advantage::unscored_policy;
using turnwise::test::ragged_batch;

namespace {

constexpr double missing = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr reason_flags off = turnwise::reason::invalid;
constexpr reason_flags unscored = turnwise::reason::unscored;
constexpr reason_flags future = turnwise::reason::unscored_future;

using numbers = std::vector<double>;
using flags = std::vector<reason_flags>;

template <typename T>
struct result {
  std::vector<T> turn_return;
  flags reasons;
};

template <typename T>
result<T> returns_of(ragged_batch<T> const& batch, discounted_return_options const& options) {
  result<T> out{std::vector<T>(batch.turns(), T{-77}), batch.reasons()};
  discounted_return(batch.view(), batch.value, options, std::span{out.reasons}, std::span{out.turn_return});
  return out;
}

}  // namespace

TEST_SUITE("advantage/discounted_return") {
  TEST_CASE_TEMPLATE("what follows in the trajectory, discounted", T, float, double) {
    ragged_batch<T> const batch{{{.group = 1, .id = 0, .turns = {1, 2, 4}},
                                 {.group = 1, .id = 1, .turns = {}},
                                 {.group = 1, .id = 2, .turns = {8}},
                                 {.group = 2, .id = 0, .turns = {-1, 16}}}};
    CHECK(returns_of(batch, {.gamma = 1}).turn_return == std::vector<T>{7, 6, 4, 8, 15, 16});
    CHECK(returns_of(batch, {.gamma = 0}).turn_return == std::vector<T>{1, 2, 4, 8, -1, 16});
    CHECK(returns_of(batch, {.gamma = 0.5}).turn_return == std::vector<T>{3, 4, 4, 8, 7, 16});
    auto const kevin = returns_of(batch, {.gamma = 0.4}).turn_return;
    numbers const by_hand{2.44, 3.6, 4, 8, 5.4, 16};  // 1 + 0.4 (2 + 0.4 * 4), 2 + 0.4 * 4, ..., -1 + 0.4 * 16
    for (std::size_t s = 0; s < by_hand.size(); ++s)
      CHECK(static_cast<double>(kevin[s]) == Approx(by_hand[s]).epsilon(1e-6));
    CHECK(returns_of(batch, {.gamma = 1}).reasons == flags(6, 0));
  }

  TEST_CASE("a step is a position, not a difference of indices") {
    ragged_batch<> const batch{{{.group = 1, .id = 0, .turns = {1, 2, 4}, .index = {0, 5, 100}}}};
    CHECK(returns_of(batch, {.gamma = 0.5}).turn_return == numbers{3, 4, 4});
  }

  TEST_CASE("the default is gamma 1 and exclude") {
    ragged_batch<> const batch{{{.group = 1, .id = 0, .turns = {1, missing, 4}}}};
    auto const got = returns_of(batch, {});
    CHECK(got.turn_return == numbers{5, 4, 4});
    CHECK(got.reasons == flags{future, unscored, 0});
  }

  TEST_CASE_TEMPLATE("an unscored turn: the turns before it are excluded too, or stay with 0", T, float, double) {
    T const nan = std::numeric_limits<T>::quiet_NaN();
    ragged_batch<T> const batch{
        {{.group = 1, .id = 0, .turns = {1, 2, nan, 4, nan, 16}}, {.group = 1, .id = 1, .turns = {1, 2}}}};
    std::vector<T> const returns{23, 22, 20, 20, 16, 16, 3, 2};  // as if the missing rewards were 0
    auto const exclude = returns_of(batch, {.gamma = 1, .unscored = unscored_policy::exclude});
    CHECK(exclude.turn_return == returns);
    CHECK(exclude.reasons == flags{future, future, unscored, future, unscored, 0, 0, 0});
    auto const zero = returns_of(batch, {.gamma = 1, .unscored = unscored_policy::zero});
    CHECK(zero.turn_return == returns);
    CHECK(zero.reasons == flags{0, 0, unscored, 0, unscored, 0, 0, 0});
  }

  TEST_CASE("at gamma 0 no return needs a later reward: only the turn itself is unscored") {
    ragged_batch<> const batch{{{.group = 1, .id = 0, .turns = {1, missing, 4, missing}}}};
    for (auto const policy : {unscored_policy::exclude, unscored_policy::zero}) {
      auto const got = returns_of(batch, {.gamma = 0, .unscored = policy});
      CHECK(got.turn_return == numbers{1, 0, 4, 0});
      CHECK(got.reasons == flags{0, unscored, 0, unscored});
    }
    // The smallest gamma reaches forward already.
    CHECK(returns_of(batch, {.gamma = 5e-324}).reasons == flags{future, unscored, future, unscored});
  }

  TEST_CASE("an unscored last turn takes the whole trajectory with it, and no other") {
    ragged_batch<> const batch{{{.group = 1, .id = 0, .turns = {1, 2, missing}},
                                {.group = 1, .id = 1, .turns = {missing, 2}},
                                {.group = 1, .id = 2, .turns = {3}}}};
    auto const got = returns_of(batch, {});
    CHECK(got.turn_return == numbers{3, 2, 0, 2, 2, 3});
    CHECK(got.reasons == flags{future, future, unscored, unscored, 0, 0});
  }

  TEST_CASE_TEMPLATE("a turn flagged off counts as a step and adds nothing, whatever its reward", T, float, double) {
    T const garbage[] = {T{0},
                         T{7},
                         std::numeric_limits<T>::quiet_NaN(),
                         std::numeric_limits<T>::infinity(),
                         -std::numeric_limits<T>::infinity(),
                         std::numeric_limits<T>::max()};
    for (T const reward : garbage)
      for (auto const policy : {unscored_policy::exclude, unscored_policy::zero, unscored_policy::error}) {
        CAPTURE(reward);
        ragged_batch<T> const batch{{{.group = 1, .id = 0, .turns = {1, reward, 4, reward}, .valid = {1, 0, 1, 0}}}};
        auto const got = returns_of(batch, {.gamma = 0.5, .unscored = policy});
        CHECK(got.turn_return == std::vector<T>{2, 2, 4, 0});  // 1 + (0 + 4 / 2) / 2, what follows, 4, nothing follows
        CHECK(got.reasons == flags{0, off, 0, off});
      }
  }

  TEST_CASE("flagged off stays `invalid` alone, also before an unscored turn, and lets it be seen by earlier turns") {
    ragged_batch<> const batch{{{.group = 1, .id = 0, .turns = {1, 2, missing, 8}, .valid = {1, 0, 1, 1}},
                                {.group = 1, .id = 1, .turns = {1, missing, 4}, .valid = {1, 0, 1}}}};
    auto const got = returns_of(batch, {});
    CHECK(got.turn_return == numbers{9, 8, 8, 8, 5, 4, 4});
    CHECK(got.reasons == flags{future, off, unscored, 0, 0, off, 0});
  }

  TEST_CASE_TEMPLATE("the return may overwrite the reward", T, float, double) {
    turnwise::test::integers random{3};
    std::vector<std::int64_t> const sizes{1, 2, 3, 5, 40};
    ragged_batch<T> batch{turnwise::test::random_values<T>(random, sizes, 6)};
    for (double const gamma : {0.0, 0.4, 1.0}) {
      auto const apart = returns_of(batch, {.gamma = gamma});
      std::vector<T> in_place = batch.value;
      flags reasons = batch.reasons();
      discounted_return(batch.view(), in_place, {.gamma = gamma}, std::span{reasons}, std::span{in_place});
      CHECK(in_place == apart.turn_return);
      CHECK(reasons == apart.reasons);
    }
  }

  TEST_CASE("the recursion holds on random batches") {
    turnwise::test::integers random{8};
    std::vector<std::int64_t> const sizes{1, 7, 60};
    ragged_batch<> const batch{turnwise::test::random_values<double>(random, sizes, 9)};
    auto const view = batch.view();
    for (double const gamma : {0.25, 0.4, 0.99, 1.0}) {
      auto const got = returns_of(batch, {.gamma = gamma});
      for (std::size_t j = 0; j < view.trajectories(); ++j)
        for (std::size_t s = view.first_turn(j); s < view.first_turn(j + 1); ++s) {
          double sum = 0, discount = 1;
          for (std::size_t later = s; later < view.first_turn(j + 1); ++later, discount *= gamma)
            if (!view.flagged_off(later) && !std::isnan(batch.value[later])) sum += discount * batch.value[later];
          REQUIRE(got.turn_return[s] == Approx(sum).epsilon(1e-12));
        }
    }
  }

  TEST_CASE("one fused multiply-add a turn: the product is not rounded") {
    // gamma * 3 = 0.3 + 2^-54.. in doubles; minus its own rounding only a fused step keeps the rest.
    double const gamma = 0.1, later = 3;
    double const rounded = gamma * later;
    ragged_batch<> const batch{{{.group = 1, .id = 0, .turns = {-rounded, later}}}};
    CHECK(returns_of(batch, {.gamma = gamma}).turn_return[0] == std::fma(gamma, later, -rounded));
    REQUIRE(std::fma(gamma, later, -rounded) != 0);
  }

  TEST_CASE_TEMPLATE("no trajectories, or none with turns", T, float, double) {
    CHECK(returns_of(ragged_batch<T>{{}}, {}).turn_return.empty());
    CHECK(returns_of(ragged_batch<T>{{{.group = 1, .id = 0}}}, {}).turn_return.empty());
    discounted_return<T>({}, {}, {}, {}, {});
  }

  TEST_CASE_TEMPLATE("every error names the argument and leaves both outputs alone", T, float, double) {
    T const nan = std::numeric_limits<T>::quiet_NaN();
    T const limit = static_cast<T>(turnwise::magnitude_limit<T>);
    ragged_batch<T> batch{{{.group = 1, .id = 0, .turns = {1, 2, 4}}, {.group = 1, .id = 1, .turns = {8}}}};
    flags reasons(4, 0);
    std::vector<T> out(4, T{9});
    discounted_return_options options;
    auto const refused = [&](char const* text) {
      flags const before = reasons;
      std::vector<T> const out_before = out;
      CHECK_THROWS_WITH_AS(discounted_return(batch.view(), batch.value, options, std::span{reasons}, std::span{out}),
                           Contains(text), precondition_error);
      CHECK(reasons == before);
      CHECK(out == out_before);
    };

    SUBCASE("reward of another size") {
      batch.value.push_back(0);
      refused("discounted_return: reward has 5 elements, expected 4");
    }
    SUBCASE("reasons of another size") {
      reasons.pop_back();
      refused("discounted_return: reasons has 3 elements, expected 4");
    }
    SUBCASE("return of another size") {
      out.push_back(0);
      refused("discounted_return: turn_return has 5 elements, expected 4");
    }
    SUBCASE("gamma") {
      for (double const bad : {-0.01, 1.01, missing, infinity, -infinity}) {
        options.gamma = bad;
        refused("discounted_return: gamma = ");
      }
    }
    SUBCASE("an inconsistent batch") {
      batch.offsets = {0, 5, 4};
      refused("discounted_return: trajectory_offsets[2] = 4");
    }
    SUBCASE("an infinite reward") {
      for (T const bad : {std::numeric_limits<T>::infinity(), -std::numeric_limits<T>::infinity()}) {
        batch.value[2] = bad;
        batch.value[3] = bad;
        refused("discounted_return: reward[2] = ");
      }
    }
    SUBCASE("a reward beyond the limit") {
      batch.value[1] = -limit * 2;
      refused("discounted_return: reward[1] = ");
      batch.value[1] = limit;
      batch.value[2] = -limit;
      CHECK_NOTHROW(discounted_return(batch.view(), batch.value, options, std::span{reasons}, std::span{out}));
    }
    SUBCASE("a return beyond the limit, although no reward is") {
      batch.value[1] = limit;
      batch.value[2] = limit;
      refused("discounted_return: the return of turn 1 = ");
      options.gamma = 0;
      CHECK_NOTHROW(discounted_return(batch.view(), batch.value, options, std::span{reasons}, std::span{out}));
    }
    SUBCASE("a missing reward under the error policy") {
      options.unscored = unscored_policy::error;
      batch.value[3] = nan;
      batch.value[1] = nan;
      refused("discounted_return: reward[1] is NaN");
      reasons[1] = off;
      refused("discounted_return: reward[3] is NaN");
      reasons[3] = off;
      CHECK_NOTHROW(discounted_return(batch.view(), batch.value, options, std::span{reasons}, std::span{out}));
    }
  }

}  // TEST_SUITE
