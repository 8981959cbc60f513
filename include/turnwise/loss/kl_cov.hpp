/// @file
/// Holds the tokens of highest covariance near the old policy.
#pragma once

#include <turnwise/loss/detail/covariance.hpp>
#include <turnwise/loss/policy.hpp>

namespace turnwise::loss {

/// KL-Cov, for policy_loss.
///
///     loss = -A r,   for the tokens that select_kl_cov chose + kl_coefficient |current - old|
///
/// @note  At current = old the penalty has slope 0; nothing is clipped.
/// @note  The coefficient is 1 in the published function; a trainer's configuration says 0.1.
/// @par Reference  Cui et al. 2025, "The entropy mechanism of reinforcement learning", arXiv:2505.22617.
struct kl_cov {
  static constexpr bool uses_selection = true;

  double share = 0.0002;      ///< of the tokens in the loss, within [0, 1]; at least one token
  double kl_coefficient = 1;  ///< at least 0

  void check() const {
    expects(share >= 0 && share <= 1, "kl_cov: share = ", share, ", expected a number within [0, 1]");
    expects(kl_coefficient >= 0 && !std::isinf(kl_coefficient), "kl_cov: kl_coefficient = ", kl_coefficient,
            ", expected a finite number, at least 0");
  }

  template <typename F>
  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr loss_terms<F> operator()(loss_token<F> const& token) const {
    F const zero{};
    flag<F> const inside = token.ratio_slope > zero;  // the clamp holds the penalty too
    flag<F> const above = token.log_ratio > zero;
    flag<F> const below = token.log_ratio < zero;
    F const coefficient = select<F>(token.selected, constant<F>(kl_coefficient), zero);
    F const sign = select<F>(above, constant<F>(1), select<F>(below, constant<F>(-1), zero));
    flag<F> const none = zero < zero;
    return {coefficient * sign * token.log_ratio - token.advantage * token.ratio,
            select<F>(inside, coefficient * sign, zero) - token.advantage * token.ratio_slope, none, none};
  }
};

/// Marks the tokens that kl_cov penalises: max(1, share of the tokens in the loss), those of the highest covariance, as
/// select_clip_cov defines it; of equal ones those that stand first in the arrays.
///
/// @param[out] selected  [N] 1 = penalised.
/// @throws precondition_error  sizes that differ, options out of range; nothing is written.
/// @note  No token in the loss: none. Deterministic. Host only; the loss itself runs on the device with the selection
///        given.
/// @par Complexity  two passes over the tokens, memory for all tokens in the loss.
template <logprob_value Current, logprob_value Old, logprob_value Reference, real Advantage, logprob_value Weight>
void select_kl_cov(rollout_view const& batch, loss_inputs<Current, Old, Reference, Advantage, Weight> const& inputs,
                   kl_cov const& policy, loss_options const& options, no_deduce<std::span<double const>> turn_scale,
                   std::span<std::uint8_t> selected) {
  policy.check();
  expects_size("select_kl_cov", "selected", selected.size(), inputs.current_logprob.size(), "token");
  detail::token_covariances const covariances{batch, inputs, options, turn_scale, "select_kl_cov"};
  std::vector<detail::covariance_token> candidates;
  candidates.reserve(static_cast<std::size_t>(covariances.tokens()));
  covariances.for_each([&](std::size_t, std::size_t, std::size_t n, auto const& token) {
    candidates.push_back({covariances.of(token), 0, n});
  });
  detail::mark_first(
      candidates, policy.share > 0 ? detail::share_of(covariances.tokens(), policy.share) : 0,
      [](auto const& a, auto const& b) {
        return a.covariance != b.covariance ? a.covariance > b.covariance : a.token < b.token;
      },
      selected);
}

}  // namespace turnwise::loss
