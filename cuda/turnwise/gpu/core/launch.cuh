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

/// a / b, rounded up.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr std::size_t ceil_div(std::size_t a, std::size_t b) noexcept {
  return a / b + (a % b != 0);
}

inline namespace TURNWISE_GPU_SHAPE_NAMESPACE {

/// Blocks of a one-dimensional grid over `count` items; rows go to x, which holds 2^31 - 1 blocks, so kernels stride.
[[nodiscard]] constexpr unsigned grid_blocks(std::size_t count, std::size_t per_block) noexcept {
  std::size_t const blocks = ceil_div(count, per_block);
  constexpr std::size_t most = TURNWISE_GPU_MAX_BLOCKS;
  return static_cast<unsigned>(blocks < most ? blocks : most);
}

}  // namespace TURNWISE_GPU_SHAPE_NAMESPACE

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

namespace detail {

/// Blocks in clusters of `cluster` neighbours, which run together and reach each other's shared memory.
struct cluster_launch {
  cudaLaunchAttribute attribute{};
  cudaLaunchConfig_t config{};

  cluster_launch(unsigned cluster, unsigned blocks, unsigned threads, std::size_t shared_bytes, cudaStream_t stream) {
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {cluster, 1, 1};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
  }
  cluster_launch(cluster_launch const&) = delete;
};

}  // namespace detail

/// How many clusters of `cluster` blocks the current device runs at the same time; it must be sm_90 or later.
template <typename... Parameters>
[[nodiscard]] unsigned resident_clusters(std::string_view call, void (*kernel)(Parameters...), unsigned cluster,
                                         unsigned threads, std::size_t shared_bytes) {
  detail::cluster_launch const shape{cluster, cluster, threads, shared_bytes, nullptr};
  int count = 0;
  check(cudaOccupancyMaxActiveClusters(&count, reinterpret_cast<void const*>(kernel), &shape.config), call);
  return static_cast<unsigned>(count);
}

/// As launch, with `clusters` clusters of `cluster` blocks: a power of two, at most 8; sm_90 or later.
template <typename... Parameters, typename... Arguments>
void launch_clusters(std::string_view call, void (*kernel)(Parameters...), unsigned cluster, unsigned clusters,
                     unsigned threads, std::size_t shared_bytes, ::cuda::stream_ref stream, Arguments&&... arguments) {
  if (clusters == 0) return;
  detail::cluster_launch const shape{cluster, cluster * clusters, threads, shared_bytes, stream.get()};
  check(cudaLaunchKernelEx(&shape.config, kernel, std::forward<Arguments>(arguments)...), call);
}

}  // namespace turnwise::gpu
