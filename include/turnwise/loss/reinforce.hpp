/// @file
/// The policy gradient itself, with an optional truncated importance weight.
#pragma once

#include <turnwise/loss/policy.hpp>

namespace turnwise::loss {

/// REINFORCE, for policy_loss.
///
///     loss = -w A logp;   slope = -w A;   w = 1, or the ratio clipped to [low, high], held constant
///
/// Also called: vanilla policy gradient; with a weight, truncated importance sampling (TIS).
/// @note  clipped_low, clipped_high: the weight is clipped; the gradient is then scaled, not cut.
/// @par Reference  Williams 1992; truncation: Ionides 2008.
struct reinforce {
  bool importance_weight = false;  ///< weigh tokens by their ratio
  double weight_low = 0;           ///< at least 0
  double weight_high = 2;          ///< at least weight_low, finite

  void check() const {
    expects(weight_low >= 0 && weight_high >= weight_low && !std::isinf(weight_high), "reinforce: weights within [",
            weight_low, ", ", weight_high, "], expected 0 <= weight_low <= weight_high, finite");
  }

  template <typename F>
  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr loss_terms<F> operator()(loss_token<F> const& token) const {
    F const least = constant<F>(weight_low);
    F const most = constant<F>(weight_high);
    F const one = constant<F>(1);
    F const ratio = importance_weight ? token.ratio : one;
    flag<F> const low = importance_weight ? ratio < least : one < F{};
    flag<F> const high = importance_weight ? ratio > most : one < F{};
    F const slope = -token.advantage * select<F>(low, least, select<F>(high, most, ratio));
    return {slope * token.current_logprob, slope, low, high};
  }
};

}  // namespace turnwise::loss
