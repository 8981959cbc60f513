/// @file
/// How token losses become one number, on the device.
#pragma once

#include <turnwise/gpu/core/grouping_view.cuh>
#include <turnwise/gpu/core/status.cuh>
#include <turnwise/gpu/core/token_plan_view.cuh>
#include <turnwise/gpu/core/warp.cuh>
#include <turnwise/gpu/core/workspace.cuh>
#include <turnwise/loss/aggregate.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace turnwise::gpu::loss {
namespace detail {

using turnwise::loss::aggregate_options;
using turnwise::loss::loss_counts;
using turnwise::loss::loss_scope;
using turnwise::loss::loss_unit;

inline constexpr unsigned aggregate_threads = 128;

/// A block a turn.
TURNWISE_KERNEL void __launch_bounds__(aggregate_threads)
    count_tokens_kernel(token_plan plan, device_span<std::uint8_t const> mask, device_span<std::int64_t> tokens) {
  for (auto place = std::int64_t{blockIdx.x}; place < static_cast<std::int64_t>(plan.turns); place += gridDim.x) {
    std::int64_t const begin = plan.begin[static_cast<std::size_t>(place)];
    std::int64_t const end = plan.end[static_cast<std::size_t>(place)];
    auto const most = static_cast<std::int64_t>(plan.tokens);
    std::int64_t const first = begin > 0 ? begin : 0;  // a bad range is cut to the arrays
    std::int64_t const last = end < most ? end : most;
    std::int64_t count = last > first ? last - first : 0;
    if (!mask.empty()) {
      int zeros = 0;
      for (std::int64_t i = first + threadIdx.x; i < last; i += aggregate_threads)
        zeros += mask[static_cast<std::size_t>(i)] == 0;
      __shared__ unsigned long long off;
      if (threadIdx.x == 0) off = 0;
      __syncthreads();
      atomicAdd(&off, static_cast<unsigned long long>(zeros));
      __syncthreads();
      count -= static_cast<std::int64_t>(off);
      __syncthreads();
    }
    if (threadIdx.x == 0) tokens[static_cast<std::size_t>(plan.turn_at(place))] = count;
  }
}

/// What both kernels read.
struct counted_turns {
  grouping groups;
  device_span<std::int64_t const> tokens;
  device_span<reason_flags const> reasons;
  loss_unit unit;

  /// Calls body(first turn, last turn, counts) for each unit of trajectory j.
  template <typename Body>
  __device__ void for_each_unit(std::size_t j, Body body) const {
    if (groups.counts->broken != 0) return;
    std::int64_t const end = groups.trajectory_offsets[j + 1];
    std::int64_t first = groups.trajectory_offsets[j];
    loss_counts counts;
    for (std::int64_t s = first; s < end; ++s) {
      turnwise::loss::detail::add_turn(counts, tokens[static_cast<std::size_t>(s)],
                                       reasons[static_cast<std::size_t>(s)]);
      if (unit == loss_unit::trajectory && s + 1 < end) continue;
      body(first, s + 1, counts);
      first = s + 1;
      counts = {};
    }
  }
};

__device__ inline void atomic_add(std::int64_t& to, std::int64_t value) {
  if (value != 0) atomicAdd(reinterpret_cast<unsigned long long*>(&to), static_cast<unsigned long long>(value));
}

/// Exact: integers.
__device__ inline void atomic_add(loss_counts& to, loss_counts const& value) {
  atomic_add(to.kept_tokens, value.kept_tokens);
  atomic_add(to.valid_tokens, value.valid_tokens);
  atomic_add(to.kept_units, value.kept_units);
  atomic_add(to.valid_units, value.valid_units);
  atomic_add(to.kept_prompts, value.kept_prompts);
  atomic_add(to.valid_prompts, value.valid_prompts);
}

TURNWISE_KERNEL void count_prompts_kernel(counted_turns turns, device_span<loss_counts> of_prompt) {
  gpu::detail::for_each_by_thread(static_cast<std::int64_t>(turns.groups.trajectories), [&](std::int64_t i) {
    auto const j = static_cast<std::size_t>(i);
    loss_counts sum;
    turns.for_each_unit(j, [&](std::int64_t, std::int64_t, loss_counts const& counts) { sum += counts; });
    atomic_add(of_prompt[static_cast<std::size_t>(turns.groups.prompt[j])], sum);
  });
}

TURNWISE_KERNEL void sum_prompts_kernel(grouping groups, device_span<loss_counts const> of_prompt,
                                        device_span<loss_counts> total) {
  gpu::detail::for_each_by_thread(groups.counts->prompts, [&](std::int64_t p) {
    loss_counts counts = of_prompt[static_cast<std::size_t>(p)];
    counts.kept_prompts = counts.kept_tokens > 0;
    counts.valid_prompts = counts.valid_tokens > 0;
    atomic_add(total[0], counts);
  });
}

TURNWISE_KERNEL void aggregate_kernel(counted_turns turns, aggregate_options options,
                                      device_span<loss_counts const> of_prompt, device_span<loss_counts const> total,
                                      device_span<double> turn_scale) {
  namespace rule = turnwise::loss::detail;
  double const prompts = rule::prompts_of(total[0], options);
  gpu::detail::for_each_by_thread(static_cast<std::int64_t>(turns.groups.trajectories), [&](std::int64_t i) {
    auto const j = static_cast<std::size_t>(i);
    bool const by_prompt = options.scope == loss_scope::prompt;
    loss_counts const& counts = by_prompt ? of_prompt[static_cast<std::size_t>(turns.groups.prompt[j])] : total[0];
    double const outer = prompts * rule::denominator_of(counts, options);
    turns.for_each_unit(j, [&](std::int64_t first, std::int64_t last, loss_counts const& unit) {
      double const divisor = rule::unit_divisor(unit, options);
      for (auto s = static_cast<std::size_t>(first); s < static_cast<std::size_t>(last); ++s)
        turn_scale[s] = rule::scale_of(turns.tokens[s], turns.reasons[s], outer, divisor);
    });
  });
}

/// Enqueues the counts of each prompt.
inline void enqueue_prompts(counted_turns const& turns, device_span<loss_counts> of_prompt, ::cuda::stream_ref stream) {
  if (of_prompt.empty()) return;
  check(cudaMemsetAsync(of_prompt.data(), 0, of_prompt.size() * sizeof(loss_counts), stream.get()),
        "count_for_loss: clear");
  launch("count_for_loss: prompts", count_prompts_kernel, grid_blocks(turns.groups.trajectories, aggregate_threads),
         aggregate_threads, 0, stream, turns, of_prompt);
}

inline void check_turns(counted_turns const& turns, std::string_view function) {
  expects_size(function, "tokens", turns.tokens.size(), turns.groups.turns, "turn");
  expects_size(function, "reasons", turns.reasons.size(), turns.groups.turns, "turn");
}

}  // namespace detail

inline constexpr std::size_t count_tokens_workspace_bytes = 0;  ///< takes no workspace

/// Counts the unmasked tokens of each turn: the device version of turnwise::loss::count_tokens.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch.
/// @param[in]  mask    [N], or empty: all on.
/// @param[out] tokens  [S].
/// @throws precondition_error  sizes that differ; nothing is enqueued.
/// @throws cuda_error          a launch was refused.
/// @par Complexity  one read of the mask, if any: a block a turn.
inline void count_tokens(token_plan const& plan, device_span<std::uint8_t const> mask, device_span<std::int64_t> tokens,
                         ::cuda::stream_ref stream) {
  if (!mask.empty()) expects_size("count_tokens", "mask", mask.size(), plan.tokens, "token of the plan");
  expects_size("count_tokens", "tokens", tokens.size(), plan.turns, "turn of the plan");
  launch("count_tokens", detail::count_tokens_kernel, grid_blocks(plan.turns, 1), detail::aggregate_threads, 0, stream,
         plan, mask, tokens);
}

/// Scratch for aggregate over J trajectories.
[[nodiscard]] inline std::size_t aggregate_workspace_bytes(std::size_t trajectories) {
  workspace count;
  static_cast<void>(count.take<detail::loss_counts>(trajectories, "aggregate: prompts"));
  return count.used();
}

/// Scratch for count_for_loss over J trajectories: that of aggregate.
[[nodiscard]] inline std::size_t count_for_loss_workspace_bytes(std::size_t trajectories) {
  return aggregate_workspace_bytes(trajectories);
}

/// What the denominators of a batch may count: the device version, with the same integers.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. Two memsets, two launches.
/// @param[in]  groups  of the batch, by group or by (group, turn index).
/// @param[in]  tokens, reasons  [S].
/// @param[out] total   [1]; ranks add theirs up, as six 64-bit integers, before aggregate.
/// @throws precondition_error  sizes that differ, a workspace too small; nothing is enqueued.
/// @throws cuda_error          a launch was refused.
/// @par Complexity  O(S) work: a thread a trajectory, then a thread a prompt.
/// @see turnwise::loss::count_for_loss
inline void count_for_loss(grouping const& groups, device_span<std::int64_t const> tokens,
                           device_span<reason_flags const> reasons, turnwise::loss::loss_unit unit,
                           device_span<turnwise::loss::loss_counts> total, workspace scratch,
                           ::cuda::stream_ref stream) {
  detail::counted_turns const turns{groups, tokens, reasons, unit};
  detail::check_turns(turns, "count_for_loss");
  expects(total.size() == 1, "count_for_loss: total has ", total.size(), " elements, expected 1");
  auto const of_prompt = scratch.take<detail::loss_counts>(groups.trajectories, "aggregate: prompts");
  check(cudaMemsetAsync(total.data(), 0, sizeof(detail::loss_counts), stream.get()), "count_for_loss: clear");
  detail::enqueue_prompts(turns, of_prompt, stream);
  launch("count_for_loss", detail::sum_prompts_kernel, grid_blocks(groups.trajectories, detail::aggregate_threads),
         detail::aggregate_threads, 0, stream, groups, of_prompt, total);
}

/// The factor by which each turn's token losses enter the loss: the device version, with the same bits.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. A memset and a launch;
/// with scope = prompt two.
/// @param[in]  total       [1] of all micro-batches and ranks, at least this batch's own counts (not checked; where it
///                         counts nothing, scales are 0).
/// @param[out] turn_scale  [S].
/// @throws precondition_error  sizes that differ, options that contradict each other, a workspace too small; nothing is
///         enqueued.
/// @throws cuda_error          a launch was refused.
/// @par Complexity  O(S) work: a thread a trajectory.
/// @see turnwise::loss::aggregate
inline void aggregate(grouping const& groups, device_span<std::int64_t const> tokens,
                      device_span<reason_flags const> reasons, turnwise::loss::aggregate_options const& options,
                      device_span<turnwise::loss::loss_counts const> total, device_span<double> turn_scale,
                      workspace scratch, ::cuda::stream_ref stream) {
  detail::counted_turns const turns{groups, tokens, reasons, options.unit};
  detail::check_turns(turns, "aggregate");
  expects_size("aggregate", "turn_scale", turn_scale.size(), groups.turns, "turn");
  expects(total.size() == 1, "aggregate: total has ", total.size(), " elements, expected 1");
  turnwise::loss::detail::check_aggregate(options);
  auto const of_prompt = scratch.take<detail::loss_counts>(groups.trajectories, "aggregate: prompts");
  if (groups.turns == 0) return;
  check(cudaMemsetAsync(turn_scale.data(), 0, groups.turns * sizeof(double), stream.get()), "aggregate: clear");
  if (options.scope == turnwise::loss::loss_scope::prompt) detail::enqueue_prompts(turns, of_prompt, stream);
  launch("aggregate", detail::aggregate_kernel, grid_blocks(groups.trajectories, detail::aggregate_threads),
         detail::aggregate_threads, 0, stream, turns, options, of_prompt, total, turn_scale);
}

}  // namespace turnwise::gpu::loss
