// The whole dr_kernel step after the grouping, replayed as a CUDA graph, float per-token advantages written: its time over
// that of a copy that moves the same number of bytes (the better of cudaMemcpyAsync and a copy kernel). Beside it the
// core of what a user would write with CUB: difference, segmented sum and minimum, leave-one-out, broadcast.
#include "../gpu_common.cuh"

#include <turnwise/gpu/core/grouping.cuh>
#include <turnwise/gpu/core/token_plan.cuh>
#include <turnwise/gpu/recipe/dr_kernel.cuh>

#include <benchmark/benchmark.h>
#include <cub/device/device_segmented_reduce.cuh>

namespace {

using namespace bench;
using turnwise::importance::turn_statistics;

/// prompts x trajectories x turns, log-normal lengths.
struct shape {
  std::vector<std::int64_t> offsets{0}, trajectory_offsets, group, trajectory;
  std::vector<std::uint8_t> correct;
  std::vector<float> speedup, generated_us, total_us;

  shape(std::int64_t prompts, std::int64_t samples, std::int64_t turns, double mean, double most) {
    std::mt19937 random{1};
    std::lognormal_distribution<double> length{std::log(mean), 0.6};
    for (std::int64_t j = 0; j <= prompts * samples; ++j) trajectory_offsets.push_back(j * turns);
    for (std::int64_t j = 0; j < prompts * samples; ++j) {
      group.push_back(j / samples * 1000003);
      trajectory.push_back(j);
      for (std::int64_t t = 0; t < turns; ++t) {
        offsets.push_back(offsets.back() + static_cast<std::int64_t>(std::clamp(length(random), 1.0, most)));
        correct.push_back(random() % 2 == 0);
        speedup.push_back(static_cast<float>(random() % 300) * 0.01f);
        generated_us.push_back(static_cast<float>(random() % 100));
        total_us.push_back(100.0f);
      }
    }
  }
};

TURNWISE_KERNEL void fill_kernel(float* old_logprob, float* rollout_logprob, std::size_t tokens, unsigned salt) {
  std::size_t const stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < tokens; i += stride) {
    auto const hash = static_cast<unsigned>((i + salt) * 2654435761u) >> 8;
    rollout_logprob[i] = -static_cast<float>(hash % 4096) * 1e-3f;
    old_logprob[i] = rollout_logprob[i] + (static_cast<float>(hash % 255) - 127.0f) * 1e-5f;
  }
}

TURNWISE_KERNEL void difference_kernel(float const* a, float const* b, float* d, std::size_t tokens) {
  std::size_t const stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < tokens; i += stride) d[i] = a[i] - b[i];
}

TURNWISE_KERNEL void broadcast_kernel(std::int64_t const* offsets, double const* advantage, float* out) {
  std::int64_t const begin = offsets[blockIdx.x];
  std::int64_t const end = offsets[blockIdx.x + 1];
  for (std::int64_t i = begin + threadIdx.x; i < end; i += blockDim.x)
    out[i] = static_cast<float>(advantage[blockIdx.x]);
}

void step(benchmark::State& state) {
  shape const batch{state.range(0), state.range(1), state.range(2), static_cast<double>(state.range(3)), 8192};
  std::size_t const turns = batch.offsets.size() - 1;
  auto const tokens = static_cast<std::size_t>(batch.offsets.back());
  cudaStream_t stream;
  gpu::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");

  auto const upload = [](auto const& values) {
    return device_array<typename std::decay_t<decltype(values)>::value_type>{std::span{values}};
  };
  auto const offsets = upload(batch.offsets);
  auto const trajectory_offsets = upload(batch.trajectory_offsets);
  auto const group = upload(batch.group);
  auto const trajectory = upload(batch.trajectory);
  auto const correct = upload(batch.correct);
  auto const speedup = upload(batch.speedup);
  auto const generated_us = upload(batch.generated_us);
  auto const total_us = upload(batch.total_us);
  gpu::rollout_view const view{.turns = turns,
                               .turn_begin = offsets.view().first(turns),
                               .turn_end = offsets.view().subspan(1),
                               .trajectory_offsets = trajectory_offsets.view(),
                               .group_id = group.view(),
                               .trajectory_id = trajectory.view()};
  device_array<std::byte> const group_memory{
      gpu::grouping_workspace_bytes(turns, batch.group.size(), turnwise::group_by::turn)};
  device_array<std::byte> const plan_memory{gpu::token_plan_workspace_bytes(turns, tokens, gpu::turn_order::by_tokens)};
  device_array<std::byte> const memory{gpu::recipe::dr_kernel_workspace_bytes(turns, tokens)};
  device_array<double> const advantage{turns}, other_advantage{turns};
  auto const options = turnwise::recipe::dr_kernel_options::released();
  auto const make_groups = [&] {
    return gpu::make_grouping(view, turnwise::group_by::turn, nullptr, workspace_of(group_memory), stream);
  };
  auto const make_plan = [&] {
    return gpu::make_token_plan(view, tokens, nullptr, workspace_of(plan_memory), stream, gpu::turn_order::by_tokens);
  };
  auto const groups = make_groups();
  auto const plan = make_plan();

  // As many sets of token arrays as it takes to be out of L2, up to eight.
  std::size_t const sets = std::clamp<std::size_t>((std::size_t{1} << 28) / (tokens * 12) + 1, 1, 8);
  std::vector<device_array<float>> old_logprob, rollout_logprob, token_advantage;
  std::vector<graph> steps, with_grouping, kernels, copies, baselines;
  device_array<float> const difference{tokens}, sums{turns}, minima{turns};
  std::size_t cub_bytes = 0;
  cub::DeviceSegmentedReduce::Sum(nullptr, cub_bytes, difference.span().data(), sums.span().data(),
                                  static_cast<std::int64_t>(turns), offsets.span().data(), offsets.span().data() + 1,
                                  stream);
  device_array<std::byte> const cub_memory{cub_bytes + 1024};
  bool const masked = state.range(4) != 0;
  std::vector<std::uint8_t> host_mask(masked ? tokens : 0, 1);
  for (std::size_t i = 0; i < host_mask.size(); i += 3) host_mask[i] = i % 1000 < 700;
  device_array<std::uint8_t> const mask{std::span<std::uint8_t const>{host_mask}}, token_mask{host_mask.size()};
  for (std::size_t i = 0; i < sets; ++i) {
    old_logprob.emplace_back(tokens);
    rollout_logprob.emplace_back(tokens);
    token_advantage.emplace_back(tokens);
  }
  for (std::size_t i = 0; i < sets; ++i) {
    gpu::launch("fill", fill_kernel, 1024, 256, 0, stream, old_logprob[i].span().data(),
                rollout_logprob[i].span().data(), tokens, static_cast<unsigned>(i));
    gpu::recipe::step_inputs<float, float, float> const inputs{
        .tokens = {old_logprob[i].view(), rollout_logprob[i].view(), mask.view()},
        .evaluation = {.correct = correct.view(),
                       .speedup = speedup.view(),
                       .generated_us = generated_us.view(),
                       .total_us = total_us.view()},
        .given_reward = {}};
    gpu::recipe::step_outputs out;
    out.advantage = advantage.span();
    out.token_advantage = token_advantage[i].span();
    out.token_mask = token_mask.span();
    auto const enqueue = [&](gpu::grouping const& by, gpu::token_plan const& with) {
      gpu::recipe::dr_kernel(view, by, with, inputs, options, {1, 2}, out, nullptr, workspace_of(memory), stream);
    };
    steps.emplace_back(stream, [&] { enqueue(groups, plan); });
    with_grouping.emplace_back(stream, [&] {
      auto const new_groups = make_groups();
      enqueue(new_groups, make_plan());
    });
    // The step reads two arrays and writes one: a copy of 1.5 arrays moves the same bytes. A mask is read twice and
    // written once.
    std::size_t const vectors = tokens * 4 / 16;
    std::size_t const rest = (masked ? vectors * 7 / 8 : vectors / 2);
    kernels.emplace_back(stream, [&] {
      gpu::launch("copy", copy_kernel, gpu::grid_blocks(vectors, 256), 256, 0, stream,
                  reinterpret_cast<uint4 const*>(old_logprob[i].span().data()),
                  reinterpret_cast<uint4*>(token_advantage[i].span().data()), vectors);
      gpu::launch("copy", copy_kernel, gpu::grid_blocks(rest, 256), 256, 0, stream,
                  reinterpret_cast<uint4 const*>(rollout_logprob[i].span().data()),
                  reinterpret_cast<uint4*>(token_advantage[i].span().data()), rest);
    });
    copies.emplace_back(stream, [&] {
      gpu::check(cudaMemcpyAsync(token_advantage[i].span().data(), old_logprob[i].span().data(), tokens * 4,
                                 cudaMemcpyDeviceToDevice, stream),
                 "copy");
      gpu::check(cudaMemcpyAsync(token_advantage[i].span().data(), rollout_logprob[i].span().data(), rest * 16,
                                 cudaMemcpyDeviceToDevice, stream),
                 "copy");
    });
    baselines.emplace_back(stream, [&] {
      gpu::launch("difference", difference_kernel, gpu::grid_blocks(tokens, 1024), 256, 0, stream,
                  old_logprob[i].span().data(), rollout_logprob[i].span().data(), difference.span().data(), tokens);
      std::size_t bytes = cub_memory.span().size();
      cub::DeviceSegmentedReduce::Sum(cub_memory.span().data(), bytes, difference.span().data(), sums.span().data(),
                                      static_cast<std::int64_t>(turns), offsets.span().data(),
                                      offsets.span().data() + 1, stream);
      cub::DeviceSegmentedReduce::Min(cub_memory.span().data(), bytes, difference.span().data(), minima.span().data(),
                                      static_cast<std::int64_t>(turns), offsets.span().data(),
                                      offsets.span().data() + 1, stream);
      gpu::advantage::leave_one_out<double>(groups, advantage.view(), {}, {}, other_advantage.span(), nullptr, stream);
      gpu::launch("broadcast", broadcast_kernel, static_cast<unsigned>(turns), 256, 0, stream, offsets.span().data(),
                  advantage.span().data(), token_advantage[i].span().data());
    });
  }
  for (auto _ : state) {
    double const copy = std::min(rotation_seconds(stream, kernels), rotation_seconds(stream, copies));
    double const ours = rotation_seconds(stream, steps);
    double const grouped = rotation_seconds(stream, with_grouping);
    double const baseline = rotation_seconds(stream, baselines);
    state.SetIterationTime(ours);
    state.counters["copy_us"] = copy * 1e6;
    state.counters["step_us"] = ours * 1e6;
    state.counters["times_copy"] = ours / copy;
    state.counters["with_grouping_us"] = grouped * 1e6;
    state.counters["cub_us"] = baseline * 1e6;
    state.counters["cub_times_ours"] = baseline / ours;
    state.counters["Mtokens"] = static_cast<double>(tokens) * 1e-6;
  }
  gpu::check(cudaStreamDestroy(stream), "cudaStreamDestroy");
}
BENCHMARK(step)
    ->Name("dr_kernel")
    ->ArgNames({"prompts", "trajectories", "turns", "tokens", "masked"})
    ->Args({16, 16, 3, 4000, 0})
    ->Args({16, 16, 3, 4000, 1})
    ->Args({64, 64, 8, 3900, 0})
    ->Args({64, 64, 8, 3900, 1})
    ->UseManualTime()
    ->Iterations(1)
    ->Unit(benchmark::kMicrosecond);

}  // namespace

BENCHMARK_MAIN();
