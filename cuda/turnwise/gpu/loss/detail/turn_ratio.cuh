/// @file
/// The first pass of turn-level policies: each turn's ratio.
#pragma once

#include <turnwise/gpu/loss/detail/loss_work.cuh>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::loss::detail {

/// exp of the mean of a turn's log ratios as the policy wants them: a block a turn, lanes in a fixed order.
template <unsigned Threads, typename Work>
TURNWISE_KERNEL void __launch_bounds__(Threads) turn_ratio_kernel(Work work) {
  using F = typename Work::F;
  __shared__ double sums[Threads];
  __shared__ int counts[Threads];
  for (auto place = std::int64_t{blockIdx.x}; place < static_cast<std::int64_t>(work.plan.turns); place += gridDim.x) {
    auto const s = static_cast<std::size_t>(work.plan.turn_at(place));
    double const scale = work.turn_scale[s];
    bool const wanted = scale > 0;
    double sum = 0;
    int count = 0;
    std::int64_t const begin = work.plan.begin[static_cast<std::size_t>(place)];  // a bad range is cut to the arrays
    std::int64_t const end = wanted ? work.plan.end[static_cast<std::size_t>(place)] : 0;
    auto const tokens = static_cast<std::int64_t>(work.plan.tokens);
    std::int64_t const last = end < tokens ? end : tokens;
    for (std::int64_t i = (begin > 0 ? begin : 0) + threadIdx.x; i < last; i += Threads) {
      auto const n = static_cast<std::size_t>(i);
      auto const& in = work.in;
      if (!in.mask.empty() && in.mask[n] == 0) continue;
      host::detail::token_values<F> values{};
      values.on = true;
      values.current = static_cast<F>(in.current_logprob[n]);
      values.old = static_cast<F>(in.old_logprob[n]);
      values.advantage = static_cast<F>(in.token_advantage.empty() ? in.turn_advantage[s] : in.token_advantage[n]);
      values.weight = in.weight.empty() ? F{1} : static_cast<F>(in.weight[n]);
      values.reference = in.reference_logprob.empty() ? values.current : static_cast<F>(in.reference_logprob[n]);
      if (!in.entropy.empty()) values.entropy = static_cast<F>(in.entropy[n]);
      host::detail::clamped_log_ratio<F> const d{values.current, values.old,
                                                 static_cast<F>(work.options.log_ratio_limit)};
      if (!host::detail::is_usable<true>(values, d)) continue;
      sum += static_cast<double>(work.policy.turn_log_ratio(d.value, values.advantage));
      ++count;
    }
    sums[threadIdx.x] = sum;
    counts[threadIdx.x] = count;
    for (unsigned half = Threads / 2; half > 0; half /= 2) {
      __syncthreads();
      if (threadIdx.x >= half) continue;
      sums[threadIdx.x] += sums[threadIdx.x + half];
      counts[threadIdx.x] += counts[threadIdx.x + half];
    }
    if (threadIdx.x == 0)
      work.turn_ratio[s] = counts[0] == 0 ? F{1} : ieee_exp(static_cast<F>(sums[0] / static_cast<double>(counts[0])));
    __syncthreads();
  }
}

}  // namespace turnwise::gpu::loss::detail
