/// @file
/// What runs of tokens do to the recursion of turnwise/advantage/detail/scan.hpp, and how chunks of tokens hand it on.
#pragma once

#include <turnwise/advantage/detail/scan.hpp>
#include <turnwise/gpu/core/warp.cuh>

#include <cstddef>
#include <cstdint>
#include <limits>

namespace turnwise::gpu::advantage::detail {

using turnwise::advantage::detail::later_token;
using turnwise::advantage::detail::token_numbers;
using turnwise::advantage::detail::token_weights;

inline constexpr double no_number = std::numeric_limits<double>::quiet_NaN();

/// What a run of tokens makes of the unmasked token behind it: linear in that one's excess' and value'.
///
///     excess = alpha excess' + kappa value' + beta,   value = that of the run's first unmasked token
///
/// A run without unmasked tokens passes on what it gets; its value is NaN. A segment that ends in the run makes alpha
/// and kappa 0. Trivial, so that it can lie in shared memory.
struct run_map {
  double alpha, kappa, beta, value;

  [[nodiscard]] __device__ bool passes_on() const { return value != value; }

  /// One more token before the run, if it is on. The foremost is the one behind which the run holds no other and no
  /// segment end; until then the run's value is 0. No branch, for lanes differ: a token that is off multiplies by 1 and
  /// adds -0, which leaves every number as it is.
  __device__ void prepend(token_numbers const& token, token_weights const& weights, double gamma, bool on,
                          bool foremost) {
    double const difference = weights.rho * (fma(gamma, value, token.reward) - token.value);
    double const trace = on ? weights.trace : 1.0;
    beta = fma(trace, beta, on ? difference : -0.0);
    kappa = foremost ? weights.rho * gamma : trace * kappa;
    alpha = trace * alpha;
    if (on) value = token.value;
  }
  [[nodiscard]] __device__ later_token operator()(later_token const& behind) const {
    if (passes_on()) return behind;
    return {value, fma(alpha, behind.excess, fma(kappa, behind.value, beta))};
  }
};

__device__ inline run_map empty_run() { return {1, 0, 0, no_number}; }
/// The end of a segment that `bootstrap` follows.
__device__ inline run_map segment_end(double bootstrap) { return {0, 0, 0, bootstrap}; }

/// Two neighbouring runs as one. No branch; a run that passes on multiplies by 1 and adds 0.
__device__ inline run_map joined(run_map const& earlier, run_map const& later) {
  bool const passes = later.passes_on();
  double const next = passes ? 0.0 : later.value;
  return {earlier.alpha * later.alpha, passes ? earlier.kappa : earlier.alpha * later.kappa,
          fma(earlier.alpha, later.beta, fma(earlier.kappa, next, earlier.beta)),
          earlier.passes_on() ? later.value : earlier.value};
}

/// The map of the lane `step` lanes above or below; of this lane where there is none.
__device__ inline run_map from_above(run_map const& map, int step) {
  using gpu::detail::all_lanes;
  return {__shfl_down_sync(all_lanes, map.alpha, step), __shfl_down_sync(all_lanes, map.kappa, step),
          __shfl_down_sync(all_lanes, map.beta, step), __shfl_down_sync(all_lanes, map.value, step)};
}
__device__ inline run_map from_below(run_map const& map, int step) {
  using gpu::detail::all_lanes;
  return {__shfl_up_sync(all_lanes, map.alpha, step), __shfl_up_sync(all_lanes, map.kappa, step),
          __shfl_up_sync(all_lanes, map.beta, step), __shfl_up_sync(all_lanes, map.value, step)};
}

/// This lane's run and those of the lanes above it, of the first `count` lanes: time goes up.
template <int count = gpu::detail::lanes>
__device__ run_map with_lanes_above(run_map map) {
  int const lane = gpu::detail::lane_id();
  for (int step = 1; step < count; step *= 2) {
    run_map const above = from_above(map, step);
    if (lane + step < count) map = joined(map, above);
  }
  return map;
}

/// This lane's run and those of the lanes below it in its group of `count` lanes: time goes down.
template <int count>
__device__ run_map with_lanes_below(run_map map) {
  int const place = gpu::detail::lane_id() % count;
  for (int step = 1; step < count; step *= 2) {
    run_map const below = from_below(map, step);
    if (place >= step) map = joined(map, below);
  }
  return map;
}

/// Numbers that one block writes and others wait for, in global memory. A word is all ones until it holds its number,
/// so each says itself whether it is there, and no fence is needed; no number written here has those bits.
inline constexpr unsigned long long pending_word = ~0ull;

__device__ inline void publish(unsigned long long* word, double number) {
  *static_cast<unsigned long long volatile*>(word) = static_cast<unsigned long long>(__double_as_longlong(number));
}
__device__ inline bool received(unsigned long long const* word, double& number) {
  unsigned long long const bits = *static_cast<unsigned long long const volatile*>(word);
  number = __longlong_as_double(static_cast<long long>(bits));
  return bits != pending_word;
}

/// What a chunk tells the next one in the order of the scan, which goes from the last chunk to the first.
struct chunk_link {
  unsigned long long words[6];  ///< the chunk's map: alpha, kappa, beta, value; what reaches the next: value, excess

  __device__ void clear() {
    for (auto& word : words) word = pending_word;
  }
  __device__ void publish_map(run_map const& run) {
    publish(words, run.alpha);
    publish(words + 1, run.kappa);
    publish(words + 2, run.beta + 0.0);  // one zero, so that every way to what reaches the next gives the same bits
    publish(words + 3, run.value);
  }
  [[nodiscard]] __device__ bool received_map(run_map& run) const {
    bool const a = received(words, run.alpha), k = received(words + 1, run.kappa);
    bool const b = received(words + 2, run.beta), v = received(words + 3, run.value);
    return a && k && b && v;
  }
  __device__ void publish_next(later_token const& token) {
    publish(words + 4, token.value);
    publish(words + 5, token.excess);
  }
  /// For a whole warp: waits for what reaches the next chunk. A segment that ends in the chunk tells it at once.
  [[nodiscard]] __device__ later_token wait_for_next() const {
    using gpu::detail::all_lanes;
    int const lane = gpu::detail::lane_id();
    for (;;) {
      double number = 1;
      bool const there = lane < 6 && received(words + lane, number);
      unsigned const arrived = __ballot_sync(all_lanes, there);
      unsigned const zero = __ballot_sync(all_lanes, number == 0);
      double const beta = __shfl_sync(all_lanes, number, 2), value = __shfl_sync(all_lanes, number, 3);
      if ((arrived & 0xf) == 0xf && (zero & 3) == 3) return {value, beta};
      if ((arrived >> 4) == 3) return {__shfl_sync(all_lanes, number, 4), __shfl_sync(all_lanes, number, 5)};
    }
  }
};

}  // namespace turnwise::gpu::advantage::detail
