// PPO-clip, loss and gradient, over 2^26 tokens, against a copy that moves the same bytes (reads 8 a token, writes 4)
// and against a plain loop that calls std::exp on each token. TURNWISE_BENCH_TOKENS shrinks the batch.
#include "../common.hpp"

#include <turnwise/loss/policy_loss.hpp>
#include <turnwise/loss/ppo_clip.hpp>

#include <cmath>
#include <cstring>
#include <span>
#include <vector>

namespace {

using namespace turnwise;

/// What one writes first: a branch and a library call a token.
double plain_loop(benchmarks::ragged_batch const& batch, std::span<double const> advantage,
                  std::span<double const> scale, std::span<float> gradient) {
  double loss = 0;
  for (std::size_t s = 0; s < batch.turns(); ++s) {
    auto const a = static_cast<float>(advantage[s]);
    auto const weight = static_cast<float>(scale[s]);
    for (auto i = static_cast<std::size_t>(batch.offsets[s]); i < static_cast<std::size_t>(batch.offsets[s + 1]); ++i) {
      float const ratio = std::exp(std::clamp(batch.old_logprob[i] - batch.rollout_logprob[i], -20.0f, 20.0f));
      float const whole = -a * ratio;
      float const clipped = -a * std::clamp(ratio, 0.8f, 1.28f);
      bool const cut = clipped > whole;
      loss += static_cast<double>(weight * (cut ? clipped : whole));
      gradient[i] = cut ? 0.0f : weight * whole;
    }
  }
  return loss;
}

/// Reads both arrays' bytes and writes one array's.
void copy_bytes(benchmarks::ragged_batch const& batch, std::span<float> gradient, std::span<float> half) {
  std::memcpy(gradient.data(), batch.old_logprob.data(), gradient.size_bytes());
  std::memcpy(half.data(), batch.rollout_logprob.data(), half.size_bytes());
}

/// Arguments: mean tokens of a turn, threads.
void ppo_clip(benchmark::State& state) {
  benchmarks::ragged_batch const batch(benchmarks::token_count(), static_cast<double>(state.range(0)), 0.1);
  int const threads = static_cast<int>(state.range(1));
  std::vector<float> gradient(batch.tokens());
  std::vector<float> half(batch.tokens() / 2);
  std::vector<double> advantage(batch.turns());
  for (std::size_t s = 0; s < advantage.size(); ++s) advantage[s] = static_cast<double>(s % 7) - 3;
  std::vector<double> const scale(batch.turns(), 1.0 / static_cast<double>(batch.tokens()));
  loss::loss_inputs<float> const inputs{
      .current_logprob = batch.old_logprob, .old_logprob = batch.rollout_logprob, .turn_advantage = advantage};
  loss::loss_outputs<float> const out{.gradient = gradient};
  loss::ppo_clip const policy{.clip_low = 0.2, .clip_high = 0.28};
  double copy = 1e9, plain = 1e9, best = 1e9;
  for (auto _ : state) {
    copy = std::min(copy, benchmarks::seconds([&] { copy_bytes(batch, gradient, half); }));
    plain = std::min(
        plain, benchmarks::seconds([&] { benchmark::DoNotOptimize(plain_loop(batch, advantage, scale, gradient)); }));
    double const time = benchmarks::seconds(
        [&] { benchmark::DoNotOptimize(loss::policy_loss(batch.view(), inputs, policy, {}, scale, out, threads)); });
    best = std::min(best, time);
    state.SetIterationTime(time);
  }
  state.counters["GB/s"] = static_cast<double>(batch.tokens()) * 12e-9 / best;
  state.counters["of_copy"] = copy / best;
  state.counters["times_plain"] = plain / best;
}

void shapes(benchmark::internal::Benchmark* each) {
  each->ArgNames({"turn", "threads"})->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(5);
  for (int turn : {4096, 512, 64, 8}) each->Args({turn, 1});
#ifdef _OPENMP
  each->Args({4096, 2});
#endif
}
BENCHMARK(ppo_clip)->Apply(shapes);

}  // namespace

BENCHMARK_MAIN();
