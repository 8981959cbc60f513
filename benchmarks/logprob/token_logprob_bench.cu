// From logits: time of a plain read (forward) or copy (backward) of the same bytes over our time, within one run.
// TURNWISE_BENCH_ROWS overrides the number of rows.
#include "logits.cuh"

#include <turnwise/gpu/logprob/token_logprob.cuh>
#include <turnwise/gpu/logprob/token_logprob_backward.cuh>

#include <benchmark/benchmark.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace {

using namespace bench;

enum class outputs { logprob, entropy, squares };

template <typename T, outputs What>
void forward(benchmark::State& state) {
  logit_rows<T> const data{rows_of(state), static_cast<std::size_t>(state.range(1)),
                           static_cast<std::size_t>(state.range(2))};
  logprob::token_logprob_outputs out{.logprob = data.out.span(), .normalizer = data.normalizer.span()};
  if (What != outputs::logprob) out.entropy = data.entropy.span();
  if (What == outputs::squares) out.sum_squares = data.squares.span();
  for (auto _ : state) {
    double const read = data.read();
    double const ours = median_seconds(
        data.stream, 9, [&](int) { logprob::token_logprob(data.call(), {}, out, nullptr, data.stream); });
    state.SetIterationTime(ours);
    state.counters["of_read"] = read / ours;
    state.counters["TB/s"] = static_cast<double>(data.bytes) / ours * 1e-12;
    state.counters["read_TB/s"] = static_cast<double>(data.bytes) / read * 1e-12;
  }
}

/// One rank that rounds as eight.
template <typename T>
void tiled(benchmark::State& state) {
  logit_rows<T> const data{rows_of(state), static_cast<std::size_t>(state.range(1)), 0};
  logprob::token_logprob_outputs const out{.logprob = data.out.span(), .entropy = data.entropy.span()};
  logprob::token_logprob_options const options{.tile = (data.layout.vocabulary + 7) / 8};
  for (auto _ : state) {
    double const read = data.read();
    double const ours = median_seconds(
        data.stream, 9, [&](int) { logprob::token_logprob(data.call(), options, out, nullptr, data.stream); });
    state.SetIterationTime(ours);
    state.counters["of_read"] = read / ours;
  }
}

template <typename T, bool InPlace>
void backward(benchmark::State& state) {
  logit_rows<T> const data{rows_of(state), static_cast<std::size_t>(state.range(1)),
                           static_cast<std::size_t>(state.range(2))};
  device_array<T> const other{InPlace ? 0 : data.logits.span().size()};
  device_array<T> const target{data.logits.span().size()};  // of the copy
  auto const gradient = InPlace ? data.logits.span() : other.span();
  logprob::token_logprob(data.call(), {}, {.entropy = data.entropy.span(), .normalizer = data.normalizer.span()},
                         nullptr, data.stream);
  logprob::logprob_gradients const from{data.normalizer.view(), data.entropy.view(), data.ones.view(),
                                        data.ones.view()};
  for (auto _ : state) {
    double const copy = copy_seconds(data.logits.span().data(), target.span().data(), data.bytes, data.stream);
    double const ours = median_seconds(data.stream, 9, [&](int) {
      logprob::token_logprob_backward(data.call(), from, 1, 0, gradient, data.layout, data.stream);
    });
    state.SetIterationTime(ours);
    state.counters["of_copy"] = copy / ours;
    state.counters["TB/s"] = 2 * static_cast<double>(data.bytes) / ours * 1e-12;
    state.counters["copy_TB/s"] = 2 * static_cast<double>(data.bytes) / copy * 1e-12;
  }
}

void shapes(benchmark::internal::Benchmark* each) {
  each->ArgNames({"rows", "vocabulary", "gap"})->UseManualTime()->Iterations(1)->Unit(benchmark::kMillisecond);
  each->Args({8192, 151936, 0})->Args({8192, 32000, 0})->Args({8192, 262144, 0})->Args({512, 151936, 0});
}
/// Also rows that begin anywhere, and vocabularies of a warp and less.
void more_shapes(benchmark::internal::Benchmark* each) {
  shapes(each);
  each->Args({8192, 50257, 0})->Args({8192, 151936, 3})->Args({512, 32000, 0});
  each->Args({1 << 18, 4096, 0})->Args({1 << 20, 1000, 0})->Args({1 << 24, 32, 0});
}
BENCHMARK(forward<__nv_bfloat16, outputs::logprob>)->Apply(shapes);
BENCHMARK(forward<__nv_bfloat16, outputs::entropy>)->Apply(more_shapes);
BENCHMARK(forward<__nv_bfloat16, outputs::squares>)->Apply(shapes);
BENCHMARK(forward<__half, outputs::entropy>)->Apply(shapes);
BENCHMARK(forward<float, outputs::entropy>)->Apply(shapes);
BENCHMARK(tiled<__nv_bfloat16>)->Apply(shapes);
BENCHMARK(backward<__nv_bfloat16, true>)->Apply(more_shapes);
BENCHMARK(backward<__nv_bfloat16, false>)->Apply(shapes);
BENCHMARK(backward<float, true>)->Apply(shapes);

}  // namespace

BENCHMARK_MAIN();
