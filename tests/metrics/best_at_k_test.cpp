#include "support/ragged.hpp"
#include "support/rational.hpp"

#include <turnwise/metrics/best_at_k.hpp>
#include <turnwise/metrics/pass_at_k.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

namespace {

using namespace turnwise;
using metrics::at_k_options;
using metrics::expected_best;
using metrics::group_estimate;
using metrics::group_mean;
using metrics::too_few_policy;
using test::infinity;
using test::nan_value;
using test::rational;
using flags = std::vector<reason_flags>;
using ids = std::vector<std::int64_t>;

/// Mean of the largest over all subsets of k.
rational by_subsets(std::vector<std::int64_t> const& values, int k) {
  std::int64_t subsets = 0, sum = 0;
  for (unsigned set = 0; set < 1u << values.size(); ++set) {
    if (std::popcount(set) != k) continue;
    ++subsets;
    std::int64_t best = INT64_MIN;
    for (std::size_t i = 0; i < values.size(); ++i)
      if (set >> i & 1) best = std::max(best, values[i]);
    sum += best;
  }
  return {sum, subsets};
}

template <typename T = double>
group_mean best(ids const& group, std::vector<T> const& value, at_k_options const& options, flags const& reasons = {},
                std::vector<group_estimate>* out = nullptr) {
  auto const groups = make_grouping(group);
  if (out != nullptr) out->assign(groups.groups(), {-7, -7, true});
  return metrics::best_at_k<T>(groups, value, reasons, options,
                               out != nullptr ? std::span{*out} : std::span<group_estimate>{});
}

}  // namespace

TEST_SUITE("metrics/best_at_k") {
  TEST_CASE("the mean of the largest over all subsets") {
    test::integers random{3};
    for (int n = 1; n <= 10; ++n)
      for (int round = 0; round < 4; ++round) {
        std::vector<std::int64_t> values;
        for (int i = 0; i < n; ++i) values.push_back(random.below(41) - 20);
        std::vector<double> const given(values.begin(), values.end());
        for (int k = 1; k <= n; ++k) {
          rational const exact = by_subsets(values, k);
          double const expected = static_cast<double>(exact.numerator()) / static_cast<double>(exact.denominator());
          CHECK(std::abs(best(ids(given.size(), 0), given, {.k = k}).mean - expected) < 1e-13);
        }
      }
  }

  TEST_CASE("0 and 1 give pass@k") {
    for (std::size_t n = 1; n <= 40; ++n)
      for (std::size_t c = 0; c <= n; ++c) {
        std::vector<double> ascending(n, 0.0);
        std::fill(ascending.end() - static_cast<std::ptrdiff_t>(c), ascending.end(), 1.0);
        for (std::size_t k = 1; k <= n; ++k) {
          auto const pass = metrics::pass_probability(static_cast<std::int64_t>(n), static_cast<std::int64_t>(c),
                                                      static_cast<std::int64_t>(k));
          REQUIRE(std::abs(expected_best(ascending, static_cast<std::int64_t>(k)) - pass) < 1e-14);
        }
      }
  }

  TEST_CASE("equal values and k = n are exact; it never falls with k") {
    for (std::size_t n = 1; n < 200; n += 7) {
      std::vector<double> equal(n, 0.1), many(n);
      std::iota(many.begin(), many.end(), -3.7);
      double before = -infinity;
      for (std::int64_t k = 1; k <= static_cast<std::int64_t>(n); ++k) {
        REQUIRE(expected_best(equal, k) == 0.1);
        double const now = expected_best(many, k);
        REQUIRE(now >= before - 1e-12);
        REQUIRE(now <= many.back());
        before = now;
      }
      REQUIRE(expected_best(many, static_cast<std::int64_t>(n)) == many.back());
    }
  }

  TEST_CASE_TEMPLATE("groups by hand, in any order", T, float, double) {
    // Group 1: speedups 0, 2, 4: pairs 2, 4, 4. Group 5: 3 alone.
    ids const group{1, 5, 1, 1};
    std::vector<group_estimate> out;
    CHECK(best<T>(group, {4, 3, 0, 2}, {.k = 2}, {}, &out).mean == doctest::Approx(10.0 / 3).epsilon(1e-15));
    CHECK(out[0].value == doctest::Approx(10.0 / 3).epsilon(1e-15));
    CHECK(out[1] == group_estimate{0, 1, false});
    CHECK(best<T>(group, {4, 3, 0, 2}, {2, too_few_policy::all}, {}, &out).groups == 2);
    CHECK(out[1] == group_estimate{3, 1, true});
    CHECK(best<T>({1, 1, 1, 5}, {2, 0, 4, 3}, {.k = 2}) == best<T>(group, {4, 3, 0, 2}, {.k = 2}));
    CHECK(best<T>(group, {4, 3, 0, 2}, {}).mean == doctest::Approx(2.5).epsilon(1e-15));
  }

  TEST_CASE("NaN and invalid samples do not count; rejected ones do") {
    ids const group(5, 0);
    std::vector<double> const value{1, nan_value, infinity, 3, nan_value};
    flags const reasons{0, 0, reason::invalid, reason::profiling, reason::unscored};
    std::vector<group_estimate> out;
    CHECK(best(group, value, {.k = 2}, reasons, &out) == group_mean{3, 1, 0});
    CHECK(out[0].samples == 2);
    CHECK(best(group, value, {.k = 3}, reasons) == group_mean{0, 0, 1});
    CHECK(best({0, 0}, {nan_value, nan_value}, {1, too_few_policy::all}) == group_mean{0, 0, 1});
  }

  TEST_CASE("no samples; errors, with nothing written") {
    CHECK(best({}, {}, {}) == group_mean{});
    CHECK_THROWS_AS(best({1, 1}, {1.0}, {}), precondition_error);
    CHECK_THROWS_AS(best({1, 1}, {1.0, 2.0}, {}, {0}), precondition_error);
    CHECK_THROWS_AS(best({1, 1}, {1.0, 2.0}, {.k = 0}), precondition_error);
    CHECK_THROWS_WITH_AS(best({1, 1}, {1.0, -infinity}, {}),
                         "best_at_k: value[1] = -inf is infinite or beyond the magnitude limit", precondition_error);
    std::vector<group_estimate> out(1, {-7, -7, true});
    std::vector<double> const value{1, 2};
    CHECK_THROWS_AS(metrics::best_at_k<double>(make_grouping(ids{1, 1}), value, {}, {3, too_few_policy::error}, out),
                    precondition_error);
    CHECK(out[0] == group_estimate{-7, -7, true});
    std::vector<group_estimate> two(2);
    CHECK_THROWS_AS(metrics::best_at_k<double>(make_grouping(ids{1, 1}), value, {}, {}, two), precondition_error);
  }
}
