/// @file
/// A batch as the trainer dumped it: arrays in input order, their sizes agreeing, and the order the library wants.
#pragma once

#include "options.hpp"

#include <turnwise/core/rollout_builder.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace rollout_step {

using logprob_array = std::variant<std::vector<float>, std::vector<double>>;

/// What running and profiling said of each row. Times widen to double exactly.
struct evaluation_rows {
  std::vector<std::uint8_t> compiled, correct, decoy;
  std::vector<double> speedup, generated_us, total_us;

  [[nodiscard]] turnwise::reward::evaluation<double> view() const {
    return {.compiled = compiled,
            .correct = correct,
            .decoy = decoy,
            .speedup = speedup,
            .generated_us = generated_us,
            .total_us = total_us};
  }
};

/// S rows, one a turn, in the order of the files; N tokens.
struct input_rows {
  std::filesystem::path folder;
  std::vector<std::int64_t> turn_group, turn_trajectory, turn_index;  ///< [S]
  std::vector<std::int64_t> turn_offsets;                             ///< [S + 1]
  std::optional<std::vector<std::uint8_t>> turn_valid;                ///< [S]
  std::optional<evaluation_rows> evaluation;                          ///< [S] each
  std::optional<std::vector<double>> reward;                          ///< [S] given; NaN: unscored
  logprob_array old_logprob, rollout_logprob;                         ///< [N]
  std::vector<std::uint8_t> token_mask;                               ///< [N] or empty: all on

  [[nodiscard]] std::size_t turns() const { return turn_group.size(); }
  [[nodiscard]] std::size_t tokens() const {
    return std::visit([](auto const& values) { return values.size(); }, old_logprob);
  }
  [[nodiscard]] bool flagged_off(std::size_t row) const { return turn_valid && (*turn_valid)[row] == 0; }
  /// How errors call a file of the batch.
  [[nodiscard]] std::string file(std::string_view name) const { return (folder / name).string(); }
};

/// Reads the arrays.
///
/// @throws tool_error  a missing or malformed file, a wrong type, lengths that do not agree, offsets that decrease or
///         leave the token arrays.
[[nodiscard]] input_rows read_rows(step_options const& options);

/// Brings the rows into the order of the library.
///
/// @throws tool_error  negative or repeated (trajectory, turn), a trajectory in two groups.
[[nodiscard]] turnwise::rollout sort_rows(input_rows const& rows);

}  // namespace rollout_step
