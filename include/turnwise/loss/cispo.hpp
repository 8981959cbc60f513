/// @file
/// Clips the importance weight and keeps every token's gradient.
#pragma once

#include <turnwise/loss/policy.hpp>

namespace turnwise::loss {

/// Clipped importance-sampling policy optimisation, for policy_loss.
///
///     loss = -clip(r, 1 - low, 1 + high) A logp, the clipped ratio held constant;   slope = -clip(r, ...) A
///
/// Also called: CISPO.
/// @note  No token loses its gradient. clipped_low, clipped_high: the weight is clipped, whatever the advantage.
/// @note  The paper clips from above alone (clip_low = 1, and a clip_high to tune); the default edges are verl's.
/// @par Reference  MiniMax-M1, arXiv:2506.13585.
struct cispo {
  double clip_low = 0.2;   ///< within [0, 1]; 1 = no lower edge
  double clip_high = 0.2;  ///< at least 0

  void check() const { check_clip(clip_low, clip_high, "cispo"); }

  template <typename F>
  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr loss_terms<F> operator()(loss_token<F> const& token) const {
    F const least = constant<F>(1 - clip_low);
    F const most = constant<F>(1 + clip_high);
    flag<F> const low = token.ratio < least;
    flag<F> const high = token.ratio > most;
    F const slope = -token.advantage * select<F>(low, least, select<F>(high, most, token.ratio));
    return {slope * token.current_logprob, slope, low, high};
  }
};

}  // namespace turnwise::loss
