/// Prints one line a batch and quantity: a hash of the bits of everything the library decides. Every build of this
/// program, whatever the compiler, its flags and OpenMP, must print the same text; each call that takes threads is made
/// with one, with two and with as many as the runtime likes.
#include "exactness/methods.hpp"
#include "support/batches.hpp"

#include <turnwise/turnwise.hpp>

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using namespace turnwise;
using digest::hash;
using digest::hash_of;
using digest::print;
using digest::print_threads;
using test::infinity;
using test::integers;
using test::nan_value;
using test::sample_batch;
using test::sample_trajectory;
using test::sample_turn;

/// The upper half of a float, as a user would bring it.
struct bfloat16 {
  std::uint16_t bits = 0;
  bfloat16() = default;
  explicit bfloat16(double value)
      : bits(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(value)) >> 16)) {}
  explicit operator float() const { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
};

/// A batch with log-probs of two types.
template <typename Old, typename Rollout>
struct typed_batch {
  sample_batch<double> arrays;
  std::vector<Old> old_logprob;
  std::vector<Rollout> rollout_logprob;
  bool masked;

  typed_batch(std::vector<sample_trajectory> const& trajectories, bool with_mask)
      : arrays(trajectories), masked(with_mask) {
    for (double const value : arrays.old_logprob) old_logprob.push_back(static_cast<Old>(value));
    for (double const value : arrays.rollout_logprob) rollout_logprob.push_back(static_cast<Rollout>(value));
  }
  [[nodiscard]] token_logprobs<Old, Rollout> tokens() const {
    return {old_logprob, rollout_logprob,
            masked ? std::span<std::uint8_t const>{arrays.mask} : std::span<std::uint8_t const>{}};
  }
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
void digest_recipes(std::string const& shape, typed_batch<Old, Rollout> const& batch) {
  std::size_t const turns = batch.arrays.turns();
  std::size_t const tokens = batch.old_logprob.size();
  recipe::step_inputs<Old, Rollout, double> const inputs{batch.tokens(), batch.arrays.evaluation(), {}};
  auto const step = [&](std::string const& name, auto call) {
    metrics::mismatch_record record;
    std::uint64_t metrics_hash = 0;
    print_threads(shape, name, [&](int threads) {
      std::vector<double> reward(turns), turn_return(turns), advantage(turns);
      std::vector<reason_flags> reasons(turns);
      std::vector<importance::turn_statistics> statistics(turns);
      std::vector<float> token_advantage(tokens);
      std::vector<std::uint8_t> token_mask(tokens);
      call(threads, recipe::step_outputs{reward, turn_return, advantage, reasons, statistics, token_advantage,
                                         token_mask, &record});
      metrics_hash = hash_of(record);
      return hash_of(reward, turn_return, advantage, reasons, statistics, token_advantage, token_mask);
    });
    print(shape, name + " metrics", metrics_hash);
  };
  draw_key const key{.seed = 1, .step = 2};
  for (bool const paper : {true, false})
    step(paper ? "dr_kernel paper" : "dr_kernel released", [&](int threads, recipe::step_outputs const& out) {
      auto options = paper ? recipe::dr_kernel_options::paper() : recipe::dr_kernel_options::released();
      options.threads = threads;
      recipe::dr_kernel(batch.arrays.view(), inputs, options, key, out);
    });
  for (auto const by : {group_by::group, group_by::turn})
    step(by == group_by::group ? "kernel_zero" : "kernel_zero by turn",
         [&](int threads, recipe::step_outputs const& out) {
           recipe::kernel_zero(batch.arrays.view(), inputs,
                               {.groups = by, .reward = {.alpha = 0.3}, .threads = threads}, key, out);
         });
}

template <typename Old, typename Rollout>
void digest_types(std::string const& shape, std::vector<sample_trajectory> const& trajectories, bool masked) {
  typed_batch<Old, Rollout> const batch{trajectories, masked};
  digest_tokens(shape, batch);
  digest_recipes(shape, batch);
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
  digest::methods(shape, batch, statistics);
}

/// A fraction of 2^-bits, in [0, 1).
double fraction(integers& random, int bits) { return std::ldexp(static_cast<double>(random() >> (64 - bits)), -bits); }

/// A fraction times a power of two up to 2^highest, of which `powers` are possible.
double spread(integers& random, int bits, int highest, std::int64_t powers) {
  double const value = fraction(random, bits);  // arguments of one call are evaluated in any order
  return std::ldexp(value, highest - static_cast<int>(random.below(powers)));
}

void evaluate(sample_turn& turn, integers& random) {
  turn.correct = random.below(4) != 0;
  turn.compiled = random.below(12) != 0;
  turn.decoy = random.below(9) == 0;
  turn.valid = random.below(12) != 0;
  turn.speedup = spread(random, 40, 5, 7);
  turn.total_us = std::ldexp(fraction(random, 30), 12);
  turn.generated_us = std::ldexp(fraction(random, 30), 12);
}

/// Log-probs with all their bits, turns up to a length.
std::vector<sample_trajectory> full_precision(std::uint64_t seed, std::int64_t groups, std::int64_t members,
                                              std::int64_t most_turns, std::int64_t most_tokens, int scale) {
  integers random{seed};
  std::vector<sample_trajectory> result;
  for (std::int64_t g = 0; g < groups; ++g)
    for (std::int64_t k = 0; k < members; ++k) {
      sample_trajectory trajectory{.group = 7 - 5 * g, .id = 3 * k};
      std::int64_t const turns = random.below(most_turns + 1);
      for (std::int64_t t = 0; t < turns; ++t) {
        sample_turn turn;
        turn.log_ratio.clear();
        std::int64_t const tokens = random.below(most_tokens + 1);
        for (std::int64_t i = 0; i < tokens; ++i) {
          double const size = spread(random, 52, scale, 8);
          turn.log_ratio.push_back(random.below(2) == 0 ? size : -size);
          turn.rollout_logprob.push_back(-spread(random, 52, 5, 6));
          turn.mask.push_back(random.below(6) != 0);
        }
        evaluate(turn, random);
        trajectory.turns.push_back(std::move(turn));
      }
      result.push_back(std::move(trajectory));
    }
  return result;
}

/// NaN, infinities, saturation, subnormals and zeros of both signs among ordinary tokens.
std::vector<sample_trajectory> garbage() {
  integers random{77};
  std::vector<double> const values{0.0,  -0.0,  nan_value, -nan_value, infinity, -infinity, 64,      -64, 64.01, -64.01,
                                   1e30, -1e30, 1e-42,     -1e-320,    0x1p-24,  -0x1p-25,  0x3p-25, 700, -700,  1e300};
  std::vector<sample_trajectory> result;
  for (std::int64_t k = 0; k < 60; ++k) {
    sample_trajectory trajectory{.group = k / 4, .id = k};
    for (std::int64_t t = 0; t < 3; ++t) {
      sample_turn turn;
      turn.log_ratio.clear();
      std::int64_t const tokens = random.below(40);
      std::int64_t const rare = k < 20 ? 2 : 60;
      for (std::int64_t i = 0; i < tokens; ++i) {
        bool const odd = random.below(rare) == 0;
        auto const pick = static_cast<std::size_t>(random.below(static_cast<std::int64_t>(values.size())));
        turn.log_ratio.push_back(odd ? values[pick] : std::ldexp(fraction(random, 50), -6));
        turn.rollout_logprob.push_back(random.below(90) == 0 ? -infinity : odd ? 0.0 : -fraction(random, 50));
        turn.mask.push_back(random.below(7) != 0);
      }
      evaluate(turn, random);
      if (random.below(8) == 0) turn.speedup = nan_value;
      if (random.below(5) == 0) turn.total_us = nan_value;
      if (random.below(9) == 0) turn.generated_us = -1;
      trajectory.turns.push_back(std::move(turn));
    }
    result.push_back(std::move(trajectory));
  }
  return result;
}

/// Everything at its edge: log ratios at log(1e-4) and its neighbours, means at the band, profiling ratios at the ends
/// of the ramp, lone members, equal returns, decoys, invalid turns.
std::vector<sample_trajectory> edges() {
  integers random{5};
  double const veto = -9.210340371976184;
  std::vector<double> const tokens{veto,
                                   std::nextafter(veto, 0.0),
                                   std::nextafter(veto, -10.0),
                                   -9.2,
                                   -9.23,
                                   -0.0010005003335835344,
                                   0.0009995003330834232,
                                   0.001,
                                   -0.001,
                                   0,
                                   -30};
  std::vector<double> const shares{0, 0.3, 0.304, 0.35, 0.4, 1, 1.25, -0.5};
  std::vector<double> const speedups{0, 0.5, 1, 3, 3.3, 50};
  std::vector<sample_trajectory> result;
  for (std::int64_t k = 0; k < 120; ++k) {
    sample_trajectory trajectory{.group = k % 5 < 3 ? 97 * (k / 5) : -k, .id = k};
    std::int64_t const turns = 1 + random.below(3);
    for (std::int64_t t = 0; t < turns; ++t) {
      auto const pick = [&](auto const& of) {
        return of[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(of.size())))];
      };
      double const token = pick(tokens);
      std::int64_t const count = 1 + random.below(70);
      sample_turn turn{.log_ratio = std::vector<double>(static_cast<std::size_t>(count), token)};
      if (random.below(2) == 0) turn.log_ratio[0] = 0;
      turn.correct = random.below(3) != 0;
      turn.decoy = random.below(6) == 0;
      turn.valid = random.below(12) != 0;
      turn.speedup = pick(speedups);
      turn.total_us = random.below(9) == 0 ? 0.0 : 512;
      turn.generated_us = 512 * pick(shares);
      turn.index = 3 * t + 1;
      trajectory.turns.push_back(std::move(turn));
    }
    result.push_back(std::move(trajectory));
  }
  return result;
}

}  // namespace

int main() {
  digest_batch("empty", {});
  digest_batch("no turns", {{.id = 1}, {.id = 2}});
  digest_batch("one token", {{.turns = {{.log_ratio = {0.1}, .correct = true, .speedup = 1.7}}}});
  digest_batch("ragged", test::random_trajectories(1, 60, 6, 90));
  digest_batch("short turns", full_precision(2, 12, 9, 4, 9, 0));
  digest_batch("long turns", full_precision(3, 3, 4, 3, 9000, -2));
  digest_batch("close", full_precision(4, 16, 16, 3, 60, -9));
  digest_batch("wide", full_precision(5, 8, 8, 3, 300, 7));
  digest_batch("large group", full_precision(6, 1, 3000, 2, 3, -3));
  digest_batch("middle group", full_precision(7, 3, 60, 3, 5, -3));
  digest_batch("garbage", garbage());
  digest_batch("edges", edges());
}
