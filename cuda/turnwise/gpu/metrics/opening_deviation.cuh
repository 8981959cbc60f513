/// @file
/// Share of turns that no longer begin as the model used to, on the device.
#pragma once

#include <turnwise/gpu/core/ordered_sum.cuh>
#include <turnwise/gpu/core/rollout.cuh>
#include <turnwise/gpu/core/status.cuh>
#include <turnwise/gpu/core/warp.cuh>
#include <turnwise/metrics/opening_deviation.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace turnwise::gpu::metrics {

using turnwise::metrics::opening;
using turnwise::metrics::opening_deviation_options;
using turnwise::metrics::opening_record;
using turnwise::metrics::token_id;

namespace detail {

template <token_id Token>
struct opening_call {
  rollout_view batch;
  device_span<Token const> tokens;
  device_span<std::uint8_t const> mask;
  device_span<Token const> prefix;
  device_span<reason_flags const> reasons;
  opening_deviation_options options;
  device_span<opening> flags;
  opening_record* out;
  status_record* status;

  [[nodiscard]] __device__ opening of_turn(std::int64_t turn) const {
    auto const s = static_cast<std::size_t>(turn);
    if (reasons.empty() ? batch.flagged_off(turn) : !is_valid(reasons[s])) return opening::not_counted;
    std::int64_t const begin = batch.turn_begin[s];
    std::int64_t const end = batch.turn_end[s];
    if (begin < 0 || begin > end || end > static_cast<std::int64_t>(tokens.size())) {
      report(status, status_code::token_range, turn);
      return opening::not_counted;
    }
    return turnwise::metrics::opening_of(tokens.data() + begin, mask.empty() ? nullptr : mask.data() + begin,
                                         end - begin, prefix.data(), static_cast<std::int64_t>(prefix.size()),
                                         options.short_turn);
  }
};

/// A thread a turn: an opening is a few tokens, and most turns that deviate do so at the first.
template <token_id Token>
TURNWISE_KERNEL void opening_deviation_kernel(opening_call<Token> call) {
  std::int64_t turns = 0;
  std::int64_t deviates = 0;
  gpu::detail::for_each_by_thread(static_cast<std::int64_t>(call.batch.turns), [&](std::int64_t turn) {
    opening const one = call.of_turn(turn);
    turns += one != opening::not_counted;
    deviates += one == opening::deviates;
    if (!call.flags.empty()) call.flags[static_cast<std::size_t>(turn)] = one;
  });
  auto const add = [](std::int64_t& total, std::int64_t count) {
    count = gpu::detail::warp_sum(count);
    if (gpu::detail::lane_id() == 0 && count != 0)
      atomicAdd(reinterpret_cast<unsigned long long*>(&total), static_cast<unsigned long long>(count));
  };
  add(call.out->turns, turns);
  add(call.out->deviates, deviates);
}

}  // namespace detail

inline constexpr std::size_t opening_deviation_workspace_bytes = 0;  ///< takes no workspace

/// The share of turns whose first tokens differ from a given prefix, and which they are: the device version, with the
/// same counts and flags.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. A memset and one launch.
/// @param[in]  tokens   [N] token ids.
/// @param[in]  mask     [N], or empty: all on.
/// @param[in]  prefix   [P] in device memory, at least one token.
/// @param[in]  reasons  [S], or empty: turns that are not flagged off are valid.
/// @param[out] flags    [S], or empty.
/// @param[out] out      [1], overwritten.
/// @param[in]  status   may be null; gains token_range: such a turn does not count.
/// @throws precondition_error  sizes that differ, no prefix; nothing is enqueued.
/// @throws cuda_error          the memset or the launch was refused.
/// @par Complexity  O(S P) work, a thread a turn.
/// @see turnwise::metrics::opening_deviation
template <token_id Token>
void opening_deviation(rollout_view const& batch, device_span<Token const> tokens, device_span<std::uint8_t const> mask,
                       no_deduce<device_span<Token const>> prefix, device_span<reason_flags const> reasons,
                       opening_deviation_options const& options, device_span<opening> flags,
                       device_span<opening_record> out, status_record* status, ::cuda::stream_ref stream) {
  constexpr std::string_view name = "opening_deviation";
  check_sizes(batch, name);
  expects_size(name, "turn_begin", batch.turn_begin.size(), batch.turns, "turn");
  expects_size(name, "turn_end", batch.turn_end.size(), batch.turns, "turn");
  if (!mask.empty()) expects_size(name, "mask", mask.size(), tokens.size(), "token");
  expects(!prefix.empty(), name, ": prefix is empty, expected at least one token");
  if (!reasons.empty()) expects_size(name, "reasons", reasons.size(), batch.turns, "turn");
  if (!flags.empty()) expects_size(name, "flags", flags.size(), batch.turns, "turn");
  expects_size(name, "out", out.size(), 1, "batch");
  check(cudaMemsetAsync(out.data(), 0, sizeof(opening_record), stream.get()), "opening_deviation: record");
  constexpr unsigned most_blocks = 2048;  // then each thread takes several turns
  launch(name, detail::opening_deviation_kernel<Token>, std::min(most_blocks, grid_blocks(batch.turns, 256)), 256, 0,
         stream, detail::opening_call<Token>{batch, tokens, mask, prefix, reasons, options, flags, out.data(), status});
}

}  // namespace turnwise::gpu::metrics
