/// @file
/// What running and profiling said of each turn: the input of rewards, filters and metrics.
#pragma once

#include <turnwise/core/concepts.hpp>
#include <turnwise/core/error.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace turnwise::reward {

/// C: compiled, correct, no decoy, no rule broken.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr bool is_correct(bool compiled, bool correct, bool decoy,
                                                             bool rule_violation) noexcept {
  return compiled && correct && !decoy && !rule_violation;
}

/// What running and profiling said of each turn, S turns. Speedup and times are read only where C = 1.
template <real T>
struct evaluation {
  std::span<std::uint8_t const> compiled{};        ///< [S] or empty: all compiled
  std::span<std::uint8_t const> correct{};         ///< [S] passed the correctness check
  std::span<std::uint8_t const> decoy{};           ///< [S] or empty; launches nothing that reaches the result
  std::span<std::uint8_t const> rule_violation{};  ///< [S] or empty; broke a rule of the task
  std::span<T const> speedup{};                    ///< [S] reference time / candidate time; NaN: not measured
  std::span<T const> generated_us{};  ///< [S] device time in generated kernels, microseconds; no profile: empty
  std::span<T const> total_us{};      ///< [S] device time in all kernels, microseconds; no profile: empty

  /// C of turn s.
  [[nodiscard]] constexpr bool counts_as_correct(std::size_t s) const noexcept {
    return is_correct(compiled.empty() || compiled[s] != 0, correct[s] != 0, !decoy.empty() && decoy[s] != 0,
                      !rule_violation.empty() && rule_violation[s] != 0);
  }
};

/// Throws precondition_error unless the arrays, of the host or of the device, have one element a turn; `profile`: the two
/// times may not be empty.
template <typename Evaluation>
void check_evaluation(Evaluation const& turns, std::size_t count, std::string_view function, bool profile = false) {
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

/// True where a profile means something: total > 0 and 0 <= generated <= total, all finite.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr bool has_profile(double generated_us, double total_us) noexcept {
  return total_us > 0 && total_us <= largest<double> && generated_us >= 0 && generated_us <= total_us;
}

/// Profiling ratio PR = generated / total, in [0, 1]; 0 for a profile without meaning.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr double profiling_ratio(double generated_us, double total_us) noexcept {
  return has_profile(generated_us, total_us) ? generated_us / total_us : 0.0;
}

}  // namespace turnwise::reward
