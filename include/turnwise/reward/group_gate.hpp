/// @file
/// Reward that pays for speed only once enough of the group is correct.
#pragma once

#include <turnwise/core/grouping.hpp>
#include <turnwise/core/parallel_for.hpp>
#include <turnwise/reward/evaluation.hpp>
#include <turnwise/reward/kernel_reward.hpp>

#include <cmath>
#include <concepts>
#include <cstddef>
#include <limits>
#include <span>

namespace turnwise::reward {

/// Options of group_gate. The defaults are those of the KernelZero paper.
struct group_gate_options {
  double alpha = 0.5;       ///< share of correct turns that opens the gate, inclusive
  double beta = 0.1;        ///< weight of the speed score
  double min_spread = 0.0;  ///< speedups that differ by no more than this have no score
  int threads = 0;          ///< 0 = the runtime's default
};

/// True when the share of correct members reaches alpha; without scored members false.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr bool gate_is_open(std::int64_t correct, std::int64_t scored,
                                                               double alpha) noexcept {
  // A quotient, so that alpha = c / n opens the gate with c of n.
  return static_cast<double>(correct) / static_cast<double>(scored) >= alpha;
}

/// Position of a speedup between the slowest and the fastest correct member: [0, 1], 0 when they hardly differ.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr double speed_score(double speedup, double slowest, double fastest,
                                                                double min_spread) noexcept {
  double const spread = fastest - slowest;
  return spread > min_spread ? (speedup - slowest) / spread : 0.0;
}

/// Correctness reward plus a speed bonus that is min-max normalised in the group and gated on the group's accuracy.
///
///     reward = C (1 + T beta S),   T = 1 iff correct >= alpha * scored, counted over the scored members of the group
///     S = (speedup - min) / (max - min) over the correct members, 0 when max - min <= min_spread
///
/// Also called: CA-GRPO reward, correctness-aware gate.
/// @param[in]  groups   group_by::group for one prompt, group_by::turn for multi-turn data: the caller names it.
/// @param[in]  turns    evaluation arrays, [S] each; the profile is not used and may be empty.
/// @param[in]  reasons  [S] as begin_reasons wrote them, or empty. Turns flagged off count nowhere and get C.
/// @param[out] reward   [S]; NaN (unscored) where C = 1 and the speedup is NaN.
/// @throws precondition_error  sizes that differ, alpha outside [0, 1], beta or min_spread negative or not finite, an
///         infinite speedup (or one beyond magnitude_limit) of a correct turn that is not flagged off; nothing is written.
/// @note  The only correct member of a group has S = 0.
/// @note  Deterministic: minima, maxima and counts do not depend on order.
/// @par Complexity  O(S) time, no allocation.
/// @par Reference   KernelZero, arXiv:2609.33074.
template <real E, real T>
void group_gate(grouping const& groups, evaluation<E> const& turns, group_gate_options const& options,
                std::span<reason_flags const> reasons, std::span<T> reward) {
  expects_size("group_gate", "reward", reward.size(), groups.turns(), "turn");
  check_evaluation(turns, groups.turns(), "group_gate");
  if (!reasons.empty()) expects_size("group_gate", "reasons", reasons.size(), groups.turns(), "turn");
  expects(options.alpha >= 0 && options.alpha <= 1, "group_gate: alpha = ", options.alpha, ", expected [0, 1]");
  expects(options.beta >= 0 && options.beta <= magnitude_limit<T>, "group_gate: beta = ", options.beta,
          ", expected a number from 0 to 2^", std::same_as<T, float> ? 100 : 500);
  expects(options.min_spread >= 0 && within_limit(options.min_spread), "group_gate: min_spread = ", options.min_spread,
          ", expected a number from 0 to 2^500");

  auto const flagged_off = [&](std::size_t s) { return !reasons.empty() && (reasons[s] & reason::invalid) != 0; };
  for (std::size_t s = 0; s < reward.size(); ++s)
    expects(
        !turns.counts_as_correct(s) || flagged_off(s) || std::isnan(turns.speedup[s]) || within_limit(turns.speedup[s]),
        "group_gate: speedup[", s, "] = ", turns.speedup[s], " is infinite or beyond the magnitude limit");

  auto const write_group = [&](std::size_t g) {
    std::int64_t scored = 0;
    std::int64_t correct = 0;
    double slowest = std::numeric_limits<double>::infinity();
    double fastest = -slowest;
    for (std::int64_t const member : groups.members(g)) {
      auto const s = static_cast<std::size_t>(member);
      bool const counts = turns.counts_as_correct(s);
      double const speedup = counts ? static_cast<double>(turns.speedup[s]) : 0.0;
      if (flagged_off(s) || std::isnan(speedup)) continue;
      ++scored;
      if (!counts) continue;
      ++correct;
      slowest = speedup < slowest ? speedup : slowest;
      fastest = speedup > fastest ? speedup : fastest;
    }
    double const bonus = gate_is_open(correct, scored, options.alpha) ? options.beta : 0.0;
    for (std::int64_t const member : groups.members(g)) {
      auto const s = static_cast<std::size_t>(member);
      double value = turns.counts_as_correct(s) ? 1.0 : 0.0;
      if (value != 0 && !flagged_off(s)) {
        double const speedup = static_cast<double>(turns.speedup[s]);
        value = std::isnan(speedup) ? speedup
                                    : std::fma(bonus, speed_score(speedup, slowest, fastest, options.min_spread), 1.0);
      }
      reward[s] = static_cast<T>(value);
    }
  };
  parallel_for(groups.groups(), 256, options.threads, [&](std::size_t first, std::size_t last) {
    for (std::size_t g = first; g < last; ++g) write_group(g);
  });
}

}  // namespace turnwise::reward
