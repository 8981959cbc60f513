/// @file
/// Reward of a written kernel: correctness, speed, and how much of the device time its own kernels take.
#pragma once

#include <turnwise/core/concepts.hpp>
#include <turnwise/core/error.hpp>
#include <turnwise/core/reason.hpp>
#include <turnwise/reward/detail/reward_limits.hpp>
#include <turnwise/reward/evaluation.hpp>

#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <string_view>

namespace turnwise::reward {

/// Weights and limits of kernel_reward. The defaults are those of the Dr. Kernel paper.
struct kernel_reward_options {
  double correct_weight = 1.0;                                   ///< w_c
  double speedup_weight = 1.0;                                   ///< w_s
  double profiling_weight = 1.0;                                 ///< w_p
  double speedup_cap = std::numeric_limits<double>::infinity();  ///< larger speedups count as this
  double speedup_floor = 0.0;                                    ///< smaller speedups count as 0
  /// What replaces the reward when C = 0; the first that applies, in this order.
  double compile_failure_penalty = 0.0;
  double rule_violation_penalty = 0.0;  ///< it broke a rule of the task
  double decoy_penalty = 0.0;           ///< it is a decoy
  double incorrect_penalty = 0.0;       ///< its result is wrong
};

/// The speed term: 0 below the floor, the cap above the cap; NaN stays NaN.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr double speedup_term(double speedup, double floor, double cap) noexcept {
  return speedup < floor ? 0.0 : speedup > cap ? cap : speedup;
}

/// Reward of one turn with C = 1.
[[nodiscard]] TURNWISE_HOST_DEVICE inline double correct_kernel_reward(double speedup, double generated_us,
                                                                       double total_us,
                                                                       kernel_reward_options const& options) noexcept {
  double const speed = speedup_term(speedup, options.speedup_floor, options.speedup_cap);
  double const ratio = profiling_ratio(generated_us, total_us);
  using std::fma;
  return fma(options.profiling_weight, ratio, fma(options.speedup_weight, speed, options.correct_weight));
}

/// What replaces the reward of a turn with C = 0.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr double kernel_penalty(bool compiled, bool decoy, bool rule_violation,
                                                                   kernel_reward_options const& options) noexcept {
  return !compiled        ? options.compile_failure_penalty
         : rule_violation ? options.rule_violation_penalty
         : decoy          ? options.decoy_penalty
                          : options.incorrect_penalty;
}

namespace detail {

inline void check_speedup_limits(double floor, double cap, std::string_view function) {
  expects(within_limit(floor), function, ": speedup_floor = ", floor, ", expected a number within +-2^500");
  expects(cap >= floor, function, ": speedup_cap = ", cap, ", expected at least speedup_floor = ", floor);
}

template <real T>
void check_kernel_reward(kernel_reward_options const& options) {
  constexpr std::string_view name = "kernel_reward";
  check_reward_option<T>(options.correct_weight, name, "correct_weight");
  check_reward_option<T>(options.speedup_weight, name, "speedup_weight");
  check_reward_option<T>(options.profiling_weight, name, "profiling_weight");
  check_reward_option<T>(options.compile_failure_penalty, name, "compile_failure_penalty");
  check_reward_option<T>(options.rule_violation_penalty, name, "rule_violation_penalty");
  check_reward_option<T>(options.decoy_penalty, name, "decoy_penalty");
  check_reward_option<T>(options.incorrect_penalty, name, "incorrect_penalty");
  check_speedup_limits(options.speedup_floor, options.speedup_cap, name);
}

/// An infinite ingredient of a correct turn that is not flagged off is an error.
template <real T>
void check_ingredients(evaluation<T> const& turns, std::span<reason_flags const> reasons, std::string_view function) {
  for (std::size_t s = 0; s < turns.correct.size(); ++s) {
    if (!turns.counts_as_correct(s) || (!reasons.empty() && (reasons[s] & reason::invalid))) continue;
    expects(!std::isinf(turns.speedup[s]), function, ": speedup[", s, "] is infinite");
    expects(!std::isinf(turns.generated_us[s]), function, ": generated_us[", s, "] is infinite");
    expects(!std::isinf(turns.total_us[s]), function, ": total_us[", s, "] is infinite");
  }
}

/// Writes of_turn(s) of each turn; one that is no reward (is_reward) of a turn that is not flagged off is an error.
template <real E, real T, typename OfTurn>
void write_rewards(evaluation<E> const& turns, std::span<reason_flags const> reasons, std::string_view function,
                   std::span<T> reward, OfTurn of_turn) {
  for (std::size_t s = 0; s < reward.size(); ++s) {
    double const value = of_turn(s);
    expects((!reasons.empty() && (reasons[s] & reason::invalid) != 0) || is_reward<T>(value), function, ": speedup[", s,
            "] = ", turns.speedup[s], " makes a reward of ", value, ", beyond the magnitude limit");
  }
  for (std::size_t s = 0; s < reward.size(); ++s) reward[s] = static_cast<T>(of_turn(s));
}

}  // namespace detail

/// Reward of each turn from its correctness, speedup and profiling ratio.
///
///     reward = w_c + w_s * S + w_p * PR   where C = 1;   the penalty that applies, where C = 0
///     S = 0 below the floor, the cap above the cap;   PR = generated / total
///
/// Also called: Dr. Kernel reward, profiling-based reward.
/// @param[in]  turns    evaluation arrays, [S] each; read only where C = 1.
/// @param[in]  options  weights, cap, floor, penalties.
/// @param[in]  reasons  [S] as begin_reasons wrote them, or empty; turns flagged off are not judged.
/// @param[out] reward   [S]; NaN (unscored) where C = 1 and the speedup is NaN.
/// @throws precondition_error  sizes that differ, a weight or penalty not finite or beyond magnitude_limit of T, cap
///         below floor, an infinite speedup or time of a turn with C = 1 that is not flagged off, or a speedup that
///         makes its reward go beyond that limit; nothing is written.
/// @note  A profile without meaning (total <= 0, generated < 0 or > total, NaN) gives PR = 0.
/// @note  Deterministic: the same bits for any compiler and thread count.
/// @par Complexity  O(S), no allocation.
/// @par Reference   Dr. Kernel, arXiv:2602.05885.
template <real E, real T>
void kernel_reward(evaluation<E> const& turns, kernel_reward_options const& options,
                   std::span<reason_flags const> reasons, std::span<T> reward) {
  check_evaluation(turns, reward.size(), "kernel_reward", true);
  if (!reasons.empty()) expects_size("kernel_reward", "reasons", reasons.size(), reward.size(), "turn");
  detail::check_kernel_reward<T>(options);
  detail::check_ingredients(turns, reasons, "kernel_reward");
  detail::write_rewards(turns, reasons, "kernel_reward", reward, [&](std::size_t s) {
    return turns.counts_as_correct(s)
               ? correct_kernel_reward(turns.speedup[s], turns.generated_us[s], turns.total_us[s], options)
               : kernel_penalty(turns.compiled.empty() || turns.compiled[s] != 0,
                                !turns.decoy.empty() && turns.decoy[s] != 0,
                                !turns.rule_violation.empty() && turns.rule_violation[s] != 0, options);
  });
}

}  // namespace turnwise::reward
