/// @file
/// Generalized advantage estimation over packed tokens on the device.
#pragma once

#include <turnwise/advantage/gae.hpp>
#include <turnwise/gpu/advantage/detail/segmented_scan.cuh>
#include <turnwise/gpu/advantage/token_segments.cuh>

namespace turnwise::gpu::advantage {

/// Scratch for gae over arrays of `tokens` tokens of type T: about 56 bytes a chunk of 3840 tokens (double: 1792).
template <real T>
[[nodiscard]] std::size_t gae_workspace_bytes(std::size_t tokens) {
  return detail::scan_workspace_bytes<T, turnwise::advantage::detail::gae_rule>(tokens);
}

/// Advantage of each token, the discounted sum of the temporal differences from it on: the device version. Segments may
/// as well be trajectories of turns.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph.
/// @param[in]  segments, reward, value  as the host's, at any address that suits their elements.
/// @param[in]  options    as the host's; `threads` is not used.
/// @param[out] advantage, target  [N] each, or empty: not wanted; may be the same spans as inputs.
/// @param[in]  status     may be null; gains trajectory_offsets (wrong offsets, at a segment: all results are 0) and
///                        token_value, at a token: a reward or value that is not finite or beyond magnitude_limit makes
///                        an unmasked token act as a masked one, such a next_value (told at its segment's last token)
///                        acts as 0. So no NaN is written, in its segment or elsewhere.
/// @param      scratch    at least gae_workspace_bytes; must stay alive until the stream has passed this work.
/// @throws precondition_error  sizes that differ, options as on the host, a workspace too small; nothing is enqueued.
/// @throws cuda_error          a launch was refused, or the device cannot hold 17 blocks of the scan at a time.
/// @note  Deterministic: the same bits in every run, on any stream and at any address. They depend on where a segment
///        lies among the tokens, for chunks of tokens are joined; the host goes from the last token to the first. With
///        n the unmasked tokens from a token to its segment's end, and M its advantage with |r| + gamma |V'| + |V| in
///        place of each difference, host and device differ by at most (4 n + 128) 2^-53 M (target: M + |V|) and one
///        ulp of T.
/// @note  Up to 17 blocks of the scan wait for one another, so kernels that wait for its results must leave room for
///        them.
/// @par Complexity  one read of the inputs and one write of the outputs.
/// @see turnwise::advantage::gae
template <real T>
void gae(no_deduce<token_segments<T>> const& segments, no_deduce<device_span<T const>> reward,
         no_deduce<device_span<T const>> value, turnwise::advantage::gae_options const& options,
         device_span<T> advantage, no_deduce<device_span<T>> target, status_record* status, workspace scratch,
         ::cuda::stream_ref stream) {
  namespace host = turnwise::advantage::detail;
  host::check_gae_options(options);
  host::check_segment_sizes(segments, segments.segments(), reward, value, "gae");
  host::check_token_output("advantage", advantage, reward.size(), "gae");
  host::check_token_output("target", target, reward.size(), "gae");
  detail::enqueue_scan<T>({segments, reward, value, {}, advantage, target, status}, host::gae_rule{options}, "gae",
                          scratch, stream);
}

}  // namespace turnwise::gpu::advantage
