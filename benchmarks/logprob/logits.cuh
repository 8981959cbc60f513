/// What the benchmarks of topic logprob share: rows of random logits, and a copy as the limit.
#pragma once

#include "../gpu_common.cuh"

#include <turnwise/gpu/logprob/token_logprob.cuh>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

namespace bench {

namespace logprob = turnwise::gpu::logprob;
using turnwise::logprob::log_normalizer;
using turnwise::logprob::logit_layout;

template <typename T>
TURNWISE_KERNEL void fill_kernel(T* logits, std::size_t count) {
  std::size_t const stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    auto hash = static_cast<unsigned>(i) * 2654435761u ^ static_cast<unsigned>(i >> 32) * 40503u;
    hash ^= hash >> 15;
    hash *= 2246822519u;
    hash ^= hash >> 13;
    // About normal, a spread of 3, with a few likely tokens.
    float const sum = static_cast<float>(hash & 255) + static_cast<float>(hash >> 8 & 255) +
                      static_cast<float>(hash >> 16 & 255) + static_cast<float>(hash >> 24);
    logits[i] = static_cast<T>((sum - 510.0f) * 0.02f + (hash % 4099 == 0 ? 12.0f : 0.0f));
  }
}

/// Rows of random logits, their tokens and room for the outputs. `gap`: elements between rows.
template <typename T>
struct logit_rows {
  cudaStream_t stream;
  logit_layout layout;
  std::size_t bytes;
  device_array<T> logits;
  device_array<std::int64_t> ids;
  device_array<float> out, entropy, squares, ones;
  device_array<log_normalizer<float>> normalizer;

  logit_rows(std::size_t rows, std::size_t vocabulary, std::size_t gap)
      : layout{rows, vocabulary, vocabulary + gap},
        bytes(rows * vocabulary * sizeof(T)),
        logits((rows * layout.row_stride + 15) / 16 * 16),
        ids(rows),
        out(rows),
        entropy(rows),
        squares(rows),
        ones(std::span<float const>{std::vector<float>(rows, 1.0f)}),
        normalizer(rows) {
    gpu::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    gpu::launch("fill", fill_kernel<T>, 4096, 256, 0, stream, logits.span().data(), logits.span().size());
    gpu::check(cudaMemsetAsync(ids.span().data(), 0, rows * sizeof(std::int64_t), stream), "cudaMemsetAsync");
  }
  logit_rows(logit_rows const&) = delete;
  ~logit_rows() { cudaStreamDestroy(stream); }

  [[nodiscard]] logprob::token_logits<T, std::int64_t> call() const { return {logits.view(), layout, ids.view()}; }
  /// Seconds of a plain read of as many bytes.
  [[nodiscard]] double read() const {
    std::size_t const half = bytes / 32 * 16;
    auto const* const begin = reinterpret_cast<std::byte const*>(logits.span().data());
    return read_seconds(begin, begin + half, half, stream);
  }
};

inline std::size_t rows_of(benchmark::State const& state) {
  char const* const rows = std::getenv("TURNWISE_BENCH_ROWS");
  return rows == nullptr ? static_cast<std::size_t>(state.range(0)) : static_cast<std::size_t>(std::atoll(rows));
}

/// Seconds of a plain copy of `bytes`, at the best of a few grid sizes.
inline double copy_seconds(void const* from, void* to, std::size_t bytes, cudaStream_t stream) {
  double best = 1e30;
  for (unsigned blocks : {132u * 8, 132u * 16, 132u * 64, 132u * 256})
    best = std::min(best, median_seconds(stream, 7, [&](int) {
                      gpu::launch("copy", copy_kernel, blocks, 512, 0, stream, static_cast<uint4 const*>(from),
                                  static_cast<uint4*>(to), bytes / 16);
                    }));
  return best;
}

}  // namespace bench
