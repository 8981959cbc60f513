/// @file
/// What the program prints and writes.
#pragma once

#include "study.hpp"

#include <iosfwd>

namespace custom_loop {

void report_baselines(study const& of);
void report_remedies(study const& of);

/// One line a method, seed and step.
void write_csv_header(std::ostream& to);
void write_csv(study const& of, std::ostream& to);

/// Runs the claims that the README makes, prints each with its number and bounds; false if one does not hold.
[[nodiscard]] bool check_claims(std::size_t seeds);

}  // namespace custom_loop
