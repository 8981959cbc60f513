#include "support/ragged.hpp"

#include <turnwise/advantage/group_relative.hpp>
#include <turnwise/advantage/whiten.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

using doctest::Contains;
using turnwise::exact_sum;
using turnwise::precondition_error;
using turnwise::reason_flags;
using turnwise::advantage::baseline_members;
using turnwise::advantage::epsilon_place;
using turnwise::advantage::whiten;
using turnwise::advantage::whiten_moments;
using turnwise::advantage::whiten_options;
using turnwise::test::bits_of;
namespace reason = turnwise::reason;

namespace {

using numbers = std::vector<double>;
using counts = std::vector<std::int64_t>;
using flags = std::vector<reason_flags>;

template <typename T>
std::vector<T> whitened_of(std::vector<T> const& returns, counts const& weight = {}, flags const& reasons = {},
                           whiten_options const& options = {}) {
  std::vector<T> out(returns.size(), T{-77});
  whiten(returns, weight, reasons, options, std::span{out});
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

/// The three phases over shards of turns, records joined in any order.
template <typename T>
std::vector<T> in_shards(std::vector<T> const& returns, counts const& weight, flags const& reasons,
                         whiten_options const& options, std::vector<std::size_t> const& shard_of, std::size_t shards) {
  struct part {
    std::vector<T> returns;
    counts weight;
    flags reasons;
  };
  std::vector<part> parts(shards);
  for (std::size_t s = 0; s < returns.size(); ++s) {
    auto& mine = parts[shard_of[s]];
    mine.returns.push_back(returns[s]);
    if (!weight.empty()) mine.weight.push_back(weight[s]);
    if (!reasons.empty()) mine.reasons.push_back(reasons[s]);
  }
  auto const of = [](part const& one) { return std::span<T const>{one.returns}; };
  whiten_moments all;
  exact_sum squares;
  for (auto const& one : parts) all += turnwise::advantage::whiten_sum(of(one), one.weight, one.reasons, options);
  for (auto const& one : parts)
    squares += turnwise::advantage::whiten_squares(of(one), one.weight, one.reasons, all, options);
  std::vector<std::vector<T>> results(shards);
  for (std::size_t k = 0; k < shards; ++k) {
    results[k].resize(parts[k].returns.size());
    turnwise::advantage::whiten_apply(of(parts[k]), parts[k].reasons, all, squares, options, std::span{results[k]});
  }
  std::vector<T> joined;
  std::vector<std::size_t> next(shards);
  for (std::size_t const shard : shard_of) joined.push_back(results[shard][next[shard]++]);
  return joined;
}

}  // namespace

TEST_SUITE("advantage/whiten") {
  TEST_CASE_TEMPLATE("hand numbers: mean 3, squares 4 + 1 + 9", T, float, double) {
    std::vector<T> const returns{1, 2, 6};
    double const sample = std::sqrt(7.0), population = std::sqrt(14.0 / 3);
    check_near(whitened_of(returns), {-2 / (sample + 1e-6), -1 / (sample + 1e-6), 3 / (sample + 1e-6)});
    check_near(whitened_of(returns, {}, {}, {.ddof = 0, .epsilon = 0}),
               {-2 / population, -1 / population, 3 / population});
    check_near(whitened_of(returns, {}, {}, {.epsilon = 2}), {-2 / (sample + 2), -1 / (sample + 2), 3 / (sample + 2)});
    // Inside the root: 7 + 2 = 9.
    check_near(whitened_of(returns, {}, {}, {.epsilon = 2, .place = epsilon_place::inside}), {-2.0 / 3, -1.0 / 3, 1});
    // As floor: the larger of 7 and 16, of 7 and 2.
    check_near(whitened_of(returns, {}, {}, {.epsilon = 16, .place = epsilon_place::floor}), {-0.5, -0.25, 0.75});
    check_near(whitened_of(returns, {}, {}, {.epsilon = 2, .place = epsilon_place::floor}),
               {-2 / sample, -1 / sample, 3 / sample});
  }

  TEST_CASE("presets: small deviations show where epsilon stands") {
    // Returns -1e-4 and 1e-4: sample variance 2e-8, population variance 1e-8.
    numbers const returns{-1e-4, 1e-4};
    double const verl = 1e-4 / std::sqrt(2e-8 + 1e-8);
    check_near(whitened_of(returns, {}, {}, whiten_options::verl()), {-verl, verl});
    check_near(whitened_of(numbers{-5e-5, 5e-5}, {}, {}, whiten_options::open_rlhf()), {-0.5, 0.5});  // 2.5e-9 < 1e-8
    check_near(whitened_of(numbers{-1, 1}, {}, {}, whiten_options::open_rlhf()), {-1, 1});
    whiten_options const ours;
    CHECK(ours.ddof == 1);
    CHECK(ours.epsilon == 1e-6);
    CHECK(ours.place == epsilon_place::outside);
    CHECK(ours.members == baseline_members::valid);
  }

  TEST_CASE_TEMPLATE("a weight is so many turns", T, float, double) {
    std::vector<T> const returns{1, 2, 6, 9};
    counts const weight{3, 0, 1, 2};
    std::vector<T> const repeated{1, 1, 1, 6, 9, 9};
    for (auto const& options : {whiten_options{}, whiten_options::verl(), whiten_options{0, 0}}) {
      auto const got = whitened_of(returns, weight, {}, options);
      auto const wanted = whitened_of(repeated, {}, {}, options);
      CHECK(got[0] == wanted[0]);
      CHECK(got[2] == wanted[3]);
      CHECK(got[3] == wanted[4]);
    }
    // Mean 27 / 6 = 4.5; squares 3 * 12.25 + 2.25 + 2 * 20.25 = 79.5. Weight 0: no member, and judged all the same.
    double const deviation = std::sqrt(79.5 / 5) + 1e-6;
    check_near(whitened_of(returns, weight), {-3.5 / deviation, -2.5 / deviation, 1.5 / deviation, 4.5 / deviation});
    CHECK(whitened_of(returns, {1, 1, 1, 1}) == whitened_of(returns));
  }

  TEST_CASE("over one group it is group_relative") {
    turnwise::test::integers random{3};
    for (std::size_t const n : {2u, 3u, 17u, 100u}) {
      numbers returns(n), grouped(n);
      for (double& value : returns) value = turnwise::test::uneven_number(random);
      turnwise::advantage::group_relative(turnwise::make_grouping(counts(n, 4)), returns, {}, {}, std::span{grouped});
      auto const got = whitened_of(returns);
      for (std::size_t i = 0; i < n; ++i) CHECK(got[i] == doctest::Approx(grouped[i]).epsilon(1e-12));
    }
  }

  TEST_CASE("mean 0 and deviation 1, also far from 0") {
    turnwise::test::integers random{4};
    for (double const offset : {0.0, 1e9, -1e14}) {
      numbers returns(1000);
      for (double& value : returns) value = offset + static_cast<double>(random.below(1000));
      for (int const ddof : {0, 1}) {
        auto const got = whitened_of(returns, {}, {}, {.ddof = ddof, .epsilon = 0});
        double sum = 0, squares = 0;
        for (double const value : got) sum += value, squares += value * value;
        CHECK(std::abs(sum) < 1e-9 + 1000 * std::abs(offset) * 0x1p-53 / 250);  // the mean is rounded
        CHECK(squares == doctest::Approx(1000.0 - ddof).epsilon(1e-9));
      }
    }
  }

  TEST_CASE_TEMPLATE("equal values give exactly 0, in any number and weight", T, float, double) {
    turnwise::test::integers random{5};
    for (std::size_t const n : {1u, 2u, 3u, 7u, 10u, 100u, 3000u})
      for (double const value : {0.1, 0.7, 1e-30, -12345.678, 0.0})
        for (double const epsilon : {0.0, 1e-12, 1e-6})
          for (auto const place : {epsilon_place::outside, epsilon_place::inside, epsilon_place::floor}) {
            std::vector<T> const returns(n, static_cast<T>(value));
            counts weight(n);
            for (auto& one : weight) one = random.below(100000);
            whiten_options const options{.epsilon = epsilon, .place = place};
            REQUIRE(whitened_of(returns, {}, {}, options) == std::vector<T>(n, T{0}));
            REQUIRE(whitened_of(returns, weight, {}, options) == std::vector<T>(n, T{0}));
          }
  }

  TEST_CASE("fewer than two members: 0 for all") {
    CHECK(whitened_of(numbers{}).empty());
    CHECK(whitened_of(numbers{5}) == numbers{0});
    CHECK(whitened_of(numbers{5}, {1000}) == numbers{0});
    CHECK(whitened_of(numbers{5, 7}, {3, 0}) == numbers{0, 0});
    CHECK(whitened_of(numbers{5, 7}, {0, 0}) == numbers{0, 0});
    CHECK(whitened_of(numbers{5, 7, 9}, {}, {0, reason::invalid, reason::unscored}) == numbers{0, 0, 0});
    flags const rejected{0, reason::ratio_low, reason::profiling};
    CHECK(whitened_of(numbers{5, 7, 9}, {}, rejected, {.members = baseline_members::kept}) == numbers{0, 0, 0});
    CHECK(whitened_of(numbers{5, 7}, {}, flags(2, reason::invalid)) == numbers{0, 0});
  }

  TEST_CASE("rejected turns: members with `valid`, judged from outside with `kept`") {
    numbers const returns{1, 2, 6, 9};
    flags const reasons{0, 0, 0, reason::profiling};
    double const sample = std::sqrt(7.0) + 1e-6;
    check_near(whitened_of(returns, {}, reasons, {.members = baseline_members::kept}),
               {-2 / sample, -1 / sample, 3 / sample, 6 / sample});
    CHECK(whitened_of(returns, {}, reasons) == whitened_of(returns));
  }

  TEST_CASE_TEMPLATE("invalid turns: 0, and nothing of their value or weight leaks", T, float, double) {
    for (T const garbage : {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity(),
                            -std::numeric_limits<T>::infinity(), std::numeric_limits<T>::max()})
      for (reason_flags const why : {reason::invalid, reason::unscored, reason::unscored_future}) {
        auto const got = whitened_of<T>({1, garbage, 2, 6}, {1, -5, 1, 1}, {0, why, 0, 0});
        auto const clean = whitened_of<T>({1, 2, 6});
        CHECK(got == std::vector<T>{clean[0], 0, clean[1], clean[2]});
      }
  }

  TEST_CASE_TEMPLATE("the same bits in any order, over 1, 2 and 8 shards, in place too", T, float, double) {
    turnwise::test::integers random{6};
    std::size_t const n = 2000;
    std::vector<T> returns(n);
    counts weight(n);
    flags reasons(n);
    for (std::size_t s = 0; s < n; ++s) {
      returns[s] = turnwise::test::uneven_number<T>(random);
      if (random.below(50) == 0) returns[s] *= static_cast<T>(1e20);
      weight[s] = random.below(random.below(10) == 0 ? turnwise::advantage::most_weight : 2000);
      if (random.below(10) == 0) reasons[s] = random.below(2) == 0 ? reason::unscored : reason::ratio_low;
    }
    for (auto const members : {baseline_members::valid, baseline_members::kept})
      for (bool const weighted : {true, false}) {
        whiten_options const options{.epsilon = 1e-8, .place = epsilon_place::inside, .members = members};
        counts const w = weighted ? weight : counts{};
        auto const whole = whitened_of(returns, w, reasons, options);
        for (std::size_t const shards : {1u, 2u, 8u}) {
          std::vector<std::size_t> shard_of(n);
          for (auto& one : shard_of) one = static_cast<std::size_t>(random.below(static_cast<std::int64_t>(shards)));
          CHECK(bits_of(in_shards(returns, w, reasons, options, shard_of, shards)) == bits_of(whole));
        }
        auto const order = turnwise::test::random_order(n, random);
        std::vector<T> shuffled, wanted;
        counts shuffled_weight;
        flags shuffled_reasons;
        for (std::size_t const s : order) {
          shuffled.push_back(returns[s]);
          wanted.push_back(whole[s]);
          shuffled_reasons.push_back(reasons[s]);
          if (weighted) shuffled_weight.push_back(weight[s]);
        }
        CHECK(bits_of(whitened_of(shuffled, shuffled_weight, shuffled_reasons, options)) == bits_of(wanted));
        auto in_place = returns;
        whiten<T>(in_place, w, reasons, options, std::span{in_place});
        CHECK(bits_of(in_place) == bits_of(whole));
      }
  }

  TEST_CASE("an empty shard adds nothing, and still gets the batch's scale") {
    numbers const returns{1, 2, 6};
    std::vector<std::size_t> const first(3, 0);
    CHECK(in_shards(returns, {}, {}, {}, first, 3) == whitened_of(returns));
    // A shard of one turn uses the others' mean: {1}, {2, 6}.
    CHECK(in_shards(returns, {}, {}, {}, {0, 1, 1}, 2) == whitened_of(returns));
  }

  TEST_CASE("records are integers that an all-reduce may add") {
    numbers const a{0.1, -7}, b{1e20, 3e-9, 0.5};
    auto const one = turnwise::advantage::whiten_sum<double>(a, {}, {}, {});
    auto const other = turnwise::advantage::whiten_sum<double>(b, {}, {}, {});
    std::vector<std::int64_t> words(sizeof(whiten_moments) / 8);
    auto const* const of_one = reinterpret_cast<std::int64_t const*>(&one);
    auto const* const of_other = reinterpret_cast<std::int64_t const*>(&other);
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = of_one[i] + of_other[i];
    whiten_moments joined;
    std::copy(words.begin(), words.end(), reinterpret_cast<std::int64_t*>(&joined));
    CHECK(joined.members == 5);
    CHECK(joined.weight == 5);
    CHECK(joined.sum.value() ==
          turnwise::advantage::whiten_sum<double>(numbers{0.1, -7, 1e20, 3e-9, 0.5}, {}, {}, {}).sum.value());
  }

  TEST_CASE_TEMPLATE("values at the limit do not overflow", T, float, double) {
    T const limit = static_cast<T>(turnwise::magnitude_limit<T>);
    check_near(whitened_of<T>({limit, -limit}, {turnwise::advantage::most_weight, turnwise::advantage::most_weight}, {},
                              {.ddof = 0}),
               {1, -1});
  }

  TEST_CASE_TEMPLATE("every error names the argument and leaves the advantage alone", T, float, double) {
    std::vector<T> returns{1, 2, 3}, out(3, T{9});
    counts weight;
    flags reasons;
    whiten_options options;
    auto const refused = [&](std::string const& text) {
      auto const before = out;
      CHECK_THROWS_WITH_AS(whiten(returns, weight, reasons, options, std::span{out}),
                           Contains(("whiten: " + text).c_str()), precondition_error);
      CHECK(out == before);
      if (text.starts_with("advantage")) return;
      std::span<T const> const values{returns};
      CHECK_THROWS_WITH_AS(static_cast<void>(turnwise::advantage::whiten_sum(values, weight, reasons, options)),
                           Contains(("whiten_sum: " + text).c_str()), precondition_error);
      CHECK_THROWS_WITH_AS(static_cast<void>(turnwise::advantage::whiten_squares(values, weight, reasons, {}, options)),
                           Contains(("whiten_squares: " + text).c_str()), precondition_error);
      if (text.starts_with("weight")) return;
      CHECK_THROWS_WITH_AS(turnwise::advantage::whiten_apply(values, reasons, {}, {}, options, std::span{out}),
                           Contains(("whiten_apply: " + text).c_str()), precondition_error);
      CHECK(out == before);
    };
    SUBCASE("sizes") {
      reasons = {0};
      refused("reasons has 1 elements, expected 3");
      reasons.clear();
      weight = {1, 1};
      refused("weight has 2 elements, expected 3");
      weight.clear();
      out.pop_back();
      refused("advantage has 2 elements, expected 3");
      CHECK_THROWS_AS(turnwise::advantage::whiten_apply(returns, {}, {}, {}, {}, std::span{out}), precondition_error);
    }
    SUBCASE("options") {
      for (int const bad : {-1, 2}) {
        options = {.ddof = bad};
        refused("ddof = ");
      }
      for (double const bad : {-1e-9, turnwise::test::nan_value, turnwise::test::infinity}) {
        options = {.epsilon = bad};
        refused("epsilon = ");
      }
    }
    SUBCASE("a return of a valid turn") {
      for (T const bad : {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity(),
                          static_cast<T>(turnwise::magnitude_limit<T>) * 2}) {
        returns[1] = bad;
        reasons = {0, reason::profiling, 0};
        refused("turn_return[1] = ");
      }
    }
    SUBCASE("a weight of a valid turn") {
      for (std::int64_t const bad : {std::int64_t{-1}, turnwise::advantage::most_weight + 1}) {
        weight = {1, 1, bad};
        refused("weight[2] = ");
      }
    }
  }

}  // TEST_SUITE
