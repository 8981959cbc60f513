/// @file
/// What the library would refuse in the content of a batch, found in input order so that the message names the file
/// and the row. (The library sees the turns sorted, and would name their sorted place.)
#pragma once

#include "batch.hpp"

namespace rollout_step {

/// @throws tool_error  infinite reward ingredients or rewards, ids that random draws cannot take, and whatever the
///         options call an error: missing rewards, log ratios that are not finite, profiles without meaning.
void check_content(input_rows const& rows, turnwise::rollout const& order, step_options const& options);

}  // namespace rollout_step
