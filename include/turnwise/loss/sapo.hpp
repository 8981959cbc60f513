/// @file
/// A soft gate in place of the clip.
#pragma once

#include <turnwise/loss/policy.hpp>

namespace turnwise::loss {

/// Soft adaptive policy optimisation, for policy_loss.
///
///     loss = -A (4 / tau) sigmoid(tau (r - 1));   tau = tau_positive where A > 0, else tau_negative
///
/// Also called: SAPO.
/// @note  Smooth: nothing is clipped. At r = 1 the slope is that of PPO, -A.
/// @par Reference  Gao et al. 2025, arXiv:2511.20347.
struct sapo {
  double tau_positive = 1.0;   ///< above 0
  double tau_negative = 1.05;  ///< above 0

  void check() const {
    expects(tau_positive > 0 && !std::isinf(tau_positive), "sapo: tau_positive = ", tau_positive,
            ", expected a finite number above 0");
    expects(tau_negative > 0 && !std::isinf(tau_negative), "sapo: tau_negative = ", tau_negative,
            ", expected a finite number above 0");
  }

  template <typename F>
  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr loss_terms<F> operator()(loss_token<F> const& token) const {
    flag<F> const positive = token.advantage > F{};
    F const tau = select<F>(positive, constant<F>(tau_positive), constant<F>(tau_negative));
    F const four_over_tau = select<F>(positive, constant<F>(4 / tau_positive), constant<F>(4 / tau_negative));
    F const one = constant<F>(1);
    F const gate = one / (one + ieee_exp(tau * (one - token.ratio)));
    flag<F> const none = one < F{};
    return {-token.advantage * four_over_tau * gate,
            -token.advantage * constant<F>(4) * gate * (one - gate) * token.ratio_slope, none, none};
  }
};

}  // namespace turnwise::loss
