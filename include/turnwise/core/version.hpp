/// @file
/// The version of the library; the build files read it from here.
#pragma once

#include <turnwise/core/config.hpp>

#define TURNWISE_VERSION_MAJOR 0
#define TURNWISE_VERSION_MINOR 1
#define TURNWISE_VERSION_PATCH 0

namespace turnwise {

inline constexpr int version_major = TURNWISE_VERSION_MAJOR;
inline constexpr int version_minor = TURNWISE_VERSION_MINOR;
inline constexpr int version_patch = TURNWISE_VERSION_PATCH;

}  // namespace turnwise
