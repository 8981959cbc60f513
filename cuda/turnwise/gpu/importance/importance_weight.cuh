/// @file
/// Importance weights of tokens, turns and trajectories, on the device.
#pragma once

#include <turnwise/gpu/core/ordered_sum.cuh>
#include <turnwise/gpu/core/rollout.cuh>
#include <turnwise/gpu/core/status.cuh>
#include <turnwise/gpu/rejection/usable_tokens.cuh>
#include <turnwise/importance/importance_weight.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace turnwise::gpu::importance {

using turnwise::importance::token_weight_options;
using turnwise::importance::turn_weight_options;
using turnwise::importance::weight_counts;

namespace detail {

using turnwise::importance::non_finite_policy;
using turnwise::importance::prepared_bounds;
using turnwise::importance::scope;
using turnwise::importance::turn_statistics;
using turnwise::importance::weighed;

inline constexpr unsigned weight_threads = 256;
inline constexpr int weight_tokens = 4;  ///< that a thread loads before it computes

/// Adds what the lanes of a warp counted to *counts, which may be null.
__device__ inline void add_counts(weight_counts const& mine, weight_counts* counts) {
  if (counts == nullptr) return;
  auto const add = [](std::int64_t& to, std::int64_t part) {
    part = gpu::detail::warp_sum(part);
    if (gpu::detail::lane_id() == 0 && part != 0)
      atomicAdd(reinterpret_cast<unsigned long long*>(&to), static_cast<unsigned long long>(part));
  };
  add(counts->count, mine.count);
  add(counts->below, mine.below);
  add(counts->above, mine.above);
  add(counts->saturated, mine.saturated);
  add(counts->non_finite, mine.non_finite);
}

template <logprob_value Old, logprob_value Rollout, real W>
TURNWISE_KERNEL void __launch_bounds__(weight_threads)
    token_weight_kernel(token_logprobs<Old, Rollout> tokens, prepared_bounds bounds, non_finite_policy non_finite,
                        device_span<W> weight, weight_counts* counts, status_record* status) {
  constexpr std::int64_t tile = weight_threads * weight_tokens;
  auto const size = static_cast<std::int64_t>(weight.size());
  weight_counts mine;
  for (std::int64_t first = blockIdx.x * tile; first < size; first += gridDim.x * tile) {
    log_ratio_t<Old, Rollout> d[weight_tokens];
    bool on[weight_tokens];
#pragma unroll
    for (int k = 0; k < weight_tokens; ++k) {
      std::int64_t const token = first + k * weight_threads + threadIdx.x;
      auto const i = static_cast<std::size_t>(token);
      on[k] = token < size && (tokens.mask.empty() || tokens.mask[i] != 0);
      d[k] = on[k] ? turnwise::importance::log_ratio(tokens.old_logprob[i], tokens.rollout_logprob[i]) : 0;
    }
#pragma unroll
    for (int k = 0; k < weight_tokens; ++k) {
      std::int64_t const token = first + k * weight_threads + threadIdx.x;
      if (token >= size) continue;
      weighed const one = on[k] ? turnwise::importance::token_weight(d[k], bounds, non_finite) : weighed{};
      weight[static_cast<std::size_t>(token)] = narrowed<W>(one.weight);
      mine += one.counts;
      if (one.counts.non_finite != 0 && non_finite == non_finite_policy::error)
        report(status, status_code::token_value, token);
    }
  }
  add_counts(mine, counts);
}

template <real W>
TURNWISE_KERNEL void turn_weight_kernel(rollout_view batch, device_span<turn_statistics const> statistics,
                                        device_span<reason_flags const> reasons, scope level,
                                        turnwise::importance::ratio_kind kind, prepared_bounds bounds,
                                        device_span<W> weight, weight_counts* counts) {
  weight_counts mine;
  gpu::detail::for_each_by_warp(static_cast<std::int64_t>(batch.trajectories()), [&](std::int64_t j) {
    turn_statistics of_trajectory;
    if (level == scope::trajectory)
      of_trajectory = rejection::detail::trajectory_statistics(batch, j, statistics, reasons);
    rejection::detail::for_each_turn(batch, j, [&](std::size_t s) {
      weighed one{};
      if (has_ratio(reasons[s]))
        one =
            turnwise::importance::turn_weight(level == scope::trajectory ? of_trajectory : statistics[s], kind, bounds);
      weight[s] = narrowed<W>(one.weight);
      mine += one.counts;
    });
  });
  add_counts(mine, counts);
}

}  // namespace detail

inline constexpr std::size_t importance_weight_workspace_bytes = 0;  ///< takes no workspace

/// Importance weight of each token: the device version. What is masked and counted is the host's; weights are within 2
/// ulp (of float where both arrays are narrower than double), and the same bits in every run and launch shape.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch, no workspace.
/// @param[in]     options  the logs of the bounds are taken on the host.
/// @param[out]    weight   [N]; 0 at masked tokens.
/// @param[in,out] counts   a record in device memory that counts are added to (zero it first), or null.
/// @param[in]     status   may be null; gains token_value under non_finite_policy::error, else the same as `reject`.
/// @throws precondition_error  sizes that differ, options as on the host; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @par Complexity  one read of the tokens.
/// @see turnwise::importance::importance_weight
template <logprob_value Old, logprob_value Rollout, real W>
void importance_weight(token_logprobs<Old, Rollout> const& tokens, token_weight_options const& options,
                       device_span<W> weight, weight_counts* counts, status_record* status, ::cuda::stream_ref stream) {
  std::string_view const name = "importance_weight";
  expects_size(name, "old_logprob", tokens.old_logprob.size(), weight.size(), "token, as weight");
  expects_size(name, "rollout_logprob", tokens.rollout_logprob.size(), weight.size(), "token, as weight");
  if (!tokens.mask.empty()) expects_size(name, "mask", tokens.mask.size(), weight.size(), "token, as weight");
  auto const bounds = turnwise::importance::prepare_bounds<log_ratio_t<Old, Rollout>>(options.bounds, name);
  constexpr unsigned most = 2048;  // counts are added once a warp
  unsigned const blocks = grid_blocks(weight.size(), detail::weight_threads * detail::weight_tokens);
  launch(name, detail::token_weight_kernel<Old, Rollout, W>, blocks < most ? blocks : most, detail::weight_threads, 0,
         stream, tokens, bounds, options.non_finite, weight, counts, status);
}

/// Importance weight of each turn, or of its trajectory, from statistics: the device version. What is masked and
/// counted is the host's; weights are within 2 ulp of double, then rounded to W.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch, no workspace.
/// @param[in]     statistics  [S] from log_ratio_statistics.
/// @param[in]     reasons     [S] after usable_tokens.
/// @param[out]    weight      [S].
/// @param[in,out] counts      a record in device memory that counts are added to (zero it first), or null.
/// @throws precondition_error  sizes that differ, options as on the host; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @par Complexity  O(S) work, a warp a trajectory.
/// @see turnwise::importance::importance_weight
template <real W>
void importance_weight(rollout_view const& batch, device_span<detail::turn_statistics const> statistics,
                       device_span<reason_flags const> reasons, turn_weight_options const& options,
                       device_span<W> weight, weight_counts* counts, ::cuda::stream_ref stream) {
  std::string_view const name = "importance_weight";
  rejection::detail::check_ratio_rule(batch, statistics.size(), reasons.size(), name);
  expects_size(name, "weight", weight.size(), batch.turns, "turn");
  auto const bounds = turnwise::importance::prepare_bounds<double>(options.bounds, name);
  launch(name, detail::turn_weight_kernel<W>, gpu::detail::warp_blocks(batch.trajectories()),
         gpu::detail::warp_block_threads, 0, stream, batch, statistics, reasons, options.level, options.kind, bounds,
         weight, counts);
}

}  // namespace turnwise::gpu::importance
