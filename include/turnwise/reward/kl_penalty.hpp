/// @file
/// Takes a KL estimate off the rewards.
#pragma once

#include <turnwise/core/parallel_for.hpp>
#include <turnwise/divergence/kl_estimate.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace turnwise::reward {

/// Options of `kl_penalty`.
struct kl_penalty_options {
  double coefficient = 0.001;  ///< finite, at least 0; see divergence::kl_controller
  divergence::kl_options estimate{.kind = divergence::kl_kind::k1};  ///< of the KL
};

/// Throws precondition_error unless the coefficient is finite and at least 0.
inline void check_kl_coefficient(double coefficient, std::string_view function) {
  expects(importance::is_finite(coefficient) && coefficient >= 0, function, ": coefficient = ", coefficient,
          ", expected a finite number, at least 0");
}

/// reward - coefficient * kl, rounded once; a reward that is NaN or infinite stays as it is.
template <real T>
[[nodiscard]] TURNWISE_HOST_DEVICE T penalised_reward(T reward, double coefficient, double kl) noexcept {
  using std::fma;
  if (!importance::is_finite(reward)) return reward;
  return narrowed<T>(fma(-coefficient, kl, static_cast<double>(reward)));
}

/// What a token's reward becomes.
template <logprob_value Current, logprob_value Reference, real T>
[[nodiscard]] TURNWISE_HOST_DEVICE T penalised_token(T reward, Current current_logprob, Reference reference_logprob,
                                                     kl_penalty_options const& options) noexcept {
  auto const d = importance::log_ratio(reference_logprob, current_logprob);
  return penalised_reward(reward, options.coefficient,
                          static_cast<double>(divergence::kl_estimate(d, options.estimate).value));
}

/// Takes the KL estimate of each token off its reward.
///
///     token_reward[i] -= coefficient * k(current[i] || reference[i])   where the token is unmasked
///
/// Detached: rewards are constants to the loss, so no gradient flows through the penalty. In the loss instead, see the
/// losses' KL terms; the two give different gradients.
/// Also called: KL reward shaping, apply_kl_penalty, KL in reward.
/// @param[in]     tokens  [N]: `current_logprob` is that of the policy when the reward is made (usually old_logprob).
/// @param[in,out] token_reward  [N].
/// @param[in]     threads  0 = the runtime's default.
/// @throws precondition_error  sizes that differ, a coefficient that is negative or not finite, clamp or cap not above
///         0; nothing is written.
/// @note  Masked tokens, and tokens whose log ratio is NaN or infinite (divergence::kl_estimate counts them), keep
///        their reward. A NaN or infinite reward stays what it is.
/// @note  Default k1 as in RLHF, limited like every estimate; RLHF code often has no limit (clamp = cap = infinity).
/// @note  Deterministic: token by token, for any threads; k3 within the tolerance of divergence::kl_estimate.
/// @par Complexity  O(N), no allocation.
/// @par Reference   Ziegler et al. 2019, arXiv:1909.08593; Ouyang et al. 2022, arXiv:2203.02155.
template <logprob_value Current, logprob_value Reference, real T>
void kl_penalty(divergence::kl_logprobs<Current, Reference> const& tokens, kl_penalty_options const& options,
                std::span<T> token_reward, int threads = 0) {
  std::string_view const name = "kl_penalty";
  std::size_t const count = token_reward.size();
  expects_size(name, "current_logprob", tokens.current_logprob.size(), count, "token, as token_reward");
  expects_size(name, "reference_logprob", tokens.reference_logprob.size(), count, "token, as token_reward");
  if (!tokens.mask.empty()) expects_size(name, "mask", tokens.mask.size(), count, "token, as token_reward");
  divergence::check_kl_options(options.estimate, name);
  check_kl_coefficient(options.coefficient, name);
  parallel_for(count, std::size_t{1} << 18, threads, [&](std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i)
      if (tokens.mask.empty() || tokens.mask[i] != 0)
        token_reward[i] =
            penalised_token(token_reward[i], tokens.current_logprob[i], tokens.reference_logprob[i], options);
  });
}

/// The same for rewards of turns: takes off the coefficient times the turn's sum.
///
///     turn_reward[s] -= coefficient * sums[s].value
///
/// @param[in]     sums  [S] of divergence::kl_estimate; of a turn without tokens 0.
/// @param[in,out] turn_reward  [S]; a missing reward (NaN) stays missing.
/// @throws precondition_error  sizes that differ, a coefficient that is negative or not finite; nothing is written.
/// @note  Turns that the caller flagged off are treated like the others: their reward is read by nobody.
/// @note  Deterministic: one fused multiply-add a turn, the same bits everywhere.
/// @par Complexity  O(S), no allocation.
template <real T>
void kl_penalty(std::span<divergence::kl_sums const> sums, double coefficient, std::span<T> turn_reward) {
  expects_size("kl_penalty", "sums", sums.size(), turn_reward.size(), "turn, as turn_reward");
  check_kl_coefficient(coefficient, "kl_penalty");
  for (std::size_t s = 0; s < turn_reward.size(); ++s)
    turn_reward[s] = penalised_reward(turn_reward[s], coefficient, sums[s].value);
}

}  // namespace turnwise::reward
