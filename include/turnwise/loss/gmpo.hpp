/// @file
/// The geometric mean of the turn's clipped token ratios.
#pragma once

#include <turnwise/loss/policy.hpp>

namespace turnwise::loss {

/// Geometric-mean policy optimisation, for policy_loss.
///
///     c = min(d, high) where A > 0, max(d, -low) where A < 0;   s = exp(mean of c over the turn);   loss = -A s
///
/// d = current - old; the edges are in nats. A token whose d is clipped has slope 0, the others -A s.
/// Also called: GMPO, geo_mean.
/// @note  Aggregate by sequence_mean_token_mean: the paper's mean over sequences of -A s.
/// @note  A token advantage of 0 has c = 0 in verl's code; here d, which matters only where advantages differ within a
///        turn. verl takes the geometric mean of importance weights too; here each token's weight multiplies its own
///        term.
/// @par Reference  Zhao et al. 2025, arXiv:2507.20673.
struct gmpo {
  double clip_low = 0.4;   ///< nats, at least 0
  double clip_high = 0.4;  ///< nats, at least 0

  void check() const {
    expects(clip_low >= 0 && !std::isinf(clip_low), "gmpo: clip_low = ", clip_low,
            ", expected a finite number of nats, at least 0");
    expects(clip_high >= 0 && !std::isinf(clip_high), "gmpo: clip_high = ", clip_high,
            ", expected a finite number of nats, at least 0");
  }

  template <typename F>
  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr F turn_log_ratio(F log_ratio, F advantage) const {
    F const least = constant<F>(-clip_low);
    F const most = constant<F>(clip_high);
    F const from_above = select<F>((advantage > F{}) & (log_ratio > most), most, log_ratio);
    return select<F>((advantage < F{}) & (log_ratio < least), least, from_above);
  }

  template <typename F>
  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr loss_terms<F> operator()(loss_token<F> const& token) const {
    F const least = constant<F>(-clip_low);
    F const most = constant<F>(clip_high);
    flag<F> const low = (token.advantage < F{}) & (token.log_ratio < least);
    flag<F> const high = (token.advantage > F{}) & (token.log_ratio > most);
    flag<F> const clipped = low | high;
    return {-token.advantage * token.ratio, -token.advantage * select<F>(clipped, F{}, token.ratio_slope), low, high};
  }
};

}  // namespace turnwise::loss
