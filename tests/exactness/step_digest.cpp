/// Prints one line a batch and quantity: a hash of the bits of everything the library decides. Every build of this
/// program, whatever the compiler, its flags and OpenMP, must print the same text; each call that takes threads is made
/// with one, with two and with as many as the runtime likes.
#include "exactness/methods.hpp"
#include "exactness/recipes.hpp"
#include "exactness/records.hpp"
#include "exactness/rewards.hpp"
#include "exactness/tokens.hpp"

#include <turnwise/turnwise.hpp>

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace turnwise;
using digest::hash;
using digest::hash_of;
using digest::print;
using digest::print_threads;
using digest::typed_batch;
using test::infinity;
using test::sample_batch;
using test::sample_trajectory;

/// The upper half of a float, as a user would bring it.
struct bfloat16 {
  std::uint16_t bits = 0;
  bfloat16() = default;
  explicit bfloat16(double value)
      : bits(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(value)) >> 16)) {}
  explicit operator float() const { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
};

std::string const level_names[]{"turn", "trajectory"};

template <typename Old, typename Rollout>
void digest_tokens(std::string const& shape, typed_batch<Old, Rollout> const& batch) {
  std::size_t const turns = batch.arrays.turns();
  auto const view = batch.arrays.view();
  print_threads(shape, "statistics", [&](int threads) {
    std::vector<importance::turn_statistics> statistics(turns);
    importance::log_ratio_statistics(view, batch.tokens(), statistics, threads);
    return hash_of(statistics);
  });
  print_threads(shape, "statistics with moments", [&](int threads) {
    std::vector<importance::turn_statistics> statistics(turns);
    std::vector<importance::ratio_moments> moments(turns);
    importance::log_ratio_statistics(view, batch.tokens(), statistics, moments, threads);
    return hash_of(statistics, moments);
  });
}

void digest_filters(std::string const& shape, sample_batch<double> const& batch,
                    std::vector<importance::turn_statistics> const& statistics) {
  using namespace rejection;
  auto const reasons_after = [&](auto rule) {
    std::vector<reason_flags> reasons(batch.turns());
    begin_reasons(batch.view(), reasons);
    rule(reasons);
    return reasons;
  };
  for (auto const policy : {non_finite_policy::reject, non_finite_policy::neutral})
    for (scope const of : {scope::turn, scope::trajectory}) {
      std::string const usable =
          std::string{policy == non_finite_policy::reject ? "reject " : "neutral "} + level_names[static_cast<int>(of)];
      auto const begin = reasons_after([&](auto& r) { usable_tokens(batch.view(), statistics, {policy, of}, r); });
      print(shape, "usable " + usable, hash_of(begin));
      for (scope const level : {scope::turn, scope::trajectory}) {
        std::string const name = usable + ", level " + level_names[static_cast<int>(level)];
        for (ratio_kind const kind : {ratio_kind::geometric, ratio_kind::product})
          for (auto const& [low, high] :
               {std::pair{0.999, 1.001}, {1.0, 1.0}, {0.9, 1.2}, {0.0, 1.0}, {0.5, infinity}}) {
            auto reasons = begin;
            ratio_band(batch.view(), statistics, {level, kind, low, high}, reasons);
            print(shape,
                  "band " + name + (kind == ratio_kind::product ? " product " : " geometric ") + std::to_string(low),
                  hash_of(reasons));
          }
        hash veto;
        for (double const threshold : {1e-4, 0.9, 1.0, 0.0, 1e-30, 2.0}) {
          auto reasons = begin;
          token_veto(batch.view(), statistics, {threshold, level}, reasons);
          veto.add(reasons);
        }
        print(shape, "veto " + name, veto.value());
        std::vector<double> ratio(batch.turns());
        geometric_ratio(batch.view(), statistics, begin, level, ratio);
        print(shape, "geometric ratio " + name, hash_of(ratio));
      }
    }
  hash draws;
  for (double const softness : {0.1, 0.0, 0.7})
    for (double const threshold : {0.3, 0.0, 0.5})
      for (bool const all : {false, true})
        for (auto const policy : {invalid_profile_policy::reject, invalid_profile_policy::keep})
          for (std::uint32_t const step : {0u, 1u, 0xffffffffu})
            draws.add(reasons_after([&](auto& r) {
              profiling_filter(batch.view(), batch.evaluation(),
                               {.threshold = threshold,
                                .softness = softness,
                                .keep_speedup = 3,
                                .all_turns = all,
                                .invalid_profile = policy},
                               {.seed = 9, .step = step}, r);
            }));
  print(shape, "profiling filter", draws.value());
}

void digest_baselines(std::string const& shape, sample_batch<double> const& batch,
                      std::vector<importance::turn_statistics> const& statistics) {
  using namespace advantage;
  std::size_t const turns = batch.turns();
  std::vector<reason_flags> first(turns);
  begin_reasons(batch.view(), first);

  reward::kernel_reward_options const weights{.correct_weight = 0.3,
                                              .speedup_weight = 1.1,
                                              .profiling_weight = 0.7,
                                              .speedup_cap = 3.3,
                                              .speedup_floor = 0.4,
                                              .compile_failure_penalty = -0.3,
                                              .decoy_penalty = -0.1};
  std::vector<double> reward(turns);
  reward::kernel_reward(batch.evaluation(), weights, first, std::span{reward});
  print(shape, "kernel reward", hash_of(reward));
  std::vector<float> narrow(turns);
  reward::kernel_reward(batch.evaluation(), weights, first, std::span{narrow});
  print(shape, "kernel reward in float", hash_of(narrow));

  std::string const group_names[]{"group", "turn", "batch"};
  for (auto const by : {group_by::group, group_by::turn, group_by::batch}) {
    auto const groups = make_grouping(batch.view(), by);
    std::string const grouped = " by " + group_names[static_cast<int>(by)];
    print_threads(shape, "group gate" + grouped, [&](int threads) {
      hash gate;
      for (double const alpha : {0.5, 0.3, 0.0, 1.0}) {
        std::vector<double> gated(turns);
        reward::group_gate(groups, batch.evaluation(), {alpha, 0.1, 0.01, threads}, first, std::span{gated});
        gate.add(gated);
      }
      return gate.value();
    });
    for (double const gamma : {1.0, 0.4, 0.0}) {
      std::string const discounted = grouped + ", gamma " + std::to_string(gamma);
      for (auto const unscored : {unscored_policy::exclude, unscored_policy::zero}) {
        auto reasons = first;
        std::vector<double> turn_return(turns);
        discounted_return(batch.view(), reward, {gamma, unscored}, reasons, std::span{turn_return});
        std::string const name = discounted + (unscored == unscored_policy::zero ? ", zero" : "");
        if (by == group_by::group) print(shape, "return" + name, hash_of(turn_return, reasons));
        rejection::usable_tokens(batch.view(), statistics, {}, reasons);
        rejection::ratio_band(batch.view(), statistics, {.level = rejection::scope::turn, .low = 0.95, .high = 1.05},
                              reasons);

        for (auto const members : {baseline_members::valid, baseline_members::kept}) {
          std::string const of = name + (members == baseline_members::kept ? ", kept" : "");
          print_threads(shape, "leave one out" + of, [&](int threads) {
            hash all;
            for (auto const singleton : {singleton_policy::keep, singleton_policy::zero, singleton_policy::others})
              for (auto const exclude : {exclude_policy::trajectory, exclude_policy::member}) {
                std::vector<double> result(turns);
                leave_one_out(groups, turn_return, reasons, {singleton, exclude, members, true, threads},
                              std::span{result});
                all.add(result);
              }
            return all.value();
          });
          print_threads(shape, "group relative" + of, [&](int threads) {
            hash all;
            for (bool const scale : {true, false})
              for (int const ddof : {0, 1})
                for (double const epsilon : {1e-6, 1e-4, 0.0}) {
                  std::vector<double> result(turns);
                  group_relative(groups, turn_return, reasons, {scale, ddof, epsilon, members, threads},
                                 std::span{result});
                  all.add(result);
                }
            return all.value();
          });
        }
      }
    }
  }
}

template <typename Old, typename Rollout>
void digest_types(std::string const& shape, std::vector<sample_trajectory> const& trajectories, bool masked) {
  typed_batch<Old, Rollout> const batch{trajectories, masked};
  digest_tokens(shape, batch);
  digest::recipes(shape, batch);
  if constexpr (std::same_as<Old, double>) digest::recipes_of_one_type(shape, batch);
}

void digest_batch(std::string const& shape, std::vector<sample_trajectory> const& trajectories) {
  digest_types<float, float>(shape + " f32", trajectories, true);
  digest_types<float, float>(shape + " f32 unmasked", trajectories, false);
  digest_types<double, double>(shape + " f64", trajectories, true);
  digest_types<double, double>(shape + " f64 unmasked", trajectories, false);
  digest_types<float, double>(shape + " f32, f64", trajectories, true);
  digest_types<bfloat16, float>(shape + " bf16, f32", trajectories, false);
  sample_batch<double> const batch{trajectories};
  std::vector<importance::turn_statistics> statistics(batch.turns());
  importance::log_ratio_statistics(batch.view(), batch.tokens(), statistics);
  digest_filters(shape, batch, statistics);
  digest_baselines(shape, batch, statistics);
  digest::settled_turns const turns{batch, statistics};
  digest::rewards(shape, batch, turns);
  digest::methods(shape, batch, statistics, turns);
  digest::tokens(shape, batch, statistics, turns);
  digest::records(shape, batch, turns);
}

}  // namespace

int main() {
  digest_batch("empty", {});
  digest_batch("no turns", {{.id = 1}, {.id = 2}});
  digest_batch("one token", {{.turns = {{.log_ratio = {0.1}, .correct = true, .speedup = 1.7}}}});
  digest_batch("ragged", test::random_trajectories(1, 60, 6, 90));
  digest_batch("short turns", digest::full_precision(2, 12, 9, 4, 9, 0));
  digest_batch("long turns", digest::full_precision(3, 3, 4, 3, 9000, -2));
  digest_batch("close", digest::full_precision(4, 16, 16, 3, 60, -9));
  digest_batch("wide", digest::full_precision(5, 8, 8, 3, 300, 7));
  digest_batch("large group", digest::full_precision(6, 1, 3000, 2, 3, -3));
  digest_batch("middle group", digest::full_precision(7, 3, 60, 3, 5, -3));
  digest_batch("garbage", digest::garbage());
  digest_batch("edges", digest::edges());
}
