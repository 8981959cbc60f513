// Statistics of log ratios over 2^28 tokens: time of a plain read of the same arrays over our time. Below a mean of 512
// tokens the turn offsets and records count as bytes too.
#include "../gpu_common.cuh"

#include <turnwise/gpu/core/token_plan.cuh>
#include <turnwise/gpu/importance/log_ratio_statistics.cuh>

#include <benchmark/benchmark.h>
#include <cuda_bf16.h>

namespace {

using namespace bench;
using turnwise::importance::ratio_moments;
using turnwise::importance::turn_statistics;

TURNWISE_KERNEL void fill_kernel(float* old_float, float* rollout_float, __nv_bfloat16* old_half,
                                 __nv_bfloat16* rollout_half, std::size_t tokens) {
  std::size_t const stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < tokens; i += stride) {
    auto const hash = static_cast<unsigned>(i * 2654435761u) >> 8;
    float const rollout = -static_cast<float>(hash % 4096) * 1e-3f;
    float const old = rollout + (static_cast<float>(hash % 255) - 127.0f) * 1e-4f;
    if (old_float != nullptr) old_float[i] = old, rollout_float[i] = rollout;
    if (old_half != nullptr) old_half[i] = __float2bfloat16(old), rollout_half[i] = __float2bfloat16(rollout);
  }
}

template <typename T>
void statistics(benchmark::State& state) {
  auto const tokens = std::size_t{1} << state.range(0);
  bool const moments = state.range(2) != 0;
  cudaStream_t stream;
  gpu::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  device_array<T> old_logprob{tokens}, rollout_logprob{tokens};
  if constexpr (sizeof(T) == 4)
    gpu::launch("fill", fill_kernel, 1024, 256, 0, stream, old_logprob.span().data(), rollout_logprob.span().data(),
                nullptr, nullptr, tokens);
  else
    gpu::launch("fill", fill_kernel, 1024, 256, 0, stream, nullptr, nullptr, old_logprob.span().data(),
                rollout_logprob.span().data(), tokens);

  auto const offsets = ragged_offsets(tokens, static_cast<double>(state.range(1)), 7);
  std::size_t const turns = offsets.size() - 1;
  device_array<std::int64_t> const device_offsets{std::span{offsets}};
  gpu::rollout_view batch;
  batch.turns = turns;
  batch.turn_begin = device_offsets.view().first(turns);
  batch.turn_end = device_offsets.view().subspan(1);
  device_array<std::byte> const plan_memory{gpu::token_plan_workspace_bytes(turns, tokens, gpu::turn_order::by_tokens)};
  gpu::token_plan const plan =
      gpu::make_token_plan(batch, tokens, nullptr, workspace_of(plan_memory), stream, gpu::turn_order::by_tokens);
  device_array<turn_statistics> const records{turns};
  device_array<ratio_moments> const sums{moments ? turns : 0};
  device_array<std::byte> const scratch{gpu::importance::log_ratio_statistics_workspace_bytes(tokens, moments)};
  gpu::token_logprobs<T, T> const arrays{old_logprob.view(), rollout_logprob.view(), {}};

  for (auto _ : state) {
    double const read =
        read_seconds(old_logprob.span().data(), rollout_logprob.span().data(), tokens * sizeof(T), stream);
    double const ours = median_seconds(stream, 15, [&](int) {
      if (moments)
        gpu::importance::log_ratio_statistics(plan, arrays, records.span(), sums.span(), workspace_of(scratch), stream);
      else
        gpu::importance::log_ratio_statistics(plan, arrays, records.span(), workspace_of(scratch), stream);
    });
    double const token_bytes = 2.0 * static_cast<double>(tokens * sizeof(T));
    double const turn_bytes =
        static_cast<double>(turns) * (16.0 + sizeof(turn_statistics) + (moments ? sizeof(ratio_moments) : 0));
    state.SetIterationTime(ours);
    state.counters["of_read"] = read / ours;
    state.counters["of_read_with_records"] = read * (1 + turn_bytes / token_bytes) / ours;
    state.counters["TB/s"] = token_bytes / ours * 1e-12;
    state.counters["read_TB/s"] = token_bytes / read * 1e-12;
  }
  gpu::check(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

void shapes(benchmark::internal::Benchmark* each) {
  each->ArgNames({"log2_tokens", "turn", "moments"})->UseManualTime()->Iterations(1)->Unit(benchmark::kMillisecond);
  for (int moments : {0, 1})
    for (int turn : {8, 64, 512, 4096, 262144}) each->Args({28, turn, moments});
}
BENCHMARK(statistics<float>)->Apply(shapes);
BENCHMARK(statistics<__nv_bfloat16>)->Apply(shapes);

}  // namespace

BENCHMARK_MAIN();
