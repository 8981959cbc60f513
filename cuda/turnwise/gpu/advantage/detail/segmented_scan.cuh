/// @file
/// The recursion of turnwise/advantage/detail/scan.hpp over packed tokens in one pass: each token is read once and
/// written once.
///
/// A block takes a chunk of tokens. Its threads reduce their runs of tokens to maps (run_map), a fixed tree joins them,
/// and the chunk's map is published. What reaches the chunk from behind comes from the map of the next chunk, if a
/// segment ends there; else from one block that takes no tokens: it joins the maps of groups of chunks and applies the
/// groups one after the other, as they come in. So how results are associated depends on token indices alone, never on
/// timing. Then the threads run the recursion over their tokens as the host does.
#pragma once

#include <turnwise/gpu/advantage/detail/segmented_scan_chunk.cuh>
#include <turnwise/gpu/core/launch.cuh>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

namespace turnwise::gpu::advantage::detail {

template <real T, typename Rule>
[[nodiscard]] constexpr std::size_t scan_chunks(std::size_t tokens) noexcept {
  return ceil_div(tokens, static_cast<std::size_t>(scan_chunk<T, Rule>));
}

/// Checks the offsets, finds each chunk's segments, and makes the links pending.
TURNWISE_KERNEL void scan_begin_kernel(device_span<std::int64_t const> offsets, std::int64_t tokens,
                                       std::int64_t chunk_tokens, scan_blocks work, status_record* status) {
  auto const segments = static_cast<std::int64_t>(offsets.size()) - 1;
  auto const chunks = static_cast<std::int64_t>(work.links.size());
  gpu::detail::for_each_by_thread(segments + 1, [&](std::int64_t k) {
    std::int64_t const offset = offsets[static_cast<std::size_t>(k)];
    bool const fits = (k == 0 ? offset == 0 : offset >= offsets[static_cast<std::size_t>(k) - 1]) &&
                      (k == segments ? offset == tokens : offset <= tokens);
    if (fits) return;
    report(status, status_code::trajectory_offsets, k);
    work.control.data()->broken = 1;
  });
  gpu::detail::for_each_by_thread(chunks + 1, [&](std::int64_t chunk) {
    std::int64_t low = 0;
    for (std::int64_t high = segments; low < high;) {
      std::int64_t const middle = low + (high - low) / 2;
      if (offsets[static_cast<std::size_t>(middle) + 1] > chunk * chunk_tokens)
        high = middle;
      else
        low = middle + 1;
    }
    work.first_segment[static_cast<std::size_t>(chunk)] = low;
    if (chunk < chunks) work.links[static_cast<std::size_t>(chunk)].clear();
  });
}

/// Chunks whose maps the carrying block joins before it applies them.
inline constexpr int carry_group = 16;
inline constexpr int carry_groups = scan_threads / carry_group;
static_assert(carry_groups < gpu::detail::lanes);

/// Shared memory of the block that carries on from chunk to chunk.
struct carry_store {
  run_map group[carry_groups];
  bool ready[carry_groups];
};

/// Publishes what reaches each next chunk. The maps of a group of chunks are joined as a tree, the groups applied one
/// after the other; as many as are there are taken at a time. A group is taken when it is whole, so that no result
/// depends on timing.
__device__ inline void carry_on(scan_blocks const& work, carry_store& store) {
  std::int64_t const links = static_cast<std::int64_t>(work.links.size()) - 1;
  int const thread = static_cast<int>(threadIdx.x), lane = gpu::detail::lane_id();
  int const group = thread / carry_group;
  later_token later{0, 0};
  for (std::int64_t begin = 0; begin < links;) {
    std::int64_t const order = begin + thread;
    run_map map = empty_run();
    bool const ready = order >= links || work.links[static_cast<std::size_t>(order)].received_map(map);
    unsigned const missing = ~__ballot_sync(gpu::detail::all_lanes, ready);
    map = with_lanes_below<carry_group>(map);
    if (thread % carry_group == carry_group - 1) {
      store.group[group] = map;
      store.ready[group] = (missing >> (lane / carry_group * carry_group) & ((1u << carry_group) - 1)) == 0;
    }
    __syncthreads();
    int const count =
        gpu::detail::lowest_lane(~__ballot_sync(gpu::detail::all_lanes, lane < carry_groups && store.ready[lane]));
    later_token before = later;
#pragma unroll 4
    for (int g = 0; g < count; ++g) {
      if (g == group) before = later;
      later = store.group[g](later);
    }
    if (group < count && order < links) work.links[static_cast<std::size_t>(order)].publish_next(map(before));
    begin += count * carry_group;
    __syncthreads();
  }
}

/// Blocks that a multiprocessor shall hold: what the shared memory allows.
template <typename Rule>
inline constexpr int scan_blocks_resident = Rule::off_policy ? 3 : 4;

template <real T, typename Rule>
TURNWISE_KERNEL void __launch_bounds__(scan_threads, scan_blocks_resident<Rule>)
    scan_kernel(scan_call<T> call, Rule rule, scan_blocks work) {
  union block_store {
    chunk_store<T, Rule> chunk;
    carry_store carry;
  };
  __shared__ block_store store;
  __shared__ unsigned long long shared_ticket;
  if (threadIdx.x == 0) shared_ticket = atomicAdd(&work.control.data()->ticket, 1ull);
  __syncthreads();
  // The first block to run carries. It waits for chunks in the order in which blocks take them, and a block publishes
  // before it waits: so it gets on if a group of chunks has blocks at the same time (check_resident). A scan of one
  // chunk has nothing to carry.
  bool const carried = work.links.size() > 1;
  auto const ticket = static_cast<std::int64_t>(shared_ticket);
  if (carried && ticket == 0)
    carry_on(work, store.carry);
  else
    chunk_scan<T, Rule>{call, rule, work, store.chunk, ticket - (carried ? 1 : 0)}.run();
}

/// Throws unless the device can hold the block that carries and those of a group of chunks.
template <real T, typename Rule>
void check_resident(std::string_view function) {
  int device = 0, multiprocessors = 0, blocks = 0;
  check(cudaGetDevice(&device), function);
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device), function);
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, scan_kernel<T, Rule>, scan_threads, 0), function);
  if (blocks * multiprocessors <= carry_group) throw cuda_error(cudaErrorCooperativeLaunchTooLarge, function);
}

/// Enqueues a rule over all segments. Sizes and options are checked by then.
template <real T, typename Rule>
void enqueue_scan(scan_call<T> const& call, Rule const& rule, std::string_view function, workspace scratch,
                  ::cuda::stream_ref stream) {
  std::size_t const tokens = call.reward.size();
  std::size_t const chunks = scan_chunks<T, Rule>(tokens);
  scan_blocks const work{chunks, scratch};
  if (tokens == 0 || (call.advantage.empty() && call.target.empty())) return;
  expects(chunks < static_cast<std::size_t>(std::numeric_limits<int>::max()), function, ": too many tokens, ", tokens);
  if (chunks > 1) check_resident<T, Rule>(function);
  check(cudaMemsetAsync(work.control.data(), 0, sizeof(scan_control), stream.get()), function);
  std::size_t const items = call.segments.offsets.size() > chunks + 1 ? call.segments.offsets.size() : chunks + 1;
  launch(function, scan_begin_kernel, grid_blocks(items, scan_threads), scan_threads, 0, stream, call.segments.offsets,
         static_cast<std::int64_t>(tokens), static_cast<std::int64_t>(scan_chunk<T, Rule>), work, call.status);
  launch(function, scan_kernel<T, Rule>, static_cast<unsigned>(chunks + (chunks > 1 ? 1 : 0)), scan_threads, 0, stream,
         call, rule, work);
}

template <real T, typename Rule>
[[nodiscard]] std::size_t scan_workspace_bytes(std::size_t tokens) {
  workspace count;
  scan_blocks{scan_chunks<T, Rule>(tokens), count};
  return count.used();
}

}  // namespace turnwise::gpu::advantage::detail
