#include "support/ragged.hpp"

#include <turnwise/advantage/gae.hpp>
#include <turnwise/advantage/vtrace.hpp>

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
using turnwise::advantage::token_segments;
using turnwise::advantage::vtrace;
using turnwise::advantage::vtrace_advantage;
using turnwise::advantage::vtrace_options;
using turnwise::test::integers;

namespace {

using offsets = std::vector<std::int64_t>;
using bytes = std::vector<std::uint8_t>;
constexpr double infinity = std::numeric_limits<double>::infinity();

template <typename T>
struct outputs {
  std::vector<T> advantage, target;
  bool operator==(outputs const&) const = default;
};

template <typename T>
outputs<T> run(token_segments<T> const& segments, std::vector<T> const& reward, std::vector<T> const& value,
               std::vector<T> const& log_ratio, vtrace_options const& options) {
  outputs<T> out{std::vector<T>(reward.size(), T{-77}), std::vector<T>(reward.size(), T{-77})};
  vtrace(segments, reward, value, log_ratio, options, std::span{out.advantage}, out.target);
  return out;
}

/// Segments of many sizes, half of them cut, a third of the tokens masked with garbage on them.
struct random_segments {
  offsets ends{0};
  bytes cut, mask;
  std::vector<double> next_value, reward, value, log_ratio;

  explicit random_segments(std::uint64_t seed) {
    integers random{seed};
    double const garbage = std::nan("");
    for (int k = 0; k < 40; ++k) {
      std::int64_t const tokens = random.below(3) == 0 ? 0 : random.below(30);
      cut.push_back(random.below(2) == 0);
      next_value.push_back(cut.back() != 0 && tokens > 0 ? turnwise::test::uneven_number(random) : garbage);
      for (std::int64_t t = 0; t < tokens; ++t) {
        bool const on = random.below(3) != 0;
        mask.push_back(on);
        reward.push_back(on ? turnwise::test::uneven_number(random) : garbage);
        value.push_back(on ? turnwise::test::uneven_number(random) : garbage);
        log_ratio.push_back(on ? static_cast<double>(random.below(4001) - 2000) * 1e-3 : -infinity);
      }
      ends.push_back(static_cast<std::int64_t>(reward.size()));
    }
  }
  [[nodiscard]] token_segments<double> view() const {
    return {.offsets = ends, .cut = cut, .next_value = next_value, .mask = mask};
  }
  [[nodiscard]] std::vector<std::size_t> tokens(std::size_t k) const {
    std::vector<std::size_t> result;
    for (auto n = static_cast<std::size_t>(ends[k]); n < static_cast<std::size_t>(ends[k + 1]); ++n)
      if (mask[n] != 0) result.push_back(n);
    return result;
  }
  [[nodiscard]] double bootstrap(std::size_t k) const {
    return cut[k] != 0 && ends[k] < ends[k + 1] ? next_value[k] : 0.0;
  }
};

template <typename T>
void check_near(T got, double wanted, double scale = 1) {
  CHECK(std::abs(static_cast<double>(got) - wanted) <= (sizeof(T) == 4 ? 1e-6 : 1e-12) * (std::abs(wanted) + scale));
}

}  // namespace

TEST_SUITE("advantage/vtrace") {
  TEST_CASE_TEMPLATE("hand numbers: ratios 1/2 and 4, rho_bar 2, c_bar 1, gamma 1/2, a cut episode", T, float, double) {
    // Token 1: rho 2, c 1: v = 3 + 2 (2 + 6 / 2 - 3) = 7; A = min(1, 4) (2 + 6 / 2 - 3) = 2.
    // Token 0: rho = c = 1/2: v = 1 + (4 + 3 / 2 - 1) / 2 + (7 - 3) / 4 = 4.25; A = (4 + 7 / 2 - 1) / 2 = 3.25.
    offsets const ends{0, 2};
    bytes const cut{1};
    std::vector<T> const next{6}, ratio{T(std::log(0.5)), T(std::log(4.0))};
    token_segments<T> const segments{.offsets = ends, .cut = cut, .next_value = next};
    vtrace_options options{.gamma = 0.5, .rho_bar = 2};
    auto const check = [&](std::vector<double> const& advantage, std::vector<double> const& target) {
      auto const out = run<T>(segments, {4, 2}, {1, 3}, ratio, options);
      for (std::size_t n = 0; n < 2; ++n) {
        check_near(out.advantage[n], advantage[n]);
        check_near(out.target[n], target[n]);
      }
    };
    check({3.25, 2}, {4.25, 7});
    options.pg_rho_bar = infinity;
    check({3.25, 8}, {4.25, 7});
    options.pg_rho_bar = 3;
    check({3.25, 6}, {4.25, 7});
    // lambda 1/2 halves the trace: v0 = 1 + 2.25 + 0.5; mixed: (4 + (3 + 7) / 2 / 2 - 1) / 2.
    options.lambda = 0.5;
    check({3.25, 6}, {3.75, 7});
    options.advantage = vtrace_advantage::mixed_target;
    check({2.75, 6}, {3.75, 7});
    options.advantage = vtrace_advantage::excess;
    check({2.75, 4}, {3.75, 7});
    // Ended: v1 = 3 + 2 (2 - 3) = 1, v0 = 1 + 2.25 + (1 - 3) / 8.
    auto const ended = run<T>({.offsets = ends}, {4, 2}, {1, 3}, ratio, options);
    check_near(ended.target[1], 1);
    check_near(ended.target[0], 3);
  }

  TEST_CASE("the paper's sum (eq. 1): gamma powers, products of c, rho-weighted differences") {
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
      random_segments const batch{seed};
      vtrace_options const options{.gamma = 0.95,
                                   .lambda = seed % 2 == 0 ? 0.8 : 1.0,
                                   .rho_bar = seed % 3 == 0 ? infinity : 1.5,
                                   .c_bar = seed % 2 == 0 ? 1.2 : 0.9,
                                   .pg_rho_bar = 2};
      auto const out = run<double>(batch.view(), batch.reward, batch.value, batch.log_ratio, options);
      for (std::size_t k = 0; k + 1 < batch.ends.size(); ++k) {
        auto const tokens = batch.tokens(k);
        auto const ratio = [&](std::size_t j) { return std::exp(batch.log_ratio[tokens[j]]); };
        auto const value = [&](std::size_t j) {
          return j < tokens.size() ? batch.value[tokens[j]] : batch.bootstrap(k);
        };
        std::vector<double> target(tokens.size() + 1, batch.bootstrap(k));
        for (std::size_t i = 0; i < tokens.size(); ++i) {
          double sum = value(i), product = 1;
          for (std::size_t j = i; j < tokens.size(); ++j) {
            double const difference = batch.reward[tokens[j]] + options.gamma * value(j + 1) - value(j);
            sum += std::pow(options.gamma, static_cast<double>(j - i)) * product * std::min(options.rho_bar, ratio(j)) *
                   difference;
            product *= options.lambda * std::min(options.c_bar, ratio(j));
          }
          target[i] = sum;
        }
        for (std::size_t i = 0; i < tokens.size(); ++i) {
          check_near(out.target[tokens[i]], target[i], 100);
          check_near(out.advantage[tokens[i]],
                     std::min(2.0, ratio(i)) * (batch.reward[tokens[i]] + options.gamma * target[i + 1] - value(i)),
                     1000);
        }
      }
      for (std::size_t n = 0; n < batch.mask.size(); ++n)
        if (batch.mask[n] == 0) CHECK((out.target[n] == 0 && out.advantage[n] == 0));
    }
  }

  TEST_CASE("on-policy: the target is the n-step return, the mixed advantage and the excess are those of gae") {
    random_segments const batch{21};
    std::vector<double> const same(batch.reward.size());
    auto const out = run<double>(batch.view(), batch.reward, batch.value, same, {.gamma = 0.9});
    for (std::size_t k = 0; k + 1 < batch.ends.size(); ++k) {
      auto const tokens = batch.tokens(k);
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        double sum = 0, power = 1;
        for (std::size_t j = i; j < tokens.size(); ++j, power *= 0.9) sum += power * batch.reward[tokens[j]];
        check_near(out.target[tokens[i]], sum + power * batch.bootstrap(k), 100);
      }
    }
    for (double const lambda : {0.0, 0.6, 1.0}) {
      std::vector<double> advantage(batch.reward.size()), target(batch.reward.size());
      turnwise::advantage::gae(batch.view(), batch.reward, batch.value, {.gamma = 0.9, .lambda = lambda},
                               std::span{advantage}, target);
      for (auto const form : {vtrace_advantage::excess, vtrace_advantage::mixed_target}) {
        auto const got = run<double>(batch.view(), batch.reward, batch.value, same,
                                     {.gamma = 0.9, .lambda = lambda, .advantage = form});
        CHECK(got.target == target);
        for (std::size_t n = 0; n < advantage.size(); ++n) check_near(got.advantage[n], advantage[n], 100);
        if (form == vtrace_advantage::excess) CHECK(got.advantage == advantage);
      }
    }
  }

  TEST_CASE_TEMPLATE("log ratios are clamped to +-64; a huge ratio meets the caps", T, float, double) {
    offsets const ends{0, 1, 2};
    auto const at = [&](T high, T low, vtrace_options const& options) {
      return run<T>({.offsets = ends}, {1, 1}, {0, 0}, {high, low}, options);
    };
    vtrace_options const open{.rho_bar = infinity, .pg_rho_bar = infinity};
    CHECK(at(65, -65, open) == at(64, -64, open));
    CHECK(at(turnwise::largest<T>, -turnwise::largest<T>, open) == at(64, -64, open));
    CHECK(at(63, -63, open).target != at(64, -64, open).target);
    check_near(at(64, -64, open).target[0] / static_cast<T>(std::exp(64.0)), 1);
    check_near(at(64, -64, open).target[1] / static_cast<T>(std::exp(-64.0)), 1);
    CHECK(at(64, -64, {}).advantage[0] == 1);
    CHECK(at(64, -64, {.rho_bar = 3}).target[0] == 3);
  }

  TEST_CASE("results beyond the range of float become its largest number") {
    offsets const ends{0, 1};
    auto const out =
        run<float>({.offsets = ends}, {0x1p100f}, {-0x1p100f}, {64}, {.rho_bar = infinity, .pg_rho_bar = infinity});
    CHECK(out.advantage[0] == std::numeric_limits<float>::max());
    CHECK(out.target[0] == std::numeric_limits<float>::max());
  }

  TEST_CASE("a long trace with the largest c_bar stays finite") {
    std::size_t const n = 100'000;
    offsets const ends{0, static_cast<std::int64_t>(n)};
    std::vector<double> const reward(n, 1), value(n), ratio(n, 3);
    auto const out =
        run<double>({.offsets = ends}, reward, value, ratio, {.gamma = 0.5, .lambda = 1, .rho_bar = 2, .c_bar = 2});
    check_near(out.target[0], 2.0 * static_cast<double>(n), 1);  // the trace is 1, each difference weighs 2
  }

  TEST_CASE("no tokens, empty segments, segments without an unmasked token; threads; outputs over inputs") {
    CHECK(run<float>({}, {}, {}, {}, {}).target.empty());
    offsets const ends{0, 0, 2, 2};
    bytes const mask{0, 0};
    std::vector<double> const none(2, std::nan(""));
    CHECK(run<double>({.offsets = ends, .mask = mask}, none, none, none, {}) == outputs<double>{{0, 0}, {0, 0}});
    random_segments const batch{3};
    vtrace_options options{.gamma = 0.9, .lambda = 0.9, .threads = 1};
    auto const expected = run<double>(batch.view(), batch.reward, batch.value, batch.log_ratio, options);
    options.threads = 2;
    CHECK(run<double>(batch.view(), batch.reward, batch.value, batch.log_ratio, options) == expected);
    auto log_ratio = batch.log_ratio, value = batch.value;
    vtrace(batch.view(), batch.reward, value, log_ratio, options, std::span{log_ratio}, value);
    CHECK(log_ratio == expected.advantage);
    CHECK(value == expected.target);
  }

  TEST_CASE_TEMPLATE("every error names the argument and leaves the outputs alone", T, float, double) {
    offsets ends{0, 2, 5};
    bytes mask{1, 1, 1, 0, 1};
    std::vector<T> reward(5, T{1}), value(5, T{1}), log_ratio(5), advantage(5, T{9}), target(5, T{9});
    vtrace_options options;
    auto const call = [&] {
      vtrace({.offsets = ends, .mask = mask}, reward, value, log_ratio, options, std::span{advantage}, target);
    };
    auto const refused = [&](char const* text) {
      CHECK_THROWS_WITH_AS(call(), Contains(text), precondition_error);
      CHECK(advantage == std::vector<T>(advantage.size(), T{9}));
      CHECK(target == std::vector<T>(target.size(), T{9}));
    };
    T const nan = std::numeric_limits<T>::quiet_NaN(), infinite = std::numeric_limits<T>::infinity();
    SUBCASE("sizes") {
      log_ratio.pop_back();
      refused("vtrace: log_ratio has 4 elements, expected 5");
      log_ratio.push_back(0);
      value.push_back(0);
      refused("vtrace: value has 6 elements, expected 5");
      value.pop_back();
      advantage.pop_back();
      refused("vtrace: advantage has 4 elements, expected 5");
      advantage.push_back(9);
      target.pop_back();
      refused("vtrace: target has 4 elements, expected 5");
      target.push_back(9);
      ends = {0, 2, 6};
      refused("vtrace: the last offset is 6");
    }
    SUBCASE("options") {
      options = {.gamma = 2};
      refused("vtrace: gamma = 2");
      options = {.lambda = std::nan("")};
      refused("vtrace: lambda = ");
      for (double const bad : {-0.5, 1.5, std::nan("")}) {
        options = {.c_bar = bad};  // above rho_bar = 1
        refused("vtrace: c_bar = ");
      }
      options = {.rho_bar = std::nan("")};
      refused("vtrace: rho_bar = nan");
      options = {.rho_bar = 0.5};
      refused("vtrace: c_bar = 1, expected a number in [0, rho_bar = 0.5]");
      options = {.rho_bar = 4, .c_bar = 1.5};
      refused("vtrace: c_bar = 1.5, expected gamma * lambda * c_bar to be at most 1");
      options = {.gamma = 0, .rho_bar = infinity, .c_bar = infinity};
      refused("vtrace: c_bar = inf");
      for (double const bad : {-1.0, std::nan("")}) {
        options = {.pg_rho_bar = bad};
        refused("vtrace: pg_rho_bar = ");
      }
    }
    SUBCASE("unmasked tokens") {
      for (T const bad : {nan, infinite, -infinite}) {
        for (auto* numbers : {&reward, &value, &log_ratio}) (*numbers)[3] = bad;  // masked
        CHECK_NOTHROW(call());
        advantage.assign(5, T{9});
        target.assign(5, T{9});
        log_ratio[4] = bad;
        refused("vtrace: log_ratio[4] = ");
        value[1] = bad;
        refused("vtrace: value[1] = ");
        reward[0] = bad;
        refused("vtrace: reward[0] = ");
        for (auto* numbers : {&reward, &value, &log_ratio}) numbers->assign(5, T{0});
      }
    }
  }

}  // TEST_SUITE
