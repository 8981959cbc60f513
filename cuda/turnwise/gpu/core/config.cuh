/// @file
/// What the device half needs of the toolkit.
#pragma once

#include <turnwise/core/config.hpp>

#include <cuda_runtime_api.h>
#include <cub/version.cuh>

#if CUDART_VERSION < 12040
#error "turnwise needs CUDA 12.4 or newer"
#endif
#if CUB_VERSION < 200300
#error "turnwise needs CCCL 2.3 or newer, as in CUDA 12.4: an older copy comes first on the include path"
#endif

// The launch shape, for tuning and tests: the largest grid, and the warps of a block whose warps work on their own (1 to
// 4), in plain digits. No result depends on it. Units of one program may differ in it: what computes the shape has a name
// of its own for each, kernels are private to their unit, and of a public function the linker keeps any unit's build.
#ifndef TURNWISE_GPU_MAX_BLOCKS
/// Most blocks of a launch; tests lower it.
#define TURNWISE_GPU_MAX_BLOCKS 2147483647
#endif
#ifndef TURNWISE_GPU_BLOCK_WARPS
/// Warps of a block; tests change it.
#define TURNWISE_GPU_BLOCK_WARPS 4
#endif
static_assert(TURNWISE_GPU_MAX_BLOCKS >= 1 && TURNWISE_GPU_BLOCK_WARPS >= 1 && TURNWISE_GPU_BLOCK_WARPS <= 4);
/// One name of two values.
#define TURNWISE_GPU_JOIN(blocks, warps) grids_of_##blocks##_blocks_of_##warps
/// One name of two macros' values.
#define TURNWISE_GPU_EXPAND_AND_JOIN(blocks, warps) TURNWISE_GPU_JOIN(blocks, warps)
/// The inline namespace of what depends on the launch shape.
#define TURNWISE_GPU_SHAPE_NAMESPACE TURNWISE_GPU_EXPAND_AND_JOIN(TURNWISE_GPU_MAX_BLOCKS, TURNWISE_GPU_BLOCK_WARPS)

// Kernels in a header: local to the translation unit, so that two units never share or clash.
/// Kernels are private to their translation unit.
#define TURNWISE_KERNEL static __global__
