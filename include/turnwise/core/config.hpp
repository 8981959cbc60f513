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

#ifndef __cpp_exceptions
#error "turnwise needs exceptions: compile without -fno-exceptions"
#endif

// The first header of libstdc++ undefines both macros; other standard libraries leave them.
#include <cstddef>
#if defined(min) || defined(max)
#error "turnwise needs min and max as names, not macros: define NOMINMAX before including <windows.h>"
#endif

// Bytes of the vector registers in host code, and the namespace of what depends on them and on the compiler: units of
// one program may differ in both and must not share it. Public functions keep one name, and the linker keeps any unit's
// build of them: the results are the same, but the program then needs the widest instruction set of its units.
#if defined(__CUDACC__)  // its front end knows few of the builtins
#define TURNWISE_VECTOR_BYTES 16
#define TURNWISE_VECTOR_NAMESPACE vectors_of_cuda
#elif defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512BW__)
#define TURNWISE_VECTOR_BYTES 64
#define TURNWISE_VECTOR_NAMESPACE vectors_of_64
#elif defined(__AVX2__)
#define TURNWISE_VECTOR_BYTES 32
#define TURNWISE_VECTOR_NAMESPACE vectors_of_32
#else
/// Bytes of a vector register: 16, 32 or 64.
#define TURNWISE_VECTOR_BYTES 16
/// The inline namespace of what depends on them.
#define TURNWISE_VECTOR_NAMESPACE vectors_of_16
#endif

#ifdef __CUDACC__
/// Marks functions that host code and kernels call alike; nothing where no CUDA compiler reads it.
#define TURNWISE_HOST_DEVICE __host__ __device__
#else
#define TURNWISE_HOST_DEVICE
#endif
