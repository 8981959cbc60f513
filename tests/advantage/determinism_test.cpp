#include "support/ragged.hpp"

#include <turnwise/advantage/discounted_return.hpp>
#include <turnwise/advantage/group_relative.hpp>
#include <turnwise/advantage/leave_one_out.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

using turnwise::group_by;
using turnwise::make_grouping;
using turnwise::reason_flags;
using turnwise::advantage::baseline_members;
using turnwise::advantage::exclude_policy;
using turnwise::advantage::singleton_policy;
using turnwise::test::in_order;
using turnwise::test::integers;
using turnwise::test::ragged_batch;
using turnwise::test::random_order;
using turnwise::test::source_turns;
using turnwise::test::turn_values;

namespace {

template <typename T>
using arrays = std::vector<std::vector<T>>;

/// A rejection that belongs to the turn, wherever it lies in memory.
bool rejected(std::int64_t group, std::int64_t id, std::int64_t index) {
  return (static_cast<std::uint64_t>(group) * 31 + static_cast<std::uint64_t>(id * 7 + index)) % 5 == 0;
}

/// Returns, reasons (as numbers) and every baseline of a batch, in its own turn order.
template <typename T>
arrays<T> results(ragged_batch<T> const& batch, int threads) {
  auto const view = batch.view();
  auto reasons = batch.reasons();
  std::vector<T> returns(batch.turns());
  turnwise::advantage::discounted_return(view, batch.value, {.gamma = 0.9}, std::span{reasons}, std::span{returns});
  for (std::size_t j = 0; j < view.trajectories(); ++j)
    for (std::size_t s = view.first_turn(j); s < view.first_turn(j + 1); ++s)
      if (turnwise::is_valid(reasons[s]) && rejected(view.group_id[j], view.trajectory_id[j], view.index_of(j, s)))
        reasons[s] |= turnwise::reason::profiling;

  arrays<T> all{returns, {reasons.begin(), reasons.end()}};
  for (auto const by : {group_by::group, group_by::turn, group_by::batch}) {
    auto const groups = make_grouping(view, by);
    auto const next = [&]() -> std::span<T> { return all.emplace_back(batch.turns()); };
    for (auto const members : {baseline_members::valid, baseline_members::kept}) {
      for (auto const exclude : {exclude_policy::trajectory, exclude_policy::member})
        // Over the whole batch nothing is lone but by accident, where `others` would visit all turns.
        turnwise::advantage::leave_one_out(
            groups, returns, reasons,
            {.singleton = by == group_by::batch ? singleton_policy::zero : singleton_policy::others,
             .exclude = exclude,
             .members = members,
             .threads = threads},
            next());
      for (bool const scale : {true, false})
        turnwise::advantage::group_relative(groups, returns, reasons,
                                            {.scale = scale, .members = members, .threads = threads}, next());
    }
  }
  return all;
}

template <typename T>
bool same_bits(std::vector<T> const& a, std::vector<T> const& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// Small groups, enough for several threads, and large ones on every side of the changes of the summation order.
std::vector<std::int64_t> group_sizes(integers& random) {
  std::vector<std::int64_t> sizes{1, 2, 31, 32, 33, 64, 100, 300};
  for (int i = 0; i < 700; ++i) sizes.push_back(1 + random.below(4));
  return sizes;
}

}  // namespace

TEST_SUITE("advantage/determinism") {
  TEST_CASE_TEMPLATE("the same bits for 100 orders of trajectories in memory, with 1 and 2 threads", T, float, double) {
    integers random{2026};
    auto const sizes = group_sizes(random);
    auto const trajectories = turnwise::test::random_values<T>(random, sizes, 5);
    auto const expected = results(ragged_batch<T>{trajectories}, 1);
    for (int repeat = 0; repeat < 100; ++repeat) {
      auto const order = random_order(trajectories.size(), random);
      auto const source = source_turns(trajectories, order);
      ragged_batch<T> const batch{in_order(trajectories, order)};
      auto const got = results(batch, 1 + repeat % 2);
      REQUIRE(got.size() == expected.size());
      for (std::size_t i = 0; i < got.size(); ++i) {
        CAPTURE(i);
        std::vector<T> back(source.size());
        for (std::size_t s = 0; s < source.size(); ++s) back[source[s]] = got[i][s];
        REQUIRE(same_bits(back, expected[i]));
      }
    }
  }

  TEST_CASE_TEMPLATE("the same bits for any number of threads", T, float, double) {
    integers random{7};
    std::vector<std::int64_t> sizes(20'000, 2);
    auto const trajectories = turnwise::test::random_values<T>(random, sizes, 3);
    ragged_batch<T> const batch{trajectories};
    auto const expected = results(batch, 1);
    for (int const threads : {0, 2, 3, 8}) {
      auto const got = results(batch, threads);
      for (std::size_t i = 0; i < got.size(); ++i) CHECK(same_bits(got[i], expected[i]));
    }
  }

  TEST_CASE_TEMPLATE("a group of more than 4096 turns, in 100 orders", T, float, double) {
    integers random{99};
    std::vector<std::int64_t> const sizes{300};
    auto const trajectories = turnwise::test::random_values<T>(random, sizes, 40);
    ragged_batch<T> const plain{trajectories};
    REQUIRE(plain.turns() > 4096);
    auto const expected = results(plain, 1);
    for (int repeat = 0; repeat < 100; ++repeat) {
      auto const order = random_order(trajectories.size(), random);
      auto const source = source_turns(trajectories, order);
      auto const got = results(ragged_batch<T>{in_order(trajectories, order)}, 2);
      for (std::size_t i = 0; i < got.size(); ++i) {
        std::vector<T> back(source.size());
        for (std::size_t s = 0; s < source.size(); ++s) back[source[s]] = got[i][s];
        REQUIRE(same_bits(back, expected[i]));
      }
    }
  }

  TEST_CASE_TEMPLATE("a shard of whole groups gives the bits of the whole batch", T, float, double) {
    integers random{17};
    auto const sizes = group_sizes(random);
    auto const trajectories = turnwise::test::random_values<T>(random, sizes, 5);
    auto const expected = results(ragged_batch<T>{trajectories}, 1);
    // Baselines by group and by turn: the first 2 + 2 * 8 arrays; those over the batch do need the whole batch.
    constexpr std::size_t local = 2 + 2 * 8;
    for (std::uint64_t const shards : {2u, 8u}) {
      for (std::uint64_t shard = 0; shard < shards; ++shard) {
        std::vector<turn_values<T>> part;
        std::vector<std::size_t> order;
        for (std::size_t j = 0; j < trajectories.size(); ++j) {
          auto const mixed = static_cast<std::uint64_t>(trajectories[j].group) * 0x9E3779B97F4A7C15u;
          if ((mixed >> 32) % shards != shard) continue;
          part.push_back(trajectories[j]);
          order.push_back(j);
        }
        auto const source = source_turns(trajectories, order);
        REQUIRE(!part.empty());
        auto const got = results(ragged_batch<T>{part}, 1);
        for (std::size_t i = 0; i < local; ++i) {
          std::vector<T> wanted;
          for (std::size_t const s : source) wanted.push_back(expected[i][s]);
          CHECK(same_bits(got[i], wanted));
        }
      }
    }
  }

}  // TEST_SUITE
