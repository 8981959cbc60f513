/// @file
/// The norm of all gradients together, on the device: norm, flag and factor stay there.
#pragma once

#include <turnwise/gpu/core/launch.cuh>
#include <turnwise/gpu/core/workspace.cuh>
#include <turnwise/metrics/gradient_norm.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace turnwise::gpu::metrics {

using turnwise::metrics::gradient_norm_options;
using turnwise::metrics::gradient_norm_record;
using turnwise::metrics::gradient_sums;

/// An array of gradients, as an entry of a list in device memory.
template <logprob_value T>
struct gradient_array {
  T const* data;             ///< in device memory
  std::int64_t size;         ///< elements
  std::int64_t first_chunk;  ///< chunks of the arrays before it
};

/// A list of arrays, described in device memory. It stays valid as long as the arrays stay where they are.
template <logprob_value T>
struct gradient_list {
  device_span<gradient_array<T> const> arrays{};  ///< in device memory
  std::size_t chunks = 0;                         ///< of all arrays
};

/// The entries of a list, for the caller to copy to the device, and the number of chunks.
template <logprob_value T>
struct gradient_entries {
  std::vector<gradient_array<T>> arrays;  ///< to be copied to the device
  std::size_t chunks = 0;                 ///< of all arrays

  /// The table of these arrays.
  explicit gradient_entries(std::span<device_span<T const> const> gradients) {
    for (device_span<T const> const gradient : gradients) {
      if (gradient.empty()) continue;
      arrays.push_back(
          {gradient.data(), static_cast<std::int64_t>(gradient.size()), static_cast<std::int64_t>(chunks)});
      chunks += turnwise::metrics::detail::gradient_chunks(gradient.size());
    }
  }
};

namespace detail {

using turnwise::metrics::detail::gradient_chunk;
using turnwise::metrics::detail::gradient_lanes;
using turnwise::metrics::detail::has_tiny;

inline constexpr unsigned norm_threads = 256;
inline constexpr int norm_each = gradient_lanes / norm_threads;  ///< partial sums of a thread

/// The shared memory of a block.
struct norm_store {
  double lane[gradient_lanes];
  unsigned long long largest;  ///< bits: of numbers >= 0 they are in the order of the numbers
  unsigned long long non_finite;
};

/// What a thread has of a chunk: the partial sums of lanes lane_of(a), a in [0, norm_each). Tiny: of tiny elements too.
template <bool Tiny>
struct norm_part {
  double square[norm_each] = {};
  double tiny_square[Tiny ? norm_each : 1] = {};
  double largest = 0;
  unsigned long long non_finite = 0;

  template <logprob_value T>
  __device__ void add(int a, T element) {
    auto const value = static_cast<log_ratio_t<T, T>>(element);
    bool const finite = turnwise::importance::is_finite(value);
    double const wide = finite ? static_cast<double>(value) : 0.0;
    double const magnitude = fabs(wide);
    if constexpr (Tiny)
      turnwise::metrics::detail::add_square(wide, magnitude, square[a], tiny_square[a]);
    else
      square[a] = turnwise::metrics::detail::plus_square<T>(square[a], wide);
    largest = magnitude > largest ? magnitude : largest;
    non_finite += finite ? 0 : 1;
  }
};

/// Adds up the partial sums of a block's threads, in the order of the host. Sum a of thread t is lane
/// (a / Vector) * (threads * Vector) + t * Vector + a % Vector.
template <int Vector>
__device__ double fold_block(double const (&mine)[norm_each], norm_store& store) {
#pragma unroll
  for (int a = 0; a < norm_each; ++a)
    store.lane[a / Vector * (norm_threads * Vector) + threadIdx.x * Vector + a % Vector] = mine[a];
  __syncthreads();
  for (unsigned half = gradient_lanes / 2; half > 0; half /= 2) {
    for (unsigned l = threadIdx.x; l < half; l += norm_threads) store.lane[l] += store.lane[l + half];
    __syncthreads();
  }
  double const sum = store.lane[0];
  __syncthreads();
  return sum;
}

/// Joins the parts of a block's threads; the result is for thread 0.
template <int Vector, bool Tiny>
__device__ gradient_sums join_block(norm_part<Tiny> const& mine, norm_store& store) {
  if (threadIdx.x == 0) store.largest = store.non_finite = 0;
  __syncthreads();
  atomicMax(&store.largest, static_cast<unsigned long long>(__double_as_longlong(mine.largest)));
  if (mine.non_finite != 0) atomicAdd(&store.non_finite, mine.non_finite);
  gradient_sums sums;
  sums.squares = fold_block<Vector>(mine.square, store);
  if constexpr (Tiny) sums.tiny_squares = fold_block<Vector>(mine.tiny_square, store);
  sums.largest = __longlong_as_double(static_cast<long long>(store.largest));
  sums.non_finite = static_cast<std::int64_t>(store.non_finite);
  __syncthreads();
  return sums;
}

/// A block a chunk: 16-byte loads where the chunk is aligned, single elements elsewhere, in the same lanes.
template <logprob_value T>
TURNWISE_KERNEL void __launch_bounds__(norm_threads)
    gradient_chunks_kernel(gradient_list<T> list, device_span<gradient_sums> chunk_sums) {
  constexpr int vector = 16 / sizeof(T);
  constexpr std::int64_t row = std::int64_t{norm_threads} * vector;
  __shared__ norm_store store;
  for (std::int64_t chunk = blockIdx.x; chunk < static_cast<std::int64_t>(list.chunks); chunk += gridDim.x) {
    std::size_t low = 0;  // the last array whose first chunk is not after this one
    for (std::size_t high = list.arrays.size(); high - low > 1;) {
      std::size_t const middle = low + (high - low) / 2;
      (list.arrays[middle].first_chunk <= chunk ? low : high) = middle;
    }
    gradient_array<T> const array = list.arrays[low];
    std::int64_t const begin = (chunk - array.first_chunk) * static_cast<std::int64_t>(gradient_chunk);
    std::int64_t const left = array.size - begin;
    std::int64_t const size = left < static_cast<std::int64_t>(gradient_chunk) ? left : gradient_chunk;
    T const* const data = array.data + begin;
    norm_part<has_tiny<T>> mine;
    std::int64_t const place = std::int64_t{threadIdx.x} * vector;
    bool const aligned = reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
    std::int64_t const rows = aligned ? size / static_cast<std::int64_t>(gradient_lanes) : 0;  // of all lanes
#pragma unroll 2
    for (std::int64_t r = 0; r < rows; ++r) {
      uint4 words[norm_each / vector];
#pragma unroll
      for (int w = 0; w < norm_each / vector; ++w)
        words[w] = *reinterpret_cast<uint4 const*>(data + r * gradient_lanes + w * row + place);
      T values[norm_each];
      __builtin_memcpy(static_cast<void*>(values), words, sizeof values);
#pragma unroll
      for (int a = 0; a < norm_each; ++a) mine.add(a, values[a]);
    }
    for (std::int64_t first = rows * gradient_lanes; first < size; first += gradient_lanes)
#pragma unroll
      for (int a = 0; a < norm_each; ++a) {
        std::int64_t const i = first + a / vector * row + place + a % vector;
        if (i < size) mine.add(a, data[i]);
      }
    gradient_sums const sums = join_block<vector>(mine, store);
    if (threadIdx.x == 0) chunk_sums[static_cast<std::size_t>(chunk)] = sums;
  }
}

/// One block: the chunks' sums, and the record.
TURNWISE_KERNEL void __launch_bounds__(norm_threads)
    gradient_record_kernel(device_span<gradient_sums const> chunk_sums, gradient_norm_options options,
                           gradient_norm_record* record) {
  __shared__ norm_store store;
  norm_part<true> mine;
  auto const chunks = static_cast<std::int64_t>(chunk_sums.size());
  for (std::int64_t first = 0; first < chunks; first += gradient_lanes)
#pragma unroll
    for (int a = 0; a < norm_each; ++a) {
      std::int64_t const c = first + a * norm_threads + threadIdx.x;
      if (c >= chunks) continue;
      gradient_sums const sums = chunk_sums[static_cast<std::size_t>(c)];
      mine.square[a] += sums.squares;
      mine.tiny_square[a] += sums.tiny_squares;
      mine.largest = sums.largest > mine.largest ? sums.largest : mine.largest;
      mine.non_finite += static_cast<unsigned long long>(sums.non_finite);
    }
  gradient_sums const total = join_block<1>(mine, store);
  if (threadIdx.x == 0) *record = turnwise::metrics::norm_of_sums(total, options);
}

TURNWISE_KERNEL void join_records_kernel(device_span<gradient_norm_record const> parts, gradient_norm_options options,
                                         gradient_norm_record* record) {
  gradient_sums total;
  for (std::size_t i = 0; i < parts.size(); ++i) total += parts[i].sums;
  *record = turnwise::metrics::norm_of_sums(total, options);
}

}  // namespace detail

inline constexpr std::size_t join_gradient_norms_workspace_bytes = 0;  ///< takes no workspace

/// Scratch for gradient_norm over a list of that many chunks.
[[nodiscard]] inline std::size_t gradient_norm_workspace_bytes(std::size_t chunks) {
  workspace scratch;
  static_cast<void>(scratch.take<gradient_sums>(chunks, "gradient_norm: chunks"));
  return scratch.used();
}

/// Global norm of the gradients in a list of arrays, and the factor that brings it to max_norm: the device version,
/// with the same bits. The optimiser's kernels can read the record where it is.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. Two launches, however many
/// arrays.
/// @tparam T  float, double, or a 16-bit type that converts to float exactly on the device.
/// @param[in]  list    of gradient_entries, copied to the device. Arrays of any alignment; 16 bytes is fastest.
/// @param[out] record  in device memory.
/// @throws precondition_error  options as on the host, a workspace too small; nothing is enqueued.
/// @throws cuda_error          a launch was refused.
/// @par Complexity  one read, a block every 65536 elements.
/// @see turnwise::metrics::gradient_norm
template <logprob_value T>
void gradient_norm(gradient_list<T> const& list, gradient_norm_options const& options, gradient_norm_record* record,
                   workspace scratch, ::cuda::stream_ref stream) {
  turnwise::metrics::detail::check_gradient_norm(options);
  expects(list.arrays.size() <= list.chunks, "gradient_norm: chunks = ", list.chunks, ", fewer than the arrays, ",
          list.arrays.size(), ": take both from gradient_entries");
  expects(!list.arrays.empty() || list.chunks == 0, "gradient_norm: chunks = ", list.chunks, " without arrays");
  auto const sums = scratch.take<gradient_sums>(list.chunks, "gradient_norm: chunks");
  launch("gradient_norm: chunks", detail::gradient_chunks_kernel<T>, grid_blocks(list.chunks, 1), detail::norm_threads,
         0, stream, list, sums);
  launch("gradient_norm: record", detail::gradient_record_kernel, 1, detail::norm_threads, 0, stream,
         device_span<gradient_sums const>{sums}, options, record);
}

/// The record of several parts together (several types, or ranks): the device version, with the same bits.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch, no workspace.
/// @param[in]  parts   a handful of records in device memory.
/// @param[out] record  in device memory; may be one of the parts.
/// @throws precondition_error  options as on the host; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @see turnwise::metrics::join_gradient_norms
inline void join_gradient_norms(device_span<gradient_norm_record const> parts, gradient_norm_options const& options,
                                gradient_norm_record* record, ::cuda::stream_ref stream) {
  turnwise::metrics::detail::check_gradient_norm(options);
  launch("join_gradient_norms", detail::join_records_kernel, 1, 1, 0, stream, parts, options, record);
}

}  // namespace turnwise::gpu::metrics
