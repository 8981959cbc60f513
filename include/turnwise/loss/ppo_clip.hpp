/// @file
/// The clipped surrogate of PPO.
#pragma once

#include <turnwise/loss/policy.hpp>

#include <limits>

namespace turnwise::loss {

/// Proximal policy optimisation with clipping, for policy_loss.
///
///     loss = max(-A r, -A clip(r, 1 - low, 1 + high));   with dual clip and A < 0 at most -A c
///
/// Also called: PPO-clip, clip-higher (DAPO: 0.2 / 0.28), dual-clip PPO.
/// @note  The gradient is cut strictly beyond an edge: on it, it is whole. clipped_low: A < 0 and r < 1 - low;
///        clipped_high: A > 0 and r > 1 + high, or the dual clip.
/// @note  Dual clip touches negative advantages alone. Trainers differ in the default: 3 in verl, off in the papers of
///        PPO and DAPO and here.
/// @par Reference  Schulman et al. 2017, arXiv:1707.06347; dual clip: Ye et al. 2020, arXiv:1912.09729; asymmetric:
///                 DAPO, arXiv:2503.14476.
struct ppo_clip {
  double clip_low = 0.2;   ///< within [0, 1]
  double clip_high = 0.2;  ///< at least 0
  double dual_clip = 0;    ///< c, above 1; 0 = off

  static constexpr double unlimited = std::numeric_limits<double>::infinity();  ///< no edge

  void check() const {
    check_clip(clip_low, clip_high, "ppo_clip");
    expects(dual_clip == 0 || (dual_clip > 1 && !std::isinf(dual_clip)), "ppo_clip: dual_clip = ", dual_clip,
            ", expected 0 (off) or a finite number above 1");
  }

  template <typename F>
  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr loss_terms<F> operator()(loss_token<F> const& token) const {
    F const zero{};
    F const none = constant<F>(unlimited);
    flag<F> const positive = token.advantage > zero;
    flag<F> const negative = token.advantage < zero;
    F const most_negative = constant<F>(dual_clip > 0 ? dual_clip : unlimited);
    F const least = select<F>(negative, constant<F>(1 - clip_low), -none);
    F const most = select<F>(positive, constant<F>(1 + clip_high), select<F>(negative, most_negative, none));
    flag<F> const low = token.ratio < least;
    flag<F> const high = token.ratio > most;
    flag<F> const clipped = low | high;
    return {-token.advantage * select<F>(low, least, select<F>(high, most, token.ratio)),
            -token.advantage * select<F>(clipped, zero, token.ratio_slope), low, high};
  }
};

}  // namespace turnwise::loss
