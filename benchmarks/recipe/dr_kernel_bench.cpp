// The whole dr_kernel step, 16 prompts x 16 trajectories x 3 turns of up to 8192 tokens, per-token advantages written,
// against reading the log-probs and writing the advantages once.
#include "../common.hpp"

#include <turnwise/recipe/dr_kernel.hpp>

#include <numeric>
#include <random>

namespace {

using namespace turnwise;

struct step_batch {
  static constexpr std::size_t turns = 16 * 16 * 3;
  std::vector<std::int64_t> offsets{0}, trajectory_offsets, group, trajectory;
  std::vector<float> old_logprob, rollout_logprob, speedup, generated, total;
  std::vector<std::uint8_t> correct;

  step_batch() {
    std::mt19937 random{1};
    std::lognormal_distribution<double> length{std::log(4000.0), 0.6};
    std::normal_distribution<float> noise{0.0f, 0.01f};
    for (std::size_t s = 0; s < turns; ++s) {
      offsets.push_back(offsets.back() + static_cast<std::int64_t>(std::clamp(length(random), 1.0, 8192.0)));
      correct.push_back(random() % 2 == 0);
      speedup.push_back(static_cast<float>(random() % 300) * 0.01f);
      total.push_back(100.0f);
      generated.push_back(static_cast<float>(random() % 100));
    }
    for (std::int64_t j = 0; j <= 256; ++j) trajectory_offsets.push_back(3 * j);
    for (std::int64_t j = 0; j < 256; ++j) {
      group.push_back(j / 16);
      trajectory.push_back(j);
    }
    for (std::int64_t i = 0; i < offsets.back(); ++i) {
      rollout_logprob.push_back(-std::abs(noise(random)) * 50);
      old_logprob.push_back(rollout_logprob.back() + noise(random));
    }
  }

  [[nodiscard]] rollout_view view() const {
    std::span<std::int64_t const> const all = offsets;
    return {.turn_begin = all.first(turns),
            .turn_end = all.subspan(1),
            .trajectory_offsets = trajectory_offsets,
            .group_id = group,
            .trajectory_id = trajectory};
  }
};

/// Arguments: threads, whether metrics are asked for.
void step(benchmark::State& state) {
  step_batch const batch;
  int const threads = static_cast<int>(state.range(0));
  recipe::step_inputs<float, float, float> const inputs{.tokens = {batch.old_logprob, batch.rollout_logprob, {}},
                                                        .evaluation = {.correct = batch.correct,
                                                                       .speedup = batch.speedup,
                                                                       .generated_us = batch.generated,
                                                                       .total_us = batch.total}};
  auto options = recipe::dr_kernel_options::released();
  options.threads = threads;
  std::vector<double> advantage(step_batch::turns);
  std::vector<float> token_advantage(batch.old_logprob.size());
  metrics::mismatch_record record;
  recipe::step_outputs out{.advantage = advantage, .token_advantage = token_advantage};
  if (state.range(1) != 0) out.metrics = &record;

  double once = 1e9;
  double best = 1e9;
  std::uint32_t number = 0;
  for (auto _ : state) {
    once = std::min(once, benchmarks::seconds([&] {
                      benchmark::DoNotOptimize(benchmarks::read_all(batch.old_logprob, batch.rollout_logprob, threads));
                      parallel_for(token_advantage.size(), 1 << 16, threads, [&](std::size_t first, std::size_t last) {
                        std::fill(token_advantage.data() + first, token_advantage.data() + last, 1.0f);
                      });
                      benchmark::ClobberMemory();
                    }));
    double const time = benchmarks::seconds(
        [&] { recipe::dr_kernel(batch.view(), inputs, options, {.seed = 1, .step = number++}, out); });
    best = std::min(best, time);
    state.SetIterationTime(time);
  }
  state.counters["tokens"] = static_cast<double>(batch.old_logprob.size());
  state.counters["Mtokens/s"] = static_cast<double>(batch.old_logprob.size()) * 1e-6 / best;
  state.counters["times_read_write"] = best / once;
}

void shapes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"threads", "metrics"})->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(40);
#ifdef _OPENMP
  for (int threads : {1, 2})
#else
  for (int threads : {1})
#endif
    for (int metrics : {0, 1}) benchmark->Args({threads, metrics});
}
BENCHMARK(step)->Name("dr_kernel")->Apply(shapes);

}  // namespace

BENCHMARK_MAIN();
