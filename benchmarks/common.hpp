// What the benchmarks share: ragged batches, and the plain read of the same arrays that they are compared with.
#pragma once

#include <turnwise/core/parallel_for.hpp>
#include <turnwise/core/rollout.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <span>
#include <vector>

namespace turnwise::benchmarks {

/// Tokens of a batch: 2^26, or the environment's TURNWISE_BENCH_TOKENS.
inline std::size_t token_count() {
  char const* text = std::getenv("TURNWISE_BENCH_TOKENS");
  return text == nullptr ? std::size_t{1} << 26 : std::max<std::size_t>(1, std::strtoull(text, nullptr, 10));
}

/// A packed batch of one trajectory, with turns of about `mean` tokens (log-normal) and log ratios of deviation `width`.
struct ragged_batch {
  std::vector<std::int64_t> offsets{0};
  std::vector<std::int64_t> trajectory_offsets;
  std::vector<std::int64_t> id{0};
  std::vector<float> old_logprob;
  std::vector<float> rollout_logprob;

  ragged_batch(std::size_t tokens, double mean, double width) : old_logprob(tokens), rollout_logprob(tokens) {
    std::mt19937_64 random(1);
    std::lognormal_distribution<double> length(std::log(mean) - 0.125, 0.5);
    while (static_cast<std::size_t>(offsets.back()) < tokens)
      offsets.push_back(
          std::min(static_cast<std::int64_t>(tokens), offsets.back() + 1 + static_cast<std::int64_t>(length(random))));
    trajectory_offsets = {0, static_cast<std::int64_t>(turns())};

    std::array<float, 65521> rollouts;  // a prime: no pattern with the turns
    std::array<float, 65519> ratios;
    std::normal_distribution<double> normal;
    for (float& logprob : rollouts) logprob = static_cast<float>(-std::fabs(normal(random)));
    for (float& ratio : ratios) ratio = static_cast<float>(width * normal(random));
    for (std::size_t i = 0; i < tokens; ++i) {
      rollout_logprob[i] = rollouts[i % rollouts.size()];
      old_logprob[i] = rollout_logprob[i] + ratios[i % ratios.size()];
    }
  }

  [[nodiscard]] std::size_t turns() const { return offsets.size() - 1; }
  [[nodiscard]] std::size_t tokens() const { return old_logprob.size(); }
  [[nodiscard]] rollout_view view() const {
    std::span<std::int64_t const> const all = offsets;
    return {.turn_begin = all.first(turns()),
            .turn_end = all.subspan(1),
            .trajectory_offsets = trajectory_offsets,
            .group_id = id,
            .trajectory_id = id};
  }
  [[nodiscard]] token_logprobs<float, float> logprobs() const { return {old_logprob, rollout_logprob, {}}; }
};

/// The ceiling: reads both arrays with plain vector loads. A unit of its own, always compiled for this machine.
std::uint64_t read_all(std::span<float const> a, std::span<float const> b, int threads);

/// Seconds that a call takes.
template <typename Call>
double seconds(Call&& call) {
  auto const begin = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Times `call` by turns with read_all, and reports from the best of each: GB/s, and `of_read`, the time of the read of
/// both log-prob arrays over that of the call.
template <typename Call>
void against_read(benchmark::State& state, ragged_batch const& batch, int threads, Call&& call) {
  double read = 1e9;
  double best = 1e9;
  for (auto _ : state) {
    read = std::min(
        read, seconds([&] { benchmark::DoNotOptimize(read_all(batch.old_logprob, batch.rollout_logprob, threads)); }));
    double const time = seconds(call);
    best = std::min(best, time);
    state.SetIterationTime(time);
  }
  state.counters["GB/s"] = static_cast<double>(batch.tokens()) * 8e-9 / best;
  state.counters["of_read"] = read / best;
}

}  // namespace turnwise::benchmarks
