// PPO-clip, loss, gradient and record, replayed as a CUDA graph: its time over that of a copy that moves the same
// number of bytes (the better of cudaMemcpyAsync and a copy kernel). Of the three types, current is the first, old the
// second, the gradient the third.
#include "../gpu_common.cuh"

#include <turnwise/gpu/core/token_plan.cuh>
#include <turnwise/gpu/loss/policy_loss.cuh>
#include <turnwise/loss/gspo.hpp>
#include <turnwise/loss/ppo_clip.hpp>

#include <benchmark/benchmark.h>
#include <cuda_bf16.h>

namespace {

using namespace bench;

template <typename Current, typename Old>
TURNWISE_KERNEL void fill_kernel(Current* current, Old* old, std::size_t tokens, unsigned salt) {
  std::size_t const stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < tokens; i += stride) {
    auto const hash = static_cast<unsigned>((i + salt) * 2654435761u) >> 8;
    float const of_old = -static_cast<float>(hash % 4096) * 1e-3f;
    old[i] = static_cast<Old>(of_old);
    current[i] = static_cast<Current>(of_old + (static_cast<float>(hash % 255) - 127.0f) * 2e-3f);
  }
}

/// Arguments: thousands of tokens, mean tokens of a turn.
template <typename Policy, typename Current, typename Old, typename Gradient>
void loss(benchmark::State& state) {
  auto const tokens = static_cast<std::size_t>(state.range(0)) * 1000;
  auto const offsets = ragged_offsets(tokens, static_cast<double>(state.range(1)), 7);
  std::size_t const turns = offsets.size() - 1;
  cudaStream_t stream;
  gpu::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  device_array<std::int64_t> const device_offsets{std::span{offsets}};
  std::vector<double> host_advantage(turns), host_scale(turns, 1.0 / static_cast<double>(tokens));
  for (std::size_t s = 0; s < turns; ++s) host_advantage[s] = static_cast<double>(s % 7) - 3;
  device_array<double> const advantage{std::span<double const>{host_advantage}};
  device_array<double> const scale{std::span<double const>{host_scale}};
  gpu::rollout_view const batch{
      .turns = turns, .turn_begin = device_offsets.view().first(turns), .turn_end = device_offsets.view().subspan(1)};
  device_array<std::byte> const plan_memory{gpu::token_plan_workspace_bytes(turns, tokens, gpu::turn_order::by_tokens)};
  auto const plan =
      gpu::make_token_plan(batch, tokens, nullptr, workspace_of(plan_memory), stream, gpu::turn_order::by_tokens);
  device_array<std::byte> const memory{gpu::loss::policy_loss_workspace_bytes<Policy>(turns, tokens)};
  device_array<turnwise::loss::loss_record> const record{1};

  // As many sets of arrays as it takes to be out of L2, up to eight.
  constexpr std::size_t token_bytes = sizeof(Current) + sizeof(Old) + sizeof(Gradient);
  std::size_t const sets = std::clamp<std::size_t>((std::size_t{1} << 28) / (tokens * token_bytes) + 1, 1, 8);
  std::size_t const half = tokens * token_bytes / 32 * 16;  // read and written once each: the same bytes
  std::vector<device_array<Current>> current;
  std::vector<device_array<Old>> old;
  std::vector<device_array<Gradient>> gradient;
  std::vector<device_array<std::byte>> from, to;
  std::vector<graph> ours, kernels, copies;
  for (std::size_t i = 0; i < sets; ++i) {
    current.emplace_back(tokens);
    old.emplace_back(tokens);
    gradient.emplace_back(tokens);
    from.emplace_back(half);
    to.emplace_back(half);
  }
  for (std::size_t i = 0; i < sets; ++i) {
    gpu::launch("fill", fill_kernel<Current, Old>, 1024, 256, 0, stream, current[i].span().data(), old[i].span().data(),
                tokens, static_cast<unsigned>(i));
    gpu::check(cudaMemsetAsync(from[i].span().data(), 1, half, stream), "cudaMemset");
    gpu::loss::loss_inputs<Current, Old> in{.current_logprob = current[i].view(), .old_logprob = old[i].view()};
    in.turn_advantage = advantage.view();
    gpu::loss::loss_outputs<Gradient> const out{gradient[i].span(), {}};
    Policy const policy{.clip_low = 0.2, .clip_high = 0.28};
    ours.emplace_back(stream, [&] {
      gpu::loss::policy_loss(plan, in, policy, {}, scale.view(), out, record.span(), nullptr, workspace_of(memory),
                             stream);
    });
    kernels.emplace_back(stream, [&] {
      gpu::launch("copy", copy_kernel, gpu::grid_blocks(half / 16, 256), 256, 0, stream,
                  reinterpret_cast<uint4 const*>(from[i].span().data()), reinterpret_cast<uint4*>(to[i].span().data()),
                  half / 16);
    });
    copies.emplace_back(stream, [&] {
      gpu::check(cudaMemcpyAsync(to[i].span().data(), from[i].span().data(), half, cudaMemcpyDeviceToDevice, stream),
                 "copy");
    });
  }
  for (auto _ : state) {
    double const copy = std::min(rotation_seconds(stream, kernels), rotation_seconds(stream, copies));
    double const time = rotation_seconds(stream, ours);
    state.SetIterationTime(time);
    state.counters["us"] = time * 1e6;
    state.counters["copy_us"] = copy * 1e6;
    state.counters["times_copy"] = time / copy;
    state.counters["TB/s"] = static_cast<double>(tokens * token_bytes) / time * 1e-12;
  }
  gpu::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  gpu::check(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

void each(benchmark::internal::Benchmark* run, int mean_turn) {
  run->ArgNames({"ktokens", "turn"})->UseManualTime()->Iterations(1)->Unit(benchmark::kMicrosecond);
  for (int ktokens : {3000, 134000}) run->Args({ktokens, mean_turn});
}
/// About 16 x 16 x 3 and 64 x 64 x 8 turns.
void long_turns(benchmark::internal::Benchmark* run) { each(run, 4000); }
void short_turns(benchmark::internal::Benchmark* run) { each(run, 64); }

using turnwise::loss::gspo;
using turnwise::loss::ppo_clip;
using half = __nv_bfloat16;
BENCHMARK(loss<ppo_clip, float, float, float>)->Name("ppo_clip/float")->Apply(long_turns);
BENCHMARK(loss<ppo_clip, float, float, float>)->Name("ppo_clip/float/short")->Apply(short_turns);
BENCHMARK(loss<ppo_clip, half, half, half>)->Name("ppo_clip/bfloat16")->Apply(long_turns);
BENCHMARK(loss<ppo_clip, half, float, float>)->Name("ppo_clip/mixed")->Apply(long_turns);
BENCHMARK(loss<gspo, float, float, float>)->Name("gspo/float")->Apply(long_turns);

}  // namespace

BENCHMARK_MAIN();
