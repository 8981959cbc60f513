// Generalized advantage estimation over packed tokens of one segment length: time of a copy that moves the bytes of the
// token arrays over our time. TURNWISE_BENCH_TOKENS shrinks the batch.
#include "../common.hpp"

#include <turnwise/advantage/gae.hpp>

#include <cstring>
#include <span>
#include <vector>

namespace {

/// Arguments: tokens of a segment, threads, whether there is a mask.
void gae(benchmark::State& state) {
  std::size_t const tokens = turnwise::benchmarks::token_count() / 4;
  auto const size = std::min(static_cast<std::size_t>(state.range(0)), tokens);
  int const threads = static_cast<int>(state.range(1));
  std::vector<std::int64_t> offsets;
  for (std::size_t begin = 0; begin < tokens; begin += size) offsets.push_back(static_cast<std::int64_t>(begin));
  offsets.push_back(static_cast<std::int64_t>(tokens));
  std::vector<float> inputs(3 * tokens), outputs(3 * tokens);
  std::vector<std::uint8_t> mask(state.range(2) != 0 ? tokens : 0);
  for (std::size_t i = 0; i < inputs.size(); ++i) inputs[i] = static_cast<float>(i * 2654435761u % 1000) * 1e-3f - 0.5f;
  for (std::size_t i = 0; i < mask.size(); ++i) mask[i] = i % 5 != 0;
  std::span<float const> const in{inputs};
  std::span<float> const out{outputs};
  std::size_t const bytes = tokens * 4 * sizeof(float) + mask.size();
  double copy = 1e9;
  double best = 1e9;
  for (auto _ : state) {
    copy = std::min(copy, turnwise::benchmarks::seconds([&] {
                      std::size_t const half = bytes / 8;  // floats, of two
                      turnwise::parallel_for(
                          half, std::size_t{1} << 18, threads, [&](std::size_t first, std::size_t last) {
                            std::memcpy(outputs.data() + first, inputs.data() + first, (last - first) * sizeof(float));
                          });
                      benchmark::ClobberMemory();
                    }));
    double const time = turnwise::benchmarks::seconds([&] {
      turnwise::advantage::gae<float>({.offsets = offsets, .mask = mask}, in.first(tokens), in.subspan(tokens, tokens),
                                      {.threads = threads}, out.first(tokens), out.subspan(tokens, tokens));
      benchmark::ClobberMemory();
    });
    best = std::min(best, time);
    state.SetIterationTime(time);
  }
  state.counters["GB/s"] = static_cast<double>(bytes) * 1e-9 / best;
  state.counters["of_copy"] = copy / best;
}

void shapes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"segment", "threads", "mask"})->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(7);
#ifdef _OPENMP
  constexpr int most_threads = 2;
#else
  constexpr int most_threads = 1;
#endif
  for (int threads = 1; threads <= most_threads; ++threads)
    for (int const segment : {8, 512, 8192, 1 << 20}) benchmark->Args({segment, threads, 0});
  benchmark->Args({512, 1, 1});
}
BENCHMARK(gae)->Apply(shapes);

}  // namespace

BENCHMARK_MAIN();
