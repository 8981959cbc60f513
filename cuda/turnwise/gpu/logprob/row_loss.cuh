/// @file
/// Inputs and outputs of policy_loss_from_logits on the device.
#pragma once

#include <turnwise/gpu/core/device_span.cuh>
#include <turnwise/gpu/logprob/token_logits.cuh>

#include <cstdint>

namespace turnwise::gpu::logprob {

/// What the loss knows of each row beside its logits, see turnwise::logprob::row_loss_inputs.
struct row_loss_inputs {
  device_span<float const> old_logprob;          ///< [rows] what the ratio is to, nats
  device_span<float const> advantage;            ///< [rows] of the token
  device_span<float const> scale;                ///< [rows] its turn's; not above 0: the row is not in the loss
  device_span<float const> reference_logprob{};  ///< [rows] or empty: no KL, nats
  device_span<float const> weight{};             ///< [rows] on the policy term alone; empty: 1
  device_span<std::uint8_t const> selected{};    ///< [rows] for policies that ask for it
};

/// What policy_loss_from_logits writes, as on the host.
template <logit T>
struct row_loss_outputs {
  device_span<T> gradient;       ///< d loss / d logits; may be the logits with the same layout (in place)
  logit_layout layout;           ///< of gradient
  device_span<float> logprob{};  ///< [rows] or empty: not wanted
  device_span<float> entropy{};  ///< [rows] or empty: taken only if the loss needs it
};

}  // namespace turnwise::gpu::logprob
