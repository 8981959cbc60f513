/// @file
/// The batch in device memory.
#pragma once

#include <turnwise/core/rollout.hpp>
#include <turnwise/gpu/core/device_span.cuh>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace turnwise::gpu {

/// turnwise::rollout_view with its arrays on the device: same meaning, same sizes.
struct rollout_view {
  std::size_t turns = 0;                                 ///< S
  device_span<std::int64_t const> turn_begin{};          ///< [S], or empty for calls that read no tokens
  device_span<std::int64_t const> turn_end{};            ///< [S], or empty likewise
  device_span<std::int64_t const> trajectory_offsets{};  ///< [J + 1]
  device_span<std::int64_t const> group_id{};            ///< [J]
  device_span<std::int64_t const> trajectory_id{};       ///< [J]
  device_span<std::int64_t const> turn_index{};          ///< [S], or empty: position
  device_span<std::uint8_t const> turn_valid{};          ///< [S], or empty: all on

  /// J.
  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr std::size_t trajectories() const noexcept { return group_id.size(); }

  /// Turns [first, last) of trajectory j, cut to the batch if the offsets are wrong.
  [[nodiscard]] __device__ std::int64_t first_turn(std::size_t j) const noexcept {
    auto const limit = static_cast<std::int64_t>(turns);
    std::int64_t const offset = trajectory_offsets[j];
    return offset < 0 ? 0 : offset < limit ? offset : limit;
  }
  /// Index in time of turn s, which belongs to trajectory j.
  [[nodiscard]] __device__ std::int64_t index_of(std::size_t j, std::int64_t s) const noexcept {
    return turn_index.empty() ? s - first_turn(j) : turn_index[static_cast<std::size_t>(s)];
  }
  /// Whether the caller flagged turn s off.
  [[nodiscard]] __device__ bool flagged_off(std::int64_t s) const noexcept {
    return !turn_valid.empty() && turn_valid[static_cast<std::size_t>(s)] == 0;
  }
};

/// The token arrays in device memory, N each.
template <logprob_value Old, logprob_value Rollout>
struct token_logprobs {
  device_span<Old const> old_logprob{};          ///< [N] nats
  device_span<Rollout const> rollout_logprob{};  ///< [N] nats
  device_span<std::uint8_t const> mask{};        ///< or empty: all on
};

/// Sizes of a batch; its content is checked on the device.
inline void check_sizes(rollout_view const& batch, std::string_view function) {
  if (batch.turns > 0 || batch.trajectories() > 0 || batch.trajectory_offsets.size() > 0)
    expects_size(function, "trajectory_offsets", batch.trajectory_offsets.size(), batch.trajectories() + 1,
                 "trajectory, and one");
  expects_size(function, "trajectory_id", batch.trajectory_id.size(), batch.trajectories(), "trajectory");
  if (!batch.turn_index.empty()) expects_size(function, "turn_index", batch.turn_index.size(), batch.turns, "turn");
  if (!batch.turn_valid.empty()) expects_size(function, "turn_valid", batch.turn_valid.size(), batch.turns, "turn");
}

}  // namespace turnwise::gpu
