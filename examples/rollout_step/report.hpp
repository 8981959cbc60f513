/// @file
/// What a person and a program get to see of a step.
#pragma once

#include "summary.hpp"

#include <string>

namespace rollout_step {

/// The tables for the terminal, at most 100 columns wide.
[[nodiscard]] std::string table_report(step_summary const& summary, step_options const& options,
                                       step_result const& result);

/// The same and everything else as JSON: metrics.json. Numbers are finite; null stands for 'none' in the options.
[[nodiscard]] std::string json_report(step_summary const& summary, step_options const& options,
                                      step_result const& result);

}  // namespace rollout_step
