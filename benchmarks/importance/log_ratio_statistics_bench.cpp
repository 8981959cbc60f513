// Statistics of 2^26 tokens against the plain read of the same arrays. TURNWISE_BENCH_TOKENS shrinks the batch.
#include "../common.hpp"

#include <turnwise/importance/log_ratio_statistics.hpp>

#include <span>
#include <vector>

namespace {

using namespace turnwise;
using namespace turnwise::importance;

/// Arguments: mean tokens of a turn, threads, deviation of the log ratios in thousandths.
template <bool Moments>
void statistics(benchmark::State& state) {
  benchmarks::ragged_batch const batch(benchmarks::token_count(), static_cast<double>(state.range(0)),
                                       static_cast<double>(state.range(2)) * 1e-3);
  int const threads = static_cast<int>(state.range(1));
  std::vector<turn_statistics> records(batch.turns());
  std::vector<ratio_moments> moments(batch.turns());
  benchmarks::against_read(state, batch, threads, [&] {
    if constexpr (Moments)
      log_ratio_statistics(batch.view(), batch.logprobs(), std::span(records), std::span(moments), threads);
    else
      log_ratio_statistics(batch.view(), batch.logprobs(), std::span(records), threads);
    benchmark::ClobberMemory();
  });
}

void shapes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"turn", "threads", "width"})->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(9);
#ifdef _OPENMP
  constexpr int most_threads = 2;
#else
  constexpr int most_threads = 1;
#endif
  for (int threads = 1; threads <= most_threads; ++threads)
    for (int turn : {4096, 512, 64, 8}) benchmark->Args({turn, threads, 20});
  benchmark->Args({4096, 1, 300});  // most log ratios are not small, as no run is then
}

BENCHMARK(statistics<false>)->Name("log_ratio_statistics")->Apply(shapes);
BENCHMARK(statistics<true>)->Name("log_ratio_statistics/moments")->Apply(shapes);

}  // namespace

BENCHMARK_MAIN();
