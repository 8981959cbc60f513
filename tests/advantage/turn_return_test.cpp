#include "support/ragged.hpp"

#include <turnwise/advantage/turn_return.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

using doctest::Contains;
using turnwise::precondition_error;
using turnwise::reason_flags;
using turnwise::advantage::return_kind;
using turnwise::advantage::turn_return;
using turnwise::advantage::turn_return_options;
using turnwise::advantage::unscored_policy;
using turnwise::advantage::uses_gamma;
using turnwise::test::bits_of;
using turnwise::test::ragged_batch;

namespace {

constexpr double missing = std::numeric_limits<double>::quiet_NaN();
constexpr reason_flags off = turnwise::reason::invalid;
constexpr reason_flags unscored = turnwise::reason::unscored;
constexpr reason_flags future = turnwise::reason::unscored_future;
constexpr return_kind every_kind[]{return_kind::discounted_sum, return_kind::max, return_kind::last,
                                   return_kind::current, return_kind::best_so_far};

using numbers = std::vector<double>;
using flags = std::vector<reason_flags>;

template <typename T>
struct result {
  std::vector<T> turn_return;
  flags reasons;
};

template <typename T>
result<T> returns_of(ragged_batch<T> const& batch, turn_return_options const& options) {
  result<T> out{std::vector<T>(batch.turns(), T{-77}), batch.reasons()};
  turn_return(batch.view(), batch.value, options, std::span{out.reasons}, std::span{out.turn_return});
  return out;
}

/// With gamma 1 where the kind has no use for it.
template <typename T>
result<T> of_kind(ragged_batch<T> const& batch, return_kind kind, double gamma, unscored_policy policy = {}) {
  return returns_of(batch, {kind, uses_gamma(kind) ? gamma : 1.0, policy});
}

}  // namespace

TEST_SUITE("advantage/turn_return") {
  TEST_CASE_TEMPLATE("hand numbers of each kind", T, float, double) {
    ragged_batch<T> const batch{{{.group = 1, .id = 0, .turns = {1, 8, 2, 4}},
                                 {.group = 1, .id = 1},
                                 {.group = 1, .id = 2, .turns = {3}},
                                 {.group = 2, .id = 0, .turns = {-2, -8}}}};
    auto const of = [&](return_kind kind, double gamma) { return returns_of(batch, {kind, gamma}).turn_return; };
    CHECK(of(return_kind::discounted_sum, 0.5) == std::vector<T>{6, 10, 4, 4, 3, -6, -8});
    CHECK(of(return_kind::max, 1) == std::vector<T>{8, 8, 4, 4, 3, -2, -8});
    CHECK(of(return_kind::max, 0.5) == std::vector<T>{4, 8, 2, 4, 3, -2, -8});
    CHECK(of(return_kind::max, 0.125) == std::vector<T>{1, 8, 2, 4, 3, -1, -8});  // -8 / 8 is above -2
    CHECK(of(return_kind::last, 1) == std::vector<T>{4, 4, 4, 4, 3, -8, -8});
    CHECK(of(return_kind::last, 0.5) == std::vector<T>{T{0.5}, 1, 2, 4, 3, -4, -8});
    CHECK(of(return_kind::current, 1) == batch.value);
    CHECK(of(return_kind::best_so_far, 1) == std::vector<T>{1, 8, 8, 8, 3, -2, -2});
    for (auto const kind : every_kind) CHECK(of_kind(batch, kind, 0.5).reasons == flags(7, 0));
  }

  TEST_CASE("gamma 0 looks at no later turn") {
    ragged_batch<> const batch{{{.group = 1, .id = 0, .turns = {-1, 8, 2}}}};
    CHECK(returns_of(batch, {return_kind::discounted_sum, 0}).turn_return == numbers{-1, 8, 2});
    CHECK(returns_of(batch, {return_kind::max, 0}).turn_return == numbers{-1, 8, 2});
    CHECK(returns_of(batch, {return_kind::last, 0}).turn_return == numbers{0, 0, 2});
  }

  TEST_CASE("the default is discounted_return with gamma 1") {
    ragged_batch<> const batch{{{.group = 1, .id = 0, .turns = {1, missing, 4}}}};
    auto const got = returns_of(batch, {});
    CHECK(got.turn_return == numbers{5, 4, 4});
    CHECK(got.reasons == flags{future, unscored, 0});
  }

  TEST_CASE("each kind by its definition, on random batches without missing rewards") {
    turnwise::test::integers random{8};
    std::vector<std::int64_t> const sizes{1, 7, 60};
    auto trajectories = turnwise::test::random_values<double>(random, sizes, 9);
    for (auto& one : trajectories) {
      for (double& value : one.turns) value = std::isnan(value) ? -3 : value;
      std::fill(one.valid.begin(), one.valid.end(), std::uint8_t{1});
    }
    ragged_batch<> const batch{trajectories};
    auto const view = batch.view();
    for (double const gamma : {0.25, 0.4, 0.99, 1.0})
      for (auto const kind : every_kind) {
        auto const got = of_kind(batch, kind, gamma);
        for (std::size_t j = 0; j < view.trajectories(); ++j)
          for (std::size_t s = view.first_turn(j); s < view.first_turn(j + 1); ++s) {
            double sum = 0, best = -1e300, last = 0, so_far = -1e300;
            for (std::size_t k = s; k < view.first_turn(j + 1); ++k) {
              last = std::pow(gamma, static_cast<double>(k - s)) * batch.value[k];
              sum += last;
              best = std::max(best, last);
            }
            for (std::size_t k = view.first_turn(j); k <= s; ++k) so_far = std::max(so_far, batch.value[k]);
            double const expected = kind == return_kind::discounted_sum ? sum
                                    : kind == return_kind::max          ? best
                                    : kind == return_kind::last         ? last
                                    : kind == return_kind::current      ? batch.value[s]
                                                                        : so_far;
            REQUIRE(std::abs(got.turn_return[s] - expected) <= 1e-12 * (1 + std::abs(expected)));
          }
      }
  }

  TEST_CASE("the sum is discounted_return, to the bit and to the flag") {
    turnwise::test::integers random{9};
    std::vector<std::int64_t> const sizes{1, 7, 60};
    ragged_batch<> const batch{turnwise::test::random_values<double>(random, sizes, 9)};
    for (auto const policy : {unscored_policy::exclude, unscored_policy::zero}) {
      numbers expected(batch.turns());
      flags reasons = batch.reasons();
      turnwise::advantage::discounted_return(batch.view(), batch.value, {0.4, policy}, std::span{reasons},
                                             std::span{expected});
      auto const got = returns_of(batch, {return_kind::discounted_sum, 0.4, policy});
      CHECK(bits_of(got.turn_return) == bits_of(expected));
      CHECK(got.reasons == reasons);
    }
  }

  TEST_CASE_TEMPLATE("a missing reward spreads to the turns whose return needs it", T, float, double) {
    T const nan = std::numeric_limits<T>::quiet_NaN();
    ragged_batch<T> const middle{{{.group = 1, .id = 0, .turns = {1, 2, nan, 4}}}};
    ragged_batch<T> const end{{{.group = 1, .id = 0, .turns = {-1, 2, nan}}}};
    auto const reasons = [](ragged_batch<T> const& batch, return_kind kind, double gamma, unscored_policy policy) {
      return of_kind(batch, kind, gamma, policy).reasons;
    };
    auto const exclude = unscored_policy::exclude, zero = unscored_policy::zero;
    for (auto const kind : {return_kind::discounted_sum, return_kind::max}) {
      CHECK(reasons(middle, kind, 1, exclude) == flags{future, future, unscored, 0});
      CHECK(reasons(end, kind, 1, exclude) == flags{future, future, unscored});
    }
    CHECK(reasons(middle, return_kind::last, 1, exclude) == flags{0, 0, unscored, 0});
    CHECK(reasons(end, return_kind::last, 1, exclude) == flags{future, future, unscored});
    for (auto const kind : {return_kind::current, return_kind::best_so_far})
      CHECK(reasons(middle, kind, 1, exclude) == flags{0, 0, unscored, 0});
    for (auto const kind : every_kind) {
      CHECK(reasons(middle, kind, 1, zero) == flags{0, 0, unscored, 0});
      CHECK(reasons(middle, kind, 0, exclude) == flags{0, 0, unscored, 0});
      CHECK(reasons(end, kind, 0, exclude) == flags{0, 0, unscored});
    }
    // It counts as 0.
    CHECK(returns_of(middle, {return_kind::max, 0.5}).turn_return == std::vector<T>{1, 2, 2, 4});
    CHECK(returns_of(end, {return_kind::max, 1}).turn_return == std::vector<T>{2, 2, 0});
    CHECK(returns_of(end, {return_kind::last, 1}).turn_return == std::vector<T>{0, 0, 0});
    CHECK(returns_of(middle, {return_kind::current, 1}).turn_return == std::vector<T>{1, 2, 0, 4});
    // But it is no best so far.
    ragged_batch<T> const negative{{{.group = 1, .id = 0, .turns = {nan, -2, nan, -1}}}};
    CHECK(returns_of(negative, {return_kind::best_so_far}).turn_return == std::vector<T>{0, -2, -2, -1});
    CHECK(returns_of(negative, {return_kind::best_so_far}).reasons == flags{unscored, 0, unscored, 0});
  }

  TEST_CASE_TEMPLATE("a turn flagged off takes no part, whatever its reward, and is a step of gamma", T, float,
                     double) {
    T const garbage[] = {T{0},
                         T{7},
                         std::numeric_limits<T>::quiet_NaN(),
                         std::numeric_limits<T>::infinity(),
                         -std::numeric_limits<T>::infinity(),
                         std::numeric_limits<T>::max()};
    for (T const reward : garbage)
      for (auto const policy : {unscored_policy::exclude, unscored_policy::zero, unscored_policy::error}) {
        CAPTURE(reward);
        // Padding at either end and between: the last turn is the one that pays -4.
        ragged_batch<T> const batch{
            {{.group = 1, .id = 0, .turns = {reward, -8, reward, -4, reward}, .valid = {0, 1, 0, 1, 0}}}};
        auto const of = [&](return_kind kind) {
          auto const got = of_kind(batch, kind, 0.5, policy);
          CHECK(got.reasons == flags{off, 0, off, 0, off});
          return got.turn_return;
        };
        CHECK(of(return_kind::max) == std::vector<T>{T{-0.5}, -1, -2, -4, 0});  // not 0, which padding would pay
        CHECK(of(return_kind::last) == std::vector<T>{T{-0.5}, -1, -2, -4, 0});
        CHECK(of(return_kind::current) == std::vector<T>{0, -8, 0, -4, 0});
        CHECK(of(return_kind::best_so_far) == std::vector<T>{0, -8, -8, -4, -4});
      }
  }

  TEST_CASE_TEMPLATE("the return may overwrite the reward", T, float, double) {
    turnwise::test::integers random{3};
    std::vector<std::int64_t> const sizes{1, 2, 3, 5, 40};
    ragged_batch<T> const batch{turnwise::test::random_values<T>(random, sizes, 6)};
    for (auto const kind : every_kind) {
      turn_return_options const options{kind, uses_gamma(kind) ? 0.4 : 1.0};
      auto const apart = returns_of(batch, options);
      std::vector<T> in_place = batch.value;
      flags reasons = batch.reasons();
      turn_return(batch.view(), in_place, options, std::span{reasons}, std::span{in_place});
      CHECK(in_place == apart.turn_return);
      CHECK(reasons == apart.reasons);
      for (T const value : in_place) CHECK(std::isfinite(value));
    }
  }

  TEST_CASE_TEMPLATE("no trajectories, or none with turns", T, float, double) {
    for (auto const kind : every_kind) {
      CHECK(returns_of(ragged_batch<T>{{}}, {kind}).turn_return.empty());
      CHECK(returns_of(ragged_batch<T>{{{.group = 1, .id = 0}}}, {kind}).turn_return.empty());
      turn_return<T>({}, {}, {kind}, {}, {});
    }
  }

  TEST_CASE_TEMPLATE("every error names the argument and leaves both outputs alone", T, float, double) {
    ragged_batch<T> batch{{{.group = 1, .id = 0, .turns = {1, 2, 4}}, {.group = 1, .id = 1, .turns = {8}}}};
    flags reasons(4, 0);
    std::vector<T> out(4, T{9});
    turn_return_options options;
    auto const refused = [&](char const* text) {
      for (auto const kind : every_kind) {
        options.kind = kind;
        flags const before = reasons;
        std::vector<T> const out_before = out;
        CHECK_THROWS_WITH_AS(turn_return(batch.view(), batch.value, options, std::span{reasons}, std::span{out}),
                             Contains(text), precondition_error);
        CHECK(reasons == before);
        CHECK(out == out_before);
      }
    };
    SUBCASE("sizes") {
      batch.value.push_back(0);
      refused("_return: reward has 5 elements, expected 4");
      batch.value.pop_back();
      reasons.pop_back();
      refused("_return: reasons has 3 elements, expected 4");
      reasons.push_back(0);
      out.push_back(0);
      refused("_return: turn_return has 5 elements, expected 4");
    }
    SUBCASE("gamma") {
      for (double const bad : {-0.01, 1.01, missing, turnwise::test::infinity}) {
        options.gamma = bad;
        refused("_return: gamma = ");
      }
    }
    SUBCASE("a gamma that the kind does not use") {
      for (auto const kind : {return_kind::current, return_kind::best_so_far})
        for (double const gamma : {0.0, 0.4, 0.999}) {
          CHECK_THROWS_WITH_AS(
              turn_return(batch.view(), batch.value, {kind, gamma}, std::span{reasons}, std::span{out}),
              Contains("turn_return: gamma = "), precondition_error);
          CHECK(reasons == flags(4, 0));
          CHECK(out == std::vector<T>(4, T{9}));
        }
    }
    SUBCASE("an inconsistent batch") {
      batch.offsets = {0, 5, 4};
      refused("_return: trajectory_offsets[2] = 4");
    }
    SUBCASE("a reward that is infinite or too large") {
      for (T const bad : {std::numeric_limits<T>::infinity(), -std::numeric_limits<T>::max()}) {
        batch.value[2] = bad;
        refused("_return: reward[2] = ");
      }
    }
    SUBCASE("a missing reward under the error policy") {
      options.unscored = unscored_policy::error;
      batch.value[1] = std::numeric_limits<T>::quiet_NaN();
      refused("_return: reward[1] is NaN");
    }
  }

}  // TEST_SUITE
