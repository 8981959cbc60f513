#include "support/ragged.hpp"

#include <turnwise/advantage/gpg.hpp>
#include <turnwise/advantage/group_relative.hpp>
#include <turnwise/advantage/leave_one_out.hpp>
#include <turnwise/advantage/max_rl.hpp>
#include <turnwise/advantage/median_mad.hpp>
#include <turnwise/advantage/opo.hpp>
#include <turnwise/advantage/pass_at_k.hpp>
#include <turnwise/advantage/reinforce_plus_plus.hpp>
#include <turnwise/advantage/remax.hpp>
#include <turnwise/advantage/turn_return.hpp>
#include <turnwise/advantage/whiten.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

using turnwise::group_by;
using turnwise::grouping;
using turnwise::make_grouping;
using turnwise::reason_flags;
using turnwise::test::in_order;
using turnwise::test::integers;
using turnwise::test::ragged_batch;
using turnwise::test::random_order;
using turnwise::test::source_turns;
using turnwise::test::turn_values;
using namespace turnwise::advantage;

namespace {

/// What one call wrote, in the turn order of its batch.
template <typename T>
struct written {
  std::string call;
  std::vector<T> values;
};
template <typename T>
using results = std::vector<written<T>>;

constexpr group_by every_kind[]{group_by::group, group_by::turn, group_by::batch};

std::string name_of(group_by by) {
  return by == group_by::group ? " group" : by == group_by::turn ? " turn" : " batch";
}

/// A number that belongs to the turn, wherever it lies in memory.
std::uint64_t number_of(std::int64_t group, std::int64_t id, std::int64_t index) {
  return static_cast<std::uint64_t>(group) * 31 + static_cast<std::uint64_t>(id * 7 + index);
}

/// What methods take, a turn each.
template <typename T>
struct inputs {
  std::vector<T> turn_return, greedy;
  std::vector<reason_flags> reasons;
  std::vector<double> weight;
  std::vector<std::int64_t> tokens;
};

/// A rank computes these of its own trajectories, and may send them to others.
template <typename T>
inputs<T> inputs_of(ragged_batch<T> const& batch) {
  auto const view = batch.view();
  inputs<T> in{std::vector<T>(batch.turns()), {}, batch.reasons(), {}, {}};
  discounted_return(view, batch.value, {.gamma = 0.9}, std::span{in.reasons}, std::span{in.turn_return});
  for (std::size_t j = 0; j < view.trajectories(); ++j)
    for (std::size_t s = view.first_turn(j); s < view.first_turn(j + 1); ++s) {
      std::uint64_t const number = number_of(view.group_id[j], view.trajectory_id[j], view.index_of(j, s));
      if (turnwise::is_valid(in.reasons[s]) && number % 5 == 0) in.reasons[s] |= turnwise::reason::profiling;
      in.tokens.push_back(static_cast<std::int64_t>(number % 97));
      in.weight.push_back(static_cast<double>(number % 89) * 1.1e-3);
      in.greedy.push_back(static_cast<T>(static_cast<double>(number % 83) * 0.37));
    }
  return in;
}

/// Returns of every kind, and what looks at no other trajectory.
template <typename T>
void add_own(results<T>& all, ragged_batch<T> const& batch, inputs<T> const& in) {
  all.push_back({"discounted_return", in.turn_return});
  all.push_back({"reasons", {in.reasons.begin(), in.reasons.end()}});
  for (auto const kind : {return_kind::max, return_kind::last, return_kind::current, return_kind::best_so_far}) {
    double const gamma = kind == return_kind::max || kind == return_kind::last ? 0.9 : 1.0;  // the others take none
    auto reasons = batch.reasons();
    auto& out = all.emplace_back(
        written<T>{"turn_return " + std::to_string(static_cast<int>(kind)), std::vector<T>(batch.turns())});
    turn_return(batch.view(), batch.value, {.kind = kind, .gamma = gamma}, std::span{reasons}, std::span{out.values});
    all.push_back({out.call + ": reasons", {reasons.begin(), reasons.end()}});
  }
  auto& out = all.emplace_back(written<T>{"remax", std::vector<T>(batch.turns())});
  remax(in.turn_return, in.greedy, in.reasons, std::span{out.values});
}

/// Every method of which a group needs nothing but the group.
template <typename T>
void add_group_wise(results<T>& all, grouping const& groups, group_by by, inputs<T> const& in, int threads) {
  for (auto const members : {baseline_members::valid, baseline_members::kept}) {
    auto const next = [&](char const* method) -> std::span<T> {
      std::string const name = method + name_of(by) + (members == baseline_members::kept ? " kept" : " valid");
      return all.emplace_back(written<T>{name, std::vector<T>(groups.turns())}).values;
    };
    for (auto const exclude : {exclude_policy::trajectory, exclude_policy::member})
      // Over the whole batch nothing is lone but by accident, where `others` would visit all turns.
      leave_one_out(groups, in.turn_return, in.reasons,
                    {.singleton = by == group_by::batch ? singleton_policy::zero : singleton_policy::others,
                     .exclude = exclude,
                     .members = members,
                     .threads = threads},
                    next("leave_one_out"));
    for (bool const scale : {true, false}) {
      group_relative(groups, in.turn_return, in.reasons, {.scale = scale, .members = members, .threads = threads},
                     next("group_relative"));
      median_mad(groups, in.turn_return, in.reasons, {.scale = scale, .members = members, .threads = threads},
                 next("median_mad"));
      pass_at_k(groups, in.turn_return, in.reasons,
                {.k = scale ? 0 : 3, .scale = scale, .members = members, .threads = threads}, next("pass_at_k"));
    }
    opo(groups, in.turn_return, in.weight, in.reasons, {.members = members, .threads = threads}, next("opo"));
    max_rl(groups, in.turn_return, in.reasons, {.members = members, .threads = threads}, next("max_rl"));
  }
}

/// Batches in parts: each has its grouping and its inputs.
template <typename T>
struct part {
  grouping groups;
  inputs<T> in;
};

/// The methods that take a number from the whole batch, by their phases: parts in their order, one after the other.
template <typename T>
void add_by_phases(results<T>& all, std::vector<part<T>> const& parts, group_by by, int threads) {
  auto const gather = [&](std::string const& name, auto write) {
    auto& out = all.emplace_back(written<T>{name + name_of(by), std::vector<T>{}});
    for (std::size_t p = 0; p < parts.size(); ++p) {
      std::vector<T> here(parts[p].groups.turns());
      write(p, std::span<T>{here});
      out.values.insert(out.values.end(), here.begin(), here.end());
    }
  };
  for (auto const signal : {gpg_signal::group, gpg_signal::nonzero}) {
    gpg_options const options{.signal = signal, .threads = threads};
    gpg_counts counts;
    for (auto const& one : parts) counts += gpg_count<T>(one.groups, one.in.turn_return, one.in.reasons, options);
    gather("gpg", [&](std::size_t p, std::span<T> out) {
      gpg_apply(parts[p].groups, parts[p].in.turn_return, parts[p].in.reasons, counts, options, out);
    });
  }
  auto const add_whitened = [&](std::string const& name, bool weighted, bool centred) {
    whiten_options const options = weighted ? whiten_options::verl() : whiten_options{};
    auto const weight = [&](std::size_t p) {
      return weighted ? std::span<std::int64_t const>{parts[p].in.tokens} : std::span<std::int64_t const>{};
    };
    std::vector<std::vector<T>> value;
    for (auto const& one : parts) {
      value.push_back(one.in.turn_return);
      if (centred)
        group_relative(one.groups, one.in.turn_return, one.in.reasons, {.scale = false, .threads = threads},
                       std::span{value.back()});
    }
    whiten_moments moments;
    turnwise::exact_sum squares;
    for (std::size_t p = 0; p < parts.size(); ++p)
      moments += whiten_sum<T>(value[p], weight(p), parts[p].in.reasons, options);
    for (std::size_t p = 0; p < parts.size(); ++p)
      squares += whiten_squares<T>(value[p], weight(p), parts[p].in.reasons, moments, options);
    gather(name, [&](std::size_t p, std::span<T> out) {
      whiten_apply(value[p], parts[p].in.reasons, moments, squares, options, out);
    });
  };
  for (bool const weighted : {false, true}) {
    add_whitened("whiten", weighted, false);
    add_whitened("reinforce_plus_plus", weighted, false);
    add_whitened("reinforce_plus_plus: baseline", weighted, true);
  }
}

/// The same by one call each.
template <typename T>
void add_batch_wide(results<T>& all, grouping const& groups, group_by by, inputs<T> const& in, int threads) {
  auto const next = [&](std::string const& name) -> std::span<T> {
    return all.emplace_back(written<T>{name + name_of(by), std::vector<T>(groups.turns())}).values;
  };
  for (auto const signal : {gpg_signal::group, gpg_signal::nonzero})
    gpg(groups, in.turn_return, in.reasons, {.signal = signal, .threads = threads}, next("gpg"));
  for (bool const weighted : {false, true}) {
    whiten_options const options = weighted ? whiten_options::verl() : whiten_options{};
    auto const weight = weighted ? std::span<std::int64_t const>{in.tokens} : std::span<std::int64_t const>{};
    whiten(in.turn_return, weight, in.reasons, options, next("whiten"));
    for (bool const baseline : {false, true})
      reinforce_plus_plus(groups, in.turn_return, weight, in.reasons,
                          {.group_baseline = baseline, .whiten = options, .threads = threads},
                          next(baseline ? "reinforce_plus_plus: baseline" : "reinforce_plus_plus"));
  }
}

template <typename T>
results<T> everything(ragged_batch<T> const& batch, int threads) {
  auto const in = inputs_of(batch);
  results<T> all;
  add_own(all, batch, in);
  for (auto const by : every_kind) {
    auto const groups = make_grouping(batch.view(), by);
    add_group_wise(all, groups, by, in, threads);
    add_batch_wide(all, groups, by, in, threads);
  }
  return all;
}

template <typename T>
bool same_bits(std::vector<T> const& a, std::vector<T> const& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// `source` tells for each turn of `got` which turn of `expected` it is.
template <typename T>
void check_same(results<T> const& got, results<T> const& expected, std::vector<std::size_t> const& source) {
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(got[i].call);
    REQUIRE(got[i].call == expected[i].call);
    std::vector<T> wanted;
    for (std::size_t const s : source) wanted.push_back(expected[i].values[s]);
    REQUIRE(same_bits(got[i].values, wanted));
  }
}

/// Small groups, enough for several threads, and large ones on every side of the changes of the summation order.
std::vector<std::int64_t> group_sizes(integers& random) {
  std::vector<std::int64_t> sizes{1, 2, 31, 32, 33, 64, 100, 300};
  for (int i = 0; i < 700; ++i) sizes.push_back(1 + random.below(4));
  return sizes;
}

#ifdef NDEBUG
constexpr int orders = 100;
#else
constexpr int orders = 15;  // builds with sanitizers look for other faults, at many times the time
#endif

template <typename T>
void check_orders(std::vector<turn_values<T>> const& trajectories, integers& random) {
  auto const expected = everything(ragged_batch<T>{trajectories}, 1);
  for (int repeat = 0; repeat < orders; ++repeat) {
    auto const order = random_order(trajectories.size(), random);
    check_same(everything(ragged_batch<T>{in_order(trajectories, order)}, 1 + repeat % 2), expected,
               source_turns(trajectories, order));
  }
}

/// The trajectories of each shard; of whole groups, or dealt out singly.
template <typename T>
std::vector<std::vector<std::size_t>> dealt(std::vector<turn_values<T>> const& trajectories, std::size_t shards,
                                            bool whole_groups) {
  std::vector<std::vector<std::size_t>> result(shards);
  for (std::size_t j = 0; j < trajectories.size(); ++j) {
    auto const group = static_cast<std::uint64_t>(trajectories[j].group);
    std::uint64_t const mixed = (whole_groups ? group : group + 977 * j) * 0x9E3779B97F4A7C15u;
    result[(mixed >> 32) % shards].push_back(j);
  }
  for (auto const& shard : result) REQUIRE(!shard.empty());
  return result;
}

}  // namespace

TEST_SUITE("advantage/determinism") {
  TEST_CASE_TEMPLATE("the same bits for many orders of trajectories in memory, with 1 and 2 threads", T, float,
                     double) {
    integers random{2026};
    auto const sizes = group_sizes(random);
    check_orders(turnwise::test::random_values<T>(random, sizes, 5), random);
  }

  TEST_CASE_TEMPLATE("a group of more than 4096 turns, in many orders", T, float, double) {
    integers random{99};
    std::vector<std::int64_t> const sizes{300};
    auto const trajectories = turnwise::test::random_values<T>(random, sizes, 40);
    REQUIRE(ragged_batch<T>{trajectories}.turns() > 4096);
    check_orders(trajectories, random);
  }

  TEST_CASE_TEMPLATE("the same bits for any number of threads", T, float, double) {
    integers random{7};
    std::vector<std::int64_t> const sizes(20'000, 2);
    ragged_batch<T> const batch{turnwise::test::random_values<T>(random, sizes, 3)};
    auto const expected = everything(batch, 1);
    for (int const threads : {0, 2, 3, 8}) {
      auto const got = everything(batch, threads);
      for (std::size_t i = 0; i < got.size(); ++i) {
        CAPTURE(got[i].call);
        CHECK(same_bits(got[i].values, expected[i].values));
      }
    }
  }

  TEST_CASE_TEMPLATE("a shard of whole groups gives the bits of the whole batch", T, float, double) {
    integers random{17};
    auto const sizes = group_sizes(random);
    auto const trajectories = turnwise::test::random_values<T>(random, sizes, 5);
    ragged_batch<T> const whole{trajectories};
    auto const in = inputs_of(whole);
    for (std::size_t const shards : {1u, 2u, 8u})
      for (auto const by : {group_by::group, group_by::turn}) {
        results<T> expected, batch_wide, by_phases;
        add_own(expected, whole, in);
        add_group_wise(expected, make_grouping(whole.view(), by), by, in, 1);
        add_batch_wide(batch_wide, make_grouping(whole.view(), by), by, in, 1);
        std::vector<std::size_t> all_in_order;
        std::vector<part<T>> parts;
        for (auto const& order : dealt(trajectories, shards, true)) {
          ragged_batch<T> const shard{in_order(trajectories, order)};
          parts.push_back({make_grouping(shard.view(), by), inputs_of(shard)});
          results<T> got;
          add_own(got, shard, parts.back().in);
          add_group_wise(got, parts.back().groups, by, parts.back().in, 1);
          check_same(got, expected, source_turns(trajectories, order));
          all_in_order.insert(all_in_order.end(), order.begin(), order.end());
        }
        add_by_phases(by_phases, parts, by, 1);
        check_same(by_phases, batch_wide, source_turns(trajectories, all_in_order));
      }
  }

  TEST_CASE_TEMPLATE("shards of any trajectories that exchange returns give the bits of the whole batch", T, float,
                     double) {
    integers random{18};
    auto const sizes = group_sizes(random);
    auto const trajectories = turnwise::test::random_values<T>(random, sizes, 5);
    auto const expected = everything(ragged_batch<T>{trajectories}, 1);
    for (std::size_t const shards : {1u, 2u, 8u}) {
      std::vector<std::size_t> order;
      inputs<T> received;
      auto const append = [](auto& to, auto const& from) { to.insert(to.end(), from.begin(), from.end()); };
      for (auto const& own : dealt(trajectories, shards, false)) {
        auto const sent = inputs_of(ragged_batch<T>{in_order(trajectories, own)});
        append(received.turn_return, sent.turn_return);
        append(received.greedy, sent.greedy);
        append(received.reasons, sent.reasons);
        append(received.weight, sent.weight);
        append(received.tokens, sent.tokens);
        append(order, own);
      }
      ragged_batch<T> const gathered{in_order(trajectories, order)};
      results<T> got;
      add_own(got, gathered, received);
      for (auto const by : every_kind) {
        auto const groups = make_grouping(gathered.view(), by);
        add_group_wise(got, groups, by, received, 2);
        add_batch_wide(got, groups, by, received, 2);
      }
      check_same(got, expected, source_turns(trajectories, order));
    }
  }

}  // TEST_SUITE
