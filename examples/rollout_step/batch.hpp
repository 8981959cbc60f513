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

/// S rows, one a turn, in the order of the files.
struct turn_files {
  std::filesystem::path folder;
  std::vector<std::int64_t> turn_group, turn_trajectory, turn_index;  ///< [S]
  std::optional<std::vector<std::uint8_t>> turn_valid;                ///< [S]
  std::vector<std::string> unknown_arrays;                            ///< .npy files without a meaning here

  [[nodiscard]] std::size_t turns() const { return turn_group.size(); }
  [[nodiscard]] bool flagged_off(std::size_t row) const { return turn_valid && (*turn_valid)[row] == 0; }
  /// How errors call a file of the batch.
  [[nodiscard]] std::string file(std::string_view name) const { return (folder / name).string(); }
};

/// What became of the proposals of kernel_zero_proposer.
struct proposal_rows {
  std::vector<std::int64_t> group;                     ///< [S] the group of the attempts at each proposal
  std::vector<std::uint8_t> invalid_module;            ///< [S] or empty
  turn_files attempts;                                 ///< A rows
  std::vector<std::uint8_t> compiled, correct, decoy;  ///< [A]
};

/// A batch with its N tokens.
struct input_rows : turn_files {
  std::vector<std::int64_t> turn_offsets;      ///< [S + 1]
  std::optional<evaluation_rows> evaluation;   ///< [S] each
  std::optional<std::vector<double>> reward;   ///< [S] given; NaN: unscored
  std::optional<proposal_rows> proposals;      ///< with kernel_zero_proposer, unless rewards are given
  logprob_array old_logprob, rollout_logprob;  ///< [N]
  std::vector<std::uint8_t> token_mask;        ///< [N] or empty: all on

  [[nodiscard]] std::size_t tokens() const {
    return std::visit([](auto const& values) { return values.size(); }, old_logprob);
  }
};

/// Reads the arrays.
///
/// @throws tool_error  a missing or malformed file, a wrong type, lengths that do not agree, offsets that decrease or
///         leave the token arrays.
[[nodiscard]] input_rows read_rows(step_options const& options);

/// Brings the rows into the order of the library.
///
/// @throws tool_error  a negative trajectory or turn index, the same (group, trajectory, turn) twice.
[[nodiscard]] turnwise::rollout sort_rows(input_rows const& rows);
/// The same without tokens.
[[nodiscard]] turnwise::rollout sort_rows(turn_files const& rows);

}  // namespace rollout_step
