// Batches beyond 2^31 tokens and 2^31 turns; run where the device has the memory.
#include "support/gpu.cuh"
#include "support/gpu_builders.cuh"

#include <turnwise/gpu/importance/log_ratio_statistics.cuh>

#include <cuda_bf16.h>
#include <doctest/doctest.h>

namespace large_batch_test {

using namespace support;
using turnwise::importance::turn_statistics;

namespace {

/// Log ratio of token i: 0, 1 or 2 in units of 2^-7, which bfloat16 holds exactly.
TURNWISE_KERNEL void fill_tokens(__nv_bfloat16* old_logprob, __nv_bfloat16* rollout_logprob, std::int64_t tokens) {
  for (auto i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < tokens;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    rollout_logprob[i] = __float2bfloat16(-1.0f);
    old_logprob[i] = __float2bfloat16(-1.0f + static_cast<float>(i % 3) * 0x1p-7f);
  }
}

TURNWISE_KERNEL void fill_offsets(std::int64_t* offsets, std::int64_t turns, std::int64_t size, std::int64_t tokens) {
  for (auto s = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; s <= turns;
       s += std::int64_t{gridDim.x} * blockDim.x)
    offsets[s] = s * size < tokens ? s * size : tokens;
}

/// Sum of i % 3 over [0, n).
__host__ __device__ std::int64_t pattern_sum(std::int64_t n) { return n / 3 * 3 + (n % 3 == 2 ? 1 : 0); }

TURNWISE_KERNEL void count_wrong(std::int64_t const* offsets, turn_statistics const* records, std::int64_t turns,
                                 unsigned long long* wrong) {
  for (auto s = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; s < turns;
       s += std::int64_t{gridDim.x} * blockDim.x) {
    std::int64_t const begin = offsets[s];
    std::int64_t const end = offsets[s + 1];
    turn_statistics const record = records[s];
    double const max = end - begin >= 3 ? 2.0 : static_cast<double>((end - 1) % 3);
    double const min = end - begin >= 3 ? 0.0 : static_cast<double>(begin % 3);
    bool const right = record.count == end - begin &&
                       record.sum == (pattern_sum(end) - pattern_sum(begin)) * (std::int64_t{1} << 17) &&
                       record.min == min * 0x1p-7 && record.max == max * 0x1p-7 && record.non_finite == 0 &&
                       record.saturated == 0;
    if (!right) atomicAdd(wrong, 1ull);
  }
}

/// Turns of `size` tokens each, as many as fill `tokens`.
void check_batch(std::int64_t tokens, std::int64_t size) {
  std::int64_t const turns = (tokens + size - 1) / size;
  auto const bytes = static_cast<std::size_t>(tokens) * 4 +
                     static_cast<std::size_t>(turns) * (8 + sizeof(turn_statistics)) +
                     gpu::importance::log_ratio_statistics_workspace_bytes(static_cast<std::size_t>(tokens)) +
                     support::token_plan_workspace_bytes(static_cast<std::size_t>(turns),
                                                         static_cast<std::size_t>(tokens), gpu::turn_order::by_tokens);
  std::size_t free_bytes = 0, all_bytes = 0;
  gpu::check(cudaMemGetInfo(&free_bytes, &all_bytes), "cudaMemGetInfo");
  if (free_bytes < bytes + (std::size_t{1} << 30)) {
    MESSAGE("not run: ", tokens, " tokens in ", turns, " turns need ", bytes >> 30, " GiB, free are ",
            free_bytes >> 30);
    return;
  }
  side_stream const stream;
  device_array<__nv_bfloat16> const old_logprob{static_cast<std::size_t>(tokens)};
  device_array<__nv_bfloat16> const rollout_logprob{static_cast<std::size_t>(tokens)};
  device_array<std::int64_t> const offsets{static_cast<std::size_t>(turns) + 1};
  device_array<turn_statistics> const records{static_cast<std::size_t>(turns)};
  device_array<unsigned long long> const wrong{1};
  device_array<gpu::status_record> const status{1};
  gpu::check(cudaMemset(wrong.span().data(), 0, 8), "cudaMemset");
  gpu::check(cudaMemset(status.span().data(), 0, sizeof(gpu::status_record)), "cudaMemset");
  gpu::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  gpu::launch("fill", fill_tokens, 4096, 256, 0, stream, old_logprob.span().data(), rollout_logprob.span().data(),
              tokens);
  gpu::launch("fill", fill_offsets, 4096, 256, 0, stream, offsets.span().data(), turns, size, tokens);
  exact_workspace const plan_memory{support::token_plan_workspace_bytes(
      static_cast<std::size_t>(turns), static_cast<std::size_t>(tokens), gpu::turn_order::by_tokens)};
  exact_workspace const memory{gpu::importance::log_ratio_statistics_workspace_bytes(static_cast<std::size_t>(tokens))};
  gpu::rollout_view batch;
  batch.turns = static_cast<std::size_t>(turns);
  batch.turn_begin = offsets.view().first(batch.turns);
  batch.turn_end = offsets.view().subspan(1);
  auto const plan = support::make_token_plan(batch, static_cast<std::size_t>(tokens), status.span().data(),
                                             plan_memory.whole(), stream, gpu::turn_order::by_tokens);
  gpu::importance::log_ratio_statistics(
      plan, gpu::token_logprobs<__nv_bfloat16, __nv_bfloat16>{old_logprob.view(), rollout_logprob.view(), {}},
      records.span(), memory.whole(), stream);
  gpu::launch("count", count_wrong, 4096, 256, 0, stream, offsets.span().data(), records.span().data(), turns,
              wrong.span().data());
  stream.wait();
  CHECK_NOTHROW(gpu::check(status.host()[0]));
  CHECK(wrong.host()[0] == 0);
  MESSAGE("ran ", tokens, " tokens in ", turns, " turns");
}

}  // namespace

TEST_SUITE("gpu/importance/large_batch" * doctest::skip(!has_device())) {
  constexpr std::int64_t two_31 = std::int64_t{1} << 31;

  TEST_CASE("CU-01 more than 2^31 tokens in turns of about a million, and in one turn") {
    check_batch(two_31 + 12345, 1000003);
    check_batch(two_31 + 12345, two_31 + 12345);
  }

  TEST_CASE("CU-02, CU-08 more than 65535 and more than 2^31 turns, of one token each") {
    for (std::int64_t const turns : {std::int64_t{65535}, std::int64_t{65536}, std::int64_t{70000}, two_31 + 100})
      check_batch(turns, 1);
  }

}  // TEST_SUITE

}  // namespace large_batch_test
