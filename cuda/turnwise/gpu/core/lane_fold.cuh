/// @file
/// Records added up by a warp, in the order of turnwise/core/lane_fold.hpp.
#pragma once

#include <turnwise/core/lane_fold.hpp>
#include <turnwise/gpu/core/device_span.cuh>
#include <turnwise/gpu/core/warp.cuh>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace turnwise::gpu::detail {

/// A record from another lane: exchange(word) for each of its words.
template <typename Record, typename Exchange>
__device__ Record exchanged(Record const& record, Exchange exchange) {
  static_assert(std::is_trivially_copyable_v<Record> && sizeof(Record) % sizeof(unsigned) == 0);
  unsigned words[sizeof(Record) / sizeof(unsigned)];
  __builtin_memcpy(words, &record, sizeof record);
  for (unsigned& word : words) word = exchange(word);
  Record result{};
  __builtin_memcpy(&result, words, sizeof result);
  return result;
}

/// turnwise::lane_fold by a whole warp, with the result in all lanes. item(i) is called by one lane, in increasing
/// order.
template <typename Record, typename Item>
__device__ Record lane_fold(std::int64_t n, Item item) {
  static_assert(fold_width == lanes);
  Record sum{};
#pragma unroll 4
  for (std::int64_t i = lane_id(); i < n; i += lanes) sum += item(i);
  for (int half = lanes / 2; half > 0; half /= 2)
    sum += exchanged(sum, [half](unsigned word) { return __shfl_down_sync(all_lanes, word, half); });
  return exchanged(sum, [](unsigned word) { return __shfl_sync(all_lanes, word, 0); });
}

[[nodiscard]] constexpr std::size_t fold_chunks(std::size_t n) noexcept { return ceil_div(n, fold_chunk); }

/// The first half of turnwise::chunked_fold: chunk[c] of the elements from 4096 c on, a warp a chunk. `item` is called
/// on the device.
template <typename Record, typename Item>
TURNWISE_KERNEL void fold_chunks_kernel(std::int64_t n, Item item, device_span<Record> chunk) {
  for_each_by_warp(static_cast<std::int64_t>(chunk.size()), [&](std::int64_t c) {
    std::int64_t const begin = c * static_cast<std::int64_t>(fold_chunk);
    std::int64_t const left = n - begin;
    constexpr auto most = static_cast<std::int64_t>(fold_chunk);
    Record const sum = lane_fold<Record>(left < most ? left : most, [&](std::int64_t i) { return item(begin + i); });
    if (lane_id() == 0) chunk[static_cast<std::size_t>(c)] = sum;
  });
}

/// lane_fold of item(i), i in [0, n), into *total: one warp.
template <typename Record, typename Item>
TURNWISE_KERNEL void fold_kernel(std::int64_t n, Item item, Record* total) {
  Record const sum = lane_fold<Record>(n, item);
  if (lane_id() == 0) *total = sum;
}

/// An item of a fold: the elements of an array of records.
template <typename Record>
struct record_at {
  device_span<Record const> records;
  __device__ Record operator()(std::int64_t i) const { return records[static_cast<std::size_t>(i)]; }
};

/// Enqueues a lane_fold of records into *total.
template <typename Record>
void enqueue_fold(std::string_view call, device_span<Record const> records, Record* total, ::cuda::stream_ref stream) {
  launch(call, fold_kernel<Record, record_at<Record>>, 1, lanes, 0, stream, static_cast<std::int64_t>(records.size()),
         record_at<Record>{records}, total);
}

/// Enqueues a chunked_fold of item(i), i in [0, n), into *total; `chunk` has fold_chunks(n) records.
template <typename Record, typename Item>
void enqueue_chunked_fold(std::string_view call, std::size_t n, Item const& item, device_span<Record> chunk,
                          Record* total, ::cuda::stream_ref stream) {
  launch(call, fold_chunks_kernel<Record, Item>, warp_blocks(chunk.size()), warp_block_threads, 0, stream,
         static_cast<std::int64_t>(n), item, chunk);
  enqueue_fold<Record>(call, chunk, total, stream);
}

}  // namespace turnwise::gpu::detail
