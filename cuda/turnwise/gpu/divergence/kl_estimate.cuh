/// @file
/// Estimates of KL(current || reference) from the log-probs of sampled tokens, on the device.
#pragma once

#include <turnwise/divergence/kl_estimate.hpp>
#include <turnwise/gpu/core/lane_fold.cuh>
#include <turnwise/gpu/core/rollout.cuh>
#include <turnwise/gpu/core/status.cuh>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace turnwise::gpu::divergence {

using turnwise::divergence::kl_options;
using turnwise::divergence::kl_sums;

/// The log-probs of a divergence in device memory, N each; `mask` may be empty: all on.
template <logprob_value Current, logprob_value Reference>
struct kl_logprobs {
  device_span<Current const> current_logprob{};      ///< [N] nats
  device_span<Reference const> reference_logprob{};  ///< [N] nats
  device_span<std::uint8_t const> mask{};            ///< [N] or empty: all on
};

/// Where kl_estimate writes each token's value and slope; both may be empty: not wanted.
template <real T>
struct kl_outputs {
  device_span<T> value{};  ///< [N]
  device_span<T> slope{};  ///< [N]
};

namespace detail {

template <logprob_value Current, logprob_value Reference, real T>
TURNWISE_KERNEL void kl_estimate_kernel(rollout_view batch, kl_logprobs<Current, Reference> tokens, kl_options options,
                                        device_span<kl_sums> sums, kl_outputs<T> of_token, status_record* status) {
  using wide = log_ratio_t<Reference, Current>;
  gpu::detail::for_each_by_warp(static_cast<std::int64_t>(batch.turns), [&](std::int64_t turn) {
    auto const s = static_cast<std::size_t>(turn);
    std::int64_t const begin = batch.turn_begin[s];
    std::int64_t const end = batch.turn_end[s];
    bool const fits = begin >= 0 && begin <= end && end <= static_cast<std::int64_t>(tokens.current_logprob.size());
    if (!fits) report(status, status_code::token_range, turn);
    kl_sums const total = gpu::detail::lane_fold<kl_sums>(fits ? end - begin : 0, [&](std::int64_t k) {
      auto const i = static_cast<std::size_t>(begin + k);
      bool const on = tokens.mask.empty() || tokens.mask[i] != 0;
      wide const d = turnwise::importance::log_ratio(tokens.reference_logprob[i], tokens.current_logprob[i]);
      auto const terms = on ? turnwise::divergence::kl_estimate(d, options) : turnwise::divergence::kl_terms<wide>{};
      if (!of_token.value.empty()) of_token.value[i] = narrowed<T>(static_cast<double>(terms.value));
      if (!of_token.slope.empty()) of_token.slope[i] = narrowed<T>(static_cast<double>(terms.slope));
      return on ? turnwise::divergence::kl_of_token(d, terms.value, options) : kl_sums{};
    });
    if (gpu::detail::lane_id() == 0) sums[s] = total;
  });
}

/// An item of a fold: the sums of kept turns.
struct kept_kl {
  device_span<kl_sums const> sums;
  device_span<reason_flags const> reasons;
  __device__ kl_sums operator()(std::int64_t turn) const {
    auto const s = static_cast<std::size_t>(turn);
    return is_kept(reasons[s]) ? sums[s] : kl_sums{};
  }
};

}  // namespace detail

inline constexpr std::size_t kl_estimate_workspace_bytes = 0;  ///< takes no workspace
inline constexpr std::size_t total_kl_workspace_bytes = 0;     ///< takes no workspace

/// Estimates of KL(current || reference) of each token, and their sums over each turn: the device version.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch, no workspace.
/// Run-to-run the same bits, for any launch shape; against the host k3 within 1e-5 of its value (float; double: 1e-13),
/// the other kinds, all slopes but k3's, and all counts the same.
/// @param[out] sums      [S].
/// @param[out] of_token  value and slope, or empty; then turns must not overlap. Tokens in no turn are not written.
/// @param[in]  status    may be null; gains token_range. Such a turn has no tokens.
/// @throws precondition_error  sizes that differ, options as on the host; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @par Complexity  one read of the tokens, a warp a turn.
/// @see turnwise::divergence::kl_estimate
template <logprob_value Current, logprob_value Reference, real T = float>
void kl_estimate(rollout_view const& batch, kl_logprobs<Current, Reference> const& tokens, kl_options const& options,
                 device_span<kl_sums> sums, kl_outputs<T> const& of_token, status_record* status,
                 ::cuda::stream_ref stream) {
  std::string_view const name = "kl_estimate";
  std::size_t const count = tokens.current_logprob.size();
  auto const per_token = [&](std::string_view argument, std::size_t size, bool optional) {
    if (!optional || size > 0) expects_size(name, argument, size, count, "token, as current_logprob");
  };
  per_token("reference_logprob", tokens.reference_logprob.size(), false);
  per_token("mask", tokens.mask.size(), true);
  per_token("value", of_token.value.size(), true);
  per_token("slope", of_token.slope.size(), true);
  expects_size(name, "turn_begin", batch.turn_begin.size(), batch.turns, "turn");
  expects_size(name, "turn_end", batch.turn_end.size(), batch.turns, "turn");
  expects_size(name, "sums", sums.size(), batch.turns, "turn");
  turnwise::divergence::check_kl_options(options, name);
  launch(name, detail::kl_estimate_kernel<Current, Reference, T>, gpu::detail::warp_blocks(batch.turns),
         gpu::detail::warp_block_threads, 0, stream, batch, tokens, options, sums, of_token, status);
}

/// The sums of the kept turns of a batch: the device version, with the same bits given the same sums.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch, no workspace.
/// @param[out] total  a record in device memory.
/// @throws precondition_error  sizes that differ; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @par Complexity  O(S), by one warp.
/// @see turnwise::divergence::total_kl
inline void total_kl(device_span<kl_sums const> sums, device_span<reason_flags const> reasons, kl_sums* total,
                     ::cuda::stream_ref stream) {
  expects_size("total_kl", "reasons", reasons.size(), sums.size(), "turn, as sums");
  launch("total_kl", gpu::detail::fold_kernel<kl_sums, detail::kept_kl>, 1, gpu::detail::lanes, 0, stream,
         static_cast<std::int64_t>(sums.size()), detail::kept_kl{sums, reasons}, total);
}

}  // namespace turnwise::gpu::divergence
