// Policy loss and gradient from logits, in place: time of a copy of the logits over our time, within one run, and the
// same in three steps (token_logprob, the loss of each row, token_logprob_backward: only the first and last are timed).
#include "logits.cuh"

#include <turnwise/gpu/logprob/policy_loss_from_logits.cuh>
#include <turnwise/gpu/logprob/token_logprob.cuh>
#include <turnwise/gpu/logprob/token_logprob_backward.cuh>
#include <turnwise/loss/ppo_clip.hpp>

#include <benchmark/benchmark.h>
#include <cuda_bf16.h>

namespace {

using namespace bench;

template <typename T>
void fused(benchmark::State& state) {
  logit_rows<T> const data{rows_of(state), static_cast<std::size_t>(state.range(1)),
                           static_cast<std::size_t>(state.range(2))};
  std::size_t const rows = data.layout.rows;
  device_array<T> const target{data.logits.span().size()};
  device_array<turnwise::loss::loss_record> const record{1};
  device_array<std::byte> const scratch{logprob::policy_loss_from_logits_workspace_bytes(rows)};
  device_array<float> const old{std::span<float const>{std::vector<float>(rows, -9.0f)}};
  logprob::row_loss_inputs const inputs{old.view(), data.ones.view(), data.ones.view()};
  turnwise::loss::loss_options const options{.entropy_coefficient = 0.01};
  for (auto _ : state) {
    double const copy = copy_seconds(data.logits.span().data(), target.span().data(), data.bytes, data.stream);
    double const steps = median_seconds(data.stream, 7, [&](int) {
      logprob::token_logprob(data.call(), {}, {.entropy = data.entropy.span(), .normalizer = data.normalizer.span()},
                             nullptr, data.stream);
      logprob::token_logprob_backward(data.call(),
                                      {data.normalizer.view(), data.entropy.view(), data.ones.view(), data.ones.view()},
                                      1, 0, target.span(), data.layout, data.stream);
    });
    double const ours = median_seconds(data.stream, 9, [&](int) {
      logprob::policy_loss_from_logits(data.call(), inputs, turnwise::loss::ppo_clip{}, options, 1,
                                       {data.logits.span(), data.layout}, record.span(), nullptr, workspace_of(scratch),
                                       data.stream);
    });
    state.SetIterationTime(ours);
    state.counters["of_copy"] = copy / ours;
    state.counters["of_steps"] = steps / ours;
    state.counters["copy_TB/s"] = 2 * static_cast<double>(data.bytes) / copy * 1e-12;
  }
}

void shapes(benchmark::internal::Benchmark* each) {
  each->ArgNames({"rows", "vocabulary", "gap"})->UseManualTime()->Iterations(1)->Unit(benchmark::kMillisecond);
  each->Args({8192, 151936, 0})->Args({8192, 32000, 0})->Args({8192, 262144, 0})->Args({512, 151936, 0});
  each->Args({8192, 50257, 0})->Args({512, 32000, 0});
}
BENCHMARK(fused<__nv_bfloat16>)->Apply(shapes);
BENCHMARK(fused<float>)->Apply(shapes);

}  // namespace

BENCHMARK_MAIN();
