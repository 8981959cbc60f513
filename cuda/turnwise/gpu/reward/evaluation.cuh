/// @file
/// What running and profiling said of each turn, in device memory.
#pragma once

#include <turnwise/gpu/core/device_span.cuh>
#include <turnwise/reward/evaluation.hpp>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::reward {

using turnwise::reward::check_evaluation;

/// turnwise::reward::evaluation with its arrays on the device: same meaning, same sizes.
template <real T>
struct evaluation {
  device_span<std::uint8_t const> compiled{};        ///< [S] or empty: all compiled
  device_span<std::uint8_t const> correct{};         ///< [S]
  device_span<std::uint8_t const> decoy{};           ///< [S] or empty
  device_span<std::uint8_t const> rule_violation{};  ///< [S] or empty
  device_span<T const> speedup{};                    ///< [S] NaN: not measured
  device_span<T const> generated_us{};               ///< [S]; no profile: empty
  device_span<T const> total_us{};                   ///< [S]; no profile: empty

  /// Turn s compiled.
  [[nodiscard]] __device__ bool is_compiled(std::size_t s) const { return compiled.empty() || compiled[s] != 0; }
  /// Turn s is a decoy.
  [[nodiscard]] __device__ bool is_decoy(std::size_t s) const { return !decoy.empty() && decoy[s] != 0; }
  /// Turn s broke a rule of the task.
  [[nodiscard]] __device__ bool breaks_rule(std::size_t s) const {
    return !rule_violation.empty() && rule_violation[s] != 0;
  }
  /// C of turn s.
  [[nodiscard]] __device__ bool counts_as_correct(std::size_t s) const {
    return turnwise::reward::is_correct(is_compiled(s), correct[s] != 0, is_decoy(s), breaks_rule(s));
  }
};

}  // namespace turnwise::gpu::reward
