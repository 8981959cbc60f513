/// @file
/// The training step itself: the one place that calls a backend.
#pragma once

#include "batch.hpp"

#include <cstdint>
#include <vector>

namespace rollout_step {

/// Everything in the order of the input: rows for turns, files for tokens.
struct step_result {
  std::vector<double> reward, turn_return, advantage;  ///< [S]
  std::vector<turnwise::reason_flags> reason;          ///< [S]
  std::vector<std::uint8_t> keep;                      ///< [S]
  std::vector<double> geometric_ratio;                 ///< [S] at the level of the ratio band
  std::vector<float> token_advantage;                  ///< [N]
  turnwise::metrics::mismatch_record metrics;
  double seconds = 0;  ///< of the recipe's call alone; on a GPU with the transfers to and from it
};

/// Runs the chosen recipe on the chosen backend.
///
/// @param rows, order  read_rows and sort_rows, past check_content.
[[nodiscard]] step_result run_step(input_rows const& rows, turnwise::rollout const& order, step_options const& options);

}  // namespace rollout_step
