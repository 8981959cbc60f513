/// @file
/// Puts the records of turns that cross chunk borders together from their parts.
#pragma once

#include <turnwise/gpu/importance/detail/chunk_pass.cuh>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::importance::detail {

/// Joins parts [first, last] of a turn that began in chunk `first`: the lanes of the warp take every 32nd part. All
/// lanes take part and get the result.
template <bool Moments>
__device__ void join_parts(chunk_outputs<Moments> const& out, std::int64_t first, std::int64_t last,
                           turn_statistics& total, ratio_moments& moments) {
  total = {};
  moments = {};
  for (std::int64_t part = first + threadIdx.x % warp_lanes; part <= last; part += warp_lanes) {
    total += part == first ? out.tail[part] : out.head[part];
    if constexpr (Moments) moments += part == first ? out.tail_moments[part] : out.head_moments[part];
  }
  for (unsigned offset = warp_lanes / 2; offset > 0; offset /= 2) {
    total += turn_statistics{
        __shfl_xor_sync(every_lane, total.count, offset),      __shfl_xor_sync(every_lane, total.sum, offset),
        __shfl_xor_sync(every_lane, total.min, offset),        __shfl_xor_sync(every_lane, total.max, offset),
        __shfl_xor_sync(every_lane, total.non_finite, offset), __shfl_xor_sync(every_lane, total.saturated, offset)};
    if constexpr (Moments)
      moments += ratio_moments{__shfl_xor_sync(every_lane, moments.k3, offset),
                               __shfl_xor_sync(every_lane, moments.excess_squared, offset),
                               __shfl_xor_sync(every_lane, moments.rollout_logprob, offset)};
  }
}

/// Joins, for each lane that has one, a turn with tokens [begin, end) that crosses chunk borders, and calls
/// store(total, moments): short ones a lane alone, long ones with the warp. All lanes take part.
template <bool Moments, typename Store>
__device__ void join_turns(chunk_outputs<Moments> const& out, bool has_turn, std::int64_t begin, std::int64_t end,
                           Store store) {
  constexpr std::int64_t alone = 4;
  std::int64_t const first = has_turn ? begin / chunk_tokens : 0;
  std::int64_t const last = has_turn ? (end - 1) / chunk_tokens : 0;
  if (last > first && last - first <= alone) {
    turn_statistics total = out.tail[static_cast<std::size_t>(first)];
    ratio_moments moments;
    if constexpr (Moments) moments = out.tail_moments[static_cast<std::size_t>(first)];
    for (std::int64_t part = first + 1; part <= last; ++part) {
      total += out.head[static_cast<std::size_t>(part)];
      if constexpr (Moments) moments += out.head_moments[static_cast<std::size_t>(part)];
    }
    store(total, moments);
  }
  for (unsigned left = __ballot_sync(every_lane, last - first > alone); left != 0; left &= left - 1) {
    int const lane = __ffs(static_cast<int>(left)) - 1;
    turn_statistics total;
    ratio_moments moments;
    join_parts(out, __shfl_sync(every_lane, first, lane), __shfl_sync(every_lane, last, lane), total, moments);
    if (static_cast<int>(threadIdx.x % warp_lanes) == lane) store(total, moments);
  }
}

/// Joins the parts of turns that cross chunk borders: each thread finds the turn that leaves its chunk, if any.
template <bool Moments>
TURNWISE_KERNEL void join_kernel(token_plan plan, chunk_outputs<Moments> out) {
  auto const chunks = static_cast<std::int64_t>(plan.chunks.size());
  auto const stride = std::int64_t{gridDim.x} * blockDim.x;
  auto const thread = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (std::int64_t first_of_warp = thread - threadIdx.x % warp_lanes; first_of_warp < chunks;
       first_of_warp += stride) {
    std::int64_t const chunk = first_of_warp + threadIdx.x % warp_lanes;
    chunk_turns const turns = chunk < chunks ? plan.chunks[static_cast<std::size_t>(chunk)] : chunk_turns{};
    // The part of a turn that crosses a whole chunk is not its first.
    bool const leaves = turns.after && !(turns.before && turns.count == 1);
    std::int64_t const place = turns.first + turns.count - 1;
    join_turns(out, leaves, chunk * chunk_tokens, leaves ? plan.end[static_cast<std::size_t>(place)] : 0,
               [&](turn_statistics const& total, ratio_moments const& moments) {
                 auto const turn = static_cast<std::size_t>(plan.turn_at(place));
                 out.turn[turn] = total;
                 if constexpr (Moments) out.turn_moments[turn] = moments;
               });
  }
}

}  // namespace turnwise::gpu::importance::detail
