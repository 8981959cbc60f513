/// @file
/// Language level, floating-point mode and the host-device marker.
#pragma once

#if (defined(_MSVC_LANG) ? _MSVC_LANG : __cplusplus) < 202002L
#error "turnwise needs C++20: compile with -std=c++20 or newer"
#endif

// The exactness contract rests on IEEE arithmetic, NaN and infinity included.
// (Clang tells of -fassociative-math alone by no macro.)
#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || \
    (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__) || (defined(__GCC_IEC_559) && __GCC_IEC_559 == 0)
#error "turnwise needs IEEE arithmetic: compile without -ffast-math and the options that it stands for"
#elif defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0 && __FLT_EVAL_METHOD__ != 16
#error "turnwise needs IEEE arithmetic: compile for SSE, not for the x87 registers (-mfpmath=sse)"
#endif

#ifdef __CUDACC__
#define TURNWISE_HOST_DEVICE __host__ __device__
#else
#define TURNWISE_HOST_DEVICE
#endif
