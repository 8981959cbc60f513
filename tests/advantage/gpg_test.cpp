#include "support/ragged.hpp"

#include <turnwise/advantage/gpg.hpp>
#include <turnwise/advantage/group_relative.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

using doctest::Contains;
using turnwise::group_by;
using turnwise::grouping;
using turnwise::make_grouping;
using turnwise::precondition_error;
using turnwise::reason_flags;
using turnwise::advantage::baseline_members;
using turnwise::advantage::gpg;
using turnwise::advantage::gpg_alpha;
using turnwise::advantage::gpg_apply;
using turnwise::advantage::gpg_count;
using turnwise::advantage::gpg_counts;
using turnwise::advantage::gpg_options;
using turnwise::advantage::gpg_signal;
using turnwise::test::ragged_batch;
namespace reason = turnwise::reason;

namespace {

using numbers = std::vector<double>;
using ids = std::vector<std::int64_t>;
using flags = std::vector<reason_flags>;

constexpr gpg_options nonzero{.signal = gpg_signal::nonzero};

template <typename T>
std::vector<T> advantages(grouping const& groups, std::vector<T> const& returns, flags const& reasons = {},
                          gpg_options const& options = {}) {
  std::vector<T> out(returns.size(), T{-77});
  gpg(groups, returns, reasons, options, std::span{out});
  return out;
}

}  // namespace

TEST_SUITE("advantage/gpg") {
  TEST_CASE_TEMPLATE("hand numbers: two of four groups teach nothing, so alpha is 2", T, float, double) {
    ids const group{0, 0, 1, 1, 2, 2, 3, 3};
    std::vector<T> const returns{1, 0, 1, 1, 0, 0, 0, 4};
    CHECK(advantages(make_grouping(group), returns) == std::vector<T>{1, -1, 0, 0, 0, 0, -4, 4});
    // Returns other than 0: four of eight.
    CHECK(advantages(make_grouping(group), returns, {}, nonzero) == std::vector<T>{1, -1, 0, 0, 0, 0, -4, 4});
    // The rules differ where mixed groups have few failures: 8 / 4 against 8 / 6.
    auto const got = advantages<T>(make_grouping(group), {1, 1, 1, 1, 0, 5, 0, 4}, {}, nonzero);
    CHECK(got == std::vector<T>{0, 0, 0, 0, static_cast<T>(-2.5 * (8.0 / 6)), static_cast<T>(2.5 * (8.0 / 6)),
                                static_cast<T>(-2 * (8.0 / 6)), static_cast<T>(2 * (8.0 / 6))});
  }

  TEST_CASE("alpha") {
    CHECK(gpg_alpha({8, 4}) == 2);
    CHECK(gpg_alpha({7, 7}) == 1);
    CHECK(gpg_alpha({7, 0}) == 1);
    CHECK(gpg_alpha({}) == 1);
  }

  TEST_CASE(
      "relation: every group with a signal, alpha is 1 and the rest is mean-centred; otherwise a multiple of it") {
    turnwise::test::integers random{41};
    for (std::size_t const n : {2u, 16u, 33u, 5000u}) {
      numbers returns(2 * n);
      ids group(2 * n);
      for (std::size_t i = 0; i < 2 * n; ++i) {
        returns[i] = turnwise::test::uneven_number(random);
        group[i] = static_cast<std::int64_t>(i % 2);
      }
      numbers centred(2 * n);
      auto const groups = make_grouping(group);
      auto const centre = [&] {
        turnwise::advantage::group_relative(groups, returns, {}, {.scale = false}, std::span{centred});
      };
      centre();
      for (int const threads : {1, 2, 0}) CHECK(advantages(groups, returns, {}, {.threads = threads}) == centred);
      for (std::size_t i = 0; i < 2 * n; i += 2) returns[i] = 0.7;
      centre();
      for (double& value : centred) value *= 2;
      for (int const threads : {1, 2, 0}) CHECK(advantages(groups, returns, {}, {.threads = threads}) == centred);
    }
  }

  TEST_CASE("many groups: the count does not depend on the threads") {
    std::size_t const groups_count = 20000;
    numbers returns;
    ids group;
    for (std::size_t g = 0; g < groups_count; ++g)
      for (int i = 0; i < 3; ++i) {
        group.push_back(static_cast<std::int64_t>(g));
        returns.push_back(g % 5 == 0 ? (i == 0 ? 3.0 : 0.0) : 1.0);
      }
    auto const groups = make_grouping(group);
    // 60000 samples, 12000 in groups with a signal; 4000 + 48000 returns other than 0.
    for (int const threads : {1, 2, 3}) {
      auto const got = advantages(groups, returns, {}, {.threads = threads});
      CHECK(got[0] == 10);
      CHECK(got[1] == -5);
      CHECK(got[3] == 0);
      CHECK(advantages(groups, returns, {}, {.signal = gpg_signal::nonzero, .threads = threads})[0] ==
            60000.0 / 52000 * 2);
    }
  }

  TEST_CASE_TEMPLATE("lone members have no signal and get 0; equal returns exactly 0", T, float, double) {
    CHECK(advantages<T>(make_grouping(ids{0, 1, 2, 2}), {5, 7, 1, 3}) == std::vector<T>{0, 0, -2, 2});
    CHECK(advantages<T>(make_grouping(ids{0, 1, 2}), {5, 7, 1}) == std::vector<T>{0, 0, 0});
    for (std::size_t const n : {2u, 10u, 33u, 4097u})
      for (auto const& options : {gpg_options{}, nonzero})
        CHECK(advantages(make_grouping(ids(n, 1)), std::vector<T>(n, T{0.1f}), {}, options) == std::vector<T>(n, T{0}));
    CHECK(advantages<T>(make_grouping(ids(3, 1)), {0, 0, 0}, {}, nonzero) == std::vector<T>{0, 0, 0});
  }

  TEST_CASE_TEMPLATE("rejected and invalid turns", T, float, double) {
    auto const groups = make_grouping(ids{0, 0, 0, 1, 1});
    flags const reasons{0, 0, reason::ratio_low, 0, 0};
    // Valid: group 0 has three of five samples.
    CHECK(advantages<T>(groups, {1, 1, 7, 2, 2}, reasons) == std::vector<T>{static_cast<T>(-2 * (5.0 / 3)),
                                                                            static_cast<T>(-2 * (5.0 / 3)),
                                                                            static_cast<T>(4 * (5.0 / 3)), 0, 0});
    // Kept: no group with a signal; the rejected turn is judged from outside.
    gpg_options const kept{.members = baseline_members::kept};
    CHECK(advantages<T>(groups, {1, 1, 7, 2, 2}, reasons, kept) == std::vector<T>{0, 0, 6, 0, 0});
    CHECK(advantages<T>(groups, {1, 1, 7, 2, 4}, reasons, kept) == std::vector<T>{0, 0, 12, -2, 2});
    // Fewer than two members: 0, also for turns judged from outside.
    CHECK(advantages<T>(groups, {1, 5, 7, 2, 4}, {0, reason::stale, reason::stale, 0, 0}, kept) ==
          std::vector<T>{0, 0, 0, static_cast<T>(-1 * (3.0 / 2)), static_cast<T>(1 * (3.0 / 2))});
    CHECK(advantages<T>(groups, {1, 5, 7, 2, 4}, flags(5, reason::stale), kept) == std::vector<T>(5, T{0}));
    for (T const bad : {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity()})
      for (auto const why : {reason::invalid, reason::unscored, reason::unscored_future})
        CHECK(advantages<T>(groups, {1, 1, bad, 2, 4}, {0, 0, why, 0, 0}) == std::vector<T>{0, 0, 0, -2, 2});
  }

  TEST_CASE_TEMPLATE("turn groups", T, float, double) {
    ragged_batch<T> const batch{{{.group = 3, .id = 1, .turns = {4, 1, 9}}, {.group = 3, .id = 2, .turns = {2, 1}}}};
    // Turn 0 differs, turn 1 is equal, turn 2 alone: 5 / 2.
    CHECK(advantages(make_grouping(batch.view(), group_by::turn), batch.value) ==
          std::vector<T>{T{2.5}, 0, 0, T{-2.5}, 0});
  }

  TEST_CASE_TEMPLATE("shards of whole groups with joined counts give the bits of the whole batch", T, float, double) {
    turnwise::test::integers random{5};
    ids group;
    std::vector<T> returns;
    flags reasons;
    for (std::int64_t g = 0; g < 300; ++g)
      for (std::int64_t i = random.below(6); i >= 0; --i) {
        group.push_back(g);
        returns.push_back(g % 3 == 0 ? static_cast<T>(g % 2) : turnwise::test::uneven_number<T>(random));
        reasons.push_back(random.below(9) == 0 ? reason::ratio_low : random.below(9) == 0 ? reason::invalid : 0);
      }
    for (auto const signal : {gpg_signal::group, gpg_signal::nonzero})
      for (auto const members : {baseline_members::valid, baseline_members::kept})
        for (std::int64_t const shards : {1, 2, 8}) {
          gpg_options const options{.signal = signal, .members = members};
          auto const whole = advantages(make_grouping(group), returns, reasons, options);
          auto const part = [&](std::int64_t shard, auto const& values) {
            std::remove_cvref_t<decltype(values)> result;
            for (std::size_t s = 0; s < group.size(); ++s)
              if (group[s] % shards == shard) result.push_back(values[s]);
            return result;
          };
          gpg_counts joined;
          for (std::int64_t shard = 0; shard < shards; ++shard)
            joined +=
                gpg_count<T>(make_grouping(part(shard, group)), part(shard, returns), part(shard, reasons), options);
          REQUIRE(joined.signal > 0);
          REQUIRE(joined.signal < joined.samples);
          bool own_differs = false;
          for (std::int64_t shard = 0; shard < shards; ++shard) {
            auto const groups = make_grouping(part(shard, group));
            auto const here = part(shard, returns);
            std::vector<T> out(here.size(), T{-77});
            gpg_apply(groups, here, part(shard, reasons), joined, options, std::span{out});
            CHECK(out == part(shard, whole));
            own_differs |= advantages(groups, here, part(shard, reasons), options) != out;
          }
          CHECK(own_differs == (shards > 1));
        }
  }

  TEST_CASE("counts by hand: samples that are members, and those with a signal; they add up") {
    auto const groups = make_grouping(ids{0, 0, 0, 1, 1, 2});
    numbers const returns{1, 1, 7, 2, 2, 5};
    flags const reasons{0, 0, reason::ratio_low, 0, 0, 0};
    CHECK(gpg_count<double>(groups, returns, reasons, {}) == gpg_counts{6, 3});
    CHECK(gpg_count<double>(groups, returns, reasons, {.members = baseline_members::kept}) == gpg_counts{5, 0});
    CHECK(gpg_count<double>(groups, returns, reasons, nonzero) == gpg_counts{6, 6});
    CHECK(gpg_count<double>(groups, returns, {}, {}) == gpg_counts{6, 3});
    CHECK(gpg_count<double>(make_grouping(ids{}), {}, {}, {}) == gpg_counts{});
    gpg_counts sum{6, 3};
    CHECK((sum += gpg_counts{10, 1}) == gpg_counts{16, 4});
    // Sixteen samples of which four count: four times the distance from the mean, whatever this shard holds.
    numbers out(6);
    gpg_apply(groups, returns, reasons, {16, 4}, {}, std::span{out});
    CHECK(out == numbers{-8, -8, 16, 0, 0, 0});
  }

  TEST_CASE("errors of the phases") {
    auto const groups = make_grouping(ids{1, 1, 2});
    numbers returns{1, 2, 3}, out(3, 9.0);
    auto const count = [&](numbers const& values, flags const& reasons) {
      static_cast<void>(gpg_count<double>(groups, values, reasons, {}));
    };
    CHECK_THROWS_WITH_AS(count({1, 2}, {}), Contains("gpg_count: turn_return has 2 elements, expected 3"),
                         precondition_error);
    CHECK_THROWS_WITH_AS(count(returns, {0}), Contains("gpg_count: reasons has 1 elements, expected 3"),
                         precondition_error);
    double const nan = std::numeric_limits<double>::quiet_NaN();
    CHECK_THROWS_WITH_AS(count({1, nan, 2}, {}), Contains("gpg_count: turn_return[1] = nan"), precondition_error);
    CHECK_NOTHROW(count({1, nan, 2}, {0, reason::invalid, 0}));
    auto const apply = [&](gpg_counts const& batch, std::span<double> advantage) {
      gpg_apply(groups, returns, {}, batch, {}, advantage);
    };
    CHECK_THROWS_WITH_AS(apply({3, 4}, out),
                         Contains("gpg_apply: batch.signal = 4, expected at most batch.samples = 3"),
                         precondition_error);
    CHECK_THROWS_WITH_AS(apply({3, 2}, std::span{out}.first(2)), Contains("gpg_apply: advantage has 2 elements"),
                         precondition_error);
    returns[2] = nan;
    CHECK_THROWS_WITH_AS(apply({3, 2}, out), Contains("gpg_apply: turn_return[2] = nan"), precondition_error);
    CHECK(out == numbers(3, 9.0));
  }

  TEST_CASE("no turns") { CHECK(advantages(make_grouping(ids{}), numbers{}).empty()); }

  TEST_CASE_TEMPLATE("every error names the argument and leaves the advantage alone", T, float, double) {
    auto const groups = make_grouping(ids{1, 1, 2});
    std::vector<T> returns{1, 2, 3}, out(3, T{9});
    flags reasons;
    auto const refused = [&](char const* text) {
      auto const before = out;
      CHECK_THROWS_WITH_AS(gpg(groups, returns, reasons, {}, std::span{out}), Contains(text), precondition_error);
      CHECK(out == before);
    };
    SUBCASE("sizes") {
      returns.push_back(0);
      refused("gpg: turn_return has 4 elements, expected 3");
      returns.pop_back();
      reasons = {0};
      refused("gpg: reasons has 1 elements, expected 3");
      reasons.clear();
      out.pop_back();
      refused("gpg: advantage has 2 elements, expected 3");
    }
    SUBCASE("a return of a valid turn") {
      returns[1] = std::numeric_limits<T>::quiet_NaN();
      refused("gpg: turn_return[1] = nan");
    }
    SUBCASE("advantage over the returns") {
      CHECK_THROWS_WITH_AS(gpg(groups, returns, reasons, {}, std::span{returns}),
                           Contains("advantage must not overlap turn_return"), precondition_error);
    }
  }

}  // TEST_SUITE
