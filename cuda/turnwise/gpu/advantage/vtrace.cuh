/// @file
/// V-trace value targets and policy-gradient advantages on the device.
#pragma once

#include <turnwise/advantage/vtrace.hpp>
#include <turnwise/gpu/advantage/detail/segmented_scan.cuh>
#include <turnwise/gpu/advantage/token_segments.cuh>

namespace turnwise::gpu::advantage {

/// Scratch for vtrace over arrays of `tokens` tokens of type T: about 56 bytes a chunk of 2816 tokens (double: 1280).
template <real T>
[[nodiscard]] std::size_t vtrace_workspace_bytes(std::size_t tokens) {
  return detail::scan_workspace_bytes<T, turnwise::advantage::detail::vtrace_rule>(tokens);
}

/// Value target and policy-gradient advantage of each token, corrected for the policy that sampled it: the device
/// version. Segments may as well be trajectories of turns.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph.
/// @param[in]  segments, reward, value, log_ratio  as the host's, at any address that suits their elements.
/// @param[in]  options    as the host's; `threads` is not used.
/// @param[out] advantage, target  [N] each, or empty: not wanted; may be the same spans as inputs.
/// @param[in]  status     as for gae; a log ratio of an unmasked token that is NaN or infinite is a token_value too.
/// @param      scratch    at least vtrace_workspace_bytes; must stay alive until the stream has passed this work.
/// @throws precondition_error  sizes that differ, options as on the host, a workspace too small; nothing is enqueued.
/// @throws cuda_error          as gae.
/// @note  Deterministic, and its blocks wait for one another, as gae. Host and device differ by at most
///        (12 n + 128) 2^-53 M and one ulp of T, where M is the formula of the output on magnitudes, with sums in place
///        of differences; the exponential is within 1.1 ulp.
/// @par Complexity  one read of the inputs and one write of the outputs.
/// @see turnwise::advantage::vtrace
template <real T>
void vtrace(no_deduce<token_segments<T>> const& segments, no_deduce<device_span<T const>> reward,
            no_deduce<device_span<T const>> value, no_deduce<device_span<T const>> log_ratio,
            turnwise::advantage::vtrace_options const& options, device_span<T> advantage,
            no_deduce<device_span<T>> target, status_record* status, workspace scratch, ::cuda::stream_ref stream) {
  namespace host = turnwise::advantage::detail;
  host::check_vtrace_options(options);
  host::check_segment_sizes(segments, segments.segments(), reward, value, "vtrace");
  expects_size("vtrace", "log_ratio", log_ratio.size(), reward.size(), "token, as reward");
  host::check_token_output("advantage", advantage, reward.size(), "vtrace");
  host::check_token_output("target", target, reward.size(), "vtrace");
  detail::enqueue_scan<T>({segments, reward, value, log_ratio, advantage, target, status}, host::vtrace_rule{options},
                          "vtrace", scratch, stream);
}

}  // namespace turnwise::gpu::advantage
