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
  double tau_positive = 1.0;   ///< within [2^-20, 2^20]: 4 / tau is part of each value
  double tau_negative = 1.05;  ///< within [2^-20, 2^20]

  void check() const {
    expects(tau_positive >= 0x1p-20 && tau_positive <= 0x1p20, "sapo: tau_positive = ", tau_positive,
            ", expected a number within [2^-20, 2^20]");
    expects(tau_negative >= 0x1p-20 && tau_negative <= 0x1p20, "sapo: tau_negative = ", tau_negative,
            ", expected a number within [2^-20, 2^20]");
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
