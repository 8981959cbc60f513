/// @file
/// The pass over the tokens: a warp a chunk.
#pragma once

#include <turnwise/gpu/core/workspace.cuh>
#include <turnwise/gpu/importance/detail/chunk_reduce.cuh>

#include <cstddef>
#include <cstdint>
#include <limits>

namespace turnwise::gpu::importance::detail {

/// Where a pass writes: whole turns to their records, turns that cross a chunk border in parts. Each chunk has at most
/// one turn that began before it (head) and one that begins in it and goes on (tail).
template <bool Moments>
struct chunk_outputs {
  device_span<turn_statistics> turn, head, tail;
  device_span<ratio_moments> turn_moments, head_moments, tail_moments;

  chunk_outputs(std::size_t tokens, workspace& scratch) {
    std::size_t const chunks = chunk_count(tokens);
    head = scratch.take<turn_statistics>(chunks, "log_ratio_statistics: head");
    tail = scratch.take<turn_statistics>(chunks, "log_ratio_statistics: tail");
    if constexpr (Moments) {
      head_moments = scratch.take<ratio_moments>(chunks, "log_ratio_statistics: head moments");
      tail_moments = scratch.take<ratio_moments>(chunks, "log_ratio_statistics: tail moments");
    }
  }

  template <typename Wide>
  __device__ void store(lane_sums<Wide, Moments> const& sums, std::int64_t chunk, std::int64_t turn_id, bool before,
                        bool after) const {
    auto const at = static_cast<std::size_t>(before || after ? chunk : turn_id);
    (before ? head : after ? tail : turn)[at] = sums.statistics();
    if constexpr (Moments) (before ? head_moments : after ? tail_moments : turn_moments)[at] = sums.moments;
  }
};

/// Warps in a block: as many as the shared memory that needs no asking for holds.
template <bool Moments>
inline constexpr unsigned chunk_warps = Moments&& TURNWISE_GPU_BLOCK_WARPS > 2 ? 2 : TURNWISE_GPU_BLOCK_WARPS;

/// Shared memory of one warp: a chunk's log ratios, and the sums of its blocks.
template <real Wide, bool Moments>
struct warp_store {
  alignas(16) Wide d[chunk_tokens];
  alignas(16) Wide rollout[Moments ? chunk_tokens : 4];
  block_sums<Moments> block[sizeof(Wide) == 4 ? chunk_blocks : 1];
  uint4 records[warp_lanes * sizeof(turn_statistics) / sizeof(uint4)];

  [[nodiscard]] __device__ Wide rollout_at(int i) const { return Moments ? rollout[Moments ? i : 0] : Wide{0}; }
};

/// Stores the records of neighbouring turns as whole 16-byte words of neighbouring lanes. Record `slot` goes to turn
/// `first + slot` where `has_record`; the slots with a record are contiguous.
template <bool Moments, real Wide>
__device__ void store_together(uint4* records, lane_sums<Wide, Moments> const& sums, bool has_record,
                               std::int64_t first, int slot, chunk_outputs<Moments> const& out) {
  constexpr int words = sizeof(turn_statistics) / sizeof(uint4);
  unsigned const lanes_with = __ballot_sync(every_lane, has_record);
  if (lanes_with == 0) return;
  if (has_record) {
    turn_statistics const record = sums.statistics();
    __builtin_memcpy(records + slot * words, &record, sizeof record);
    if constexpr (Moments) out.turn_moments[static_cast<std::size_t>(first + slot)] = sums.moments;
  }
  int const low = __shfl_sync(every_lane, slot, __ffs(static_cast<int>(lanes_with)) - 1);
  int const high = __shfl_sync(every_lane, slot, 31 - __clz(static_cast<int>(lanes_with))) + 1;
  __syncwarp();
  uint4* const target = reinterpret_cast<uint4*>(out.turn.data() + first);
  for (int w = low * words + static_cast<int>(threadIdx.x % warp_lanes); w < high * words;
       w += static_cast<int>(warp_lanes))
    target[w] = records[w];
  __syncwarp();
}

/// Adds tokens [start, stop) of a chunk, every `width`-th piece from `lane` on: whole blocks where they fit, and the
/// tokens at the edges.
template <bool Small, bool Moments, real Wide>
__device__ void add_range(lane_sums<Wide, Moments>& sums, warp_store<Wide, Moments> const& store, int start, int stop,
                          int lane, int width) {
  if constexpr (Small && sizeof(Wide) == 4) {
    int const first_block = (start + block_tokens - 1) / block_tokens;
    int const last_block = stop / block_tokens;
    auto const add_edge = [&](int from, int to) {
      if (from < to)
        sums.add(reduce_block<true, Moments>(store.d + from, store.rollout + (Moments ? from : 0), to - from));
    };
    if (first_block > last_block) {  // inside one block
      if (lane == 0) add_edge(start, stop);
      return;
    }
    if (lane == 0) add_edge(start, first_block * block_tokens);
    if (lane == width - 1) add_edge(last_block * block_tokens, stop);
    for (int b = first_block + lane; b < last_block; b += width) sums.add(store.block[b]);
  } else {
    for (int i = start + lane; i < stop; i += width) sums.add(store.d[i], store.rollout_at(i));
  }
}

/// How a warp splits over the turns of a chunk, and this lane's turn in the present round.
struct lane_turn {
  int width;  ///< lanes a turn
  std::int64_t begin, end;

  __device__ lane_turn(token_plan const& plan, chunk_turns const& turns, std::int64_t chunk_begin) {
    width = static_cast<int>(warp_lanes);
    while (width > 1 && static_cast<int>(warp_lanes) / width < turns.count) width /= 2;
    read(plan, turns, 0, chunk_begin);
  }
  /// This lane's turn among the `warp_lanes / width` from `first` on; no tokens if there is none.
  __device__ void read(token_plan const& plan, chunk_turns const& turns, std::int64_t first, std::int64_t chunk_begin) {
    std::int64_t const turn = first + static_cast<int>(threadIdx.x % warp_lanes) / width;
    bool const has_turn = turn < turns.count;
    begin = has_turn ? plan.begin[turns.first + turn] : chunk_begin;
    end = has_turn ? plan.end[turns.first + turn] : chunk_begin;
  }
};

/// The turns of a chunk: one group of lanes a turn, as wide as their number allows.
template <bool Small, bool Moments, real Wide>
__device__ void reduce_turns(token_plan const& plan, warp_store<Wide, Moments>& store, chunk_turns const& turns,
                             lane_turn mine, std::int64_t chunk, chunk_outputs<Moments> const& out) {
  int const lane = static_cast<int>(threadIdx.x % warp_lanes);
  std::int64_t const chunk_begin = chunk * chunk_tokens;
  std::int64_t const chunk_end = chunk_begin + chunk_tokens;
  int const groups = static_cast<int>(warp_lanes) / mine.width;
  for (std::int64_t first = 0; first < turns.count; first += groups) {
    if (first > 0) mine.read(plan, turns, first, chunk_begin);
    std::int64_t const turn = first + lane / mine.width;
    int const start = gpu::detail::place_in_chunk(mine.begin, chunk_begin);
    int const stop = gpu::detail::place_in_chunk(mine.end, chunk_begin);
    lane_sums<Wide, Moments> sums;
    add_range<Small>(sums, store, start, stop, lane % mine.width, mine.width);
    sums.template combine<Small>(mine.width);
    bool const leads = turn < turns.count && lane % mine.width == 0;
    bool const crosses = mine.begin < chunk_begin || mine.end > chunk_end;
    if (leads && (crosses || !plan.order.empty()))
      out.store(sums, chunk, plan.turn_at(turns.first + turn), mine.begin<chunk_begin, mine.end> chunk_end);
    if (plan.order.empty())
      store_together(store.records, sums, leads && !crosses, turns.first + first, lane / mine.width, out);
  }
}

/// A chunk in registers: one of small log ratios that lies in one turn is summed there (`done`), any other goes to shared
/// memory. Returns whether its log ratios are small.
template <bool Moments, logprob_value Old, logprob_value Rollout>
__device__ bool reduce_registers(token_plan const& plan, chunk_registers<Old, Rollout, Moments> const& values,
                                 warp_store<log_ratio_t<Old, Rollout>, Moments>& store, bool masked,
                                 chunk_turns const& turns, std::int64_t chunk, chunk_outputs<Moments> const& out,
                                 bool& done) {
  using wide = log_ratio_t<Old, Rollout>;
  using registers = chunk_registers<Old, Rollout, Moments>;
  bool const small = values.within(small_limit, masked);
  bool const near = Moments && small && values.within(turnwise::importance::small_log_ratio, masked);
  done = small && turns.whole;
  lane_sums<wide, Moments> sums;
#pragma unroll
  for (int i = 0; i < registers::rows * registers::vector; i += block_tokens) {
    int const place = registers::place(i);
    if (!done) {
      __builtin_memcpy(store.d + place, values.d + i, block_tokens * sizeof(wide));
      if constexpr (Moments) __builtin_memcpy(store.rollout + place, values.rollout + i, block_tokens * sizeof(wide));
    }
    if constexpr (sizeof(wide) == 4) {
      if (!small) continue;
      float const* const rollout = values.rollout + (Moments ? i : 0);
      auto const block = near                ? reduce_block<true, Moments, true>(values.d + i, rollout)
                         : Moments || masked ? reduce_block<true, Moments>(values.d + i, rollout)
                                             : reduce_block<false, Moments>(values.d + i, rollout);
      if (done)
        sums.add(block);
      else
        store.block[place / block_tokens] = block;
    }
  }
  if (!done) return small;
  sums.template combine<true>(static_cast<int>(warp_lanes));
  if (threadIdx.x % warp_lanes == 0)
    out.store(sums, chunk, plan.turn_at(turns.first), turns.before != 0, turns.after != 0);
  return true;
}

/// Blocks that a multiprocessor shall hold: what lets the loads of a chunk stay in registers (measured on an H200).
template <logprob_value Old, logprob_value Rollout, bool Moments>
inline constexpr unsigned chunk_blocks_resident = Moments || sizeof(log_ratio_t<Old, Rollout>) > 4 ? 4
                                                  : sizeof(Old) + sizeof(Rollout) > 4              ? 5
                                                                                                   : 8;

/// Work that has nothing to do with tokens and rides along in the first blocks of a pass over them: none.
struct no_side_work {
  __device__ void operator()(std::int64_t, std::int64_t) const {}
};

/// The first `side_blocks` blocks do the side work, the others the chunks.
template <logprob_value Old, logprob_value Rollout, bool Moments, typename SideWork>
TURNWISE_KERNEL void __launch_bounds__(chunk_warps<Moments>* warp_lanes, chunk_blocks_resident<Old, Rollout, Moments>)
    chunk_kernel(token_plan plan, token_logprobs<Old, Rollout> tokens, bool aligned, chunk_outputs<Moments> out,
                 SideWork side_work, unsigned side_blocks) {
  if (blockIdx.x < side_blocks) {
    side_work((std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / warp_lanes,
              std::int64_t{side_blocks} * blockDim.x / warp_lanes);
    return;
  }
  using wide = log_ratio_t<Old, Rollout>;
  __shared__ warp_store<wide, Moments> stores[chunk_warps<Moments>];
  auto& store = stores[threadIdx.x / warp_lanes];
  auto const thread = std::int64_t{blockIdx.x - side_blocks} * blockDim.x + threadIdx.x;
  auto const threads = std::int64_t{gridDim.x - side_blocks} * blockDim.x;

  for (std::int64_t place = *plan.active.data() + thread; place < static_cast<std::int64_t>(plan.turns);
       place += threads)
    out.store(lane_sums<wide, Moments>{}, 0, plan.turn_at(place), false, false);

  auto const size = static_cast<std::int64_t>(plan.tokens);
  for (std::int64_t chunk = thread / warp_lanes; chunk < static_cast<std::int64_t>(plan.chunks.size());
       chunk += threads / warp_lanes) {
    std::int64_t const first = chunk * chunk_tokens;
    chunk_turns const turns = plan.chunks[static_cast<std::size_t>(chunk)];
    if (turns.count == 0) continue;
    bool small = false;
    bool done = false;
    if (aligned && first + chunk_tokens <= size) {
      chunk_registers<Old, Rollout, Moments> values;
      values.start(tokens, first);
      lane_turn const mine{plan, turns, first};
      values.finish(tokens);
      small = reduce_registers(plan, values, store, !tokens.mask.empty(), turns, chunk, out, done);
      if (done) continue;
      __syncwarp();
      if (small) {
        reduce_turns<true>(plan, store, turns, mine, chunk, out);
        __syncwarp();
        continue;
      }
    } else {
      for (std::int64_t i = threadIdx.x % warp_lanes; i < chunk_tokens && first + i < size; i += warp_lanes) {
        bool const on = tokens.mask.empty() || tokens.mask[first + i] != 0;
        Rollout const rollout_logprob = tokens.rollout_logprob[first + i];
        store.d[i] =
            on ? turnwise::importance::log_ratio(tokens.old_logprob[first + i], rollout_logprob) : masked_value<wide>();
        if constexpr (Moments) store.rollout[i] = static_cast<wide>(rollout_logprob);
      }
      __syncwarp();
    }
    reduce_turns<false>(plan, store, turns, lane_turn{plan, turns, first}, chunk, out);
    __syncwarp();
  }
}

/// `side_warps`: warps' worth of side work.
template <bool Moments, logprob_value Old, logprob_value Rollout, typename SideWork = no_side_work>
void enqueue_chunks(token_plan const& plan, token_logprobs<Old, Rollout> const& tokens,
                    chunk_outputs<Moments> const& out, ::cuda::stream_ref stream, SideWork const& side_work = {},
                    std::size_t side_warps = 0) {
  auto const at = [](auto span, unsigned bytes) { return reinterpret_cast<std::uintptr_t>(span.data()) % bytes == 0; };
  bool const aligned = at(tokens.old_logprob, 16) && at(tokens.rollout_logprob, 16) && at(tokens.mask, block_tokens);
  unsigned const side_blocks = grid_blocks(side_warps < 16384 ? side_warps : 16384, chunk_warps<Moments>);
  unsigned const chunk_blocks = grid_blocks(plan.chunks.size(), chunk_warps<Moments>);
  constexpr unsigned most = std::numeric_limits<int>::max();
  launch("log_ratio_statistics: chunks", chunk_kernel<Old, Rollout, Moments, SideWork>,
         (chunk_blocks < most - side_blocks ? chunk_blocks : most - side_blocks) + side_blocks,
         chunk_warps<Moments> * warp_lanes, 0, stream, plan, tokens, aligned, out, side_work, side_blocks);
}

}  // namespace turnwise::gpu::importance::detail
