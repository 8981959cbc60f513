/// @file
/// Builds a token_plan, once a batch, for every pass over its tokens.
#pragma once

#include <turnwise/gpu/core/launch.cuh>
#include <turnwise/gpu/core/rollout.cuh>
#include <turnwise/gpu/core/status.cuh>
#include <turnwise/gpu/core/token_plan_view.cuh>
#include <turnwise/gpu/core/workspace.cuh>

#include <cub/device/device_radix_sort.cuh>

#include <cstddef>
#include <cstdint>
#include <limits>

namespace turnwise::gpu {

namespace detail {

inline constexpr unsigned plan_threads = 256;

/// Sorts turns without tokens behind the others.
inline constexpr std::int64_t no_tokens = std::numeric_limits<std::int64_t>::max();

/// Ranges outside the arrays are reported; where turns are sorted they become turns without tokens.
TURNWISE_KERNEL void plan_keys_kernel(rollout_view batch, std::int64_t tokens, std::int64_t* keys, std::int64_t* order,
                                      status_record* status) {
  auto const stride = std::int64_t{gridDim.x} * blockDim.x;
  for (auto s = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; s < static_cast<std::int64_t>(batch.turns);
       s += stride) {
    std::int64_t const begin = batch.turn_begin[s];
    std::int64_t const end = batch.turn_end[s];
    bool const fits = begin >= 0 && begin <= end && end <= tokens;
    if (!fits) report(status, status_code::token_range, s);
    keys[s] = fits && begin < end ? begin : no_tokens;
    order[s] = s;
  }
}

TURNWISE_KERNEL void plan_gather_kernel(rollout_view batch, std::int64_t const* keys, std::int64_t const* order,
                                        std::int64_t* begin, std::int64_t* end, std::int64_t* active,
                                        status_record* status) {
  auto const turns = static_cast<std::int64_t>(batch.turns);
  auto const stride = std::int64_t{gridDim.x} * blockDim.x;
  for (auto place = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; place < turns; place += stride) {
    bool const has_tokens = keys[place] != no_tokens;
    std::int64_t const s = order[place];
    begin[place] = has_tokens ? keys[place] : 0;
    end[place] = has_tokens ? batch.turn_end[s] : 0;
    if (has_tokens && (place + 1 == turns || keys[place + 1] == no_tokens)) *active = place + 1;
    if (place == 0 && !has_tokens) *active = 0;
    if (has_tokens && place > 0 && batch.turn_end[order[place - 1]] > keys[place])
      report(status, status_code::overlapping_turns, s);
  }
}

TURNWISE_KERNEL void plan_check_order_kernel(rollout_view batch, std::int64_t tokens, std::int64_t* active,
                                             status_record* status) {
  auto const stride = std::int64_t{gridDim.x} * blockDim.x;
  for (auto s = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; s < static_cast<std::int64_t>(batch.turns);
       s += stride) {
    std::int64_t const begin = batch.turn_begin[s];
    std::int64_t const end = batch.turn_end[s];
    if (begin < 0 || begin > end || end > tokens) report(status, status_code::token_range, s);
    if (s > 0 && begin < batch.turn_end[s - 1]) report(status, status_code::overlapping_turns, s);
    if (s == 0) *active = static_cast<std::int64_t>(batch.turns);
  }
}

/// First place whose turn begins at token `from` or later.
__device__ inline std::int64_t first_place(std::int64_t const* begin, std::int64_t places, std::int64_t from) {
  std::int64_t low = 0;
  while (low < places) {
    std::int64_t const middle = low + (places - low) / 2;
    if (begin[middle] < from)
      low = middle + 1;
    else
      places = middle;
  }
  return low;
}

TURNWISE_KERNEL void plan_chunks_kernel(std::int64_t const* begin, std::int64_t const* end, std::int64_t const* active,
                                        device_span<chunk_turns> chunks) {
  auto const stride = std::int64_t{gridDim.x} * blockDim.x;
  for (auto chunk = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
       chunk < static_cast<std::int64_t>(chunks.size()); chunk += stride) {
    std::int64_t const chunk_begin = chunk * chunk_tokens;
    std::int64_t const chunk_end = chunk_begin + chunk_tokens;
    std::int64_t first = first_place(begin, *active, chunk_begin);
    std::int64_t const next = first_place(begin, *active, chunk_end);
    bool const before = first > 0 && end[first - 1] > chunk_begin;
    if (before) --first;
    std::int64_t const count = next > first ? next - first : 0;  // places out of order (reported) may cross
    bool const after = count > 0 && end[first + count - 1] > chunk_end;
    bool const whole = count > 0 && begin[first] <= chunk_begin && end[first] >= chunk_end;
    chunks[static_cast<std::size_t>(chunk)] = {first, count, before, after, whole, 0};
  }
}

inline std::size_t sort_bytes(std::size_t count) {
  std::size_t bytes = 0;
  check(cub::DeviceRadixSort::SortPairs(nullptr, bytes, static_cast<std::int64_t const*>(nullptr),
                                        static_cast<std::int64_t*>(nullptr), static_cast<std::int64_t const*>(nullptr),
                                        static_cast<std::int64_t*>(nullptr), count),
        "sort: workspace query");
  return bytes;
}

/// The blocks of a plan, for counting and for building alike.
struct token_plan_blocks {
  device_span<chunk_turns> chunks;
  device_span<std::int64_t> active, begin, end, order, keys, unsorted_keys, unsorted_order;
  device_span<std::byte> sort;

  token_plan_blocks(std::size_t turns, std::size_t tokens, turn_order known, workspace& scratch)
      : chunks(scratch.take<chunk_turns>(chunk_count(tokens), "token plan: chunks")),
        active(scratch.take<std::int64_t>(1, "token plan: active")) {
    if (known == turn_order::by_tokens || turns == 0) return;
    begin = scratch.take<std::int64_t>(turns, "token plan: begin");
    end = scratch.take<std::int64_t>(turns, "token plan: end");
    order = scratch.take<std::int64_t>(turns, "token plan: order");
    keys = scratch.take<std::int64_t>(turns, "token plan: keys");
    unsorted_keys = scratch.take<std::int64_t>(turns, "token plan: unsorted keys");
    unsorted_order = scratch.take<std::int64_t>(turns, "token plan: unsorted order");
    sort = scratch.take<std::byte>(sort_bytes(turns), "token plan: sort");
  }
};

}  // namespace detail

/// Bytes that make_token_plan needs; they hold the plan, so they must live as long as it is used.
[[nodiscard]] inline std::size_t token_plan_workspace_bytes(std::size_t turns, std::size_t tokens,
                                                            turn_order known = turn_order::unknown) {
  workspace count;
  detail::token_plan_blocks{turns, tokens, known, count};
  return count.used();
}

/// Builds the plan of a batch over arrays of `tokens` tokens.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph.
/// @param known   by_tokens spares the sort, and is checked.
/// @param status  may be null; gains token_range and overlapping_turns. What a pass over the tokens writes for turns
///                that overlap is unspecified; no access leaves the arrays.
/// @throws precondition_error  sizes that differ, a workspace too small; nothing is enqueued.
/// @throws cuda_error          a launch was refused.
/// @par Complexity  a radix sort of S pairs, O(tokens / chunk_tokens) binary searches.
[[nodiscard]] inline token_plan make_token_plan(rollout_view const& batch, std::size_t tokens, status_record* status,
                                                workspace scratch, ::cuda::stream_ref stream,
                                                turn_order known = turn_order::unknown) {
  expects_size("make_token_plan", "turn_begin", batch.turn_begin.size(), batch.turns, "turn");
  expects_size("make_token_plan", "turn_end", batch.turn_end.size(), batch.turns, "turn");
  detail::token_plan_blocks const blocks{batch.turns, tokens, known, scratch};
  auto const count = static_cast<std::int64_t>(tokens);
  unsigned const turn_blocks = grid_blocks(batch.turns, detail::plan_threads);
  token_plan plan{tokens, batch.turns, batch.turn_begin, batch.turn_end, {}, blocks.active, blocks.chunks};

  if (batch.turns == 0) {
    check(cudaMemsetAsync(blocks.active.data(), 0, sizeof(std::int64_t), stream.get()), "make_token_plan: active");
  } else if (known == turn_order::by_tokens) {
    launch("make_token_plan: check", detail::plan_check_order_kernel, turn_blocks, detail::plan_threads, 0, stream,
           batch, count, blocks.active.data(), status);
  } else {
    launch("make_token_plan: keys", detail::plan_keys_kernel, turn_blocks, detail::plan_threads, 0, stream, batch,
           count, blocks.unsorted_keys.data(), blocks.unsorted_order.data(), status);
    auto bytes = blocks.sort.size();
    check(cub::DeviceRadixSort::SortPairs(
              blocks.sort.data(), bytes, static_cast<std::int64_t const*>(blocks.unsorted_keys.data()),
              blocks.keys.data(), static_cast<std::int64_t const*>(blocks.unsorted_order.data()), blocks.order.data(),
              batch.turns, 0, 64, stream.get()),
          "make_token_plan: sort");
    launch("make_token_plan: gather", detail::plan_gather_kernel, turn_blocks, detail::plan_threads, 0, stream, batch,
           static_cast<std::int64_t const*>(blocks.keys.data()), static_cast<std::int64_t const*>(blocks.order.data()),
           blocks.begin.data(), blocks.end.data(), blocks.active.data(), status);
    plan.begin = blocks.begin;
    plan.end = blocks.end;
    plan.order = blocks.order;
  }
  launch("make_token_plan: chunks", detail::plan_chunks_kernel, grid_blocks(plan.chunks.size(), detail::plan_threads),
         detail::plan_threads, 0, stream, plan.begin.data(), plan.end.data(), plan.active.data(), blocks.chunks);
  return plan;
}

}  // namespace turnwise::gpu
