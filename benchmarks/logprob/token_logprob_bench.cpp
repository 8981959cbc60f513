// Log-prob and entropy from logits on the CPU: time of a plain sum over the same logits over our time.
#include <turnwise/logprob/token_logprob.hpp>
#include <turnwise/logprob/token_logprob_backward.hpp>

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <vector>

namespace {

using namespace turnwise::logprob;

struct problem {
  std::vector<float> values;
  logit_layout layout;
  std::vector<std::int32_t> ids;
  std::vector<float> logprob, entropy;
  std::vector<log_normalizer<float>> normalizer;

  problem(std::size_t rows, std::size_t vocabulary)
      : values(rows * vocabulary), layout{rows, vocabulary}, ids(rows), logprob(rows), entropy(rows), normalizer(rows) {
    std::mt19937 generator{1};
    std::normal_distribution<float> around{0.0f, 3.0f};
    for (float& x : values) x = around(generator);
  }
  [[nodiscard]] token_logits<float, std::int32_t> logits() const { return {values, layout, ids}; }
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Time of a sum of the logits over the time of `call`.
template <typename Call>
void against_read(benchmark::State& state, problem const& data, Call call) {
  double read = 0, ours = 0;
  for (auto _ : state) {
    auto const start = std::chrono::steady_clock::now();
    benchmark::DoNotOptimize(std::accumulate(data.values.begin(), data.values.end(), 0.0f));
    read += seconds_since(start);
    auto const begin = std::chrono::steady_clock::now();
    call();
    benchmark::ClobberMemory();
    double const seconds = seconds_since(begin);
    ours += seconds;
    state.SetIterationTime(seconds);
  }
  state.counters["of_read"] = read / ours;
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(data.values.size()));
}

void forward(benchmark::State& state) {
  problem data{64, static_cast<std::size_t>(state.range(0))};
  against_read(state, data, [&] {
    token_logprob(data.logits(), {}, token_logprob_outputs<float>{data.logprob, data.entropy, {}, data.normalizer},
                  static_cast<int>(state.range(1)));
  });
}

void backward(benchmark::State& state) {
  problem data{64, static_cast<std::size_t>(state.range(0))};
  token_logprob(data.logits(), {}, token_logprob_outputs<float>{data.logprob, data.entropy, {}, data.normalizer});
  std::vector<float> const ones(data.layout.rows, 1.0f);
  std::vector<float> gradient(data.values.size());
  against_read(state, data, [&] {
    token_logprob_backward(data.logits(), logprob_gradients<float>{data.normalizer, data.entropy, ones, ones}, 1, 0,
                           std::span{gradient}, data.layout, static_cast<int>(state.range(1)));
  });
}

void shapes(benchmark::internal::Benchmark* each) {
  each->ArgNames({"vocabulary", "threads"})->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(5);
  for (int const threads : {1, 2})
    for (int const vocabulary : {32000, 151936}) each->Args({vocabulary, threads});
}
BENCHMARK(forward)->Apply(shapes);
BENCHMARK(backward)->Apply(shapes);

}  // namespace

BENCHMARK_MAIN();
