/// @file
/// Outputs of token_logprob on the device.
#pragma once

#include <turnwise/gpu/core/device_span.cuh>
#include <turnwise/logprob/row_sums.hpp>

namespace turnwise::gpu::logprob {

using turnwise::logprob::log_normalizer;

/// Each [rows] or empty, see turnwise::logprob::token_logprob_outputs.
struct token_logprob_outputs {
  device_span<float> logprob{};                     ///< nats
  device_span<float> entropy{};                     ///< nats
  device_span<float> sum_squares{};                 ///< sum of p^2
  device_span<log_normalizer<float>> normalizer{};  ///< for token_logprob_backward
};

}  // namespace turnwise::gpu::logprob
