/// What the GPU benchmarks share: device arrays, timing by events, the machine's own limits.
#pragma once

#include "../tests/support/device_array.cuh"

#include <turnwise/gpu/core/launch.cuh>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace bench {

namespace gpu = turnwise::gpu;
using support::device_array;
using support::workspace_of;

/// Median seconds of one `run`, by events around `in_a_row` of them (so that the host's launch time does not show), after
/// some to warm up. `run` gets a running number, by which to rotate among inputs.
template <typename Run>
double median_seconds(cudaStream_t stream, int repeats, Run run, int in_a_row = 4) {
  cudaEvent_t start, stop;
  gpu::check(cudaEventCreate(&start), "cudaEventCreate");
  gpu::check(cudaEventCreate(&stop), "cudaEventCreate");
  std::vector<double> seconds;
  for (int i = 0; i <= repeats; ++i) {
    gpu::check(cudaEventRecord(start, stream), "cudaEventRecord");
    for (int k = 0; k < in_a_row; ++k) run(i * in_a_row + k);
    gpu::check(cudaEventRecord(stop, stream), "cudaEventRecord");
    gpu::check(cudaEventSynchronize(stop), "cudaEventSynchronize");
    float milliseconds = 0;
    gpu::check(cudaEventElapsedTime(&milliseconds, start, stop), "cudaEventElapsedTime");
    if (i > 0) seconds.push_back(milliseconds * 1e-3 / in_a_row);
  }
  gpu::check(cudaEventDestroy(start), "cudaEventDestroy");
  gpu::check(cudaEventDestroy(stop), "cudaEventDestroy");
  std::ranges::nth_element(seconds, seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2));
  return seconds[seconds.size() / 2];
}

/// A captured graph.
class graph {
 public:
  template <typename Enqueue>
  graph(cudaStream_t stream, Enqueue enqueue) {
    cudaGraph_t captured;
    gpu::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    enqueue();
    gpu::check(cudaStreamEndCapture(stream, &captured), "cudaStreamEndCapture");
    gpu::check(cudaGraphInstantiate(&executable_, captured, 0), "cudaGraphInstantiate");
    gpu::check(cudaGraphDestroy(captured), "cudaGraphDestroy");
  }
  graph(graph&& other) noexcept : executable_(std::exchange(other.executable_, nullptr)) {}
  ~graph() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
  }
  void replay(cudaStream_t stream) const { gpu::check(cudaGraphLaunch(executable_, stream), "cudaGraphLaunch"); }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

/// Median seconds of replaying graphs in rotation.
inline double rotation_seconds(cudaStream_t stream, std::vector<graph> const& graphs) {
  return median_seconds(
      stream, 15, [&](int i) { graphs[static_cast<std::size_t>(i) % graphs.size()].replay(stream); }, 8);
}

TURNWISE_KERNEL void read_kernel(uint4 const* a, uint4 const* b, std::size_t vectors, unsigned* sink) {
  unsigned seen = 0;
  std::size_t const stride = std::size_t{gridDim.x} * blockDim.x;
  std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + 3 * stride < vectors; i += 4 * stride) {
    uint4 x[4], y[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      x[k] = __ldg(a + i + k * stride);
      y[k] = __ldg(b + i + k * stride);
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) seen ^= x[k].x ^ x[k].y ^ x[k].z ^ x[k].w ^ y[k].x ^ y[k].y ^ y[k].z ^ y[k].w;
  }
  for (; i < vectors; i += stride) seen ^= a[i].x ^ a[i].y ^ a[i].z ^ a[i].w ^ b[i].x ^ b[i].y ^ b[i].z ^ b[i].w;
  if (seen == 0x9e3779b9u) *sink = seen;
}

/// A plain grid-stride read of two arrays of `bytes` bytes each, at the best of a few grid sizes.
inline double read_seconds(void const* a, void const* b, std::size_t bytes, cudaStream_t stream) {
  static device_array<unsigned> const sink{1};
  double best = 1e30;
  for (unsigned blocks : {132u * 4, 132u * 8, 132u * 16, 132u * 32})
    for (unsigned threads : {256u, 512u})
      best = std::min(best, median_seconds(stream, 7, [&](int) {
                        gpu::launch("read", read_kernel, blocks, threads, 0, stream, static_cast<uint4 const*>(a),
                                    static_cast<uint4 const*>(b), bytes / 16, sink.span().data());
                      }));
  return best;
}

TURNWISE_KERNEL void copy_kernel(uint4 const* from, uint4* to, std::size_t vectors) {
  std::size_t const stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < vectors; i += stride) to[i] = from[i];
}

/// Offsets of packed turns whose lengths are log-normal with the given mean, filling `tokens` tokens.
inline std::vector<std::int64_t> ragged_offsets(std::size_t tokens, double mean, unsigned seed) {
  std::mt19937 generator{seed};
  std::lognormal_distribution<double> length{std::log(mean) - 0.125, 0.5};
  std::vector<std::int64_t> offsets{0};
  while (offsets.back() < static_cast<std::int64_t>(tokens))
    offsets.push_back(std::min(static_cast<std::int64_t>(tokens),
                               offsets.back() + std::max<std::int64_t>(1, std::llround(length(generator)))));
  return offsets;
}

}  // namespace bench
