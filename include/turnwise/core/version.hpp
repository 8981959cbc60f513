/// @file
/// The version of the library; the build files read it from here.
#pragma once

#include <turnwise/core/config.hpp>

/// Version of the library: breaking changes.
#define TURNWISE_VERSION_MAJOR 0
/// Version of the library: additions (before 1.0 breaking changes too).
#define TURNWISE_VERSION_MINOR 1
/// Version of the library: corrections.
#define TURNWISE_VERSION_PATCH 0

namespace turnwise {

/// TURNWISE_VERSION_MAJOR.
inline constexpr int version_major = TURNWISE_VERSION_MAJOR;
/// TURNWISE_VERSION_MINOR.
inline constexpr int version_minor = TURNWISE_VERSION_MINOR;
/// TURNWISE_VERSION_PATCH.
inline constexpr int version_patch = TURNWISE_VERSION_PATCH;

}  // namespace turnwise
