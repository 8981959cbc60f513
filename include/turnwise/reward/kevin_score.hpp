/// @file
/// Score of a written kernel: a constant for correctness, and the speedup.
#pragma once

#include <turnwise/reward/kernel_reward.hpp>

#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <string_view>

namespace turnwise::reward {

/// The defaults are those of the Kevin paper.
struct kevin_score_options {
  double correct_weight = 0.3;                                   ///< w_c
  double speedup_weight = 1.0;                                   ///< w_s
  double speedup_cap = std::numeric_limits<double>::infinity();  ///< larger speedups count as this
  double speedup_floor = 0.0;                                    ///< smaller speedups count as 0
  double failure_penalty = 0.0;                                  ///< the score where C = 0

  /// The options of kernel_reward that mean the same: no profiling ratio, one penalty for all failures.
  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr kernel_reward_options as_kernel_reward() const noexcept {
    kernel_reward_options options;
    options.correct_weight = correct_weight;
    options.speedup_weight = speedup_weight;
    options.profiling_weight = 0;
    options.speedup_cap = speedup_cap;
    options.speedup_floor = speedup_floor;
    options.compile_failure_penalty = options.rule_violation_penalty = failure_penalty;
    options.decoy_penalty = options.incorrect_penalty = failure_penalty;
    return options;
  }
};

namespace detail {

template <real T>
void check_kevin_score(kevin_score_options const& options) {
  constexpr std::string_view name = "kevin_score";
  check_reward_option<T>(options.correct_weight, name, "correct_weight");
  check_reward_option<T>(options.speedup_weight, name, "speedup_weight");
  check_reward_option<T>(options.failure_penalty, name, "failure_penalty");
  check_speedup_limits(options.speedup_floor, options.speedup_cap, name);
}

}  // namespace detail

/// Score of each turn: kernel_reward without its profiling ratio.
///
///     score = w_c + w_s * S   where C = 1;   the penalty, where C = 0
///     S = speedup, 0 below the floor, the cap above the cap
///
/// Also called: Kevin score, 0.3 correct + speedup.
/// @param[in]  turns    evaluation arrays, [S] each; read only where C = 1. The profile is not used and may be empty.
/// @param[in]  options  weights, cap, floor, penalty.
/// @param[in]  reasons  [S] as begin_reasons wrote them, or empty; turns flagged off are not judged.
/// @param[out] reward   [S]; NaN (unscored) where C = 1 and the speedup is NaN.
/// @throws precondition_error  sizes that differ, a weight or penalty not finite or beyond magnitude_limit of T, cap
///         below floor; a speedup, of a turn with C = 1 that is not flagged off, that is infinite or makes its score go
///         beyond that limit; nothing is written.
/// @note  Deterministic: the same bits for any compiler and thread count.
/// @par Complexity  O(S), no allocation.
/// @par Reference   Kevin, arXiv:2507.11948.
template <real E, real T>
void kevin_score(evaluation<E> const& turns, kevin_score_options const& options, std::span<reason_flags const> reasons,
                 std::span<T> reward) {
  check_evaluation(turns, reward.size(), "kevin_score");
  if (!reasons.empty()) expects_size("kevin_score", "reasons", reasons.size(), reward.size(), "turn");
  detail::check_kevin_score<T>(options);
  for (std::size_t s = 0; s < reward.size(); ++s)
    expects(!turns.counts_as_correct(s) || (!reasons.empty() && (reasons[s] & reason::invalid) != 0) ||
                !std::isinf(turns.speedup[s]),
            "kevin_score: speedup[", s, "] is infinite");
  kernel_reward_options const as_kernel = options.as_kernel_reward();
  detail::write_rewards(turns, reasons, "kevin_score", reward, [&](std::size_t s) {
    return turns.counts_as_correct(s) ? correct_kernel_reward(turns.speedup[s], 0, 0, as_kernel)
                                      : options.failure_penalty;
  });
}

}  // namespace turnwise::reward
