#include "support/ragged.hpp"
#include "support/rational.hpp"

#include <turnwise/advantage/pass_at_k.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

using doctest::Approx;
using doctest::Contains;
using turnwise::group_by;
using turnwise::grouping;
using turnwise::make_grouping;
using turnwise::precondition_error;
using turnwise::reason_flags;
using turnwise::advantage::baseline_members;
using turnwise::advantage::pass_at_k;
using turnwise::advantage::pass_at_k_options;
using turnwise::test::ragged_batch;
using turnwise::test::rational;
namespace reason = turnwise::reason;

namespace {

using numbers = std::vector<double>;
using ids = std::vector<std::int64_t>;
using flags = std::vector<reason_flags>;

template <typename T>
std::vector<T> advantages(grouping const& groups, std::vector<T> const& returns, flags const& reasons = {},
                          pass_at_k_options const& options = {}) {
  std::vector<T> out(returns.size(), T{-77});
  pass_at_k(groups, returns, reasons, options, std::span{out});
  return out;
}

/// By the definition: the average of max(U and i) - max(U) over all subsets U of `others` with `size` elements.
rational enumerated(std::int64_t mine, ids const& others, std::size_t size) {
  rational sum;
  std::int64_t subsets = 0;
  for (unsigned set = 0; set < 1u << others.size(); ++set) {
    if (static_cast<std::size_t>(std::popcount(set)) != size) continue;
    ++subsets;
    std::int64_t best = std::numeric_limits<std::int64_t>::min();
    for (std::size_t j = 0; j < others.size(); ++j)
      if ((set >> j & 1) != 0) best = std::max(best, others[j]);
    if (size > 0) sum += rational{std::max(best, mine) - best};
  }
  return sum / rational{subsets};
}

}  // namespace

TEST_SUITE("advantage/pass_at_k") {
  TEST_CASE_TEMPLATE("hand numbers: returns 1 3 6 in sets of two", T, float, double) {
    // 6: over 3 and over 1, (3 + 5) / 2; 3: over 1 and under 6, (2 + 0) / 2; 1: never the best.
    CHECK(advantages<T>(make_grouping(ids(3, 1)), {6, 1, 3}, {}, {.k = 2}) == std::vector<T>{4, 0, 1});
    CHECK(advantages<T>(make_grouping(ids(3, 1)), {6, 1, 3}, {}, {.k = 3}) == std::vector<T>{3, 0, 0});
    // Successes of 0 and 1: c of n correct, a success counts where the k - 1 others all fail.
    // n = 5, c = 2, k = 3: C(3, 2) / C(4, 2) = 1/2.
    CHECK(advantages<T>(make_grouping(ids(5, 1)), {0, 1, 0, 1, 0}, {}, {.k = 3}) ==
          std::vector<T>{0, T{0.5}, 0, T{0.5}, 0});
  }

  TEST_CASE_TEMPLATE("GB-16: best minus second best for the single best, 0 for all others, ties all 0", T, float,
                     double) {
    ids const groups{0, 0, 0, 0, 1, 1, 1, 1};
    std::vector<T> rewards;
    for (double const value : {0.2, 0.9, 0.5, 0.7, 0.4, 0.8, 0.8, 0.1}) rewards.push_back(static_cast<T>(value));
    auto const got = advantages(make_grouping(groups), rewards);
    for (std::size_t i = 0; i < 8; ++i)
      if (i != 1) CHECK(got[i] == 0);
    CHECK(static_cast<double>(got[1]) == Approx(0.2).epsilon(1e-6));
    // The same as sets of the whole group, and of more than there are.
    for (std::int64_t const k : {4, 5, 1000}) CHECK(advantages(make_grouping(groups), rewards, {}, {.k = k}) == got);
  }

  TEST_CASE("against all subsets, in fractions: members, and valid turns that are none") {
    turnwise::test::integers random{31};
    for (int round = 0; round < 400; ++round) {
      std::int64_t const turns = 1 + random.below(10);
      std::int64_t const kinds = 1 + random.below(round % 2 == 0 ? 3 : 40);
      ids values;
      numbers returns;
      flags reasons;
      for (std::int64_t i = 0; i < turns; ++i) {
        values.push_back(random.below(kinds) - kinds / 2);
        returns.push_back(static_cast<double>(values.back()));
        reasons.push_back(random.below(5) == 0 ? reason::stale : random.below(8) == 0 ? reason::unscored : 0);
      }
      for (auto const members : {baseline_members::valid, baseline_members::kept})
        for (std::int64_t k = 0; k <= turns + 2; ++k) {
          if (k == 1) continue;
          CAPTURE(round);
          CAPTURE(k);
          auto const got =
              advantages(make_grouping(ids(values.size(), 5)), returns, reasons, {.k = k, .members = members});
          for (std::size_t i = 0; i < values.size(); ++i) {
            if (!turnwise::is_valid(reasons[i])) {
              CHECK(got[i] == 0);
              continue;
            }
            ids others;
            for (std::size_t j = 0; j < values.size(); ++j)
              if (j != i &&
                  (members == baseline_members::valid ? turnwise::is_valid(reasons[j]) : turnwise::is_kept(reasons[j])))
                others.push_back(values[j]);
            std::size_t const size = k == 0 ? others.size() : std::min(others.size(), static_cast<std::size_t>(k - 1));
            rational const wanted = enumerated(values[i], others, size);
            double const expected = static_cast<double>(wanted.numerator()) / static_cast<double>(wanted.denominator());
            CHECK(got[i] == Approx(expected).epsilon(1e-13));
            CHECK((got[i] == 0) == (expected == 0));
          }
        }
    }
  }

  TEST_CASE("relation: the advantages sum to n times what the k-th sample adds, best of k minus best of k - 1") {
    // Each best is the mean over all subsets of that size, a weighted sum over ranks.
    turnwise::test::integers random{33};
    for (std::size_t const n : {6u, 33u, 500u, 4097u}) {
      numbers returns(n);
      for (double& value : returns) value = std::abs(turnwise::test::uneven_number(random));
      numbers sorted = returns;
      std::sort(sorted.begin(), sorted.end());
      auto const mean_best = [&](std::size_t k) {
        // P(rank q is the best) = C(q, k - 1) / C(n, k), from the top down.
        long double sum = 0, share = static_cast<long double>(k) / static_cast<long double>(n);
        for (std::size_t q = n; q-- > 0 && share > 0;) {
          sum += share * static_cast<long double>(sorted[q]);
          share = q == 0 ? 0 : share * static_cast<long double>(q + 1 - k) / static_cast<long double>(q);
        }
        return sum;
      };
      for (std::size_t const k : {std::size_t{2}, std::size_t{5}, n / 2, n - 1}) {
        CAPTURE(n);
        CAPTURE(k);
        auto const got = advantages(make_grouping(ids(n, 1)), returns, {}, {.k = static_cast<std::int64_t>(k)});
        long double sum = 0;
        for (double const value : got) sum += static_cast<long double>(value);
        long double const wanted = static_cast<long double>(n) * (mean_best(k) - mean_best(k - 1));
        CHECK(static_cast<double>(sum) == Approx(static_cast<double>(wanted)).epsilon(1e-9));
      }
    }
  }

  TEST_CASE_TEMPLATE("scale: divided by the group's deviation", T, float, double) {
    // 1 2 6: deviation sqrt(7).
    auto const got = advantages<T>(make_grouping(ids(3, 1)), {1, 6, 2}, {}, {.scale = true, .epsilon = 0});
    CHECK(static_cast<double>(got[1]) == Approx(4 / std::sqrt(7.0)).epsilon(1e-6));
    CHECK(got[0] == 0);
    auto const more = advantages<T>(make_grouping(ids(3, 1)), {1, 6, 2}, {}, {.k = 2, .scale = true, .epsilon = 1});
    CHECK(static_cast<double>(more[1]) == Approx(4.5 / (std::sqrt(7.0) + 1)).epsilon(1e-6));
    CHECK(static_cast<double>(more[2]) == Approx(0.5 / (std::sqrt(7.0) + 1)).epsilon(1e-6));
  }

  TEST_CASE("the defaults: all of the group, undivided, valid members") {
    pass_at_k_options const options;
    CHECK(options.k == 0);
    CHECK(!options.scale);
    CHECK(options.epsilon == 1e-6);
    CHECK(options.members == baseline_members::valid);
  }

  TEST_CASE_TEMPLATE("a turn group's turns are samples", T, float, double) {
    ragged_batch<T> const batch{{{.group = 7, .id = 30, .turns = {10, 6, 7}},
                                 {.group = 7, .id = 10, .turns = {4, 1}},
                                 {.group = 7, .id = 20, .turns = {2}}}};
    CHECK(advantages(make_grouping(batch.view(), group_by::turn), batch.value, {}, {.k = 2}) ==
          std::vector<T>{7, 5, 0, 1, 0, 0});
  }

  TEST_CASE_TEMPLATE("equal returns give exactly 0; no other member: 0", T, float, double) {
    for (std::size_t const n : {1u, 2u, 3u, 10u, 33u, 4097u})
      for (double const value : {0.1, -0.7, 0.0})
        for (std::int64_t const k : {0, 2, 7})
          for (bool const scale : {true, false})
            CHECK(advantages(make_grouping(ids(n, 4)), std::vector<T>(n, static_cast<T>(value)), {},
                             {.k = k, .scale = scale, .epsilon = 0}) == std::vector<T>(n, T{0}));
    auto const one = make_grouping(ids(3, 0));
    pass_at_k_options const kept{.k = 2, .members = baseline_members::kept};
    CHECK(advantages<T>(one, {1, 2, 3}, flags(3, reason::stale), kept) == std::vector<T>{0, 0, 0});
    CHECK(advantages<T>(one, {1, 2, 3}, flags(3, reason::invalid), kept) == std::vector<T>{0, 0, 0});
    CHECK(advantages<T>(one, {2, 1, 3}, {0, reason::stale, reason::stale}, kept) == std::vector<T>{0, 0, 1});
    CHECK(advantages<T>(one, {0, -T{0}, 0}, {}, {.k = 2}) == std::vector<T>{0, 0, 0});
    // Equal members have no deviation to divide by.
    CHECK(advantages<T>(one, {1, 1, 3}, {0, 0, reason::stale},
                        {.k = 2, .scale = true, .members = baseline_members::kept}) == std::vector<T>{0, 0, 2});
  }

  TEST_CASE_TEMPLATE("invalid turns: 0, and their return is not read", T, float, double) {
    for (T const bad : {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity()})
      for (auto const why : {reason::invalid, reason::unscored, reason::unscored_future})
        CHECK(advantages<T>(make_grouping(ids(3, 0)), {1, bad, 3}, {0, why, 0}, {.k = 2}) == std::vector<T>{0, 0, 2});
  }

  TEST_CASE("large groups and returns: shares underflow to 0, nothing overflows") {
    double const limit = turnwise::magnitude_limit<double>;
    CHECK(advantages(make_grouping(ids(2, 1)), numbers{limit, -limit}) == numbers{2 * limit, 0});
    numbers ladder(6000);
    for (std::size_t i = 0; i < ladder.size(); ++i) ladder[i] = static_cast<double>(i);
    for (std::int64_t const k : {2, 3000, 5999}) {
      auto const got = advantages(make_grouping(ids(6000, 1)), ladder, {}, {.k = k});
      CHECK(got.front() == 0);
      for (double const value : got) CHECK(std::isfinite(value));
      for (std::size_t i = 1; i < got.size(); ++i) REQUIRE(got[i] >= got[i - 1]);
      // The best, 5999, over the best of m others of 0 .. 5998: that is m 6000 / (m + 1) - 1 in the mean.
      double const m = static_cast<double>(k - 1);
      CHECK(got.back() == Approx(5999 - (m * 6000 / (m + 1) - 1)).epsilon(1e-9));
    }
  }

  TEST_CASE("no turns") { CHECK(advantages(make_grouping(ids{}), numbers{}).empty()); }

  TEST_CASE_TEMPLATE("every error names the argument and leaves the advantage alone", T, float, double) {
    auto const groups = make_grouping(ids{1, 1, 2});
    std::vector<T> returns{1, 2, 3}, out(3, T{9});
    flags reasons;
    pass_at_k_options options;
    auto const refused = [&](char const* text) {
      auto const before = out;
      CHECK_THROWS_WITH_AS(pass_at_k(groups, returns, reasons, options, std::span{out}), Contains(text),
                           precondition_error);
      CHECK(out == before);
    };
    SUBCASE("sizes") {
      returns.push_back(0);
      refused("pass_at_k: turn_return has 4 elements, expected 3");
      returns.pop_back();
      reasons = {0};
      refused("pass_at_k: reasons has 1 elements, expected 3");
      reasons.clear();
      out.pop_back();
      refused("pass_at_k: advantage has 2 elements, expected 3");
    }
    SUBCASE("k") {
      for (std::int64_t const bad : {std::int64_t{1}, std::int64_t{-1}, std::numeric_limits<std::int64_t>::min()}) {
        options.k = bad;
        refused("pass_at_k: k = ");
      }
    }
    SUBCASE("epsilon") {
      for (double const bad :
           {-1e-9, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
        options.epsilon = bad;
        refused("pass_at_k: epsilon = ");
      }
    }
    SUBCASE("a return of a valid turn") {
      returns[1] = std::numeric_limits<T>::quiet_NaN();
      refused("pass_at_k: turn_return[1] = nan");
    }
    SUBCASE("advantage over the returns") {
      CHECK_THROWS_WITH_AS(pass_at_k(groups, returns, reasons, options, std::span{returns}),
                           Contains("advantage must not overlap turn_return"), precondition_error);
    }
  }

  TEST_CASE("a deviation whose squares underflow, without epsilon, divides by nothing") {
    std::vector<std::int64_t> const ids{7, 7, 7};
    std::vector<double> const returns{0, 1e-200, 2e-200};
    std::vector<double> advantage(3);
    turnwise::advantage::pass_at_k<double>(turnwise::make_grouping(ids), returns, {},
                                           {.k = 0, .scale = true, .epsilon = 0}, std::span{advantage});
    CHECK(advantage == std::vector<double>{0, 0, 1e-200});
  }

}  // TEST_SUITE
