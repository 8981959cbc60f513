/// @file
/// What the device half needs of the toolkit.
#pragma once

#include <turnwise/core/config.hpp>

#include <cuda_runtime_api.h>

#if CUDART_VERSION < 12040
#error "turnwise needs CUDA 12.4 or newer"
#endif

// Kernels in a header: local to the translation unit, so that two units never share or clash.
#define TURNWISE_KERNEL static __global__
