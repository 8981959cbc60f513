/// @file
/// Language level, floating-point mode and the host-device marker.
#pragma once

#if (defined(_MSVC_LANG) ? _MSVC_LANG : __cplusplus) < 202002L
#error "turnwise needs C++20: compile with -std=c++20 or newer"
#endif

// The exactness contract rests on IEEE arithmetic, NaN and infinity included.
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "turnwise needs IEEE arithmetic: compile without -ffast-math and -ffinite-math-only"
#endif

#ifdef __CUDACC__
#define TURNWISE_HOST_DEVICE __host__ __device__
#else
#define TURNWISE_HOST_DEVICE
#endif
