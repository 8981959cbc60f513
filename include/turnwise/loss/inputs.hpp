/// @file
/// What a policy loss reads and writes.
#pragma once

#include <turnwise/core/concepts.hpp>
#include <turnwise/divergence/kl_estimate.hpp>

#include <cstdint>
#include <span>

namespace turnwise::loss {

/// Options of the driver, whatever the policy.
struct loss_options {
  double log_ratio_limit = 20;     ///< current - old is clamped to +-this, in nats: within (0, 80]
  double kl_coefficient = 0;       ///< of KL(current || reference); 0 with a reference: only reported
  divergence::kl_options kl{};     ///< its estimate
  double entropy_coefficient = 0;  ///< of the entropy, which is subtracted; 0 with an entropy: only reported
};

/// Type of a gradient: float, double, or a 16-bit type that converts from float.
template <typename T>
concept gradient_value = logprob_value<T> && requires(float const value) {
  static_cast<T>(value);
};

/// The arrays that a loss reads: S turns, N tokens.
template <logprob_value Current, logprob_value Old = Current, logprob_value Reference = Old, real Advantage = double,
          logprob_value Weight = float>
struct loss_inputs {
  std::span<Current const> current_logprob{};      ///< [N] under the weights being updated, nats
  std::span<Old const> old_logprob{};              ///< [N] what the ratio is to: old, or rollout (bypass), nats
  std::span<std::uint8_t const> mask{};            ///< [N] 0 = not in the loss; empty: all on
  std::span<Advantage const> turn_advantage{};     ///< [S], or
  std::span<Advantage const> token_advantage{};    ///< [N]
  std::span<Reference const> reference_logprob{};  ///< [N], or empty: no KL
  std::span<Weight const> weight{};                ///< [N] on the policy term alone, constant; empty: 1
  std::span<Weight const> entropy{};               ///< [N] of the current policy, nats, or empty
  std::span<std::uint8_t const> selected{};        ///< [N] for policies that ask for it (clip_cov, kl_cov)

  using number = log_ratio_t<Current, Old>;  ///< the type of the arithmetic
};

/// Where the gradients go.
template <gradient_value Gradient>
struct loss_outputs {
  std::span<Gradient> gradient{};          ///< [N] d loss / d current_logprob; 0 for tokens not in the loss
  std::span<Gradient> entropy_gradient{};  ///< [N] d loss / d entropy, or empty: not wanted
};

}  // namespace turnwise::loss
