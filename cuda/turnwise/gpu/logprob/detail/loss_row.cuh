/// @file
/// The loss of one row: what the kernels that a row may go to share.
#pragma once

#include <turnwise/gpu/logprob/detail/row_kernel.cuh>
#include <turnwise/gpu/logprob/detail/written_row.cuh>
#include <turnwise/gpu/logprob/row_loss.cuh>
#include <turnwise/logprob/policy_loss_from_logits.hpp>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::logprob {
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
  status_record* status;
};

/// What the first thread of a block tells the others about a row.
struct row_slopes {
  log_normalizer<float> normalizer;
  float entropy, of_logprob, of_entropy;
};

/// Bytes of a row in whole vectors.
template <logit T>
[[nodiscard]] constexpr std::size_t vector_bytes(logit_layout const& layout) noexcept {
  return ceil_div(layout.vocabulary, vector_size<T>) * sizeof(uint4);
}

inline constexpr unsigned most_row_threads = 1024;

/// Threads that share a row of `bytes`, of one block or of several: a multiprocessor has room for 1024 threads of these
/// kernels, so a row that fits a part of its memory takes as large a part of them. The same on every device and for
/// every kernel, as sums depend on it.
[[nodiscard]] constexpr unsigned loss_threads(std::size_t bytes) noexcept {
  constexpr std::size_t kibibyte = 1024;
  return bytes <= 48 * kibibyte ? 256 : bytes <= 104 * kibibyte ? 512 : most_row_threads;
}

/// The logit of a row's token; NaN: it has none.
template <typename Policy, logit T, token_id Id>
[[nodiscard]] __device__ float target_logit(loss_pass<Policy, T, Id> const& pass, std::int64_t row, Id id) {
  std::size_t const columns = pass.logits.layout.vocabulary;
  std::size_t const column = column_of(id, 0, columns);
  return column < columns ? static_cast<float>(pass.logits.row(row)[column])
                          : turnwise::logprob::detail::not_a_number<float>;
}

/// Evaluates the loss of a row whose sums are there, by one thread; only where it `leads` is anything stored.
template <typename Policy, logit T, token_id Id>
[[nodiscard]] __device__ row_slopes evaluate_sums(loss_pass<Policy, T, Id> const& pass, std::int64_t row,
                                                  logprob_partial<float> const& total, bool leads) {
  auto const r = static_cast<std::size_t>(row);
  row_result<float> const result = finish_row(total, pass.scale.inverse);
  bool const with_entropy = pass.options.entropy_coefficient != 0 || !pass.out.entropy.empty();
  float const entropy = with_entropy ? result.entropy : 0.0f;
  auto const values = turnwise::logprob::detail::values_of(pass.inputs, r, result.logprob, entropy);
  auto const loss = turnwise::logprob::detail::evaluate_row(pass.policy, pass.options, values);
  if (leads) {
    if (result.fault == row_fault::logits) report(pass.status, bad_logits, row);
    if (result.fault == row_fault::id) report(pass.status, bad_id, row);
    if (!pass.out.logprob.empty()) pass.out.logprob[r] = result.logprob;
    if (!pass.out.entropy.empty()) pass.out.entropy[r] = result.entropy;
    pass.records[r] = {loss.token, true};
  }
  return {result.normalizer, entropy, loss.token.gradient, loss.entropy_gradient};
}

/// A row outside the loss, by one thread.
template <typename Policy, logit T, token_id Id>
__device__ void store_unread(loss_pass<Policy, T, Id> const& pass, std::int64_t row) {
  auto const r = static_cast<std::size_t>(row);
  if (!pass.out.logprob.empty()) pass.out.logprob[r] = 0;
  if (!pass.out.entropy.empty()) pass.out.entropy[r] = 0;
  pass.records[r] = {};
}

}  // namespace detail
}  // namespace turnwise::gpu::logprob
