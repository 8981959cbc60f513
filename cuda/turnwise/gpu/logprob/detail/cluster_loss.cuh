/// @file
/// The loss of rows that a cluster of blocks keeps in its shared memory: one read of the logits, one write.
#pragma once

#include <turnwise/gpu/logprob/detail/loss_row.cuh>

#include <cooperative_groups.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace turnwise::gpu::logprob::detail {

/// The blocks that share a row. Code for devices without clusters is compiled, and never started.
struct row_cluster {
  unsigned rank = 0;    ///< of this block
  unsigned blocks = 1;  ///< a power of two

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  __device__ row_cluster()
      : rank(cooperative_groups::this_cluster().block_rank()),
        blocks(cooperative_groups::this_cluster().num_blocks()) {}
  /// All threads of all blocks; what was written to shared memory before is seen behind it.
  __device__ void sync() const {
    if (blocks == 1)
      __syncthreads();
    else
      cooperative_groups::this_cluster().sync();
  }
  /// What lies in another block's shared memory where `mine` lies in this one's.
  template <typename S>
  [[nodiscard]] __device__ S* in_block(S* mine, unsigned other) const {
    return blocks == 1 ? mine : cooperative_groups::this_cluster().map_shared_rank(mine, other);
  }
#else
  __device__ row_cluster() {}
  __device__ void sync() const { __syncthreads(); }
  template <typename S>
  [[nodiscard]] __device__ S* in_block(S* mine, unsigned) const {
    return mine;
  }
#endif
};

/// As reduce_block, of all blocks of a cluster, in the first warp of each.
template <row_sums Sums, int Warps>
[[nodiscard]] __device__ logprob_partial<float> reduce_cluster(logprob_partial<float> part, row_cluster const& cluster,
                                                               block_store<Warps>& store, int turn, float log2_scale) {
  part = reduce_lanes<Sums>(part, lanes, log2_scale);
  unsigned const lane = threadIdx.x % lanes, block_warps = blockDim.x / lanes;
  if (lane < cluster.blocks)
    cluster.in_block(&store, lane)->warp[turn][cluster.rank * block_warps + threadIdx.x / lanes] = part;
  cluster.sync();
  if (threadIdx.x >= lanes) return part;
  unsigned const warps = block_warps * cluster.blocks;
  return reduce_lanes<Sums>(store.warp[turn][lane % warps], static_cast<int>(warps), log2_scale);
}

/// Begins a copy of a vector to shared memory; both aligned.
template <logit T>
__device__ void copy_async(uint4* to, T const* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
               :
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(__cvta_generic_to_global(from))
               : "memory");
}

/// Waits until the copies that this thread began are there, for this thread.
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" : : : "memory"); }

/// The vectors of a row that one thread keeps in shared memory: thread, thread + width, ... No other thread reads or
/// writes them there, so none waits for another.
template <logit T>
struct kept_vectors {
  uint4* slots;  ///< the first
  int stride;    ///< slots from one to the next
  int thread, width, columns;

  /// How many of the row's first `vectors` are this thread's.
  [[nodiscard]] __device__ int count(int vectors) const { return (vectors - thread + width - 1) / width; }
  [[nodiscard]] __device__ int whole() const { return count(columns / vector_size<T>); }
  [[nodiscard]] __device__ int all() const { return count((columns - 1) / vector_size<T> + 1); }
  [[nodiscard]] __device__ int column(int i) const { return (thread + i * width) * vector_size<T>; }
  [[nodiscard]] __device__ uint4& slot(int i) const { return slots[i * stride]; }

  /// Begins to load vectors [begin, end) of this thread, of an aligned row.
  __device__ void load(T const* row, int begin, int end) const {
    for (int i = begin; i < end; ++i)
      if (column(i) + vector_size<T> <= columns)
        copy_async(&slot(i), row + column(i));
      else
        slot(i) = load_edge(row, columns, thread + i * width);
  }

  /// Their sums, as fold_thread's.
  template <row_sums Sums>
  [[nodiscard]] __device__ logprob_partial<float> fold(float log2_scale) const {
    logprob_partial<float> part = empty_partial<float>();
    int const end = all();
    for (int i = 0; i < end; i += vectors_in_flight) {
      uint4 words[vectors_in_flight];
#pragma unroll
      for (int j = 0; j < vectors_in_flight; ++j)
        words[j] = i + j < end ? slot(i + j) : load_edge<T>(nullptr, 0, 0);  // which is -inf
      add_vectors<Sums, T>(part, words, log2_scale);
    }
    return part;
  }

  /// Writes their gradients to an aligned row, and begins to load those of the row `next`, if there is one, where they
  /// were: reads of a row and writes of the one before go on together.
  __device__ void write(T* to, row_gradient<float> const& slope, int target, float log2_scale, T const* next) const {
    written_row<T> const place{nullptr, to, columns};
    int const entire = whole(), end = all();
    int i = 0;
    for (; i + vectors_in_flight <= entire; i += vectors_in_flight) {
      uint4 words[vectors_in_flight];
#pragma unroll
      for (int j = 0; j < vectors_in_flight; ++j) words[j] = slot(i + j);
#pragma unroll
      for (int j = 0; j < vectors_in_flight; ++j)
        write_vector(place, slope, target, log2_scale, column(i + j), words[j]);
      if (next == nullptr) continue;
#pragma unroll
      for (int j = 0; j < vectors_in_flight; ++j) copy_async(&slot(i + j), next + column(i + j));
    }
    for (; i < end; ++i) {
      uint4 const words = slot(i);
      if (i < entire) {
        write_vector(place, slope, target, log2_scale, column(i), words);
      } else {
        float x[vector_size<T>];
        unpack<T>(words, x);
#pragma unroll
        for (int e = 0; e < vector_size<T>; ++e)
          if (int const one = column(i) + e; one < columns)
            to[one] = static_cast<T>(slope(x[e], log2_scale, one == target));
      }
      if (next != nullptr) load(next, i, i + 1);
    }
  }
};

/// What must be known of a row before it is read; asked for a row ahead.
template <token_id Id>
struct row_head {
  bool read;  ///< it is in the loss
  Id id;
};

template <typename Policy, logit T, token_id Id>
[[nodiscard]] __device__ row_head<Id> head_of(loss_pass<Policy, T, Id> const& pass, std::int64_t row) {
  if (row >= static_cast<std::int64_t>(pass.logits.layout.rows)) return {false, Id{0}};
  auto const r = static_cast<std::size_t>(row);
  return {!pass.logits.masked(row) && pass.inputs.scale[r] > 0, pass.logits.ids[r]};
}

inline constexpr unsigned cluster_block_threads = 256;  ///< of a block at most; four blocks fit a multiprocessor

/// A cluster a row: every thread keeps its vectors, the sums go to all blocks, each evaluates the loss, then writes the
/// gradient of its vectors while the next row's come in.
template <row_sums Sums, typename Policy, logit T, token_id Id>
TURNWISE_KERNEL void __launch_bounds__(cluster_block_threads, 4) cluster_loss_kernel(loss_pass<Policy, T, Id> pass) {
  extern __shared__ uint4 kept_logits[];
  __shared__ block_store<most_row_threads / lanes> store;
  __shared__ row_slopes slopes;
  row_cluster const cluster;
  int const block_threads = static_cast<int>(blockDim.x);
  int const width = block_threads * static_cast<int>(cluster.blocks);
  int const thread = block_threads * static_cast<int>(cluster.rank) + static_cast<int>(threadIdx.x);
  auto const rows = static_cast<std::int64_t>(pass.logits.layout.rows);
  auto const columns = static_cast<int>(pass.logits.layout.vocabulary);
  kept_vectors<T> const kept{kept_logits + threadIdx.x, block_threads, thread, width, columns};
  float const log2_scale = pass.scale.log2_scale;
  std::int64_t const clusters = gridDim.x / cluster.blocks;

  std::int64_t row = blockIdx.x / cluster.blocks;
  row_head<Id> head = head_of(pass, row);
  if (head.read) kept.load(pass.logits.row(row), 0, kept.all());
  cluster.sync();  // no block writes to another before that has begun
  for (int turn = 0; row < rows;) {
    row_head<Id> const next = head_of(pass, row + clusters);
    T const* const next_row = next.read ? pass.logits.row(row + clusters) : nullptr;
    T* const to = pass.out.gradient.data() + pass.out.layout.offset(static_cast<std::size_t>(row));
    bool zero = !head.read;
    if (head.read) {
      float const target = thread < static_cast<int>(lanes) ? target_logit(pass, row, head.id) : 0.0f;
      wait_for_copies();
      logprob_partial<float> part = kept.template fold<Sums>(log2_scale);
      part.target = target;  // in all lanes, each of which may be the one that tells a block
      part = reduce_cluster<Sums>(part, cluster, store, turn, log2_scale);
      turn ^= 1;
      if (threadIdx.x == 0) slopes = evaluate_sums(pass, row, part, thread == 0);
      __syncthreads();
      zero = turnwise::logprob::detail::is_zero_row(slopes.normalizer, slopes.of_logprob, slopes.of_entropy);
    } else if (thread == 0) {
      store_unread(pass, row);
    }
    if (zero) {
      written_row<T> const place{nullptr, to, columns};
      clear_vectors(place, thread, place.vectors(), width);
      if (next.read) kept.load(next_row, 0, kept.all());
    } else {
      row_gradient<float> const slope{slopes.normalizer, slopes.entropy, slopes.of_logprob, slopes.of_entropy,
                                      pass.scale.inverse};
      auto const column = static_cast<int>(column_of(head.id, 0, pass.logits.layout.vocabulary));
      kept.write(to, slope, column, log2_scale, next_row);
    }
    row += clusters;
    head = next;
  }
}

/// Blocks that share a row of `bytes`: as few as leave room for four blocks in a multiprocessor, at most 8.
[[nodiscard]] constexpr unsigned cluster_blocks(std::size_t bytes) noexcept {
  constexpr std::size_t most_bytes = 52 * 1024;
  unsigned blocks = loss_threads(bytes) / cluster_block_threads;
  while (blocks < 8 && blocks * most_bytes < bytes) blocks *= 2;
  return blocks;
}

/// Whether every row begins at an address that a vector may have.
template <logit T>
[[nodiscard]] bool rows_aligned(T const* values, logit_layout const& layout) noexcept {
  return reinterpret_cast<std::uintptr_t>(values) % sizeof(uint4) == 0 && layout.stride() % vector_size<T> == 0 &&
         (layout.batch_rows == 0 || layout.batch_stride % vector_size<T> == 0);
}

/// Starts the kernel if the device has clusters and they can keep a row, and all rows are aligned; else false.
template <row_sums Sums, typename Policy, logit T, token_id Id>
[[nodiscard]] bool enqueue_cluster_loss(std::string_view name, loss_pass<Policy, T, Id> const& pass,
                                        ::cuda::stream_ref stream) {
  logit_layout const& layout = pass.logits.layout;
  if (!rows_aligned(pass.logits.values.data(), layout) || !rows_aligned(pass.out.gradient.data(), pass.out.layout))
    return false;
  auto* const kernel = cluster_loss_kernel<Sums, Policy, T, Id>;
  auto const* const function = reinterpret_cast<void const*>(kernel);
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, function), name);
  if (attributes.ptxVersion < 90) return false;  // what it was compiled for, whatever the device
  int device = 0, most_bytes = 0;
  check(cudaGetDevice(&device), name);
  check(cudaDeviceGetAttribute(&most_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), name);
  std::size_t const row_bytes = vector_bytes<T>(layout);
  unsigned const blocks = cluster_blocks(row_bytes), threads = loss_threads(row_bytes) / blocks;
  std::size_t const each = sizeof(uint4) * threads;  // bytes of one vector a thread
  std::size_t const kept = ceil_div(row_bytes, each * blocks) * each;
  std::size_t const room = static_cast<std::size_t>(most_bytes) - attributes.sharedSizeBytes;
  if (kept > room) return false;
  // The same limit in every call, so that calls of several host threads do not disturb each other.
  check(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(room)), name);
  check(cudaFuncSetAttribute(function, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
        name);
  std::size_t const resident = resident_clusters(name, kernel, blocks, threads, kept);
  launch_clusters(name, kernel, blocks, static_cast<unsigned>(std::min(layout.rows, resident)), threads, kept, stream,
                  pass);
  return resident > 0;
}

}  // namespace turnwise::gpu::logprob::detail
