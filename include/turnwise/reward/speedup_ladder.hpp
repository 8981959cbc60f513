/// @file
/// Reward in steps: a value for each speedup that is reached.
#pragma once

#include <turnwise/reward/kernel_reward.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <string_view>

namespace turnwise::reward {

/// One step of a ladder. A rung at an infinite speedup, the default, is never reached.
struct ladder_rung {
  double speedup = std::numeric_limits<double>::infinity();    ///< reached from here on, inclusive
  double value = 0;                                            ///< the reward
  double baseline = -std::numeric_limits<double>::infinity();  ///< asked of the speedup over the second baseline too
};

/// Options of `speedup_ladder`.
struct speedup_ladder_options {
  static constexpr int most_rungs = 8;          ///< of one ladder
  std::array<ladder_rung, most_rungs> rungs{};  ///< from the top; the first that is reached counts
  double correct = 0.0;                         ///< a correct turn that reaches none
  /// What replaces the reward when C = 0; the first that applies, in this order.
  double compile_failure = 0.0;
  double rule_violation = 0.0;  ///< it broke a rule of the task
  double decoy = 0.0;           ///< it is a decoy
  double incorrect = 0.0;       ///< its result is wrong

  /// The `like_kernel` reward of KernelGYM: five steps up to 3x, failures by how far they got.
  [[nodiscard]] static constexpr speedup_ladder_options like_kernel() noexcept {
    return {.rungs = {{{3.0, 1.0}, {2.0, 0.8}, {1.5, 0.6}, {1.2, 0.4}, {1.0, 0.2}}},
            .correct = -0.1,
            .compile_failure = -0.5,
            .rule_violation = -1.0,
            .decoy = -1.0,
            .incorrect = -0.3};
  }
  /// The `weighted` reward of KernelGYM: 0.5 C + 0.5 [speedup >= 1.01].
  [[nodiscard]] static constexpr speedup_ladder_options weighted() noexcept {
    return {.rungs = {{{1.01, 1.0}}}, .correct = 0.5};
  }
  /// CUDA Agent: 3 for more than 5% faster than eager code and than compiled code, 2 than eager code alone, 1 for
  /// correct, else -1. `speedup` is over eager code, `baseline_speedup` over compiled code; 5% faster read as 1.05.
  [[nodiscard]] static constexpr speedup_ladder_options cuda_agent() noexcept {
    return {.rungs = {{{1.05, 3.0, 1.05}, {1.05, 2.0}}},
            .correct = 1.0,
            .compile_failure = -1.0,
            .rule_violation = -1.0,
            .decoy = -1.0,
            .incorrect = -1.0};
  }

  /// Rung i, on the device too, where std::array has no members.
  [[nodiscard]] TURNWISE_HOST_DEVICE ladder_rung const& rung(int i) const noexcept {
    return reinterpret_cast<ladder_rung const*>(&rungs)[i];
  }
  /// True when a rung asks for the second speedup.
  [[nodiscard]] TURNWISE_HOST_DEVICE bool asks_baseline() const noexcept {
    bool asks = false;
    for (int i = 0; i < most_rungs; ++i)
      asks = asks || (rung(i).speedup <= largest<double> && rung(i).baseline >= -largest<double>);
    return asks;
  }
};

/// Reward of one turn with C = 1; NaN where a speedup that the ladder asks for is.
[[nodiscard]] inline TURNWISE_HOST_DEVICE double ladder_value(double speedup, double baseline_speedup,
                                                              speedup_ladder_options const& options) noexcept {
  if (speedup != speedup) return speedup;
  if (options.asks_baseline() && baseline_speedup != baseline_speedup) return baseline_speedup;
  for (int i = 0; i < speedup_ladder_options::most_rungs; ++i) {
    ladder_rung const& rung = options.rung(i);
    if (speedup >= rung.speedup && (rung.baseline < -largest<double> || baseline_speedup >= rung.baseline))
      return rung.value;
  }
  return options.correct;
}

/// What replaces the reward of a turn with C = 0.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr double ladder_penalty(bool compiled, bool decoy, bool rule_violation,
                                                                   speedup_ladder_options const& options) noexcept {
  kernel_reward_options penalties;
  penalties.compile_failure_penalty = options.compile_failure;
  penalties.rule_violation_penalty = options.rule_violation;
  penalties.decoy_penalty = options.decoy;
  penalties.incorrect_penalty = options.incorrect;
  return kernel_penalty(compiled, decoy, rule_violation, penalties);
}

namespace detail {

template <real T>
void check_speedup_ladder(speedup_ladder_options const& options) {
  constexpr std::string_view name = "speedup_ladder";
  check_reward_option<T>(options.correct, name, "correct");
  check_reward_option<T>(options.compile_failure, name, "compile_failure");
  check_reward_option<T>(options.rule_violation, name, "rule_violation");
  check_reward_option<T>(options.decoy, name, "decoy");
  check_reward_option<T>(options.incorrect, name, "incorrect");
  for (int i = 0; i < speedup_ladder_options::most_rungs; ++i) {
    ladder_rung const& rung = options.rung(i);
    check_reward_option<T>(rung.value, name, "rungs[" + std::to_string(i) + "].value");
    expects(!std::isnan(rung.speedup) && !std::isnan(rung.baseline), "speedup_ladder: rungs[", i,
            "] asks for a speedup of NaN");
    expects(rung.speedup > largest<double> || rung.baseline <= largest<double>, "speedup_ladder: rungs[", i,
            "] is never reached, for its baseline is infinite");
    for (int k = 0; k < i; ++k)
      expects(rung.speedup > largest<double> || options.rung(k).speedup > rung.speedup ||
                  options.rung(k).baseline > rung.baseline,
              "speedup_ladder: rungs[", i, "] is never reached, for rungs[", k, "] asks for no more");
  }
}

}  // namespace detail

/// Reward of each turn by the highest rung that its speedup reaches.
///
///     reward = value of the first rung with speedup >= rung.speedup (and baseline_speedup >= rung.baseline), else
///     `correct`, where C = 1;   the value of the failure, where C = 0
///
/// Also called: milestone reward, tiered speedup reward.
/// @param[in]  turns             evaluation arrays, [S] each; read only where C = 1. The profile is not used and may be
///                               empty.
/// @param[in]  baseline_speedup  [S] speedup over a second baseline; empty where no rung asks for it.
/// @param[in]  options           rungs and values; presets like_kernel, weighted, cuda_agent.
/// @param[in]  reasons           [S] as begin_reasons wrote them, or empty; turns flagged off are not judged.
/// @param[out] reward            [S]; NaN (unscored) where C = 1 and a speedup that the rungs ask for is NaN.
/// @throws precondition_error  sizes that differ, a value not finite or beyond magnitude_limit of T, a rung below
///         infinity that is never reached, a rung that asks for NaN, an infinite speedup of a turn with C = 1 that is
///         not flagged off; nothing is written.
/// @note  Thresholds are compared with the speedup as it is stored: a float 1.2f is above the double 1.2.
/// @note  Deterministic: comparisons alone.
/// @par Complexity  O(S), no allocation.
/// @par Reference   KernelGYM, arXiv:2602.05885; CUDA Agent, arXiv:2602.24286.
template <real E, real T>
void speedup_ladder(evaluation<E> const& turns, no_deduce<std::span<E const>> baseline_speedup,
                    speedup_ladder_options const& options, std::span<reason_flags const> reasons, std::span<T> reward) {
  check_evaluation(turns, reward.size(), "speedup_ladder");
  detail::check_speedup_ladder<T>(options);
  bool const asks = options.asks_baseline();
  if (asks || !baseline_speedup.empty())
    expects_size("speedup_ladder", "baseline_speedup", baseline_speedup.size(), reward.size(), "turn");
  if (!reasons.empty()) expects_size("speedup_ladder", "reasons", reasons.size(), reward.size(), "turn");
  for (std::size_t s = 0; s < reward.size(); ++s) {
    if (!turns.counts_as_correct(s) || (!reasons.empty() && (reasons[s] & reason::invalid) != 0)) continue;
    expects(!std::isinf(turns.speedup[s]), "speedup_ladder: speedup[", s, "] is infinite");
    expects(!asks || !std::isinf(baseline_speedup[s]), "speedup_ladder: baseline_speedup[", s, "] is infinite");
  }
  for (std::size_t s = 0; s < reward.size(); ++s)
    reward[s] = static_cast<T>(
        turns.counts_as_correct(s)
            ? ladder_value(turns.speedup[s], asks ? static_cast<double>(baseline_speedup[s]) : 0.0, options)
            : ladder_penalty(turns.compiled.empty() || turns.compiled[s] != 0,
                             !turns.decoy.empty() && turns.decoy[s] != 0,
                             !turns.rule_violation.empty() && turns.rule_violation[s] != 0, options));
}

}  // namespace turnwise::reward
