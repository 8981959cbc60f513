/// @file
/// Rows of raw logits in device memory, and the token that was generated at each.
#pragma once

#include <turnwise/gpu/core/device_span.cuh>
#include <turnwise/logprob/token_logits.hpp>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::logprob {

using turnwise::logprob::logit_layout;
using turnwise::logprob::token_id;
using turnwise::logprob::vocabulary_shard;

/// Type of logits on the device: float, or a 16-bit type that converts to float and back.
template <typename T>
concept logit = logprob_value<T> && sizeof(T) <= 4;

/// Logits and what belongs to each row, see turnwise::logprob::token_logits. Any element alignment.
template <logit T, token_id Id>
struct token_logits {
  device_span<T const> values;             ///< all rows, as layout says
  logit_layout layout;                     ///< of values
  device_span<Id const> ids;               ///< [rows]
  device_span<std::uint8_t const> mask{};  ///< [rows] 0: the row is skipped, nothing of it is read; empty: none is

  /// The first logit of row r.
  [[nodiscard]] __device__ T const* row(std::int64_t r) const {
    return values.data() + layout.offset(static_cast<std::size_t>(r));
  }
  /// Row r is skipped.
  [[nodiscard]] __device__ bool masked(std::int64_t r) const {
    return !mask.empty() && mask[static_cast<std::size_t>(r)] == 0;
  }
};

}  // namespace turnwise::gpu::logprob
