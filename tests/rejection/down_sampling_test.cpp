#include "support/ragged.hpp"

#include <turnwise/rejection/down_sampling.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace {

using namespace turnwise;
using rejection::down_sampling_options;
using rejection::scope;
using test::ragged_batch;
using test::turn_values;
using flags = std::vector<reason_flags>;

constexpr draw_key key{7, 3};
constexpr reason_flags out = reason::not_drawn;

flags drawn(std::vector<turn_values<>> const& trajectories, down_sampling_options const& options, draw_key with = key,
            group_by by = group_by::group) {
  ragged_batch<> const batch{trajectories};
  auto reasons = batch.reasons();
  rejection::down_sampling(batch.view(), make_grouping(batch.view(), by), options, with, reasons);
  return reasons;
}

std::vector<turn_values<>> group_of(std::int64_t size, std::size_t turns, std::int64_t group = 5) {
  std::vector<turn_values<>> result;
  for (std::int64_t k = 0; k < size; ++k)
    result.push_back({.group = group, .id = k, .turns = std::vector<double>(turns)});
  return result;
}

std::uint32_t word(std::int64_t group, std::int64_t trajectory, std::int64_t turn) {
  auto const low = static_cast<std::uint32_t>(static_cast<std::uint64_t>(group));
  auto const high = static_cast<std::uint32_t>(static_cast<std::uint64_t>(group) >> 32);
  return philox4x32_10({{low, high, static_cast<std::uint32_t>(trajectory), static_cast<std::uint32_t>(turn)}}, key)
      .word[1];
}

}  // namespace

TEST_SUITE("rejection/down_sampling") {
  TEST_CASE("the turns, or trajectories, with the smallest words of purpose down_sampling stay") {
    for (std::int64_t const group : {std::int64_t{5}, std::int64_t{-1} << 40}) {
      auto const turns = drawn(group_of(6, 3, group), {.target = 7, .level = scope::turn});
      auto const whole = drawn(group_of(6, 3, group), {.target = 2, .level = scope::trajectory});
      std::vector<std::uint32_t> turn_words, trajectory_words;
      for (std::int64_t k = 0; k < 6; ++k) {
        trajectory_words.push_back(word(group, k, 0));
        for (std::int64_t t = 0; t < 3; ++t) turn_words.push_back(word(group, k, t));
      }
      auto const smaller = [](std::vector<std::uint32_t> const& words, std::uint32_t than) {
        return std::ranges::count_if(words, [than](std::uint32_t one) { return one < than; });
      };
      for (std::size_t s = 0; s < 18; ++s) {
        CHECK(turns[s] == (smaller(turn_words, turn_words[s]) < 7 ? 0 : out));
        CHECK(whole[s] == (smaller(trajectory_words, trajectory_words[s / 3]) < 2 ? 0 : out));
      }
    }
  }

  TEST_CASE("exactly min(target, kept) stay; only kept turns are drawn") {
    test::integers random{12};
    for (std::int64_t target = 1; target < 9; ++target)
      for (int trial = 0; trial < 20; ++trial) {
        ragged_batch<> const batch{group_of(6, 2)};
        flags before(12);
        for (reason_flags& one : before)
          if (random.below(3) == 0) one = random.below(2) == 0 ? reason::stale : reason::unscored;
        auto after = before;
        rejection::down_sampling(batch.view(), make_grouping(batch.view(), group_by::group),
                                 {.target = target, .level = scope::turn}, {9, static_cast<std::uint32_t>(trial)},
                                 after);
        CHECK(std::ranges::count(after, 0u) == std::min<std::int64_t>(target, std::ranges::count(before, 0u)));
        for (std::size_t s = 0; s < 12; ++s) CHECK((after[s] == before[s] || (before[s] == 0 && after[s] == out)));
      }
  }

  TEST_CASE("a trajectory stays or goes with all its kept turns; one without kept turns takes no place") {
    ragged_batch<> const batch{group_of(5, 3)};
    auto const groups = make_grouping(batch.view(), group_by::group);
    for (std::uint32_t step = 0; step < 30; ++step) {
      flags reasons(15);
      reasons[0] = reasons[1] = reasons[2] = reason::stale;
      reasons[3] = reasons[7] = reasons[14] = reason::ratio_high;
      auto const before = reasons;
      rejection::down_sampling(batch.view(), groups, {.target = 2, .level = scope::trajectory}, {1, step}, reasons);
      int staying = 0;
      for (std::size_t j = 0; j < 5; ++j) {
        std::size_t kept = 0, of = 0;
        for (std::size_t s = 3 * j; s < 3 * j + 3; ++s) {
          kept += reasons[s] == 0;
          of += before[s] == 0;
          CHECK((before[s] == 0 || reasons[s] == before[s]));
        }
        CHECK((kept == 0 || kept == of));
        staying += kept > 0;
      }
      CHECK(staying == 2);
    }
  }

  TEST_CASE("a trajectory's draw does not depend on which of its turns are kept") {
    ragged_batch<> const batch{group_of(4, 3)};
    auto const groups = make_grouping(batch.view(), group_by::group);
    flags all(12), some(12);
    for (std::size_t s = 0; s < 12; s += 3) some[s] = reason::stale;
    rejection::down_sampling(batch.view(), groups, {.target = 2}, key, all);
    rejection::down_sampling(batch.view(), groups, {.target = 2}, key, some);
    for (std::size_t s = 0; s < 12; ++s)
      if (s % 3 != 0) CHECK(all[s] == some[s]);
  }

  TEST_CASE("each pair of five is drawn equally often") {
    std::map<std::vector<bool>, int> times;
    constexpr int steps = 20000;
    for (std::uint32_t step = 0; step < steps; ++step) {
      std::vector<bool> stays;
      for (reason_flags const found : drawn(group_of(5, 1), {.target = 2}, {4, step})) stays.push_back(found == 0);
      ++times[stays];
    }
    CHECK(times.size() == 10);
    for (auto const& [stays, count] : times) CHECK(std::abs(count - steps / 10) < 5 * 43);  // five standard deviations
  }

  TEST_CASE("equal words: the first in canonical order stay, and trajectories whole") {
    // Of 2^18 trajectories some have the same word.
    std::map<std::uint32_t, std::int64_t> seen;
    std::pair<std::int64_t, std::int64_t> twins{-1, -1};
    for (std::int64_t id = 0; id < (1 << 18) && twins.first < 0; ++id) {
      auto const [place, is_new] = seen.emplace(word(5, id, 0), id);
      if (!is_new) twins = {place->second, id};
    }
    REQUIRE(twins.first >= 0);
    turn_values<> const early{.group = 5, .id = twins.first, .turns = {0, 0}};
    turn_values<> const late{.group = 5, .id = twins.second, .turns = {0, 0}};
    CHECK(drawn({early, late}, {.target = 1}) == flags{0, 0, out, out});
    CHECK(drawn({late, early}, {.target = 1}) == flags{out, out, 0, 0});

    using rejection::detail::draw_place;
    CHECK(draw_place{4, 9} < draw_place{5, 0});
    CHECK(draw_place{4, 1} < draw_place{4, 2});
    CHECK_FALSE(draw_place{4, 2} < draw_place{4, 2});
    CHECK_FALSE(draw_place{5, 0} < draw_place{4, 9});
  }

  TEST_CASE("the same choice in any order of trajectories and for each group alone") {
    test::integers random{21};
    std::vector<turn_values<>> all;
    for (std::int64_t g = 0; g < 6; ++g)
      for (std::int64_t k = 0; k < 3 + 4 * g; ++k)
        all.push_back({.group = g * 1000 - 2,
                       .id = 50 - k,
                       .turns = std::vector<double>(static_cast<std::size_t>(random.below(4)))});
    for (auto const level : {scope::turn, scope::trajectory}) {
      down_sampling_options const options{.target = 4, .level = level};
      auto const expected = drawn(all, options);
      auto const order = test::random_order(all.size(), random);
      auto const shuffled = drawn(test::in_order(all, order), options);
      auto const source = test::source_turns(all, order);
      for (std::size_t s = 0; s < source.size(); ++s) CHECK(shuffled[s] == expected[source[s]]);
      std::size_t first = 0;
      for (std::int64_t g = 0; g < 6; ++g) {
        std::vector<turn_values<>> alone;
        for (auto const& one : all)
          if (one.group == g * 1000 - 2) alone.push_back(one);
        auto const found = drawn(alone, options);
        for (std::size_t s = 0; s < found.size(); ++s) CHECK(found[s] == expected[first + s]);
        first += found.size();
      }
    }
  }

  TEST_CASE("by turn index and over the whole batch; given turn indices are the draw's") {
    std::vector<turn_values<>> const batch{{.group = 1, .id = 1, .turns = {0, 0}, .index = {2, 9}},
                                           {.group = 1, .id = 2, .turns = {0, 0}, .index = {2, 9}},
                                           {.group = 2, .id = 1, .turns = {0}, .index = {2}}};
    std::array const words{word(1, 1, 2), word(1, 1, 9), word(1, 2, 2), word(1, 2, 9), word(2, 1, 2)};
    auto const by_turn = drawn(batch, {.target = 1, .level = scope::turn}, key, group_by::turn);
    CHECK(by_turn == flags{words[0] < words[2] ? 0 : out, words[1] < words[3] ? 0 : out, words[0] < words[2] ? out : 0,
                           words[1] < words[3] ? out : 0, 0});
    auto const whole = drawn(batch, {.target = 1, .level = scope::turn}, key, group_by::batch);
    for (std::size_t s = 0; s < 5; ++s) CHECK((whole[s] == 0) == (words[s] == *std::ranges::min_element(words)));
  }

  TEST_CASE("seed and step both change the choice; nothing kept, no turns") {
    auto const of = [](draw_key with) { return drawn(group_of(40, 1), {.target = 20}, with); };
    CHECK(of({1, 1}) == of({1, 1}));
    CHECK(of({1, 1}) != of({2, 1}));
    CHECK(of({1, 1}) != of({1, 2}));
    auto batch = group_of(3, 1);
    for (auto& one : batch) one.valid = {0};
    CHECK(drawn(batch, {}) == flags(3, reason::invalid));
    CHECK(drawn({}, {}) == flags{});
  }

  TEST_CASE("bad options, ids and sizes throw and change nothing") {
    ragged_batch<> batch{group_of(3, 1)};
    auto const groups = make_grouping(batch.view(), group_by::group);
    flags reasons(3);
    auto const throws = [&](rollout_view const& view, grouping const& with, std::int64_t target,
                            std::span<reason_flags> in) {
      CHECK_THROWS_AS(rejection::down_sampling(view, with, {.target = target}, key, in), precondition_error);
    };
    throws(batch.view(), groups, 0, reasons);
    throws(batch.view(), groups, -1, reasons);
    throws(batch.view(), groups, 1, std::span{reasons}.first(2));
    throws(batch.view(), make_grouping(ragged_batch<>{group_of(2, 1)}.view(), group_by::group), 1, reasons);
    batch.trajectory_id[1] = std::int64_t{1} << 32;
    throws(batch.view(), groups, 1, reasons);
    CHECK(reasons == flags(3));
  }

  TEST_CASE("a grouping of another batch with as many turns is refused") {
    std::vector<std::int64_t> const offsets{0, 4}, one{0};
    turnwise::rollout_view const batch{.trajectory_offsets = offsets, .group_id = one, .trajectory_id = one};
    std::vector<std::int64_t> const ids{0, 0, 0, 0};
    std::vector<turnwise::reason_flags> reasons(4);
    CHECK_THROWS_AS(turnwise::rejection::down_sampling(batch, turnwise::make_grouping(ids), {}, {1, 2}, reasons),
                    turnwise::precondition_error);
  }

}  // TEST_SUITE
