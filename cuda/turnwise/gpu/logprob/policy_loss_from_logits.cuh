/// @file
/// Policy loss and its gradient with respect to the logits, on the device: one read of the logits, one write.
#pragma once

#include <turnwise/gpu/core/workspace.cuh>
#include <turnwise/gpu/logprob/detail/block_loss.cuh>
#include <turnwise/gpu/logprob/detail/cluster_loss.cuh>
#include <turnwise/gpu/logprob/row_loss.cuh>

#include <cstddef>
#include <string_view>

namespace turnwise::gpu::logprob {
namespace detail {

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

/// Starts the kernel that the rows fit; both give the same bits.
template <row_sums Sums, typename Policy, logit T, token_id Id>
void enqueue_loss(std::string_view name, loss_pass<Policy, T, Id> const& pass, ::cuda::stream_ref stream) {
  if (pass.logits.layout.rows == 0 || enqueue_cluster_loss<Sums>(name, pass, stream)) return;
  enqueue_block_loss<Sums>(name, pass, stream);
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
///        8e-6 of the terms that they are sums of where p is above 2^-126, and by the rounding to T.
/// @note  The same bits on every run; a row's results depend neither on the other rows nor on alignment. Devices of
///        different architecture may round differently.
/// @par Complexity  one read and one write of rows * vocabulary elements where a cluster of at most 8 blocks keeps a
///                  row in shared memory: sm_90 or later, rows up to 1.75 MiB on an H200, and all rows of logits and
///                  gradient begin at multiples of 16 bytes. Otherwise what a block's shared memory has no room for
///                  (on an H200, beyond 220 KiB) is read again, from the L2 cache as far as it is there.
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
                                              out,    records, status};
  if (turnwise::logprob::detail::takes_entropy(options, out))
    detail::enqueue_loss<detail::row_sums::entropy>(name, pass, stream);
  else
    detail::enqueue_loss<detail::row_sums::normalizer>(name, pass, stream);
  launch("policy_loss_from_logits: record", detail::loss_record_kernel, 1, detail::record_threads, 0, stream,
         device_span<detail::row_record const>{records}, record);
}

}  // namespace turnwise::gpu::logprob
