/// @file
/// The main kernel of policy_loss, a warp a chunk, and the sum of the records that it leaves, in a fixed order.
#pragma once

#include <turnwise/gpu/loss/detail/loss_work.cuh>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::loss::detail {

inline constexpr unsigned loss_warps = TURNWISE_GPU_BLOCK_WARPS;
inline constexpr unsigned record_shares = 4;  ///< sums that become one record

/// A block leaves one record of so many chunks in a row that there are at most 2^14 records.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr std::size_t chunks_of_record(std::size_t tokens) noexcept {
  return ceil_div(chunk_count(tokens), std::size_t{record_shares} << 14) * record_shares;
}
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr std::size_t record_count(std::size_t tokens) noexcept {
  return ceil_div(chunk_count(tokens), chunks_of_record(tokens));
}

/// A record as words, for shared memory, which takes no constructors.
inline constexpr std::size_t record_words = sizeof(host::loss_record) / sizeof(double);
static_assert(sizeof(host::loss_record) == record_words * sizeof(double));

/// Whose the tokens of a chunk are that more than one turn, or none, has tokens of; in shared memory.
template <typename F>
struct turn_table {
  static constexpr std::int64_t values_held = 128;
  std::int32_t place[chunk_tokens];    ///< of each token's turn among the chunk's; -1: none
  turn_values<F> values[values_held];  ///< of the chunk's first turns
};

/// What the tokens of one chunk have from their turns.
template <typename Work>
class turn_lookup {
 public:
  using values = turn_values<typename Work::F>;
  using table = turn_table<typename Work::F>;

  /// @param of_chunk  not read if one turn has the whole chunk.
  __device__ turn_lookup(Work const& work, chunk_turns const& turns, table const& of_chunk)
      : work_(work), table_(of_chunk), first_(turns.first), whole_(turns.whole != 0) {
    if (whole_) values_ = work.turn(turns.first);
  }

  [[nodiscard]] __device__ bool whole() const { return whole_; }
  /// Whether the four tokens from `place` on are of the same turn, or all of none.
  [[nodiscard]] __device__ bool is_one(int place) const {
    int4 const turn = *reinterpret_cast<int4 const*>(table_.place + place);
    return turn.x == turn.y && turn.x == turn.z && turn.x == turn.w;
  }
  template <bool Whole>
  [[nodiscard]] __device__ values at(int place) const {
    if (Whole || whole_) return values_;
    std::int32_t const turn = table_.place[place];
    if (turn < 0) return {};
    return turn < table::values_held ? table_.values[turn] : work_.turn(first_ + turn);
  }

 private:
  Work const& work_;
  table const& table_;
  std::int64_t first_;
  bool whole_;
  values values_{};
};

/// Fills the table, and counts the turns that begin in the chunk.
template <typename Work>
__device__ void find_turns(Work const& work, chunk_turns const& turns, std::int64_t first,
                           turn_table<typename Work::F>& table, lane_record<typename Work::F>& sums) {
  int const lane = gpu::detail::lane_id();
  constexpr int lanes = gpu::detail::lanes;
  for (int i = lane; i < static_cast<int>(chunk_tokens); i += lanes) table.place[i] = -1;
  __syncwarp();
  int width = lanes;
  while (width > 1 && lanes / width < turns.count) width /= 2;
  for (std::int64_t turn = lane / width; turn < turns.count; turn += lanes / width) {
    std::int64_t const begin = work.plan.begin[static_cast<std::size_t>(turns.first + turn)];
    std::int64_t const end = work.plan.end[static_cast<std::size_t>(turns.first + turn)];
    if (lane % width == 0 && end > begin) {
      turn_values<typename Work::F> const values = work.turn(turns.first + turn);
      sums.turns += begin >= first && values.scale != 0;
      if (turn < table.values_held) table.values[turn] = values;
    }
    int const stop = gpu::detail::place_in_chunk(end, first);
    for (int i = gpu::detail::place_in_chunk(begin, first) + lane % width; i < stop; i += width)
      table.place[i] = static_cast<std::int32_t>(turn);
  }
  __syncwarp();
}

/// Tokens of a row: whole words of the mask, and of a turn_table's places.
inline constexpr int row_tokens = 4;
inline constexpr unsigned all_on = 0x01010101;  ///< mask bytes of a row
inline constexpr int lane_rows = static_cast<int>(chunk_tokens) / (row_tokens * gpu::detail::lanes);
inline constexpr unsigned all_rows = (1u << lane_rows) - 1;

/// A chunk whose arrays are aligned, by rows. Almost every row is done by this; returned is, a bit a row, what is not.
/// Code for whatever a token may be stays out of this loop, which has to fit into the instruction cache.
template <bool Whole, typename Work>
__device__ unsigned plain_rows(Work const& work, std::int64_t first, turn_lookup<Work> const& turn_of,
                               lane_record<typename Work::F>& sums) {
  using current_type = std::remove_const_t<typename decltype(work.in.current_logprob)::element_type>;
  using old_type = std::remove_const_t<typename decltype(work.in.old_logprob)::element_type>;
  constexpr int stride = gpu::detail::lanes * row_tokens;
  struct row_data {
    current_type current[row_tokens];
    old_type old[row_tokens];
    unsigned mask = all_on;
  };
  int const lane_place = gpu::detail::lane_id() * row_tokens;
  auto const load = [&](int row) {
    auto const at = static_cast<std::size_t>(first + row * stride + lane_place);
    row_data data;
    load_row(work.in.current_logprob.data() + at, data.current);
    load_row(work.in.old_logprob.data() + at, data.old);
    if (!work.in.mask.empty()) data.mask = __ldcs(reinterpret_cast<unsigned const*>(work.in.mask.data() + at));
    return data;
  };
  unsigned left = 0;
  row_data next = load(0);
#pragma unroll 1
  for (int row = 0; row < lane_rows; ++row) {
    row_data const data = next;
    if (row + 1 < lane_rows) next = load(row + 1);  // under way while this one is evaluated
    int const place = row * stride + lane_place;
    auto const at = static_cast<std::size_t>(first + place);
    bool done = Whole || turn_of.is_one(place);
    if (done) {
      turn_values<typename Work::F> const turn = turn_of.template at<Whole>(place);
      if (data.mask == 0 || (!Whole && turn.scale == 0))
        clear_row<row_tokens>(work.out.gradient.data() + at);
      else
        done = __vminu4(data.mask, all_on) == all_on && plain_row(work, at, data.current, data.old, turn, sums);
    }
    if (!done) left |= 1u << row;
  }
  return left;
}

/// The tokens of the chunk's rows `left`, one at a time; by_rows: a row is four neighbours, else lanes are neighbours.
template <bool Extras, typename Work>
__device__ void any_tokens(Work const& work, std::int64_t first, int count, unsigned left, bool by_rows,
                           turn_lookup<Work> const& turn_of, lane_record<typename Work::F>& sums) {
  constexpr int lanes = gpu::detail::lanes;
  int const lane = gpu::detail::lane_id();
  for (; left != 0; left &= left - 1) {
    int const begin = gpu::detail::lowest_lane(left) * row_tokens * lanes;
#pragma unroll 1
    for (int v = 0; v < row_tokens; ++v) {
      int const place = begin + (by_rows ? lane * row_tokens + v : v * lanes + lane);
      if (place < count)
        any_token<Extras>(work, static_cast<std::size_t>(first + place), turn_of.template at<false>(place), sums);
    }
  }
}

/// Gradients 0.
template <typename Gradient>
__device__ void clear(device_span<Gradient> to, std::int64_t first, int count) {
  for (int i = gpu::detail::lane_id(); i < count && !to.empty(); i += gpu::detail::lanes)
    to[static_cast<std::size_t>(first + i)] = static_cast<Gradient>(0.0f);
}

/// Asks for a chunk's log-probs before it is known whose they are.
template <typename Work>
__device__ void prefetch(Work const& work, std::int64_t first, int count) {
  int const place = gpu::detail::lane_id() * static_cast<int>(chunk_tokens / gpu::detail::lanes);
  if (place >= count) return;
  asm volatile("prefetch.global.L2 [%0];" ::"l"(work.in.current_logprob.data() + first + place));
  asm volatile("prefetch.global.L2 [%0];" ::"l"(work.in.old_logprob.data() + first + place));
}

/// One chunk, by one warp.
template <bool Extras, typename Work>
__device__ void chunk_loss(Work const& work, std::int64_t chunk, turn_table<typename Work::F>& table,
                           lane_record<typename Work::F>& sums) {
  std::int64_t const first = chunk * chunk_tokens;
  auto const rest = static_cast<std::int64_t>(work.plan.tokens) - first;
  int const count = static_cast<int>(rest < chunk_tokens ? rest : chunk_tokens);
  prefetch(work, first, count);
  chunk_turns const turns = work.plan.chunks[static_cast<std::size_t>(chunk)];
  turn_lookup<Work> const turn_of{work, turns, table};
  if (turns.count == 0 || (turn_of.whole() && turn_of.template at<true>(0).scale == 0)) {
    clear(work.out.gradient, first, count);
    clear(work.out.entropy_gradient, first, count);
    return;
  }
  if (!turn_of.whole())
    find_turns(work, turns, first, table, sums);
  else if (turns.before == 0 && gpu::detail::lane_id() == 0)
    ++sums.turns;
  bool const by_rows = !Extras && work.vectors && count == static_cast<int>(chunk_tokens);
  unsigned left = all_rows;
  if constexpr (!Extras) {
    if (by_rows)
      left = turn_of.whole() ? plain_rows<true>(work, first, turn_of, sums)
                             : plain_rows<false>(work, first, turn_of, sums);
  }
  any_tokens<Extras>(work, first, count, left, by_rows, turn_of, sums);
  __syncwarp();
}

/// Blocks that a multiprocessor shall hold: enough loads in flight, and few spills.
template <typename F>
inline constexpr unsigned loss_blocks_resident = sizeof(F) == 4 ? 8 : 3;

/// A block a record; the chunks of a record are dealt to `record_shares` sums, whatever the warps of a block.
template <bool Extras, typename Work>
TURNWISE_KERNEL void __launch_bounds__(loss_warps* gpu::detail::lanes, loss_blocks_resident<typename Work::F>)
    policy_loss_kernel(Work work) {
  using table = turn_table<typename Work::F>;
  alignas(16) __shared__ unsigned char tables[loss_warps][sizeof(table)];  // shared memory takes no constructors
  __shared__ double of_share[record_shares][record_words];
  unsigned const warp = threadIdx.x / gpu::detail::lanes;
  auto const chunks = static_cast<std::int64_t>(work.plan.chunks.size());
  auto const together = static_cast<std::int64_t>(chunks_of_record(work.plan.tokens));
  for (auto r = std::int64_t{blockIdx.x}; r < static_cast<std::int64_t>(work.records.size()); r += gridDim.x) {
    std::int64_t const end = (r + 1) * together < chunks ? (r + 1) * together : chunks;
#pragma unroll 1
    for (unsigned share = warp; share < record_shares; share += loss_warps) {
      lane_record<typename Work::F> sums;
#pragma unroll 1
      for (std::int64_t chunk = r * together + share; chunk < end; chunk += record_shares)
        chunk_loss<Extras>(work, chunk, *reinterpret_cast<table*>(tables[warp]), sums);
      auto const total = sums.template warp_total<Extras>();
      if (gpu::detail::lane_id() == 0) __builtin_memcpy(of_share[share], &total, sizeof total);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      host::loss_record total;
      for (auto const& words : of_share) {
        host::loss_record part;
        __builtin_memcpy(&part, words, sizeof part);
        total += part;
      }
      work.records[static_cast<std::size_t>(r)] = total;
    }
    __syncthreads();
  }
}

/// The sum of the lanes' records, in a fixed order, in lane 0.
__device__ inline host::loss_record warp_sum(host::loss_record const& record) {
  double words[record_words];
  __builtin_memcpy(words, &record, sizeof record);
  host::loss_record sum = record;
  for (unsigned offset = gpu::detail::lanes / 2; offset > 0; offset /= 2) {
    __builtin_memcpy(words, &sum, sizeof sum);
#pragma unroll
    for (double& word : words) word = __shfl_down_sync(gpu::detail::all_lanes, word, offset);
    host::loss_record other;
    __builtin_memcpy(&other, words, sizeof other);
    sum += other;
  }
  return sum;
}

inline constexpr unsigned sum_threads = 512;
inline constexpr std::size_t sum_share = 1024;  ///< records that one block takes at most

/// Block b adds up records [b * share, (b + 1) * share), always in the same order.
TURNWISE_KERNEL void __launch_bounds__(sum_threads)
    sum_records_kernel(device_span<host::loss_record const> records, std::size_t share,
                       device_span<host::loss_record> sums) {
  constexpr unsigned warps = sum_threads / gpu::detail::lanes;
  __shared__ double of_warp[warps][record_words];
  for (std::size_t b = blockIdx.x; b < sums.size(); b += gridDim.x) {
    std::size_t const last = (b + 1) * share < records.size() ? (b + 1) * share : records.size();
    host::loss_record sum;
    for (std::size_t i = b * share + threadIdx.x; i < last; i += sum_threads) sum += records[i];
    sum = warp_sum(sum);
    if (threadIdx.x % gpu::detail::lanes == 0)
      __builtin_memcpy(of_warp[threadIdx.x / gpu::detail::lanes], &sum, sizeof sum);
    __syncthreads();
    if (threadIdx.x < gpu::detail::lanes) {
      sum = {};  // lanes without a warp add nothing
      if (threadIdx.x < warps) __builtin_memcpy(&sum, of_warp[threadIdx.x], sizeof sum);
      sum = warp_sum(sum);
      if (threadIdx.x == 0) sums[b] = sum;
    }
    __syncthreads();
  }
}

}  // namespace turnwise::gpu::loss::detail
