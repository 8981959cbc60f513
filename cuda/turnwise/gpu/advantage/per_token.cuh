/// @file
/// Spreads each turn's advantage over its tokens on the device.
#pragma once

#include <turnwise/core/concepts.hpp>
#include <turnwise/core/reason.hpp>
#include <turnwise/gpu/core/rollout.cuh>
#include <turnwise/gpu/core/token_plan_view.cuh>
#include <turnwise/gpu/core/warp.cuh>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::advantage {
namespace detail {

inline constexpr unsigned writer_warps = TURNWISE_GPU_BLOCK_WARPS;
inline constexpr unsigned writer_lanes = gpu::detail::lanes;

/// What a warp writes of one chunk.
template <real A, real T>
struct token_writer {
  device_span<A const> turn_advantage;
  device_span<reason_flags const> reasons;
  device_span<std::uint8_t const> mask;
  device_span<T> token_advantage;
  device_span<std::uint8_t> token_mask;

  /// The value of turn `s`, and whether it is kept.
  __device__ void read(std::int64_t s, T& value, std::uint8_t& on) const {
    auto const turn = static_cast<std::size_t>(s);
    on = is_kept(reasons[turn]);
    value = on ? narrowed<T>(turn_advantage[turn]) : T{0};
  }

  /// Writes places [0, count) of a chunk that begins at token `first`; value(place) and on(place) tell what.
  template <typename Value, typename On>
  __device__ void write(std::int64_t first, int count, Value value, On on) const {
    constexpr int row = 4;  // tokens that share a word of the masks
    int const lane = static_cast<int>(threadIdx.x % writer_lanes);
    auto const at = static_cast<std::size_t>(first);
    bool const aligned =
        is_aligned(token_advantage.data(), 16) && is_aligned(token_mask.data(), row) && is_aligned(mask.data(), row);
    if (count < static_cast<int>(chunk_tokens) || !aligned) {
      for (int i = lane; i < count; i += static_cast<int>(writer_lanes)) {
        bool const unmasked = mask.empty() || mask[at + i] != 0;
        if (!token_advantage.empty()) token_advantage[at + i] = unmasked ? value(i) : T{0};
        if (!token_mask.empty()) token_mask[at + i] = on(i) && unmasked;
      }
      return;
    }
#pragma unroll 2
    for (int i = lane * row; i < static_cast<int>(chunk_tokens); i += static_cast<int>(writer_lanes) * row) {
      unsigned bytes = 0x01010101;
      if (!mask.empty()) bytes = __ldcs(reinterpret_cast<unsigned const*>(mask.data() + at + i));
      T values[row];
      unsigned flags = 0;
#pragma unroll
      for (int v = 0; v < row; ++v) {
        bool const unmasked = (bytes >> (8 * v) & 0xff) != 0;
        values[v] = unmasked ? value(i + v) : T{0};
        if (unmasked && on(i + v)) flags |= 1u << (8 * v);
      }
      if (!token_advantage.empty()) {
        constexpr unsigned words = sizeof values / sizeof(uint4);
        uint4 word[words];
        __builtin_memcpy(word, values, sizeof values);
#pragma unroll
        for (unsigned w = 0; w < words; ++w) reinterpret_cast<uint4*>(token_advantage.data() + at + i)[w] = word[w];
      }
      if (!token_mask.empty()) *reinterpret_cast<unsigned*>(token_mask.data() + at + i) = flags;
    }
  }

 private:
  [[nodiscard]] static __device__ bool is_aligned(void const* address, std::uintptr_t bytes) {
    return reinterpret_cast<std::uintptr_t>(address) % bytes == 0;
  }
};

template <real A, real T>
TURNWISE_KERNEL void __launch_bounds__(writer_warps* writer_lanes)
    per_token_kernel(token_plan plan, token_writer<A, T> writer) {
  __shared__ T shared_values[writer_warps][chunk_tokens];
  __shared__ std::uint8_t shared_on[writer_warps][chunk_tokens];
  int const lane = static_cast<int>(threadIdx.x % writer_lanes);
  T* const values = shared_values[threadIdx.x / writer_lanes];
  std::uint8_t* const on = shared_on[threadIdx.x / writer_lanes];
  auto const warps = std::int64_t{gridDim.x} * writer_warps;

  for (auto chunk = std::int64_t{blockIdx.x} * writer_warps + threadIdx.x / writer_lanes;
       chunk < static_cast<std::int64_t>(plan.chunks.size()); chunk += warps) {
    std::int64_t const first = chunk * chunk_tokens;
    auto const rest = static_cast<std::int64_t>(plan.tokens) - first;
    int const count = static_cast<int>(rest < chunk_tokens ? rest : chunk_tokens);
    chunk_turns const turns = plan.chunks[static_cast<std::size_t>(chunk)];
    T value{0};
    std::uint8_t kept = 0;
    if (turns.count == 0 || turns.whole) {
      if (turns.whole) writer.read(plan.turn_at(turns.first), value, kept);
      writer.write(
          first, count, [&](int) { return value; }, [&](int) { return kept != 0; });
      continue;
    }
    for (int i = lane; i < static_cast<int>(chunk_tokens); i += static_cast<int>(writer_lanes)) {
      values[i] = T{0};
      on[i] = 0;
    }
    __syncwarp();
    int width = static_cast<int>(writer_lanes);
    while (width > 1 && static_cast<int>(writer_lanes) / width < turns.count) width /= 2;
    for (std::int64_t turn = lane / width; turn < turns.count; turn += static_cast<int>(writer_lanes) / width) {
      auto const place = static_cast<std::size_t>(turns.first + turn);
      int const stop = gpu::detail::place_in_chunk(plan.end[place], first);
      writer.read(plan.turn_at(turns.first + turn), value, kept);
      for (int i = gpu::detail::place_in_chunk(plan.begin[place], first) + lane % width; i < stop; i += width) {
        values[i] = value;
        on[i] = kept;
      }
    }
    __syncwarp();
    writer.write(
        first, count, [&](int i) { return values[i]; }, [&](int i) { return on[i] != 0; });
    __syncwarp();
  }
}

template <real A, real T>
void check_per_token(token_plan const& plan, token_writer<A, T> const& writer) {
  std::string_view const name = "per_token";
  expects_size(name, "turn_advantage", writer.turn_advantage.size(), plan.turns, "turn of the plan");
  expects_size(name, "reasons", writer.reasons.size(), plan.turns, "turn of the plan");
  if (!writer.mask.empty()) expects_size(name, "mask", writer.mask.size(), plan.tokens, "token of the plan");
  if (!writer.token_advantage.empty())
    expects_size(name, "token_advantage", writer.token_advantage.size(), plan.tokens, "token of the plan");
  if (!writer.token_mask.empty())
    expects_size(name, "token_mask", writer.token_mask.size(), plan.tokens, "token of the plan");
}

}  // namespace detail

inline constexpr std::size_t per_token_workspace_bytes = 0;  ///< takes no workspace

/// Writes each token's advantage and loss mask: the device version, with the same bits. One launch, no workspace.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. Deterministic.
/// @param[in]  plan   of the batch, over arrays of N tokens.
/// @param[in]  mask   [N], or empty: all tokens were generated.
/// @param[out] token_advantage, token_mask  [N], or empty: not wanted.
/// @throws precondition_error  sizes that differ; nothing is enqueued.
/// @throws cuda_error          a launch was refused.
/// @par Complexity  one write of the outputs.
/// @see turnwise::advantage::per_token
template <real A, real T>
void per_token(token_plan const& plan, device_span<std::uint8_t const> mask, device_span<A const> turn_advantage,
               device_span<reason_flags const> reasons, device_span<T> token_advantage,
               device_span<std::uint8_t> token_mask, ::cuda::stream_ref stream) {
  detail::token_writer<A, T> const writer{turn_advantage, reasons, mask, token_advantage, token_mask};
  detail::check_per_token(plan, writer);
  if (token_advantage.empty() && token_mask.empty()) return;
  launch("per_token", detail::per_token_kernel<A, T>, grid_blocks(plan.chunks.size(), detail::writer_warps),
         detail::writer_warps * detail::writer_lanes, 0, stream, plan, writer);
}

}  // namespace turnwise::gpu::advantage
