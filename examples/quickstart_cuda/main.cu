// examples/quickstart on the device: a grouping and a token plan once a batch, then the step; all only enqueued.
#include <turnwise/gpu/core/grouping.cuh>
#include <turnwise/gpu/core/token_plan.cuh>
#include <turnwise/gpu/recipe/dr_kernel.cuh>

#include <thrust/device_vector.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

namespace gpu = turnwise::gpu;

template <typename T>
gpu::device_span<T> span(thrust::device_vector<T>& memory) {
  return {thrust::raw_pointer_cast(memory.data()), memory.size()};
}

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("skipped: no CUDA device");
    return 0;
  }
  // The same batch: two prompts, two conversations each, one or two turns each, three tokens a turn.
  std::vector<float> old_host(21, -0.50f);
  std::fill(old_host.begin() + 15, old_host.end(), -0.49f);
  thrust::device_vector<std::int64_t> turn_begin = std::vector<std::int64_t>{0, 3, 6, 9, 12, 15, 18};
  thrust::device_vector<std::int64_t> turn_end = std::vector<std::int64_t>{3, 6, 9, 12, 15, 18, 21};
  thrust::device_vector<std::int64_t> trajectory_offsets = std::vector<std::int64_t>{0, 2, 4, 5, 7};
  thrust::device_vector<std::int64_t> prompt = std::vector<std::int64_t>{7, 7, 9, 9};
  thrust::device_vector<std::int64_t> trajectory = std::vector<std::int64_t>{0, 1, 0, 1};
  thrust::device_vector<double> reward = std::vector<double>{1, 3, 0, 1, 3, 0, 1};
  thrust::device_vector<float> rollout_logprob(21, -0.50f), old_logprob = old_host;
  std::size_t const turns = reward.size(), tokens = old_logprob.size();

  gpu::rollout_view const batch{.turns = turns,
                                .turn_begin = span(turn_begin),
                                .turn_end = span(turn_end),
                                .trajectory_offsets = span(trajectory_offsets),
                                .group_id = span(prompt),
                                .trajectory_id = span(trajectory)};
  gpu::recipe::step_inputs<float, float, double> const inputs{.tokens = {span(old_logprob), span(rollout_logprob)},
                                                              .given_reward = span(reward)};
  gpu::recipe::dr_kernel_options options;
  options.filters.ratio_band.emplace();  // geometric ratio of the trajectory in [0.999, 1.001]

  // All memory is the caller's. That of the grouping and of the plan holds them as long as they are used.
  thrust::device_vector<double> advantage(turns);
  thrust::device_vector<turnwise::reason_flags> reasons(turns);
  thrust::device_vector<gpu::status_record> status(1);
  thrust::device_vector<std::byte> of_groups(
      gpu::grouping_workspace_bytes(turns, batch.trajectories(), turnwise::group_by::turn));
  thrust::device_vector<std::byte> of_plan(gpu::token_plan_workspace_bytes(turns, tokens));
  thrust::device_vector<std::byte> scratch(gpu::recipe::dr_kernel_workspace_bytes(turns, tokens));

  cudaStream_t stream = nullptr;
  gpu::check(cudaStreamCreate(&stream), "cudaStreamCreate");
  gpu::status_record* const told = span(status).data();
  auto const groups =
      gpu::make_grouping(batch, turnwise::group_by::turn, told, gpu::workspace{span(of_groups)}, stream);
  auto const plan = gpu::make_token_plan(batch, tokens, told, gpu::workspace{span(of_plan)}, stream);
  gpu::recipe::dr_kernel(batch, groups, plan, inputs, options, {.seed = 1, .step = 0},
                         {.advantage = span(advantage), .reasons = span(reasons)}, told, gpu::workspace{span(scratch)},
                         stream);
  gpu::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");  // so far everything was only enqueued
  gpu::check(cudaStreamDestroy(stream), "cudaStreamDestroy");

  gpu::check(status[0]);  // throws if the content of the batch was bad
  for (std::size_t s = 0; s < turns; ++s)
    std::printf("turn %zu: advantage %+g, %s\n", s, static_cast<double>(advantage[s]),
                turnwise::is_kept(reasons[s]) ? "kept" : "rejected");
}
