/// @file
/// What a policy loss reads and writes, in device memory.
#pragma once

#include <turnwise/gpu/core/device_span.cuh>
#include <turnwise/loss/inputs.hpp>

#include <cstdint>

namespace turnwise::gpu::loss {

/// turnwise::loss::loss_inputs with its arrays on the device: same meaning, same sizes.
template <logprob_value Current, logprob_value Old = Current, logprob_value Reference = Old, real Advantage = double,
          logprob_value Weight = float>
struct loss_inputs {
  device_span<Current const> current_logprob{};      ///< [N]
  device_span<Old const> old_logprob{};              ///< [N]
  device_span<std::uint8_t const> mask{};            ///< [N], or empty: all on
  device_span<Advantage const> turn_advantage{};     ///< [S], or
  device_span<Advantage const> token_advantage{};    ///< [N]
  device_span<Reference const> reference_logprob{};  ///< [N], or empty
  device_span<Weight const> weight{};                ///< [N], or empty
  device_span<Weight const> entropy{};               ///< [N], or empty
  device_span<std::uint8_t const> selected{};        ///< [N] for policies that ask for it

  /// The type of the arithmetic.
  using number = log_ratio_t<Current, Old>;
};

/// Where the gradients go, as on the host.
template <turnwise::loss::gradient_value Gradient>
struct loss_outputs {
  device_span<Gradient> gradient{};          ///< [N]
  device_span<Gradient> entropy_gradient{};  ///< [N], or empty: not wanted
};

}  // namespace turnwise::gpu::loss
