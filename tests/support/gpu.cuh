/// What the GPU tests share: whether there is a device, and running a call in every way that it must support.
#pragma once

#include "support/device_array.cuh"

#include <turnwise/gpu/core/launch.cuh>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <span>
#include <vector>

namespace support {

/// False only where there is no device or no driver, which it says, so that ctest can tell it from tests that vanished;
/// any other trouble ends the program.
inline bool has_device() {
  int count = 0;
  cudaError_t const code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess) return true;
  if (code != cudaErrorNoDevice && code != cudaErrorInsufficientDriver && code != cudaErrorStubLibrary) {
    std::fprintf(stderr, "cudaGetDeviceCount: %s\n", cudaGetErrorString(code));
    std::exit(EXIT_FAILURE);
  }
  static bool const told = std::puts("skipped: no CUDA device") >= 0;
  return !told;
}

/// How many of `all` random batches to try; the environment's TURNWISE_TEST_SEEDS caps it.
inline unsigned seeds(unsigned all) {
  char const* const most = std::getenv("TURNWISE_TEST_SEEDS");
  return most == nullptr ? all : std::min(all, static_cast<unsigned>(std::atoi(most)));
}

/// Whether a checker runs the test, to which each launch is slow: TURNWISE_TEST_SEEDS=1. Then there are fewer sizes,
/// layouts and options, and no launch is repeated.
inline bool under_checker() { return seeds(2) == 1; }

/// A stream that does not wait for the default one.
class side_stream {
 public:
  side_stream() { gpu::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate"); }
  side_stream(side_stream const&) = delete;
  ~side_stream() { cudaStreamDestroy(stream_); }
  [[nodiscard]] cudaStream_t get() const { return stream_; }
  operator ::cuda::stream_ref() const { return ::cuda::stream_ref{stream_}; }
  void wait() const { gpu::check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  cudaStream_t stream_ = nullptr;
};

/// Runs `enqueue(stream)` on a side stream, and (not under a checker) again captured in a graph that is replayed twice;
/// calls `compare` after each. `before` resets the outputs.
template <typename Before, typename Enqueue, typename Compare>
void on_stream_and_in_graph(Before before, Enqueue enqueue, Compare compare) {
  side_stream const stream;
  before();
  enqueue(::cuda::stream_ref{stream.get()});
  stream.wait();
  compare();
  if (under_checker()) return;

  cudaGraph_t graph;
  cudaGraphExec_t executable;
  gpu::check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  enqueue(::cuda::stream_ref{stream.get()});
  gpu::check(cudaStreamEndCapture(stream.get(), &graph), "cudaStreamEndCapture");
  gpu::check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  before();
  for (int replay = 0; replay < 2; ++replay) gpu::check(cudaGraphLaunch(executable, stream.get()), "cudaGraphLaunch");
  stream.wait();
  compare();
  gpu::check(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
  gpu::check(cudaGraphDestroy(graph), "cudaGraphDestroy");
}

/// A workspace of exactly `bytes`, and one that is a byte too short.
class exact_workspace {
 public:
  explicit exact_workspace(std::size_t bytes) : memory_(bytes) {}
  [[nodiscard]] gpu::workspace whole() const { return gpu::workspace{memory_.span()}; }
  [[nodiscard]] gpu::workspace short_by_one() const {
    return gpu::workspace{memory_.span().first(memory_.span().size() - 1)};
  }

 private:
  device_array<std::byte> memory_;
};

}  // namespace support
