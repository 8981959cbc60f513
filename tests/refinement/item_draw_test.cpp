#include "support/batches.hpp"

#include <turnwise/refinement/item_draw.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

namespace {

using namespace turnwise;
using refinement::cooccurrence;
using refinement::item_draw_options;
using refinement::picked_item;
using refinement::scaled_bits;
using ids = std::vector<std::int64_t>;
using bits = std::vector<std::uint64_t>;
__extension__ using wide = unsigned __int128;

constexpr draw_key key{7, 3};

ids drawn(cooccurrence const& pairs, ids const& failures, item_draw_options const& options, std::size_t sets,
          draw_key with = key) {
  ids result(sets * static_cast<std::size_t>(options.set_size), -7);
  refinement::item_draw(pairs, failures, with, options, result);
  return result;
}

/// The smallest 64-bit number that picks an item or a later one, by bisection: picks never decrease.
std::uint64_t first_that_picks(bits const& weight, std::vector<std::uint8_t> const& open, std::size_t item) {
  std::uint64_t low = 0, high = UINT64_MAX;
  while (low < high) {
    std::uint64_t const middle = low + (high - low) / 2;
    if (picked_item(weight, open, middle) >= item)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

/// 4 items; 0 and 1 occur together 5 times, 1 and 2 twice, 3 with none.
ids const four{0, 5, 0, 0, 5, 0, 2, 0, 0, 2, 0, 0, 0, 0, 0, 0};

}  // namespace

TEST_SUITE("refinement/item_draw") {
  TEST_CASE("scaled_bits is the high half of a 128-bit product") {
    static_assert(scaled_bits(0, 10) == 0);
    static_assert(scaled_bits(UINT64_MAX, 10) == 9);
    static_assert(scaled_bits(std::uint64_t{1} << 63, 10) == 5);
    test::integers random{1};
    for (int i = 0; i < 20000; ++i) {
      std::uint64_t const a = random(), b = random() >> random.below(64);
      REQUIRE(scaled_bits(a, b) == static_cast<std::uint64_t>(wide{a} * b >> 64));
      REQUIRE(scaled_bits(UINT64_MAX, b) == static_cast<std::uint64_t>(wide{UINT64_MAX} * b >> 64));
    }
  }

  TEST_CASE("the uniform interval is split exactly: item i owns the bits from ceil(c(i) 2^64 / total) on") {
    std::vector<bits> const weights{{1}, {1, 1}, {1, 2, 3, 4}, {0, 3, 0, 0, 4}, {1, 1, 1}, {1000000007, 1, 998244353}};
    for (auto const& weight : weights) {
      std::vector<std::uint8_t> const open(weight.size(), 1);
      std::uint64_t total = 0, before = 0;
      for (auto const one : weight) total += one;
      for (std::size_t i = 0; i < weight.size(); ++i) {
        auto const begin = static_cast<std::uint64_t>(((wide{before} << 64) + total - 1) / total);
        before += weight[i];
        if (weight[i] == 0) continue;
        CHECK(first_that_picks(weight, open, i) == begin);
        CHECK(picked_item(weight, open, begin) == i);
        if (begin > 0) CHECK(picked_item(weight, open, begin - 1) < i);
        if (before == total) CHECK(picked_item(weight, open, UINT64_MAX) == i);
      }
    }
  }

  TEST_CASE("an item of weight 0 is not picked unless all are; closed items never") {
    std::vector<std::uint8_t> const open{1, 1, 0, 1};
    for (std::uint64_t const u : {std::uint64_t{0}, UINT64_MAX / 2, UINT64_MAX}) {
      CHECK(picked_item(bits{0, 6, 9, 0}, open, u) == 1);
      std::size_t const uniform = picked_item(bits{0, 0, 9, 0}, open, u);
      CHECK(uniform == (u == 0 ? 0u : u == UINT64_MAX ? 3u : 1u));
    }
  }

  TEST_CASE("the draws are the published generator's, at a counter of their own") {
    // Philox4x32-10 with all bits of counter and key set gives 408f276d 41c83b0e a20bc7c6 6d5451fd (known-answer
    // vector).
    CHECK(refinement::item_bits({0xffffffffu, 0xffffffffu}, -1, 0xffffffff) == 0x6d5451fda20bc7c6u);
    auto const out = philox4x32_10({{5, 1, 2, 0xffffffffu}}, key);
    CHECK(refinement::item_bits(key, (std::int64_t{1} << 32) + 5, 2) ==
          (std::uint64_t{out.word[3]} << 32 | out.word[2]));
  }

  TEST_CASE("a set by hand: failures first, co-occurrence next") {
    ids const failures{3, 0, 1, 0};
    for (std::int64_t set = 0; set < 200; ++set) {
      auto const got = drawn({.count = four}, failures, {.set_size = 3, .first_set = set}, 1);
      // First: weights 4 1 2 1 of 8.
      auto const u = [&](std::int64_t position) { return refinement::item_bits(key, set, position); };
      std::uint64_t const eighth = u(0) >> 61;
      std::int64_t const first = eighth < 4 ? 0 : eighth < 5 ? 1 : eighth < 7 ? 2 : 3;
      REQUIRE(got[0] == first);
      // Second: 1 + count with the first, over the others.
      auto const next = [&](ids const& chosen, std::int64_t position) {
        std::vector<std::int64_t> weight;
        std::int64_t total = 0;
        for (std::int64_t i = 0; i < 4; ++i) {
          std::int64_t one = std::ranges::count(chosen, i) > 0 ? 0 : 1;
          if (one > 0)
            for (auto const j : chosen) one += four[static_cast<std::size_t>(4 * i + j)];
          weight.push_back(one);
          total += one;
        }
        auto left = static_cast<std::int64_t>(wide{u(position)} * static_cast<std::uint64_t>(total) >> 64);
        std::int64_t i = 0;
        while (left >= weight[static_cast<std::size_t>(i)]) left -= weight[static_cast<std::size_t>(i++)];
        return i;
      };
      REQUIRE(got[1] == next({first}, 1));
      REQUIRE(got[2] == next({first, got[1]}, 2));
    }
  }

  TEST_CASE("frequencies of the first two items follow the formula") {
    ids const failures{3, 0, 1, 0};
    constexpr std::size_t sets = 40000;
    auto const got = drawn({.count = four}, failures, {.set_size = 2}, sets);
    std::map<std::pair<std::int64_t, std::int64_t>, double> seen;
    for (std::size_t i = 0; i < sets; ++i) seen[{got[2 * i], got[2 * i + 1]}] += 1.0 / sets;
    std::vector<double> const first{0.5, 0.125, 0.25, 0.125};
    double worst = 0;
    for (std::int64_t a = 0; a < 4; ++a) {
      double total = 0;
      auto const weight = [&](std::int64_t b) {
        return 1.0 + static_cast<double>(four[static_cast<std::size_t>(4 * a + b)]);
      };
      for (std::int64_t b = 0; b < 4; ++b) total += b == a ? 0 : weight(b);
      for (std::int64_t b = 0; b < 4; ++b) {
        double const expected = b == a ? 0 : first[static_cast<std::size_t>(a)] * weight(b) / total;
        if (b == a) CHECK(seen[{a, b}] == 0);
        worst = std::max(worst, std::abs(seen[{a, b}] - expected));
      }
    }
    CHECK(worst < 0.012);  // about five standard deviations
  }

  TEST_CASE("weights 0: smoothing 0 draws partners only, and uniformly when there is none") {
    for (std::int64_t set = 0; set < 100; ++set) {
      // Only item 0 ever failed and only partners follow: 0, 1, 2; then 3, which has none.
      auto const got =
          drawn({.count = four}, {1, 0, 0, 0}, {.set_size = 4, .base = 0, .smoothing = 0, .first_set = set}, 1);
      REQUIRE(got == ids{0, 1, 2, 3});
    }
    std::set<std::int64_t> first;
    for (auto const item : drawn({.count = four}, ids(4, 0), {.set_size = 1, .base = 0}, 100)) first.insert(item);
    CHECK(first.size() == 4);
  }

  TEST_CASE("all items: a permutation; each set depends on its id, the seed and the step alone") {
    auto const all = drawn({.count = four}, {1, 2, 3, 4}, {.set_size = 4}, 50);
    for (std::size_t i = 0; i < 50; ++i) {
      ids one(all.begin() + static_cast<std::ptrdiff_t>(4 * i), all.begin() + static_cast<std::ptrdiff_t>(4 * i + 4));
      auto const alone =
          drawn({.count = four}, {1, 2, 3, 4}, {.set_size = 4, .first_set = static_cast<std::int64_t>(i)}, 1);
      REQUIRE(one == alone);
      std::ranges::sort(one);
      REQUIRE(one == ids{0, 1, 2, 3});
    }
    CHECK(all != drawn({.count = four}, {1, 2, 3, 4}, {.set_size = 4}, 50, {8, 3}));
    CHECK(all != drawn({.count = four}, {1, 2, 3, 4}, {.set_size = 4}, 50, {7, 4}));
    CHECK(all == drawn({.count = four}, {1, 2, 3, 4}, {.set_size = 4}, 50));
  }

  TEST_CASE("sparse rows give the sets of the dense matrix; the diagonal is not read") {
    test::integers random{9};
    for (int round = 0; round < 30; ++round) {
      auto const n = static_cast<std::size_t>(2 + random.below(9));
      ids dense(n * n, 0), failures, offsets{0}, item, count;
      for (std::size_t a = 0; a < n; ++a) {
        failures.push_back(random.below(4));
        for (std::size_t b = 0; b < a; ++b)
          dense[a * n + b] = dense[b * n + a] = random.below(3) == 0 ? random.below(1000) : 0;
        dense[a * n + a] = random.below(1000);
      }
      for (std::size_t a = 0; a < n; ++a) {
        for (std::size_t b = 0; b < n; ++b)
          if (dense[a * n + b] != 0 && a != b) {
            item.push_back(static_cast<std::int64_t>(b));
            count.push_back(dense[a * n + b]);
          }
        offsets.push_back(static_cast<std::int64_t>(item.size()));
      }
      item_draw_options const options{.set_size = 1 + random.below(static_cast<std::int64_t>(n)),
                                      .smoothing = random.below(2)};
      CHECK(drawn({.count = dense}, failures, options, 20) ==
            drawn({.count = count, .row_offsets = offsets, .item = item}, failures, options, 20));
    }
  }

  TEST_CASE("no sets; one item") {
    CHECK(drawn({.count = four}, ids(4), {}, 0).empty());
    CHECK(drawn({.count = ids{0}}, {0}, {.set_size = 1}, 3) == ids{0, 0, 0});
  }

  TEST_CASE("the largest weights do not overflow") {
    std::int64_t const most = refinement::item_count_limit - 1;
    ids const counts(9, most);
    for (auto const item : drawn({.count = counts}, ids(3, most), {.set_size = 3, .base = most, .smoothing = most}, 50))
      CHECK((item >= 0 && item < 3));
  }

  TEST_CASE("errors, with nothing written") {
    ids out(8, -7);
    auto const call = [&](cooccurrence const& pairs, ids const& failures, item_draw_options const& options,
                          std::size_t size = 8) {
      refinement::item_draw(pairs, failures, key, options, std::span{out}.first(size));
    };
    cooccurrence const pairs{.count = four};
    ids const none(4);
    CHECK_THROWS_WITH_AS(call(pairs, none, {.set_size = 5}, 5),
                         "item_draw: set_size = 5, expected [1, 4], the number of items", precondition_error);
    CHECK_THROWS_AS(call(pairs, none, {.set_size = 0}), precondition_error);
    CHECK_THROWS_AS(call({}, {}, {.set_size = 1}, 0), precondition_error);
    CHECK_THROWS_AS(call(pairs, none, {.set_size = 3}), precondition_error);
    CHECK_THROWS_AS(call(pairs, none, {.set_size = 2, .base = -1}), precondition_error);
    CHECK_THROWS_AS(call(pairs, none, {.set_size = 2, .smoothing = refinement::item_count_limit}), precondition_error);
    CHECK_THROWS_AS(call(pairs, none, {.set_size = 2, .first_set = -1}), precondition_error);
    CHECK_THROWS_WITH_AS(call(pairs, none, {.set_size = 2, .first_set = std::numeric_limits<std::int64_t>::max() - 3}),
                         doctest::Contains("4 sets, expected ids below 2^63 - 1"), precondition_error);
    CHECK_THROWS_AS(call(pairs, {0, -1, 0, 0}, {.set_size = 2}), precondition_error);
    CHECK_THROWS_AS(call(pairs, ids(3), {.set_size = 2}), precondition_error);
    ids wrong = four;
    wrong[1] = 4;
    CHECK_THROWS_WITH_AS(call({.count = wrong}, none, {.set_size = 2}),
                         "item_draw: the counts of items 0 and 1 are 4 and 5, expected a symmetric matrix",
                         precondition_error);
    wrong[1] = wrong[4] = -5;
    CHECK_THROWS_AS(call({.count = wrong}, none, {.set_size = 2}), precondition_error);

    ids const offsets{0, 1, 2, 2, 2}, item{1, 0}, count{5, 5};
    auto const sparse = [&](ids const& o, ids const& i, ids const& c) {
      call({.count = c, .row_offsets = o, .item = i}, none, {.set_size = 2});
    };
    CHECK_NOTHROW(sparse(offsets, item, count));
    std::ranges::fill(out, -7);
    CHECK_THROWS_AS(sparse({0, 1, 2, 2}, item, count), precondition_error);
    CHECK_THROWS_AS(sparse({1, 1, 2, 2, 2}, item, count), precondition_error);
    CHECK_THROWS_AS(sparse({0, 2, 1, 2, 2}, item, count), precondition_error);
    CHECK_THROWS_AS(sparse({0, 3, 3, 3, 3}, item, count), precondition_error);
    CHECK_THROWS_AS(sparse({0, 1, 1, 1, 1}, item, count), precondition_error);
    CHECK_THROWS_AS(sparse(offsets, {1}, count), precondition_error);
    CHECK_THROWS_AS(sparse(offsets, {4, 0}, count), precondition_error);
    CHECK_THROWS_AS(sparse(offsets, {-1, 0}, count), precondition_error);
    CHECK_THROWS_AS(sparse({0, 2, 2, 2, 2}, {1, 1}, count), precondition_error);
    CHECK_THROWS_AS(sparse(offsets, item, {5, 6}), precondition_error);
    CHECK_THROWS_AS(sparse({0, 1, 1, 1, 1}, {1}, {5}), precondition_error);  // one direction only
    CHECK_THROWS_AS(call({.count = four, .item = item}, none, {.set_size = 2}), precondition_error);
    CHECK(out == ids(8, -7));
  }
}
