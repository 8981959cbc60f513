/// @file
/// PPO's clip on the geometric mean ratio of the turn.
#pragma once

#include <turnwise/loss/ppo_clip.hpp>

namespace turnwise::loss {

/// Group sequence policy optimisation, for policy_loss.
///
///     s = exp(mean over the turn of current - old);   loss of each token = max(-A s, -A clip(s, 1 - low, 1 + high))
///
/// Each token's slope is -A s: with one advantage a turn, the derivative of the turn's mean loss over its tokens times
/// their number. With token advantages: GSPO-token.
/// Also called: GSPO, sequence-level importance sampling.
/// @note  Aggregate by sequence_mean_token_mean, as published.
/// @note  A turn with one token: PPO's clip. Each log ratio is clamped on its own before the mean (verl clamps the
///        mean, at 10 from above).
/// @par Reference  Zheng et al. 2025, arXiv:2507.18071.
struct gspo {
  double clip_low = 3e-4;   ///< within [0, 1]
  double clip_high = 4e-4;  ///< at least 0

  void check() const { check_clip(clip_low, clip_high, "gspo"); }

  template <typename F>
  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr F turn_log_ratio(F log_ratio, F) const {
    return log_ratio;
  }

  template <typename F>
  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr loss_terms<F> operator()(loss_token<F> const& token) const {
    return ppo_clip{clip_low, clip_high}(token);
  }
};

}  // namespace turnwise::loss
