/// @file
/// Saves a step's results so that a failure leaves nothing half written.
#pragma once

#include "step.hpp"

#include <filesystem>
#include <string>

namespace rollout_step {

/// Looks at the folder before the work begins: a file, a missing parent or the input folder is refused.
///
/// @throws tool_error
void check_output(std::filesystem::path const& output, std::filesystem::path const& input);

/// Writes every file to a temporary folder and then moves them into place: the whole folder where `output` does not
/// exist yet, else file by file.
///
/// @throws tool_error  what cannot be written; the temporary folder is then gone.
void write_output(std::filesystem::path const& output, step_result const& result, std::string const& metrics_json);

}  // namespace rollout_step
