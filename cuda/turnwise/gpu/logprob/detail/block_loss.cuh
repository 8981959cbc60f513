/// @file
/// The loss of rows that a block works on, whatever their size and alignment.
#pragma once

#include <turnwise/gpu/logprob/detail/loss_row.cuh>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace turnwise::gpu::logprob::detail {

/// A block a row: sums while the first vectors of the row go to shared memory, the loss by one thread, then the
/// gradient from shared memory. What does not fit there is read a second time, from the L2 cache as far as it is there.
template <row_sums Sums, typename Policy, logit T, token_id Id>
TURNWISE_KERNEL void __launch_bounds__(most_row_threads)
    block_loss_kernel(loss_pass<Policy, T, Id> pass, int kept_vectors) {
  extern __shared__ uint4 kept_logits[];
  __shared__ block_store<most_row_threads / lanes> store;
  __shared__ row_slopes slopes;
  int const thread = static_cast<int>(threadIdx.x);
  int const width = static_cast<int>(blockDim.x);
  auto const rows = static_cast<std::int64_t>(pass.logits.layout.rows);
  auto const columns = static_cast<int>(pass.logits.layout.vocabulary);
  int const kept_columns = min(columns, kept_vectors * vector_size<T>);

  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    auto const r = static_cast<std::size_t>(row);
    T const* const from = pass.logits.row(row);
    written_row<T> const place{from, pass.out.gradient.data() + pass.out.layout.offset(r), columns};
    if (pass.logits.masked(row) || !(pass.inputs.scale[r] > 0)) {
      clear_vectors(place, thread, place.vectors(), width);
      if (thread == 0) store_unread(pass, row);
      continue;
    }
    Id const id = pass.logits.ids[r];
    float target = 0;
    auto part = fold_thread<Sums>(from, columns, thread, width, pass.scale.log2_scale, [&](int k, uint4 const& words) {
      if (k < kept_vectors) kept_logits[k] = words;
      if (k == 0) target = target_logit(pass, row, id);  // by the first thread, beside its loads
    });
    part.target = target;
    part = reduce_block<Sums>(part, store, 0, pass.scale.log2_scale);
    if (thread == 0) slopes = evaluate_sums(pass, row, part, true);
    __syncthreads();
    row_slopes const mine = slopes;
    if (turnwise::logprob::detail::is_zero_row(mine.normalizer, mine.of_logprob, mine.of_entropy)) {
      clear_vectors(place, thread, place.vectors(), width);
    } else {
      row_gradient<float> const slope{mine.normalizer, mine.entropy, mine.of_logprob, mine.of_entropy,
                                      pass.scale.inverse};
      // The last vectors that are kept may not have all around them that a shifted read wants.
      int const split = max(0, (kept_columns + place.before) / vector_size<T> - 1);
      written_row<T> const kept{reinterpret_cast<T const*>(kept_logits), place.to, columns};
      float const log2_scale = pass.scale.log2_scale;
      auto const column = static_cast<int>(turnwise::logprob::detail::column_of(id, 0, pass.logits.layout.vocabulary));
      int const vectors = place.vectors(), round = vectors_in_flight * width;
      // From the end, which is the newest in the L2 cache.
      for (int begin = split + (vectors - split - 1) / round * round; begin >= split; begin -= round)
        write_vectors(place, slope, column, log2_scale, begin + thread, min(begin + round, vectors), width);
      write_vectors(kept, slope, column, log2_scale, thread, split, width);
    }
    __syncthreads();
  }
}

/// Starts the kernel with as much shared memory as a block may have, or as the row needs.
template <row_sums Sums, typename Policy, logit T, token_id Id>
void enqueue_block_loss(std::string_view name, loss_pass<Policy, T, Id> const& pass, ::cuda::stream_ref stream) {
  logit_layout const& layout = pass.logits.layout;
  int device = 0, most_bytes = 0, processors = 0;
  check(cudaGetDevice(&device), name);
  check(cudaDeviceGetAttribute(&most_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), name);
  check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), name);
  std::size_t const row_bytes = vector_bytes<T>(layout);
  unsigned const threads = loss_threads(row_bytes);
  unsigned const resident = most_row_threads / threads;  // blocks of a multiprocessor, which share its memory
  constexpr std::size_t other_bytes =
      sizeof(block_store<most_row_threads / lanes>) + 2048;  // what the kernel and the system take
  auto const room = [&](unsigned blocks) {
    return (static_cast<std::size_t>(most_bytes) / blocks - other_bytes) / sizeof(uint4) * sizeof(uint4);
  };
  std::size_t const kept = std::min(row_bytes, room(resident));
  auto* const kernel = block_loss_kernel<Sums, Policy, T, Id>;
  // The same limit in every call, so that calls of several host threads do not disturb each other.
  check(cudaFuncSetAttribute(reinterpret_cast<void const*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(room(1))),
        name);
  unsigned const blocks = std::min(grid_blocks(layout.rows, 1), static_cast<unsigned>(processors) * resident);
  launch(name, kernel, blocks, threads, kept, stream, pass, static_cast<int>(kept / sizeof(uint4)));
}

}  // namespace turnwise::gpu::logprob::detail
