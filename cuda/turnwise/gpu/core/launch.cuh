/// @file
/// The one way to start a kernel.
#pragma once

#include <turnwise/gpu/core/error.cuh>

#include <cstddef>
#include <string_view>
#include <type_traits>
#include <utility>

#if __has_include(<cuda/stream>)
#include <cuda/stream>
#else
#include <cuda/stream_ref>
#endif

namespace turnwise::gpu {

[[nodiscard]] TURNWISE_HOST_DEVICE constexpr std::size_t ceil_div(std::size_t a, std::size_t b) noexcept {
  return a / b + (a % b != 0);
}

/// Blocks of a one-dimensional grid over `count` items; rows go to x, which holds 2^31 - 1 blocks, so kernels stride.
[[nodiscard]] constexpr unsigned grid_blocks(std::size_t count, std::size_t per_block) noexcept {
  std::size_t const blocks = ceil_div(count, per_block);
  constexpr std::size_t most = TURNWISE_GPU_MAX_BLOCKS;
  return static_cast<unsigned>(blocks < most ? blocks : most);
}

/// Enqueues a kernel and throws cuda_error naming `call` if the launch is refused. No blocks: nothing happens.
template <typename... Parameters, typename... Arguments>
void launch(std::string_view call, void (*kernel)(Parameters...), unsigned blocks, unsigned threads,
            std::size_t shared_bytes, ::cuda::stream_ref stream, Arguments&&... arguments) {
  if (blocks == 0) return;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream.get();
  check(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...), call);
}

}  // namespace turnwise::gpu
