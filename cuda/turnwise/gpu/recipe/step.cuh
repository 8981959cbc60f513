/// @file
/// Inputs and outputs of every recipe on the device.
#pragma once

#include <turnwise/core/reason.hpp>
#include <turnwise/gpu/core/device_span.cuh>
#include <turnwise/gpu/importance/log_ratio_statistics.cuh>
#include <turnwise/gpu/reward/evaluation.cuh>
#include <turnwise/importance/turn_statistics.hpp>

#include <cstdint>

namespace turnwise::gpu::recipe {

using turnwise::importance::turn_statistics;

/// The inputs of a step besides the batch, its grouping and its token plan; turnwise::recipe::step_inputs on the
/// device.
template <logprob_value Old, logprob_value Rollout, real E>
struct step_inputs {
  token_logprobs<Old, Rollout> tokens{};     ///< [N] each
  reward::evaluation<E> evaluation{};        ///< [S] each
  device_span<double const> given_reward{};  ///< [S] or empty
};

/// Where a step writes; spans that are empty are not wanted.
struct step_outputs {
  device_span<double> reward{};               ///< [S]
  device_span<double> turn_return{};          ///< [S]
  device_span<double> advantage{};            ///< [S]
  device_span<reason_flags> reasons{};        ///< [S]
  device_span<turn_statistics> statistics{};  ///< [S]
  device_span<float> token_advantage{};       ///< [N]
  device_span<std::uint8_t> token_mask{};     ///< [N]
};

}  // namespace turnwise::gpu::recipe
