/// @file
/// What running and profiling said of each turn, in device memory.
#pragma once

#include <turnwise/gpu/core/device_span.cuh>
#include <turnwise/reward/evaluation.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace turnwise::gpu::reward {

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

/// Throws precondition_error unless the arrays have one element a turn; `profile`: the two times may not be empty.
template <real T>
void check_evaluation(evaluation<T> const& turns, std::size_t count, std::string_view function, bool profile = false) {
  auto const check = [&](auto span, std::string_view name) {
    expects_size(function, name, span.size(), count, "turn");
  };
  check(turns.correct, "correct");
  check(turns.speedup, "speedup");
  if (profile || !turns.generated_us.empty() || !turns.total_us.empty()) {
    check(turns.generated_us, "generated_us");
    check(turns.total_us, "total_us");
  }
  if (!turns.compiled.empty()) check(turns.compiled, "compiled");
  if (!turns.decoy.empty()) check(turns.decoy, "decoy");
  if (!turns.rule_violation.empty()) check(turns.rule_violation, "rule_violation");
}

}  // namespace turnwise::gpu::reward
