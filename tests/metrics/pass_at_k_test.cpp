#include "support/ragged.hpp"
#include "support/rational.hpp"

#include <turnwise/metrics/pass_at_k.hpp>

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

namespace {

using namespace turnwise;
using metrics::at_k_options;
using metrics::group_estimate;
using metrics::group_mean;
using metrics::pass_probability;
using metrics::too_few_policy;
using test::rational;
using bytes = std::vector<std::uint8_t>;
using flags = std::vector<reason_flags>;
using ids = std::vector<std::int64_t>;

/// Share of the subsets of k of n samples that hold one of the first c, by listing them all.
rational by_subsets(int n, int c, int k) {
  std::int64_t all = 0, hits = 0;
  for (unsigned set = 0; set < 1u << n; ++set) {
    if (std::popcount(set) != k) continue;
    ++all;
    hits += (set & ((1u << c) - 1)) != 0;
  }
  return {hits, all};
}

group_mean pass(ids const& group, bytes const& correct, at_k_options const& options, flags const& reasons = {},
                std::vector<group_estimate>* out = nullptr) {
  auto const groups = make_grouping(group);
  if (out != nullptr) out->assign(groups.groups(), {-7, -7, true});
  return metrics::pass_at_k(groups, correct, reasons, options,
                            out != nullptr ? std::span{*out} : std::span<group_estimate>{});
}

}  // namespace

TEST_SUITE("metrics/pass_at_k") {
  TEST_CASE("the share of subsets that hold a correct sample, for all n up to 12") {
    for (int n = 1; n <= 12; ++n)
      for (int c = 0; c <= n; ++c)
        for (int k = 1; k <= n; ++k) {
          CAPTURE(n);
          CAPTURE(c);
          CAPTURE(k);
          rational const exact = by_subsets(n, c, k);
          double const expected = static_cast<double>(exact.numerator()) / static_cast<double>(exact.denominator());
          REQUIRE(std::abs(pass_probability(n, c, k) - expected) <= 0x1p-52 * expected);
        }
  }

  TEST_CASE("exact where it can be: none, all, k = 1, k = n") {
    for (std::int64_t n = 1; n <= 300; ++n)
      for (std::int64_t c = 0; c <= n; ++c) {
        REQUIRE(pass_probability(n, c, 1) == static_cast<double>(c) / static_cast<double>(n));
        REQUIRE(pass_probability(n, c, n) == (c > 0 ? 1.0 : 0.0));
        REQUIRE(pass_probability(n, 0, (n + 1) / 2) == 0.0);
        REQUIRE(pass_probability(n, n, (n + 1) / 2) == 1.0);
      }
  }

  TEST_CASE("large numbers: nothing overflows or cancels") {
    // One correct of n: k / n.
    CHECK(pass_probability(1'000'000'000'000, 1, 1000) == doctest::Approx(1e-9).epsilon(1e-15));
    CHECK(pass_probability(1'000'000, 3, 1) == 3e-6);
    // Two correct: 1 - (n-k)(n-k-1) / (n(n-1)).
    CHECK(pass_probability(10000, 2, 5000) == doctest::Approx(1 - 5000.0 * 4999 / (10000.0 * 9999)).epsilon(1e-15));
    CHECK(pass_probability(1000, 500, 100) == 1.0);
    double before = 0;
    for (std::int64_t k = 1; k <= 1000; ++k) {
      double const now = pass_probability(1000, 7, k);
      REQUIRE(now >= before);
      before = now;
    }
  }

  TEST_CASE("groups by hand: each counts once, whatever its size") {
    // Group -4: 1 of 2; group 9: 1 of 4. pass@2: 1 and 1/2.
    ids const group{9, -4, 9, 9, -4, 9};
    bytes const correct{0, 1, 0, 1, 0, 0};
    std::vector<group_estimate> out;
    CHECK(pass(group, correct, {}, {}, &out) == group_mean{(0.5 + 0.25) / 2, 2, 0});
    CHECK(out == std::vector<group_estimate>{{0.5, 2, true}, {0.25, 4, true}});
    CHECK(pass(group, correct, {.k = 2}, {}, &out) == group_mean{0.75, 2, 0});
    CHECK(out == std::vector<group_estimate>{{1, 2, true}, {0.5, 4, true}});
  }

  TEST_CASE("fewer than k samples: left out, all drawn, or an error; never 1 for nothing") {
    ids const group{0, 0, 1, 1, 1, 1};
    bytes const correct{0, 0, 0, 0, 0, 1};
    std::vector<group_estimate> out;
    CHECK(pass(group, correct, {.k = 3}, {}, &out) == group_mean{0.75, 1, 1});
    CHECK(out == std::vector<group_estimate>{{0, 2, false}, {0.75, 4, true}});
    CHECK(pass(group, correct, {3, too_few_policy::all}, {}, &out) == group_mean{0.375, 2, 0});
    CHECK(out == std::vector<group_estimate>{{0, 2, true}, {0.75, 4, true}});
    out.assign(2, {-7, -7, true});
    CHECK_THROWS_WITH_AS(metrics::pass_at_k(make_grouping(group), correct, {}, {3, too_few_policy::error}, out),
                         "pass_at_k: group 0 has 2 samples, fewer than k = 3", precondition_error);
    CHECK(out == std::vector<group_estimate>(2, {-7, -7, true}));
    CHECK(pass(group, correct, {2, too_few_policy::error}) == group_mean{0.25, 2, 0});
    CHECK(pass(group, correct, {.k = 7}) == group_mean{0, 0, 2});
  }

  TEST_CASE("invalid samples do not count, rejected ones do") {
    ids const group{0, 0, 0, 0, 1};
    bytes const correct{1, 0, 1, 1, 1};
    flags const reasons{0, reason::ratio_low | reason::not_drawn, reason::invalid, reason::unscored, reason::invalid};
    std::vector<group_estimate> out;
    CHECK(pass(group, correct, {}, reasons, &out) == group_mean{0.5, 1, 1});
    CHECK(out == std::vector<group_estimate>{{0.5, 2, true}, {0, 0, false}});
    CHECK(pass(group, correct, {2, too_few_policy::all}, reasons, &out) == group_mean{1, 1, 1});
    CHECK(out[1] == group_estimate{0, 0, false});
    CHECK(pass(group, correct, {}, flags(5, reason::invalid)) == group_mean{0, 0, 2});
  }

  TEST_CASE("turn groups: by prompt and turn index") {
    test::ragged_batch<> const batch{{{.group = 1, .id = 1, .turns = {0, 1}}, {.group = 1, .id = 2, .turns = {1}}}};
    bytes const correct(batch.value.begin(), batch.value.end());
    std::vector<group_estimate> out(2);
    metrics::pass_at_k(make_grouping(batch.view(), group_by::turn), correct, {}, {}, out);
    CHECK(out == std::vector<group_estimate>{{0.5, 2, true}, {1, 1, true}});
  }

  TEST_CASE("no samples, wrong sizes, bad k") {
    CHECK(pass({}, {}, {}) == group_mean{});
    CHECK_THROWS_AS(pass({1, 1}, {1}, {}), precondition_error);
    CHECK_THROWS_AS(pass({1, 1}, {1, 1}, {}, {0}), precondition_error);
    CHECK_THROWS_AS(pass({1, 1}, {1, 1}, {.k = 0}), precondition_error);
    CHECK_THROWS_AS(pass({}, {}, {.k = -1}), precondition_error);
    std::vector<group_estimate> two(2);
    CHECK_THROWS_AS(metrics::pass_at_k(make_grouping(ids{1, 1}), bytes{1, 1}, {}, {}, two), precondition_error);
  }
}
