/// @file
/// Returns of the whole batch brought to mean 0 and deviation 1, on the device, also over ranks.
#pragma once

#include <turnwise/advantage/whiten.hpp>
#include <turnwise/gpu/core/device_span.cuh>
#include <turnwise/gpu/core/exact_sum.cuh>
#include <turnwise/gpu/core/status.cuh>
#include <turnwise/gpu/core/warp.cuh>
#include <turnwise/gpu/core/workspace.cuh>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace turnwise::gpu::advantage {

using turnwise::advantage::whiten_moments;
using turnwise::advantage::whiten_options;

namespace detail {

inline constexpr unsigned whiten_threads = 256;

/// Blocks that each add up what they see before they add to the record in memory.
[[nodiscard]] constexpr unsigned whiten_blocks(std::size_t turns) noexcept {
  constexpr unsigned most = 512;
  unsigned const blocks = grid_blocks(turns, whiten_threads);
  return blocks < most ? blocks : most;
}

/// The arguments of whiten and of its phases.
template <real T>
struct whiten_call {
  device_span<T const> turn_return;
  device_span<T const> judged;  ///< a valid turn is invalid where this is not finite or too large
  device_span<std::int64_t const> weight;
  device_span<reason_flags const> reasons;
  whiten_options options;
  status_record* status;

  /// Weight of a turn in the moments; below 0: the turn is invalid.
  [[nodiscard]] __device__ std::int64_t weight_of(std::int64_t turn) const {
    auto const s = static_cast<std::size_t>(turn);
    reason_flags const flags = reasons.empty() ? 0 : reasons[s];
    if (!is_valid(flags)) return -1;
    if (!within_limit(judged[s])) {
      report(status, status_code::turn_return, turn);
      return -1;
    }
    std::int64_t const times = weight.empty() ? 1 : weight[s];
    if (times < 0 || times > turnwise::advantage::most_weight) {
      report(status, status_code::weight, turn);
      return -1;
    }
    return turnwise::advantage::detail::member_weight(flags, times, options.members);
  }
  [[nodiscard]] __device__ double value_of(std::int64_t turn) const {
    return static_cast<double>(turn_return[static_cast<std::size_t>(turn)]);
  }

  void check(std::string_view function) const {
    turnwise::advantage::detail::check_whiten(options, function);
    expects(turn_return.size() <= static_cast<std::size_t>(exact_sum::most_adds), function, ": turn_return has ",
            turn_return.size(), " elements, expected at most 2^29");
    if (!weight.empty()) expects_size(function, "weight", weight.size(), turn_return.size(), "turn");
    if (!reasons.empty()) expects_size(function, "reasons", reasons.size(), turn_return.size(), "turn");
  }
};

/// Sums of a block, then of all blocks: whiten_moments (Squares = false), or an exact_sum of squares about the mean.
template <bool Squares, real T>
TURNWISE_KERNEL void whiten_sum_kernel(whiten_call<T> call, whiten_moments const* all, unsigned long long* record) {
  constexpr int words = Squares ? exact_sum::digits : exact_sum::digits + 2;
  __shared__ unsigned long long block_sum[words];
  __shared__ double mean;
  for (unsigned i = threadIdx.x; i < words; i += blockDim.x) block_sum[i] = 0;
  if (Squares && threadIdx.x == 0) mean = turnwise::advantage::whiten_mean(*all);
  __syncthreads();
  gpu::detail::for_each_by_thread(static_cast<std::int64_t>(call.turn_return.size()), [&](std::int64_t turn) {
    std::int64_t const times = call.weight_of(turn);
    if (times <= 0) return;
    double const value = call.value_of(turn);
    atomic_add_times(block_sum, Squares ? turnwise::advantage::whiten_square(value, mean) : value, times);
    if constexpr (!Squares) {  // the members of whiten_moments after its sum
      atomicAdd(block_sum + exact_sum::digits, static_cast<unsigned long long>(times));
      atomicAdd(block_sum + exact_sum::digits + 1, 1ull);
    }
  });
  __syncthreads();
  for (unsigned i = threadIdx.x; i < words; i += blockDim.x)
    if (block_sum[i] != 0) atomicAdd(record + i, block_sum[i]);
}

template <real T>
TURNWISE_KERNEL void whiten_apply_kernel(whiten_call<T> call, whiten_moments const* all, exact_sum const* squares,
                                         device_span<T> advantage) {
  __shared__ double mean;
  __shared__ double divisor;
  if (threadIdx.x == 0) {
    auto const of_batch = turnwise::advantage::make_whiten_scale(*all, *squares, call.options);
    mean = of_batch.mean;
    divisor = of_batch.divisor;
  }
  __syncthreads();
  turnwise::advantage::whiten_scale const scale{mean, divisor};
  gpu::detail::for_each_by_thread(static_cast<std::int64_t>(advantage.size()), [&](std::int64_t turn) {
    bool const valid = call.weight_of(turn) >= 0;
    advantage[static_cast<std::size_t>(turn)] =
        narrowed<T>(valid ? turnwise::advantage::whitened(call.value_of(turn), scale) : 0.0);
  });
}

/// Clears a record of 64-bit integers and adds the shard to it.
template <bool Squares, real T>
void enqueue_whiten_sum(std::string_view name, whiten_call<T> const& call, whiten_moments const* all, void* record,
                        std::size_t bytes, ::cuda::stream_ref stream) {
  gpu::check(cudaMemsetAsync(record, 0, bytes, stream.get()), name);
  launch(name, whiten_sum_kernel<Squares, T>, whiten_blocks(call.turn_return.size()), whiten_threads, 0, stream, call,
         all, static_cast<unsigned long long*>(record));
}

template <real T>
void enqueue_whiten_apply(std::string_view name, whiten_call<T> const& call, whiten_moments const* all,
                          exact_sum const* squares, device_span<T> advantage, ::cuda::stream_ref stream) {
  launch(name, whiten_apply_kernel<T>, whiten_blocks(advantage.size()), whiten_threads, 0, stream, call, all, squares,
         advantage);
}

struct whiten_record {
  whiten_moments all;
  exact_sum squares;
};

/// All phases; the record is scratch.
template <real T>
void enqueue_whiten(std::string_view name, whiten_call<T> const& call, device_span<T> advantage, workspace scratch,
                    ::cuda::stream_ref stream) {
  auto* const record = scratch.take<whiten_record>(1, name).data();
  if (call.turn_return.size() == 0) return;
  enqueue_whiten_sum<false>(name, call, nullptr, &record->all, sizeof record->all, stream);
  enqueue_whiten_sum<true>(name, call, &record->all, &record->squares, sizeof record->squares, stream);
  enqueue_whiten_apply(name, call, &record->all, &record->squares, advantage, stream);
}

}  // namespace detail

inline constexpr std::size_t whiten_sum_workspace_bytes = 0;      ///< takes no workspace
inline constexpr std::size_t whiten_squares_workspace_bytes = 0;  ///< takes no workspace
inline constexpr std::size_t whiten_apply_workspace_bytes = 0;    ///< takes no workspace

/// Scratch for whiten, whatever the number of turns.
[[nodiscard]] inline std::size_t whiten_workspace_bytes() {
  workspace count;
  static_cast<void>(count.take<detail::whiten_record>(1, "whiten"));
  return count.used();
}

/// First phase of whiten over a batch in shards: the sum of this shard, in device memory. Join the records of all
/// shards by an all-reduce (sum) of sizeof(whiten_moments) / 8 64-bit integers; together they hold at most 2^29 turns.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One memset, one launch.
/// @param[out] moments  [1], overwritten; its sum is not carried.
/// @param[in]  status   as for whiten.
/// @throws precondition_error  as whiten; nothing is enqueued.
/// @throws cuda_error          a launch was refused.
/// @see turnwise::advantage::whiten_sum
template <real T>
void whiten_sum(device_span<T const> turn_return, device_span<std::int64_t const> weight,
                device_span<reason_flags const> reasons, whiten_options const& options,
                device_span<whiten_moments> moments, status_record* status, ::cuda::stream_ref stream) {
  detail::whiten_call<T> const call{turn_return, turn_return, weight, reasons, options, status};
  call.check("whiten_sum");
  expects_size("whiten_sum", "moments", moments.size(), 1, "batch");
  detail::enqueue_whiten_sum<false>("whiten_sum", call, nullptr, moments.data(), sizeof(whiten_moments), stream);
}

/// Second phase: the sum of squares of this shard about the mean of all. Join the sums of all shards likewise.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One memset, one launch.
/// @param[in]  all      [1] the joined records of the first phase.
/// @param[out] squares  [1], overwritten; not carried.
/// @throws precondition_error  as whiten; nothing is enqueued.
/// @throws cuda_error          a launch was refused.
/// @see turnwise::advantage::whiten_squares
template <real T>
void whiten_squares(device_span<T const> turn_return, device_span<std::int64_t const> weight,
                    device_span<reason_flags const> reasons, device_span<whiten_moments const> all,
                    whiten_options const& options, device_span<exact_sum> squares, status_record* status,
                    ::cuda::stream_ref stream) {
  detail::whiten_call<T> const call{turn_return, turn_return, weight, reasons, options, status};
  call.check("whiten_squares");
  expects_size("whiten_squares", "all", all.size(), 1, "batch");
  expects_size("whiten_squares", "squares", squares.size(), 1, "batch");
  detail::enqueue_whiten_sum<true>("whiten_squares", call, all.data(), squares.data(), sizeof(exact_sum), stream);
}

/// Last phase: the advantages of this shard.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch.
/// @param[in]  weight        as for the other phases: a turn of a bad weight is invalid.
/// @param[in]  all, squares  [1] each: the joined records of both phases.
/// @param[out] advantage     [S]; may be the same span as turn_return.
/// @throws precondition_error  as whiten; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @see turnwise::advantage::whiten_apply
template <real T>
void whiten_apply(no_deduce<device_span<T const>> turn_return, device_span<std::int64_t const> weight,
                  device_span<reason_flags const> reasons, device_span<whiten_moments const> all,
                  device_span<exact_sum const> squares, whiten_options const& options, device_span<T> advantage,
                  status_record* status, ::cuda::stream_ref stream) {
  detail::whiten_call<T> const call{turn_return, turn_return, weight, reasons, options, status};
  call.check("whiten_apply");
  expects_size("whiten_apply", "all", all.size(), 1, "batch");
  expects_size("whiten_apply", "squares", squares.size(), 1, "batch");
  expects_size("whiten_apply", "advantage", advantage.size(), turn_return.size(), "turn");
  detail::enqueue_whiten_apply("whiten_apply", call, all.data(), squares.data(), advantage, stream);
}

/// Advantage of each valid turn over the mean of the batch, in units of the batch's deviation: the device version, with
/// the same bits.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. Two memsets, three
/// launches.
/// @param[in]  turn_return  [S], at most 2^29.
/// @param[in]  weight       [S] how often a turn counts, in [0, 2^32]; empty: once.
/// @param[in]  reasons      [S], or empty: all valid and kept.
/// @param[out] advantage    [S]; may be the same span as turn_return. 0 where the turn is invalid.
/// @param[in]  status       may be null; gains turn_return (a valid turn's return that is not finite or beyond
///                          magnitude_limit) and weight (outside [0, 2^32]). Such a turn gets 0 and is no member.
/// @param      scratch      at least whiten_workspace_bytes; must stay alive until the stream has passed this work.
/// @throws precondition_error  sizes that differ, options as on the host, a workspace too small; nothing is enqueued.
/// @throws cuda_error          a launch was refused.
/// @note  Deterministic: integer atomics, so the same bits for any launch shape and order of turns.
/// @par Complexity  O(S) work.
/// @see turnwise::advantage::whiten
template <real T>
void whiten(no_deduce<device_span<T const>> turn_return, device_span<std::int64_t const> weight,
            device_span<reason_flags const> reasons, whiten_options const& options, device_span<T> advantage,
            status_record* status, workspace scratch, ::cuda::stream_ref stream) {
  detail::whiten_call<T> const call{turn_return, turn_return, weight, reasons, options, status};
  call.check("whiten");
  expects_size("whiten", "advantage", advantage.size(), turn_return.size(), "turn");
  detail::enqueue_whiten("whiten", call, advantage, scratch, stream);
}

}  // namespace turnwise::gpu::advantage
