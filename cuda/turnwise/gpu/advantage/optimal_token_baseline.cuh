/// @file
/// A baseline for each token position on the device: the group's returns, weighted by the gradient gathered so far.
#pragma once

#include <turnwise/advantage/optimal_token_baseline.hpp>
#include <turnwise/gpu/core/grouping_view.cuh>
#include <turnwise/gpu/core/rollout.cuh>
#include <turnwise/gpu/core/status.cuh>
#include <turnwise/gpu/core/warp.cuh>
#include <turnwise/gpu/core/workspace.cuh>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace turnwise::gpu::advantage {
namespace detail {

using turnwise::advantage::lone_position;
using turnwise::advantage::optimal_token_baseline_options;
using turnwise::advantage::detail::no_baseline;
using turnwise::advantage::detail::over_baseline;
using turnwise::advantage::detail::position_sums;

/// In place of the length of a turn that is no baseline member.
inline constexpr std::int64_t not_a_member = -1;  ///< it is valid
inline constexpr std::int64_t no_advantage = -2;  ///< it is not: its tokens get 0

/// Warps that share the positions of a group.
inline constexpr std::int64_t position_tiles = 16;

/// The blocks of the workspace, for counting and for use alike.
struct position_blocks {
  device_span<double> position;  ///< [N] cumulative weights, those of a turn from its first token on; then baselines
  device_span<std::int64_t> length;  ///< [S] unmasked tokens of a member
  device_span<std::int64_t> leader;  ///< [S] the longest member of a turn's group, whose positions hold the baselines
  device_span<double> beyond;        ///< [S] the baseline behind those positions

  position_blocks(std::size_t turns, std::size_t tokens, workspace& scratch)
      : position(scratch.take<double>(tokens, "optimal_token_baseline: positions")),
        length(scratch.take<std::int64_t>(turns, "optimal_token_baseline: lengths")),
        leader(scratch.take<std::int64_t>(turns, "optimal_token_baseline: leaders")),
        beyond(scratch.take<double>(turns, "optimal_token_baseline: beyond")) {}
};

template <real T, real A>
struct position_call {
  rollout_view batch;
  grouping groups;
  device_span<std::uint8_t const> mask;
  device_span<T const> weight;
  device_span<A const> turn_return;
  device_span<reason_flags const> reasons;
  optimal_token_baseline_options options;
  device_span<T> advantage;
  status_record* status;
  position_blocks work;

  [[nodiscard]] __device__ std::int64_t begin(std::int64_t s) const { return batch.turn_begin[s]; }
  [[nodiscard]] __device__ std::int64_t end(std::int64_t s) const { return batch.turn_end[s]; }
  [[nodiscard]] __device__ double value(std::int64_t s) const { return static_cast<double>(turn_return[s]); }
};

/// The tokens of a turn that a warp looks at together.
struct token_tile {
  bool on;             ///< this lane's token is one, and not masked
  unsigned on_lanes;   ///< all such lanes
  std::int64_t place;  ///< of this lane's token among the unmasked ones of the tile

  __device__ token_tile(device_span<std::uint8_t const> mask, std::int64_t n, std::int64_t end) {
    on = n < end && (mask.empty() || mask[static_cast<std::size_t>(n)] != 0);
    on_lanes = __ballot_sync(gpu::detail::all_lanes, on);
    place = __popc(on_lanes & ((1u << gpu::detail::lane_id()) - 1));
  }
  [[nodiscard]] __device__ int count() const { return __popc(on_lanes); }
};

/// Moves the weights of a member's unmasked tokens to its first positions; returns how many, or no_advantage.
template <real T, real A>
__device__ std::int64_t gather_weights(position_call<T, A> const& call, std::int64_t s) {
  std::int64_t const begin = call.begin(s);
  std::int64_t const end = call.end(s);
  std::int64_t count = 0;
  bool fine = true;
  for (std::int64_t tile = begin; tile < end; tile += gpu::detail::lanes) {
    std::int64_t const n = tile + gpu::detail::lane_id();
    token_tile const tokens{call.mask, n, end};
    if (tokens.on) {
      T const weight = call.weight[static_cast<std::size_t>(n)];
      if (!turnwise::advantage::detail::is_token_weight(weight)) {
        report(call.status, status_code::token_value, n);
        fine = false;
      }
      call.work.position[static_cast<std::size_t>(begin + count + tokens.place)] = static_cast<double>(weight);
    }
    count += tokens.count();
  }
  __syncwarp();
  return __all_sync(gpu::detail::all_lanes, fine) ? count : no_advantage;
}

/// Sums the first `count` positions of a turn up, in the order of turnwise::advantage::detail::for_each_cumulative.
__device__ inline void sum_up(double* position, std::int64_t count) {
  static_assert(turnwise::advantage::detail::prefix_lanes == gpu::detail::lanes);
  int const lane = gpu::detail::lane_id();
  double before = 0;
  for (std::int64_t block = 0; block < count; block += gpu::detail::lanes) {
    bool const active = block + lane < count;
    double sum = active ? position[block + lane] : 0.0;
    for (int step = 1; step < gpu::detail::lanes; step *= 2) {
      double const lower = __shfl_up_sync(gpu::detail::all_lanes, sum, step);
      if (lane >= step) sum += lower;
    }
    if (active) position[block + lane] = before + sum;
    before += __shfl_sync(gpu::detail::all_lanes, sum, gpu::detail::lanes - 1);
  }
}

/// A warp a turn: its length and cumulative weights.
template <real T, real A>
TURNWISE_KERNEL void __launch_bounds__(gpu::detail::warp_block_threads)
    position_weights_kernel(position_call<T, A> call) {
  gpu::detail::for_each_by_warp(static_cast<std::int64_t>(call.batch.turns), [&](std::int64_t s) {
    auto const turn = static_cast<std::size_t>(s);
    reason_flags const flags = call.reasons.empty() ? 0 : call.reasons[turn];
    std::int64_t const begin = call.begin(s);
    std::int64_t const end = call.end(s);
    bool const in_range = begin >= 0 && begin <= end && end <= static_cast<std::int64_t>(call.weight.size());
    bool const known = within_limit(call.turn_return[turn]);
    if (!in_range) report(call.status, status_code::token_range, s);
    if (is_valid(flags) && !known) report(call.status, status_code::turn_return, s);
    std::int64_t length = is_valid(flags) && known && in_range ? not_a_member : no_advantage;
    bool const counts =
        call.options.members == turnwise::advantage::baseline_members::valid ? is_valid(flags) : is_kept(flags);
    if (length == not_a_member && counts) length = gather_weights(call, s);
    if (length > 0) sum_up(call.work.position.data() + begin, length);
    if (gpu::detail::lane_id() != 0) return;
    call.work.length[turn] = length;
    call.work.leader[turn] = -1;
    call.work.beyond[turn] = no_baseline;
  });
}

/// How many members a group has, and the first of its longest ones (-1: none).
struct group_reach {
  std::int64_t members, length, leader;
};

template <real T, real A>
__device__ group_reach reach_of(position_call<T, A> const& call, std::int64_t first, std::int64_t last) {
  using gpu::detail::all_lanes;
  group_reach reach{0, -1, -1};
  std::int64_t place = last;
  for (std::int64_t k = first + gpu::detail::lane_id(); k < last; k += gpu::detail::lanes) {
    std::int64_t const length = call.work.length[call.groups.members[k]];
    if (length < 0) continue;
    ++reach.members;
    if (length <= reach.length) continue;
    reach.length = length;
    place = k;
  }
  for (int half = gpu::detail::lanes / 2; half > 0; half /= 2) {
    reach.members += __shfl_xor_sync(all_lanes, reach.members, half);
    std::int64_t const length = __shfl_xor_sync(all_lanes, reach.length, half);
    std::int64_t const other = __shfl_xor_sync(all_lanes, place, half);
    if (length > reach.length || (length == reach.length && other < place)) {
      reach.length = length;
      place = other;
    }
  }
  if (place < last) reach.leader = call.groups.members[place];
  return reach;
}

/// The baselines of each group's positions, a lane a position; they take the place of the leader's weights.
template <real T, real A>
TURNWISE_KERNEL void __launch_bounds__(gpu::detail::warp_block_threads)
    position_baselines_kernel(position_call<T, A> call) {
  gpu::detail::for_each_by_warp(call.groups.counts->groups * position_tiles, [&](std::int64_t item) {
    auto const group = static_cast<std::size_t>(item / position_tiles);
    std::int64_t const tile = item % position_tiles;
    std::int64_t const first = call.groups.offsets[group];
    std::int64_t const last = call.groups.offsets[group + 1];
    group_reach const reach = reach_of(call, first, last);
    lone_position const alone = reach.members < 2 ? call.options.singleton : call.options.tail;
    if (tile == 0)
      for (std::int64_t k = first + gpu::detail::lane_id(); k < last; k += gpu::detail::lanes) {
        std::int64_t const s = call.groups.members[k];
        call.work.leader[s] = reach.leader;
        call.work.beyond[s] = position_sums{}.baseline(alone);
      }
    for (std::int64_t p = tile * gpu::detail::lanes + gpu::detail::lane_id(); p < reach.length;
         p += position_tiles * gpu::detail::lanes) {
      position_sums sums;
      for (std::int64_t k = first; k < last; ++k) {
        std::int64_t const s = call.groups.members[k];
        if (p < call.work.length[s]) sums.add(call.value(s), call.work.position[call.begin(s) + p]);
      }
      call.work.position[call.begin(reach.leader) + p] = sums.baseline(alone);
    }
  });
}

/// A warp a turn: the advantages of its tokens. Tokens of invalid turns and of none are 0 already.
template <real T, real A>
TURNWISE_KERNEL void __launch_bounds__(gpu::detail::warp_block_threads)
    position_advantages_kernel(position_call<T, A> call) {
  gpu::detail::for_each_by_warp(static_cast<std::int64_t>(call.batch.turns), [&](std::int64_t s) {
    if (call.work.length[s] == no_advantage) return;
    std::int64_t const leader = call.work.leader[s];
    std::int64_t const reach = leader < 0 ? 0 : call.work.length[leader];
    double const* const baseline = call.work.position.data() + (leader < 0 ? 0 : call.begin(leader));
    double const beyond = call.work.beyond[s];
    double const value = call.value(s);
    std::int64_t const end = call.end(s);
    std::int64_t count = 0;
    for (std::int64_t tile = call.begin(s); tile < end; tile += gpu::detail::lanes) {
      std::int64_t const n = tile + gpu::detail::lane_id();
      token_tile const tokens{call.mask, n, end};
      std::int64_t const p = count + tokens.place;
      if (tokens.on)
        call.advantage[static_cast<std::size_t>(n)] =
            narrowed<T>(over_baseline(value, p < reach ? baseline[p] : beyond));
      count += tokens.count();
    }
  });
}

template <real T, real A>
void check_position_call(position_call<T, A> const& call) {
  std::string_view const name = "optimal_token_baseline";
  std::size_t const turns = call.batch.turns;
  std::size_t const tokens = call.weight.size();
  expects_size(name, "turn_begin", call.batch.turn_begin.size(), turns, "turn");
  expects_size(name, "turn_end", call.batch.turn_end.size(), turns, "turn");
  expects_size(name, "groups", call.groups.turns, turns, "turn");
  expects_size(name, "turn_return", call.turn_return.size(), turns, "turn");
  if (!call.reasons.empty()) expects_size(name, "reasons", call.reasons.size(), turns, "turn");
  if (!call.mask.empty()) expects_size(name, "mask", call.mask.size(), tokens, "token, as weight");
  expects_size(name, "advantage", call.advantage.size(), tokens, "token, as weight");
  expects(tokens == 0 || static_cast<void const*>(call.advantage.data()) != call.weight.data(), name,
          ": advantage must not be the same span as weight");
}

}  // namespace detail

/// Scratch for optimal_token_baseline: a double a token and 24 bytes a turn.
[[nodiscard]] inline std::size_t optimal_token_baseline_workspace_bytes(std::size_t turns, std::size_t tokens) {
  workspace count;
  detail::position_blocks{turns, tokens, count};
  return count.used();
}

/// Advantage of each token over the weighted mean return of its group at its position: the device version, with the
/// same bits.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph.
/// @param[in]  batch, mask, weight, turn_return, reasons  as the host's; batch has turn_begin and turn_end.
/// @param[in]  groups     of make_grouping.
/// @param[in]  options    as the host's; `threads` is not used.
/// @param[out] advantage  [N]; not the same span as weight. 0 for masked tokens, those of invalid turns and of none.
/// @param[in]  status     may be null; gains token_range, turn_return (a valid turn's, not finite or beyond
///                        magnitude_limit) and token_value (a member's weight, at its token). Such a turn acts as
///                        invalid. Turns that overlap are not told: what their groups get is unspecified.
/// @param      scratch    at least optimal_token_baseline_workspace_bytes; must stay alive until the stream has passed
///                        this work.
/// @throws precondition_error  sizes that differ, a workspace too small; nothing is enqueued.
/// @throws cuda_error          a launch was refused.
/// @note  Deterministic: the same bits for any launch shape and order of trajectories.
/// @par Complexity  O(N + S) work: a warp a turn, position_tiles warps a group.
/// @see turnwise::advantage::optimal_token_baseline
template <real T, real A>
void optimal_token_baseline(rollout_view const& batch, grouping const& groups, device_span<std::uint8_t const> mask,
                            no_deduce<device_span<T const>> weight, device_span<A const> turn_return,
                            device_span<reason_flags const> reasons,
                            turnwise::advantage::optimal_token_baseline_options const& options,
                            device_span<T> advantage, status_record* status, workspace scratch,
                            ::cuda::stream_ref stream) {
  detail::position_call<T, A> const call{
      batch,   groups,  mask,      weight, turn_return,
      reasons, options, advantage, status, detail::position_blocks{batch.turns, weight.size(), scratch}};
  detail::check_position_call(call);
  if (advantage.empty()) return;
  check(cudaMemsetAsync(advantage.data(), 0, advantage.size() * sizeof(T), stream.get()),
        "optimal_token_baseline: clear");
  unsigned const turn_blocks = gpu::detail::warp_blocks(batch.turns);
  constexpr auto position_tiles = static_cast<std::size_t>(detail::position_tiles);
  launch("optimal_token_baseline: weights", detail::position_weights_kernel<T, A>, turn_blocks,
         gpu::detail::warp_block_threads, 0, stream, call);
  launch("optimal_token_baseline: baselines", detail::position_baselines_kernel<T, A>,
         gpu::detail::warp_blocks(batch.turns * position_tiles), gpu::detail::warp_block_threads, 0, stream, call);
  launch("optimal_token_baseline: advantages", detail::position_advantages_kernel<T, A>, turn_blocks,
         gpu::detail::warp_block_threads, 0, stream, call);
}

}  // namespace turnwise::gpu::advantage
