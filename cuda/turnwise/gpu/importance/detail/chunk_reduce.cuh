/// @file
/// How a warp reduces a chunk of tokens that lies in shared memory. Blocks of four tokens are summed first; a turn is
/// then the sum of its blocks and of the few tokens at its edges. A chunk with a log ratio that is not small (NaN, infinite,
/// clamped) is summed token by token.
#pragma once

#include <turnwise/gpu/core/rollout.cuh>
#include <turnwise/gpu/core/status.cuh>
#include <turnwise/gpu/core/token_plan_view.cuh>
#include <turnwise/gpu/core/warp.cuh>
#include <turnwise/importance/turn_statistics.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace turnwise::gpu::importance::detail {

using turnwise::importance::ratio_moments;
using turnwise::importance::turn_statistics;

inline constexpr unsigned warp_lanes = gpu::detail::lanes;
inline constexpr unsigned every_lane = gpu::detail::all_lanes;

/// Log ratios within +-16 are small: four of them sum up in 32 bits.
inline constexpr float small_limit = 16.0f;

inline constexpr int block_tokens = 4;
inline constexpr int chunk_blocks = static_cast<int>(chunk_tokens) / block_tokens;

/// Sums over the unmasked tokens of a block of small log ratios.
template <bool Moments>
struct alignas(16) block_sums {
  std::int32_t sum, count;
  float min, max;
};
template <>
struct alignas(16) block_sums<true> {
  std::int32_t sum, count;
  float min, max;
  double k3, excess_squared, rollout_logprob;
};

/// A log ratio that is masked off: a NaN that no subtraction produces.
template <real T>
__device__ T masked_value() {
  if constexpr (sizeof(T) == 4)
    return __uint_as_float(0x7fc0d1edu);
  else
    return __longlong_as_double(0x7ff80000d1edd1edll);
}

template <real T>
__device__ bool is_masked(T value) {
  if constexpr (sizeof(T) == 4)
    return __float_as_uint(value) == 0x7fc0d1edu;
  else
    return __double_as_longlong(value) == 0x7ff80000d1edd1edll;
}

/// Sums that one lane keeps.
template <real T, bool Moments>
struct lane_sums {
  std::int64_t sum = 0;
  std::int32_t count = 0;
  T min = static_cast<T>(INFINITY);
  T max = -static_cast<T>(INFINITY);
  std::int32_t non_finite = 0;
  std::int32_t saturated = 0;
  ratio_moments moments;

  /// Any token: without branches, what does not count adds 0 and compares false.
  __device__ void add(T d, T rollout_logprob) {
    bool const on = turnwise::importance::is_finite(d);
    count += on;
    non_finite += !on && !is_masked(d);
    saturated += on && turnwise::importance::is_saturated(d);
    min = on && d < min ? d : min;
    max = on && d > max ? d : max;
    std::int64_t const index = on ? turnwise::importance::log_ratio_index(d) : 0;
    sum += index;
    if constexpr (Moments) {
      auto const [k3, excess] =
          turnwise::importance::excess_of(static_cast<double>(index) * turnwise::importance::log_ratio_unit);
      moments.k3 += k3;
      moments.excess_squared = fma(excess, excess, moments.excess_squared);
      moments.rollout_logprob += on ? turnwise::importance::bounded_logprob(rollout_logprob) : 0.0;
    }
  }

  __device__ void add(block_sums<Moments> const& block) {
    sum += block.sum;
    count += block.count;
    min = fminf(static_cast<float>(min), block.min);
    max = fmaxf(static_cast<float>(max), block.max);
    if constexpr (Moments) {
      moments.k3 += block.k3;
      moments.excess_squared += block.excess_squared;
      moments.rollout_logprob += block.rollout_logprob;
    }
  }

  /// Combines the lanes whose numbers differ in the bits below `width`, a power of two; all lanes take part.
  template <bool Small>
  __device__ void combine(int width) {
    for (int offset = width / 2; offset > 0; offset /= 2) {
      sum += __shfl_xor_sync(every_lane, sum, offset);
      count += __shfl_xor_sync(every_lane, count, offset);
      T const other_min = __shfl_xor_sync(every_lane, min, offset);
      T const other_max = __shfl_xor_sync(every_lane, max, offset);
      min = other_min < min ? other_min : min;
      max = other_max > max ? other_max : max;
      if constexpr (!Small) {
        non_finite += __shfl_xor_sync(every_lane, non_finite, offset);
        saturated += __shfl_xor_sync(every_lane, saturated, offset);
      }
      if constexpr (Moments) {
        moments.k3 += __shfl_xor_sync(every_lane, moments.k3, offset);
        moments.excess_squared += __shfl_xor_sync(every_lane, moments.excess_squared, offset);
        moments.rollout_logprob += __shfl_xor_sync(every_lane, moments.rollout_logprob, offset);
      }
    }
  }

  /// Adding +0 turns -0 into +0.
  [[nodiscard]] __device__ turn_statistics statistics() const {
    return {count, sum, static_cast<double>(min) + 0.0, static_cast<double>(max) + 0.0, non_finite, saturated};
  }
};

/// Sums of up to block_tokens small or masked log ratios; `Near`: all within +-small_log_ratio, where moments are cheap.
/// The scaling by 2^24 is exact, the hardware's conversion rounds to nearest even.
template <bool Masked, bool Moments, bool Near = false>
__device__ block_sums<Moments> reduce_block(float const* d, float const* rollout, int count = block_tokens) {
  block_sums<Moments> block{};
  block.count = Masked ? 0 : count;
  block.min = INFINITY;
  block.max = -INFINITY;
#pragma unroll
  for (int k = 0; k < block_tokens; ++k) {
    if (k >= count) break;
    bool const on = !Masked || !is_masked(d[k]);
    std::int32_t const index = __float2int_rn(on ? d[k] * 0x1p24f : 0.0f);
    block.sum += index;
    if constexpr (Masked) block.count += on;
    block.min = fminf(block.min, d[k]);  // pass over NaN
    block.max = fmaxf(block.max, d[k]);
    if constexpr (Moments) {
      auto const [k3, excess] =
          turnwise::importance::excess_of<Near>(static_cast<double>(index) * turnwise::importance::log_ratio_unit);
      block.k3 += k3;
      block.excess_squared = fma(excess, excess, block.excess_squared);
      block.rollout_logprob += on ? static_cast<double>(rollout[k]) : 0.0;
    }
  }
  return block;
}

/// `Count` consecutive values at an address aligned to 16 bytes.
template <int Count, typename T>
__device__ void load_vector(T const* from, T (&to)[Count]) {
  static_assert(Count * sizeof(T) % 16 == 0);
  uint4 words[Count * sizeof(T) / 16];
#pragma unroll
  for (unsigned w = 0; w < Count * sizeof(T) / 16; ++w)
    words[w] = __ldcs(reinterpret_cast<uint4 const*>(from) + w);  // read once
  __builtin_memcpy(&to, &words, sizeof to);
}

/// A whole chunk in the registers of a warp: `vector` tokens in a row a lane, `rows` times.
template <logprob_value Old, logprob_value Rollout, bool Moments>
class chunk_registers {
 public:
  using wide = log_ratio_t<Old, Rollout>;
  /// Whole blocks, and at least 16 bytes of either array.
  static constexpr int vector =
      sizeof(Old) == 8 && sizeof(Rollout) == 8
          ? block_tokens
          : 16 / static_cast<int>(sizeof(Old) < sizeof(Rollout) ? sizeof(Old) : sizeof(Rollout));
  static constexpr int rows = static_cast<int>(chunk_tokens) / (static_cast<int>(warp_lanes) * vector);

  static_assert(vector % block_tokens == 0);

  wide d[rows * vector];
  wide rollout[Moments ? rows * vector : 1];

  /// Place in the chunk of this lane's token i.
  [[nodiscard]] static __device__ int place(int i) {
    return (i / vector * static_cast<int>(warp_lanes) + static_cast<int>(threadIdx.x % warp_lanes)) * vector +
           i % vector;
  }

  /// Starts all loads, of arrays at multiples of 16 bytes (the mask: 4); `finish` waits for them.
  __device__ void start(token_logprobs<Old, Rollout> const& tokens, std::int64_t first) {
#pragma unroll
    for (int row = 0; row < rows; ++row) {
      load_vector<vector>(tokens.old_logprob.data() + first + place(row * vector), old_[row]);
      load_vector<vector>(tokens.rollout_logprob.data() + first + place(row * vector), rollout_[row]);
      if (tokens.mask.empty()) continue;
      std::uint8_t const* const mask = tokens.mask.data() + first + place(row * vector);
#pragma unroll
      for (int w = 0; w < vector / block_tokens; ++w)
        mask_[row][w] = __ldcs(reinterpret_cast<unsigned const*>(mask) + w);
    }
  }

  __device__ void finish(token_logprobs<Old, Rollout> const& tokens) {
#pragma unroll
    for (int i = 0; i < rows * vector; ++i) {
      d[i] = turnwise::importance::log_ratio(old_[i / vector][i % vector], rollout_[i / vector][i % vector]);
      if constexpr (Moments) rollout[i] = static_cast<wide>(rollout_[i / vector][i % vector]);
    }
    if (tokens.mask.empty()) return;
#pragma unroll
    for (int i = 0; i < rows * vector; ++i)
      if ((mask_[i / vector][i % vector / block_tokens] >> (8 * (i % block_tokens)) & 0xff) == 0)
        d[i] = masked_value<wide>();
  }

  /// Whether every log ratio of the warp that counts lies within +-limit; NaN does not.
  [[nodiscard]] __device__ bool within(float limit, bool masked) const {
    bool inside = sizeof(wide) == 4;
#pragma unroll
    for (int i = 0; i < rows * vector; ++i)
      inside = inside && (fabsf(static_cast<float>(d[i])) <= limit || (masked && is_masked(d[i])));
    return __all_sync(every_lane, inside);
  }

 private:
  Old old_[rows][vector];
  Rollout rollout_[rows][vector];
  unsigned mask_[rows][vector / block_tokens];  // a byte a token
};

}  // namespace turnwise::gpu::importance::detail
