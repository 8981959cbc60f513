/// @file
/// Which turns form a baseline: an option of every method on groups.
#pragma once

#include <cstdint>

namespace turnwise::advantage {

/// Which turns form a baseline: all valid ones (as published), or those kept by every filter.
enum class baseline_members : std::uint8_t { valid, kept };

}  // namespace turnwise::advantage
