/// @file
/// The policy losses of published systems.
#pragma once

#include <turnwise/loss/aggregate.hpp>
#include <turnwise/loss/inputs.hpp>
#include <turnwise/loss/ppo_clip.hpp>

namespace turnwise::recipe {

/// What policy_loss and aggregate take.
struct loss_preset {
  loss::ppo_clip policy{};              ///< of policy_loss
  loss::loss_options options{};         ///< of policy_loss
  loss::aggregate_options aggregate{};  ///< of aggregate
};

/// Dr. Kernel as its scripts run it: clip 0.2 / 0.28, dual clip 3, the token sum of each turn over a nominal count, no
/// KL, no importance weight.
///
/// @param nominal_turns  the count that the sum is divided by, whatever is rejected (768 = 16 prompts x 16 x 3 turns).
/// @par Reference  Dr. Kernel, arXiv:2602.05885, and its published trainer.
[[nodiscard]] inline loss_preset dr_kernel_loss(double nominal_turns) {
  return {.policy = {.clip_low = 0.2, .clip_high = 0.28, .dual_clip = 3},
          .options = {},
          .aggregate = {.mean = loss::loss_mean::sequence_mean_token_sum,
                        .denominator = loss::loss_denominator::nominal,
                        .nominal = nominal_turns}};
}

/// Kevin: clipped, the token sum of each turn over a constant length, no KL. The clip of 0.2 is ours, where the paper
/// is silent.
///
/// @param longest_response  the constant, in tokens.
/// @par Reference  Kevin, arXiv:2507.11948.
[[nodiscard]] inline loss_preset kevin_loss(double longest_response) {
  return {.policy = {},
          .options = {},
          .aggregate = {.mean = loss::loss_mean::sequence_mean_token_norm, .norm = longest_response}};
}

/// KernelZero, coder and proposer: clipped, mean over sequences of the token mean, k3 with 0.01. The clip of 0.2 is
/// ours, where the paper is silent.
///
/// @par Reference  KernelZero, arXiv:2609.33074.
[[nodiscard]] inline loss_preset kernel_zero_loss() {
  return {.policy = {},
          .options = {.kl_coefficient = 0.01, .kl = {.kind = divergence::kl_kind::k3}},
          .aggregate = {.mean = loss::loss_mean::sequence_mean_token_mean}};
}

}  // namespace turnwise::recipe
