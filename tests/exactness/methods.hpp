/// The exactness programs' lines for returns, baselines and filters that no recipe of step_digest.cpp calls.
#pragma once

#include "exactness/settled_turns.hpp"

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace digest {

inline void returns(std::string const& shape, sample_batch<double> const& batch, settled_turns const& turns) {
  using advantage::return_kind;
  hash all;
  for (auto const kind : {return_kind::discounted_sum, return_kind::max, return_kind::last, return_kind::current,
                          return_kind::best_so_far}) {
    std::vector<reason_flags> reasons(batch.turns());
    begin_reasons(batch.view(), reasons);
    std::vector<double> result(batch.turns());
    advantage::turn_return(batch.view(), turns.reward, {.kind = kind, .gamma = advantage::uses_gamma(kind) ? 0.4 : 1.0},
                           reasons, std::span{result});
    all.add(result), all.add(reasons);
  }
  print(shape, "turn returns", all.value());
}

inline void group_wise(std::string const& shape, sample_batch<double> const& batch, settled_turns const& turns) {
  using namespace advantage;
  std::vector<double> weight(batch.turns());
  std::vector<std::int64_t> tokens(batch.turns());
  for (std::size_t s = 0; s < batch.turns(); ++s) {
    tokens[s] = batch.turn_end[s] - batch.turn_begin[s];
    weight[s] = static_cast<double>(tokens[s]) * 0.013;
  }
  for (auto const by : {group_by::group, group_by::turn, group_by::batch}) {
    auto const groups = make_grouping(batch.view(), by);
    std::string const name = by == group_by::group ? " by group" : by == group_by::turn ? " by turn" : " of the batch";
    auto const add = [&](std::string const& method, auto call) {
      print_threads(shape, method + name, [&](int threads) {
        hash all;
        for (auto const members : {baseline_members::valid, baseline_members::kept}) {
          std::vector<double> result(batch.turns());
          call(members, threads, std::span{result});
          all.add(result);
        }
        return all.value();
      });
    };
    auto const& value = turns.turn_return;
    auto const& reasons = turns.reasons;
    if (by != group_by::batch)
      add("leave one out, scaled", [&](auto members, int threads, std::span<double> out) {
        leave_one_out(groups, value, reasons,
                      {.members = members, .allow_kept_with_keep = true, .threads = threads, .scale = true}, out);
      });
    add("opo", [&](auto members, int threads, std::span<double> out) {
      opo(groups, value, std::span<double const>{weight}, reasons, {members, threads}, out);
    });
    add("max_rl", [&](auto members, int threads, std::span<double> out) {
      max_rl(groups, value, reasons, {1e-6, members, threads}, out);
    });
    add("median_mad", [&](auto members, int threads, std::span<double> out) {
      median_mad(groups, value, reasons, {true, 1e-6, members, threads}, out);
    });
    for (std::int64_t const k : {0, 3})
      add("pass_at_k " + std::to_string(k), [&](auto members, int threads, std::span<double> out) {
        pass_at_k(groups, value, reasons, {k, true, 1e-6, members, threads}, out);
      });
    add("gpg", [&](auto members, int threads, std::span<double> out) {
      gpg(groups, value, reasons, {gpg_signal::group, members, threads}, out);
    });
    add("reinforce_plus_plus", [&](auto members, int threads, std::span<double> out) {
      reinforce_plus_plus(groups, value, tokens, reasons,
                          {.group_baseline = true, .whiten = {.members = members}, .threads = threads}, out);
    });
  }
}

inline void rules(std::string const& shape, sample_batch<double> const& batch,
                  std::vector<importance::turn_statistics> const& statistics, settled_turns const& turns) {
  using namespace rejection;
  std::vector<importance::turn_divergence> sums(batch.turns());
  print_threads(shape, "divergence sums", [&](int threads) {
    importance::divergence_sums(batch.view(), batch.tokens(), std::span{sums}, threads);
    return hash_of(sums);
  });
  hash all;
  auto const add = [&](auto rule) {
    auto reasons = turns.reasons;
    rule(std::span{reasons});
    all.add(reasons);
  };
  for (auto const estimate : {divergence_estimate::k1, divergence_estimate::k2, divergence_estimate::k3})
    for (auto const aggregate : {token_aggregate::sum, token_aggregate::mean, token_aggregate::max})
      for (auto const level : {scope::turn, scope::trajectory})
        add([&](std::span<reason_flags> reasons) {
          divergence_limit(batch.view(), statistics, sums, {estimate, aggregate, level, -0.001, 0.001}, reasons);
        });
  add([&](std::span<reason_flags> reasons) {
    off_policy_mask(batch.view(), statistics, std::span<double const>{turns.turn_return}, {}, reasons);
  });
  auto const groups = make_grouping(batch.view(), group_by::group);
  for (auto const measure : {spread_measure::range, spread_measure::deviation})
    add([&](std::span<reason_flags> reasons) {
      group_spread(groups, std::span<double const>{turns.turn_return}, {.measure = measure, .threshold = 0.3}, reasons);
    });
  for (auto const level : {scope::turn, scope::trajectory})
    add([&](std::span<reason_flags> reasons) {
      down_sampling(batch.view(), groups, {.target = 2, .level = level}, {.seed = 3, .step = 4}, reasons);
    });
  for (auto const level : {scope::turn, scope::trajectory})
    add([&](std::span<reason_flags> reasons) {
      group_accuracy(groups, std::span<double const>{turns.turn_return}, {.level = level}, reasons);
    });
  add([&](std::span<reason_flags> reasons) { staleness(batch.view(), turns.version, {.max_lag = 3}, reasons); });
  print(shape, "selection rules", all.value());
}

inline void methods(std::string const& shape, sample_batch<double> const& batch,
                    std::vector<importance::turn_statistics> const& statistics, settled_turns const& turns) {
  returns(shape, batch, turns);
  group_wise(shape, batch, turns);
  rules(shape, batch, statistics, turns);
}

}  // namespace digest
