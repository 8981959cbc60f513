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
  [[nodiscard]] __device__ bool is_constant() const { return alpha == 0 && kappa == 0; }

  /// The run with one more token before it. (beta of an empty run is 0.)
  __device__ void prepend(token_numbers const& token, token_weights const& weights, double gamma) {
    bool const alone = passes_on();
    double const next = alone ? 0.0 : value;
    beta = fma(weights.trace, beta, weights.rho * (fma(gamma, next, token.reward) - token.value));
    kappa = alone ? weights.rho * gamma : weights.trace * kappa;
    alpha = weights.trace * alpha;
    value = token.value;
  }
  [[nodiscard]] __device__ later_token operator()(later_token const& behind) const {
    if (passes_on()) return behind;
    return {value, fma(alpha, behind.excess, fma(kappa, behind.value, beta))};
  }
};

__device__ inline run_map empty_run() { return {1, 0, 0, no_number}; }
/// The end of a segment that `bootstrap` follows.
__device__ inline run_map segment_end(double bootstrap) { return {0, 0, 0, bootstrap}; }

/// Two neighbouring runs as one.
__device__ inline run_map joined(run_map const& earlier, run_map const& later) {
  if (earlier.passes_on()) return later;
  if (later.passes_on()) return earlier;
  return {earlier.alpha * later.alpha, earlier.alpha * later.kappa,
          fma(earlier.alpha, later.beta, fma(earlier.kappa, later.value, earlier.beta)), earlier.value};
}

__device__ inline run_map shifted_down(run_map const& map, int lanes_down) {
  using gpu::detail::all_lanes;
  return {__shfl_down_sync(all_lanes, map.alpha, lanes_down), __shfl_down_sync(all_lanes, map.kappa, lanes_down),
          __shfl_down_sync(all_lanes, map.beta, lanes_down), __shfl_down_sync(all_lanes, map.value, lanes_down)};
}

/// This lane's run and those of the lanes above it.
__device__ inline run_map with_lanes_above(run_map map) {
  int const lane = gpu::detail::lane_id();
  for (int step = 1; step < gpu::detail::lanes; step *= 2) {
    run_map const above = shifted_down(map, step);
    if (lane + step < gpu::detail::lanes) map = joined(map, above);
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

/// What the chunks of a scan tell each other. Link k belongs to the k-th chunk from the end, the order of the scan.
struct chunk_link {
  unsigned long long map[4];    ///< of the chunk
  unsigned long long later[2];  ///< what reaches it from behind

  __device__ void clear() {
    for (auto& word : map) word = pending_word;
    for (auto& word : later) word = pending_word;
  }
  __device__ void publish_map(run_map const& run) {
    publish(map, run.alpha);
    publish(map + 1, run.kappa);
    publish(map + 2, run.beta + 0.0);  // one zero, so that every way to the next chunk's `later` gives the same bits
    publish(map + 3, run.value);
  }
  [[nodiscard]] __device__ bool received_map(run_map& run) const {
    bool const a = received(map, run.alpha), k = received(map + 1, run.kappa);
    bool const b = received(map + 2, run.beta), v = received(map + 3, run.value);
    return a && k && b && v;
  }
  __device__ void publish_later(later_token const& token) {
    publish(later, token.value);
    publish(later + 1, token.excess);
  }
  [[nodiscard]] __device__ bool received_later(later_token& token) const {
    bool const v = received(later, token.value), e = received(later + 1, token.excess);
    return v && e;
  }
};

}  // namespace turnwise::gpu::advantage::detail
