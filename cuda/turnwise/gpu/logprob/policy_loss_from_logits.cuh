/// @file
/// Policy loss and its gradient with respect to the logits, on the device: one read of the logits, one write.
#pragma once

#include <turnwise/gpu/core/workspace.cuh>
#include <turnwise/gpu/logprob/detail/row_kernel.cuh>
#include <turnwise/gpu/logprob/detail/written_row.cuh>
#include <turnwise/logprob/policy_loss_from_logits.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace turnwise::gpu::logprob {

/// What the loss knows of each row beside its logits, see turnwise::logprob::row_loss_inputs.
struct row_loss_inputs {
  device_span<float const> old_logprob;          ///< [rows] what the ratio is to, nats
  device_span<float const> advantage;            ///< [rows] of the token
  device_span<float const> scale;                ///< [rows] its turn's; not above 0: the row is not in the loss
  device_span<float const> reference_logprob{};  ///< [rows] or empty: no KL, nats
  device_span<float const> weight{};             ///< [rows] on the policy term alone; empty: 1
  device_span<std::uint8_t const> selected{};    ///< [rows] for policies that ask for it
};

template <logit T>
struct row_loss_outputs {
  device_span<T> gradient;       ///< d loss / d logits; may be the logits with the same layout (in place)
  logit_layout layout;           ///< of gradient
  device_span<float> logprob{};  ///< [rows] or empty: not wanted
  device_span<float> entropy{};  ///< [rows] or empty: taken only if the loss needs it
};

namespace detail {

using loss_token_result = turnwise::loss::detail::token_result<float>;

/// What a row leaves for the record.
struct row_record {
  loss_token_result token;
  bool read;  ///< the row is in the loss
};

template <typename Policy, logit T, token_id Id>
struct loss_pass {
  token_logits<T, Id> logits;
  row_loss_inputs inputs;
  Policy policy;
  turnwise::loss::loss_options options;
  softmax_scale<float> scale;
  row_loss_outputs<T> out;
  device_span<row_record> records;
  int kept_vectors;  ///< of a row, that a block can hold
  status_record* status;
};

/// What the first thread of a block tells the others about a row.
struct row_slopes {
  log_normalizer<float> normalizer;
  float entropy, of_logprob, of_entropy;
};

/// Threads of the block that holds a row of `bytes`: a multiprocessor has room for 1024 threads of this kernel, so a
/// row that fits a part of its memory takes as large a part of these. The same on every device, as sums depend on it.
[[nodiscard]] constexpr unsigned loss_threads(std::size_t bytes) noexcept {
  constexpr std::size_t kibibyte = 1024;
  return bytes <= 48 * kibibyte ? 256 : bytes <= 104 * kibibyte ? 512 : 1024;
}

/// Evaluates the loss of a row whose sums are there, by one thread.
template <typename Policy, logit T, token_id Id>
[[nodiscard]] __device__ row_slopes evaluate_sums(loss_pass<Policy, T, Id> const& pass, std::int64_t row,
                                                  logprob_partial<float> const& total) {
  auto const r = static_cast<std::size_t>(row);
  row_result<float> const result = finish_row(total, pass.scale.inverse);
  if (result.fault == row_fault::logits) report(pass.status, bad_logits, row);
  if (result.fault == row_fault::id) report(pass.status, bad_id, row);
  if (!pass.out.logprob.empty()) pass.out.logprob[r] = result.logprob;
  if (!pass.out.entropy.empty()) pass.out.entropy[r] = result.entropy;
  bool const with_entropy = pass.options.entropy_coefficient != 0 || !pass.out.entropy.empty();
  float const entropy = with_entropy ? result.entropy : 0.0f;
  auto const values = turnwise::logprob::detail::values_of(pass.inputs, r, result.logprob, entropy);
  auto const loss = turnwise::logprob::detail::evaluate_row(pass.policy, pass.options, values);
  pass.records[r] = {loss.token, true};
  return {result.normalizer, entropy, loss.token.gradient, loss.entropy_gradient};
}

/// A block a row: sums while the first vectors of the row go to shared memory, the loss by one thread, then the
/// gradient from shared memory. What does not fit there is read a second time, from the L2 cache as far as it is there.
template <row_sums Sums, typename Policy, logit T, token_id Id>
TURNWISE_KERNEL void __launch_bounds__(1024) loss_kernel(loss_pass<Policy, T, Id> pass) {
  extern __shared__ uint4 kept_logits[];
  __shared__ block_store<1024 / lanes> store;
  __shared__ row_slopes slopes;
  int const thread = static_cast<int>(threadIdx.x);
  int const width = static_cast<int>(blockDim.x);
  auto const rows = static_cast<std::int64_t>(pass.logits.layout.rows);
  auto const columns = static_cast<int>(pass.logits.layout.vocabulary);
  int const kept_columns = min(columns, pass.kept_vectors * vector_size<T>);

  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    auto const r = static_cast<std::size_t>(row);
    T const* const from = pass.logits.row(row);
    written_row<T> const place{from, pass.out.gradient.data() + pass.out.layout.offset(r), columns};
    if (pass.logits.masked(row) || !(pass.inputs.scale[r] > 0)) {
      clear_vectors(place, thread, place.vectors(), width);
      if (thread == 0) {
        if (!pass.out.logprob.empty()) pass.out.logprob[r] = 0;
        if (!pass.out.entropy.empty()) pass.out.entropy[r] = 0;
        pass.records[r] = {};
      }
      continue;
    }
    Id const id = pass.logits.ids[r];
    auto part = fold_thread<Sums>(from, columns, thread, width, pass.scale.log2_scale, [&](int k, uint4 const& words) {
      if (k < pass.kept_vectors) kept_logits[k] = words;
    });
    std::size_t const target = turnwise::logprob::detail::column_of(id, 0, pass.logits.layout.vocabulary);
    bool const known = target < pass.logits.layout.vocabulary;
    float const target_logit = thread != 0 ? 0.0f
                               : known     ? static_cast<float>(from[target])
                                           : turnwise::logprob::detail::not_a_number<float>;
    part = reduce_block<Sums>(part, store, 0, pass.scale.log2_scale);
    if (thread == 0) {
      part.target = target_logit;
      slopes = evaluate_sums(pass, row, part);
    }
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
      auto const column = static_cast<int>(target);
      int const vectors = place.vectors(), round = vectors_in_flight * width;
      // From the end, which is the newest in the L2 cache.
      for (int begin = split + (vectors - split - 1) / round * round; begin >= split; begin -= round)
        write_vectors(place, slope, column, log2_scale, begin + thread, min(begin + round, vectors), width);
      write_vectors(kept, slope, column, log2_scale, thread, split, width);
    }
    __syncthreads();
  }
}

inline constexpr unsigned record_threads = 256;

/// The records of all rows as one, in a fixed order: thread t adds rows t, t + 256, ..., then a tree.
TURNWISE_KERNEL void __launch_bounds__(record_threads)
    loss_record_kernel(device_span<row_record const> rows, device_span<turnwise::loss::loss_record> out) {
  using turnwise::loss::loss_record;
  __shared__ double store[record_threads * sizeof(loss_record) / sizeof(double)];  // records have constructors
  auto const at = [&](unsigned t) { return reinterpret_cast<loss_record*>(store) + t; };
  loss_record sum{};
  for (std::size_t r = threadIdx.x; r < rows.size(); r += record_threads)
    if (rows[r].read) turnwise::logprob::detail::add_to(sum, rows[r].token);
  *at(threadIdx.x) = sum;
  for (unsigned half = record_threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) *at(threadIdx.x) += *at(threadIdx.x + half);
  }
  if (threadIdx.x == 0) out[0] = *at(0);
}

/// Starts the kernel with as much shared memory as a block may have, or as the row needs.
template <row_sums Sums, typename Policy, logit T, token_id Id>
void enqueue_loss(std::string_view name, loss_pass<Policy, T, Id> pass, ::cuda::stream_ref stream) {
  logit_layout const& layout = pass.logits.layout;
  if (layout.rows == 0) return;
  int device = 0, most_bytes = 0, processors = 0;
  check(cudaGetDevice(&device), name);
  check(cudaDeviceGetAttribute(&most_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), name);
  check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), name);
  std::size_t const row_bytes = ceil_div(layout.vocabulary, vector_size<T>) * sizeof(uint4);
  unsigned const threads = loss_threads(row_bytes);
  unsigned const resident = 1024 / threads;  // blocks of a multiprocessor, which share its memory
  constexpr std::size_t other_bytes = sizeof(block_store<1024 / lanes>) + 2048;  // what the kernel and the system take
  auto const room = [&](unsigned blocks) {
    return (static_cast<std::size_t>(most_bytes) / blocks - other_bytes) / sizeof(uint4) * sizeof(uint4);
  };
  std::size_t const kept = std::min(row_bytes, room(resident));
  pass.kept_vectors = static_cast<int>(kept / sizeof(uint4));
  auto* const kernel = loss_kernel<Sums, Policy, T, Id>;
  // The same limit in every call, so that calls of several host threads do not disturb each other.
  check(cudaFuncSetAttribute(reinterpret_cast<void const*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(room(1))),
        name);
  unsigned const blocks = std::min(grid_blocks(layout.rows, 1), static_cast<unsigned>(processors) * resident);
  launch(name, kernel, blocks, threads, kept, stream, pass);
}

}  // namespace detail

/// Scratch for policy_loss_from_logits.
[[nodiscard]] inline std::size_t policy_loss_from_logits_workspace_bytes(std::size_t rows) {
  workspace count;
  static_cast<void>(count.take<detail::row_record>(rows, "policy_loss_from_logits: rows"));
  return count.used();
}

/// Loss of a batch of tokens under a token-level policy and its gradient with respect to their logits: the device
/// version of turnwise::logprob::policy_loss_from_logits, in float.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. Two launches.
/// @param[in]  logits   [rows, vocabulary], float or a 16-bit type; any row stride and alignment.
/// @param[out] out      gradient: every column of every row is written.
/// @param[out] record   [1], overwritten; its `turns` is 0.
/// @param      status   may be null; gains the first bad row in the loss, as token_logprob's. Its gradient is 0.
/// @param      scratch  at least policy_loss_from_logits_workspace_bytes.
/// @throws precondition_error  sizes, layouts, temperature or options that do not fit, a workspace too small; nothing
///                             is enqueued.
/// @throws cuda_error          a launch was refused.
/// @note  Against token_logprob, the policy and token_logprob_backward one after the other: elements differ by at most
///        8e-6 of the terms that they are sums of, and by the rounding to T.
/// @note  The same bits on every run; a row's gradient does not depend on the other rows or on alignment.
/// @par Complexity  one write of rows * vocabulary elements and one read; of rows larger than a block's shared memory
///                  (about 220 KiB on an H200) the rest is read twice, the second time from the L2 cache.
/// @see turnwise::logprob::policy_loss_from_logits
template <typename Policy, logit T, token_id Id>
void policy_loss_from_logits(token_logits<T, Id> const& logits, row_loss_inputs const& inputs, Policy const& policy,
                             turnwise::loss::loss_options const& options, double temperature,
                             no_deduce<row_loss_outputs<T>> const& out, device_span<turnwise::loss::loss_record> record,
                             status_record* status, workspace scratch, ::cuda::stream_ref stream) {
  constexpr std::string_view name = "policy_loss_from_logits";
  turnwise::logprob::detail::check_token_logits(logits, name);
  turnwise::logprob::detail::check_row_loss(logits.layout, inputs, policy, options, out, name);
  expects_size(name, "record", record.size(), 1, "step");
  detail::check_columns(logits.layout, name);
  auto const records = scratch.take<detail::row_record>(logits.layout.rows, "policy_loss_from_logits: rows");
  detail::loss_pass<Policy, T, Id> const pass{logits, inputs,  policy, options, {temperature, name},
                                              out,    records, 0,      status};
  if (turnwise::logprob::detail::takes_entropy(options, out))
    detail::enqueue_loss<detail::row_sums::entropy>(name, pass, stream);
  else
    detail::enqueue_loss<detail::row_sums::normalizer>(name, pass, stream);
  launch("policy_loss_from_logits: record", detail::loss_record_kernel, 1, detail::record_threads, 0, stream,
         device_span<detail::row_record const>{records}, record);
}

}  // namespace turnwise::gpu::logprob
