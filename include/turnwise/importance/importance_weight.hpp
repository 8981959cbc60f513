/// @file
/// Importance weights of tokens, turns and trajectories: the ratio of two policies, bounded.
#pragma once

#include <turnwise/core/exp.hpp>
#include <turnwise/core/parallel_for.hpp>
#include <turnwise/rejection/ratio_band.hpp>

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace turnwise::importance {

using rejection::non_finite_policy;
using rejection::ratio_kind;
using rejection::scope;

/// What becomes of a ratio outside [low, high].
enum class weight_rule : std::uint8_t {
  truncate,  ///< min(w, high): TIS; low must be 0
  clip,      ///< to the nearer of low and high
  mask       ///< 0: IcePop
};

/// Between which bounds a weight lies, and what becomes of one outside.
struct weight_bounds {
  weight_rule rule = weight_rule::truncate;  ///< what becomes of a ratio outside
  double low = 0;                            ///< ratio, inclusive
  double high = 2;                           ///< ratio, inclusive; infinity = none
  double log_clamp = 64;  ///< nats, in (0, log_clamp_limit]; log ratios (sums, means) are cut to +-this before exp
};

/// Options of importance_weight for tokens.
struct token_weight_options {
  weight_bounds bounds{};                                    ///< of the weight
  non_finite_policy non_finite = non_finite_policy::reject;  ///< a NaN or infinite log ratio: weight 0; neutral: 1
};

/// Options of importance_weight for turns and trajectories.
struct turn_weight_options {
  scope level = scope::turn;              ///< whose ratio: the turn's or its trajectory's
  ratio_kind kind = ratio_kind::product;  ///< product, or geometric mean
  weight_bounds bounds{};                 ///< of the weight
};

/// How many ratios met which bound; of tokens, or of turns. Counts of parts add up.
struct weight_counts {
  std::int64_t count = 0;       ///< unmasked tokens, or turns, that have a ratio
  std::int64_t below = 0;       ///< ratio below low
  std::int64_t above = 0;       ///< ratio above high
  std::int64_t saturated = 0;   ///< log ratio outside +-log_clamp
  std::int64_t non_finite = 0;  ///< unmasked tokens whose log ratio is NaN or infinite

  TURNWISE_HOST_DEVICE constexpr weight_counts& operator+=(weight_counts const& other) noexcept {
    count += other.count;
    below += other.below;
    above += other.above;
    saturated += other.saturated;
    non_finite += other.non_finite;
    return *this;
  }
  friend constexpr bool operator==(weight_counts const&, weight_counts const&) = default;
};

/// Bounds as they are applied; the logs are taken once, on the host.
struct prepared_bounds {
  double floor,      ///< smallest weight
      ceiling;       ///< largest weight
  double log_low,    ///< what counts as below, and is masked
      log_high;      ///< what counts as above, and is masked
  double log_clamp;  ///< as in weight_bounds
  bool masks;        ///< weights outside are 0
};

/// Largest log_clamp of log ratios of type F: its exp is finite.
template <real F>
inline constexpr double log_clamp_limit = std::same_as<F, float> ? 88 : 700;

/// Checks bounds, of log ratios of type F, and takes their logs.
template <real F>
[[nodiscard]] prepared_bounds prepare_bounds(weight_bounds const& bounds, std::string_view function) {
  expects(bounds.low >= 0 && is_finite(bounds.low), function, ": low = ", bounds.low,
          ", expected a finite ratio, at least 0");
  expects(bounds.high >= bounds.low && bounds.high > 0, function, ": high = ", bounds.high,
          ", expected a ratio above 0, at least low = ", bounds.low);
  expects(bounds.rule != weight_rule::truncate || bounds.low == 0, function, ": low = ", bounds.low,
          " with rule truncate, which has no lower bound: expected 0, or rule clip or mask");
  expects(bounds.log_clamp > 0 && bounds.log_clamp <= log_clamp_limit<F>, function, ": log_clamp = ", bounds.log_clamp,
          ", expected a number in (0, ", log_clamp_limit<F>, "], where exp is finite");
  bool const masks = bounds.rule == weight_rule::mask;
  return {masks ? 0.0 : bounds.low,
          masks ? largest<double> : bounds.high,
          rejection::log_of_option(bounds.low),
          rejection::log_of_option(bounds.high),
          bounds.log_clamp,
          masks};
}

/// A weight, and the record of it.
struct weighed {
  double weight;         ///< as it is written
  weight_counts counts;  ///< of this one
};

/// exp of a finite log ratio within the bounds; `below` and `above` say on which side of them it lies.
template <real F>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr weighed bounded_weight(F log_ratio, bool below, bool above,
                                                                    prepared_bounds const& bounds) noexcept {
  F const clamp = static_cast<F>(bounds.log_clamp);
  bool const saturated = log_ratio < -clamp || log_ratio > clamp;
  F const x = log_ratio < -clamp ? -clamp : log_ratio > clamp ? clamp : log_ratio;
  double const ratio = static_cast<double>(ieee_exp(x));
  double const cut = ratio < bounds.floor ? bounds.floor : ratio > bounds.ceiling ? bounds.ceiling : ratio;
  return {bounds.masks && (below || above) ? 0.0 : cut, {1, below, above, saturated, 0}};
}

/// The weight of an unmasked token with log ratio d.
template <real F>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr weighed token_weight(F d, prepared_bounds const& bounds,
                                                                  non_finite_policy non_finite) noexcept {
  if (!is_finite(d)) return {non_finite == non_finite_policy::neutral ? 1.0 : 0.0, {.non_finite = 1}};
  double const wide = static_cast<double>(d);
  return bounded_weight(d, wide<bounds.log_low, wide> bounds.log_high, bounds);
}

/// The weight of a turn or trajectory from its statistics; 0 without tokens.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr weighed turn_weight(turn_statistics const& statistics, ratio_kind kind,
                                                                 prepared_bounds const& bounds) noexcept {
  if (statistics.count == 0) return {0.0, {}};
  reason_flags const side = rejection::band_reason(statistics, {bounds.log_low, bounds.log_high, kind});
  double const log_ratio = kind == ratio_kind::product ? statistics.log_sum() : statistics.log_mean();
  return bounded_weight(log_ratio, side == reason::ratio_low, side == reason::ratio_high, bounds);
}

/// Importance weight of each token.
///
///     w[i] = bounded(exp(d[i])),   d = old - rollout
///     truncate: min(w, high);   clip: to [low, high];   mask: 0 outside [low, high]
///
/// A constant to the loss: no gradient flows through it. Decoupled use: times a loss whose own ratio is current / old.
/// Bypass (no old log-probs were computed): pass the current log-probs as old_logprob; the loss then has no ratio of
/// its own (REINFORCE).
/// Also called: TIS, truncated importance sampling, behaviour correction; MIS, IcePop (mask); rollout correction.
/// @param[in]  tokens   log-probs in nats, [N] each; masked tokens are not read as numbers.
/// @param[out] weight   [N]; 0 at masked tokens.
/// @param[in]  threads  0 = the runtime's default.
/// @return how many ratios met which bound.
/// @throws precondition_error  sizes that differ; bounds that contradict each other (low negative or above high, low
///         under truncate, log_clamp outside (0, 700], of float log ratios (0, 88]); under non_finite_policy::error the
///         first unmasked token whose log ratio is not finite. Nothing is written.
/// @note  A log ratio that is NaN or infinite: weight 0 (reject, default) or 1 (neutral); counted. Its turn is another
///        rule's (rejection::usable_tokens).
/// @note  Bounds are compared in log space before the clamp: what is masked and counted has the same bits everywhere;
///        weights within 2 ulp.
/// @note  Disagreements: the clamp is +-20 in some trainers and absent in others; the default 64 cuts nothing that a
///        bound does not. Masked tokens have weight 1 in some, which only shows in averages.
/// @par Complexity  one read of the tokens (two under error), no allocation.
/// @par Reference   Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training"; IcePop:
///                  Ling Team 2025, arXiv:2510.18855.
/// @see turnwise::gpu::importance::importance_weight
template <logprob_value Old, logprob_value Rollout, real W>
weight_counts importance_weight(token_logprobs<Old, Rollout> const& tokens, token_weight_options const& options,
                                std::span<W> weight, int threads = 0) {
  std::string_view const name = "importance_weight";
  expects_size(name, "old_logprob", tokens.old_logprob.size(), weight.size(), "token, as weight");
  expects_size(name, "rollout_logprob", tokens.rollout_logprob.size(), weight.size(), "token, as weight");
  if (!tokens.mask.empty()) expects_size(name, "mask", tokens.mask.size(), weight.size(), "token, as weight");
  prepared_bounds const bounds = prepare_bounds<log_ratio_t<Old, Rollout>>(options.bounds, name);
  auto const on = [&](std::size_t i) { return tokens.mask.empty() || tokens.mask[i] != 0; };
  auto const d = [&](std::size_t i) { return log_ratio(tokens.old_logprob[i], tokens.rollout_logprob[i]); };
  if (options.non_finite == non_finite_policy::error)
    for (std::size_t i = 0; i < weight.size(); ++i)
      expects(!on(i) || is_finite(d(i)), name, ": the log ratio of token ", i, " is not finite");

  weight_counts total;
  parallel_for(weight.size(), std::size_t{1} << 18, threads, [&](std::size_t first, std::size_t last) {
    weight_counts sum;
    for (std::size_t i = first; i < last; ++i) {
      weighed const one = on(i) ? token_weight(d(i), bounds, options.non_finite) : weighed{};
      weight[i] = narrowed<W>(one.weight);
      sum += one.counts;
    }
    auto const add = [](std::int64_t& to, std::int64_t part) { std::atomic_ref{to}.fetch_add(part); };
    add(total.count, sum.count);
    add(total.below, sum.below);
    add(total.above, sum.above);
    add(total.saturated, sum.saturated);
    add(total.non_finite, sum.non_finite);
  });
  return total;
}

/// Importance weight of each turn, or of its trajectory, from statistics: no token is read.
///
///     product: w[s] = bounded(exp(sum of d));   geometric: w[s] = bounded(exp(mean of d))
///
/// A trajectory's log ratio is token-weighted over its valid turns, those rejected by other rules included. Weights are
/// constants to the loss: multiply them into the advantages.
/// Also called: sequence-level TIS, sequence importance sampling (product); geometric-mean ratio.
/// @param[in]  statistics  [S] from log_ratio_statistics.
/// @param[in]  reasons     [S] after usable_tokens.
/// @param[out] weight      [S]; at trajectory level each turn that has a ratio shows its trajectory's. 0 without a
///                         ratio (invalid, no_token, non_finite); turns rejected for other reasons have their weight.
/// @return counts, in turns.
/// @throws precondition_error  sizes that differ, bounds as for tokens; nothing is written.
/// @note  Each d is clamped to +-64 before the sum (exact integers), the sum or mean to +-log_clamp before exp; verl
///        clamps the sum to +-20. The product shrinks or grows with length; the geometric mean does not, but is no
///        importance weight.
/// @note  Everything rejected: weights as above. What is masked and counted has the same bits everywhere; weights
///        within 2 ulp.
/// @par Complexity  O(S), no allocation.
/// @par Reference   as for tokens; geometric mean: ours, as in rejection::ratio_band.
template <real W>
weight_counts importance_weight(rollout_view const& batch, std::span<turn_statistics const> statistics,
                                std::span<reason_flags const> reasons, turn_weight_options const& options,
                                std::span<W> weight) {
  std::string_view const name = "importance_weight";
  check_rollout(batch, name);
  expects_size(name, "statistics", statistics.size(), batch.turns(), "turn");
  expects_size(name, "reasons", reasons.size(), batch.turns(), "turn");
  expects_size(name, "weight", weight.size(), batch.turns(), "turn");
  prepared_bounds const bounds = prepare_bounds<double>(options.bounds, name);
  weight_counts total;
  for (std::size_t j = 0; j < batch.trajectories(); ++j) {
    turn_statistics of_trajectory;
    if (options.level == scope::trajectory)
      of_trajectory = rejection::detail::trajectory_statistics(batch, statistics, reasons, j);
    for (std::size_t s = batch.first_turn(j); s < batch.first_turn(j + 1); ++s) {
      auto const& own = options.level == scope::trajectory ? of_trajectory : statistics[s];
      weighed const one = has_ratio(reasons[s]) ? turn_weight(own, options.kind, bounds) : weighed{};
      weight[s] = narrowed<W>(one.weight);
      total += one.counts;
    }
  }
  return total;
}

}  // namespace turnwise::importance
