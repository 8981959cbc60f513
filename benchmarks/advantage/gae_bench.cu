// Generalized advantage estimation over 2^27 tokens, segments of one length: time of a copy that moves the bytes of the
// token arrays over our time. `with_segments` counts offsets, cuts and next values as bytes too.
#include "../gpu_common.cuh"

#include <turnwise/gpu/advantage/gae.cuh>

#include <benchmark/benchmark.h>

namespace {

using namespace bench;

TURNWISE_KERNEL void fill_kernel(float* numbers, std::size_t count, std::uint8_t* mask, std::size_t tokens) {
  std::size_t const stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    numbers[i] = static_cast<float>(static_cast<unsigned>(i * 2654435761u) >> 8) * 0x1p-24f - 0.5f;
    if (i < tokens) mask[i] = i % 5 != 0;
  }
}

/// A plain copy of `bytes` bytes, at the best of a few grid sizes.
double copy_seconds(void const* from, void* to, std::size_t bytes, cudaStream_t stream) {
  double best = 1e30;
  for (unsigned blocks : {132u * 8, 132u * 16, 132u * 32, 132u * 64})
    best = std::min(best, median_seconds(stream, 7, [&](int) {
                      gpu::launch("copy", copy_kernel, blocks, 512, 0, stream, static_cast<uint4 const*>(from),
                                  static_cast<uint4*>(to), bytes / 16);
                    }));
  return std::min(best, median_seconds(stream, 7, [&](int) {
                    gpu::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), "copy");
                  }));
}

/// Arguments: log2 of the tokens, tokens of a segment, number of outputs, whether there is a mask.
void gae(benchmark::State& state) {
  auto const tokens = std::size_t{1} << state.range(0);
  auto const size = static_cast<std::int64_t>(state.range(1));
  bool const masked = state.range(3) != 0;
  cudaStream_t stream;
  gpu::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  std::vector<std::int64_t> offsets;
  for (std::int64_t begin = 0; begin < static_cast<std::int64_t>(tokens); begin += size) offsets.push_back(begin);
  offsets.push_back(static_cast<std::int64_t>(tokens));
  std::size_t const segments = offsets.size() - 1;
  std::vector<std::uint8_t> cut(segments);
  for (std::size_t k = 0; k < segments; ++k) cut[k] = k % 3 == 0;
  device_array<std::int64_t> const device_offsets{std::span<std::int64_t const>{offsets}};
  device_array<std::uint8_t> const device_cut{std::span<std::uint8_t const>{cut}};
  device_array<float> const next_value{segments}, inputs{3 * tokens}, outputs{3 * tokens};
  device_array<std::uint8_t> const mask{tokens};
  gpu::launch("fill", fill_kernel, 1024, 256, 0, stream, inputs.span().data(), 3 * tokens, mask.span().data(), tokens);
  gpu::check(cudaMemsetAsync(next_value.span().data(), 0, segments * sizeof(float), stream), "cudaMemset");
  device_array<std::byte> const scratch{gpu::advantage::gae_workspace_bytes<float>(tokens)};
  gpu::advantage::token_segments<float> packed{device_offsets.view(), device_cut.view(), next_value.view(), {}};
  if (masked) packed.mask = mask.view();
  auto const target = state.range(2) == 2 ? outputs.span().subspan(tokens).first(tokens) : gpu::device_span<float>{};

  for (auto _ : state) {
    auto const outputs_wanted = static_cast<std::size_t>(state.range(2));
    std::size_t const bytes = tokens * (2 + outputs_wanted) * sizeof(float) + (masked ? tokens : 0);
    double const copy = copy_seconds(inputs.span().data(), outputs.span().data(), bytes / 2, stream);
    double const ours = median_seconds(stream, 15, [&](int) {
      gpu::advantage::gae<float>(packed, inputs.view().first(tokens), inputs.view().subspan(tokens).first(tokens),
                                 {.gamma = 1, .lambda = 1}, outputs.span().first(tokens), target, nullptr,
                                 workspace_of(scratch), stream);
    });
    double const segment_bytes = 13.0 * static_cast<double>(segments);
    state.SetIterationTime(ours);
    state.counters["of_copy"] = copy / ours;
    state.counters["with_segments"] = copy * (1 + segment_bytes / static_cast<double>(bytes)) / ours;
    state.counters["TB/s"] = static_cast<double>(bytes) / ours * 1e-12;
    state.counters["copy_TB/s"] = static_cast<double>(bytes) / copy * 1e-12;
  }
  gpu::check(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

void shapes(benchmark::internal::Benchmark* each) {
  each->ArgNames({"log2_tokens", "segment", "outputs", "mask"});
  each->UseManualTime()->Iterations(1)->Unit(benchmark::kMillisecond);
  for (int const outputs : {1, 2})
    for (int const masked : {0, 1})
      for (int const segment : {8, 512, 8192, 1 << 20, 1 << 27})
        if (outputs == 2 || masked == 0) each->Args({27, segment, outputs, masked});
}
BENCHMARK(gae)->Apply(shapes);

}  // namespace

BENCHMARK_MAIN();
