/// @file
/// The segments of gae and vtrace in device memory.
#pragma once

#include <turnwise/core/concepts.hpp>
#include <turnwise/gpu/core/device_span.cuh>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::advantage {

/// turnwise::advantage::token_segments in device memory: same meaning, same sizes.
template <real T>
struct token_segments {
  device_span<std::int64_t const> offsets{};  ///< [K + 1]
  device_span<std::uint8_t const> cut{};      ///< [K] or empty
  device_span<T const> next_value{};          ///< [K] or empty
  device_span<std::uint8_t const> mask{};     ///< [N] or empty

  /// K.
  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr std::size_t segments() const noexcept {
    return offsets.empty() ? 0 : offsets.size() - 1;
  }
};

}  // namespace turnwise::gpu::advantage
