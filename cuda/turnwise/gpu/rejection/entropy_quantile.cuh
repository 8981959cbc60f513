/// @file
/// Keeps the tokens of highest entropy, on the device.
#pragma once

#include <turnwise/gpu/core/device_span.cuh>
#include <turnwise/gpu/core/launch.cuh>
#include <turnwise/gpu/core/warp.cuh>
#include <turnwise/gpu/core/workspace.cuh>
#include <turnwise/rejection/entropy_quantile.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace turnwise::gpu::rejection {

using turnwise::rejection::entropy_quantile_options;

namespace detail {

inline constexpr unsigned entropy_threads = 256;
inline constexpr int digit_bits = 11;
inline constexpr int digit_count = 1 << digit_bits;

/// The bits of a finite number in an order that integers have too; -0 as +0.
template <real Wide>
struct entropy_key {
  using type = std::conditional_t<sizeof(Wide) == 4, std::uint32_t, std::uint64_t>;
  static constexpr int bits = 8 * sizeof(Wide);
  static constexpr int passes = (bits + digit_bits - 1) / digit_bits;
  static constexpr type sign = type{1} << (bits - 1);
  /// Bits below the digit of a pass.
  static TURNWISE_HOST_DEVICE constexpr int shift(int pass) {
    return pass + 1 < passes ? bits - digit_bits * (pass + 1) : 0;
  }

  static __device__ type of(Wide value) {
    auto const raw = __builtin_bit_cast(type, value + Wide{0});
    return (raw & sign) != 0 ? ~raw : raw | sign;
  }
  static __device__ Wide number(type key) { return __builtin_bit_cast(Wide, (key & sign) != 0 ? key & ~sign : ~key); }
};

/// What is known of the threshold after a pass. All 0 at the start.
template <real Wide>
struct entropy_selection {
  typename entropy_key<Wide>::type prefix;          ///< leading bits of the threshold's key
  std::int64_t wanted;                              ///< its number from the top among the tokens with this prefix
  std::int64_t tokens;                              ///< that take part
  unsigned blocks_done[entropy_key<Wide>::passes];  ///< in each pass
  unsigned long long digits[entropy_key<Wide>::passes][digit_count];
};

template <logprob_value T>
[[nodiscard]] __device__ bool takes_part(device_span<T const> entropy, device_span<std::uint8_t const> keep,
                                         std::size_t i) {
  return keep[i] != 0 && turnwise::importance::is_finite(static_cast<log_ratio_t<T, T>>(entropy[i]));
}

/// Finds the digit with number `wanted` from the top, by one block.
template <int Pass, real Wide>
__device__ void choose_digit(entropy_selection<Wide>& selection, double share) {
  constexpr int each = digit_count / static_cast<int>(entropy_threads);
  __shared__ std::int64_t sums[entropy_threads];
  int const thread = static_cast<int>(threadIdx.x);
  int const top = digit_count - 1 - each * thread;  // this thread's digits go down from here
  std::int64_t count[each];
  std::int64_t own = 0;
  for (int d = 0; d < each; ++d) {
    count[d] = static_cast<std::int64_t>(__ldcg(&selection.digits[Pass][top - d]));
    own += count[d];
  }
  sums[thread] = own;
  __syncthreads();
  for (int step = 1; step < static_cast<int>(entropy_threads); step *= 2) {
    std::int64_t const before = thread >= step ? sums[thread - step] : 0;
    __syncthreads();
    sums[thread] += before;
    __syncthreads();
  }
  std::int64_t const tokens = sums[entropy_threads - 1];
  std::int64_t const wanted =
      Pass == 0 ? turnwise::rejection::top_tokens(tokens, share) : static_cast<std::int64_t>(selection.wanted);
  auto const prefix = selection.prefix;
  __syncthreads();
  if (Pass == 0 && thread == 0) selection.tokens = tokens;
  std::int64_t above = sums[thread] - own;
  if (wanted <= above || wanted > above + own) return;
  for (int d = 0; d < each; ++d) {
    if (wanted <= above + count[d]) {
      constexpr int width =
          (Pass == 0 ? entropy_key<Wide>::bits : entropy_key<Wide>::shift(Pass - 1)) - entropy_key<Wide>::shift(Pass);
      selection.prefix =
          static_cast<decltype(prefix)>(prefix << (Pass == 0 ? 0 : width)) | static_cast<decltype(prefix)>(top - d);
      selection.wanted = wanted - above;
      return;
    }
    above += count[d];
  }
}

/// Counts one digit of the keys that have the prefix found so far; the last block to finish extends the prefix.
template <int Pass, logprob_value T>
TURNWISE_KERNEL void __launch_bounds__(entropy_threads)
    entropy_digit_kernel(device_span<T const> entropy, device_span<std::uint8_t const> keep, double share,
                         entropy_selection<log_ratio_t<T, T>>* selection) {
  using wide = log_ratio_t<T, T>;
  using key = entropy_key<wide>;
  __shared__ unsigned counts[digit_count];
  __shared__ bool is_last;
  for (unsigned d = threadIdx.x; d < digit_count; d += entropy_threads) counts[d] = 0;
  auto const prefix = selection->prefix;
  __syncthreads();
  gpu::detail::for_each_by_thread(static_cast<std::int64_t>(entropy.size()), [&](std::int64_t token) {
    auto const i = static_cast<std::size_t>(token);
    if (!takes_part(entropy, keep, i)) return;
    auto const mine = key::of(static_cast<wide>(entropy[i]));
    if constexpr (Pass > 0)
      if ((mine >> key::shift(Pass - 1)) != prefix) return;
    atomicAdd(&counts[(mine >> key::shift(Pass)) & (digit_count - 1)], 1u);
  });
  __syncthreads();
  for (unsigned d = threadIdx.x; d < digit_count; d += entropy_threads)
    if (counts[d] != 0) atomicAdd(&selection->digits[Pass][d], static_cast<unsigned long long>(counts[d]));
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(&selection->blocks_done[Pass], 1u) + 1 == gridDim.x;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  choose_digit<Pass>(*selection, share);
}

template <logprob_value T>
TURNWISE_KERNEL void __launch_bounds__(entropy_threads)
    entropy_mask_kernel(device_span<T const> entropy, entropy_selection<log_ratio_t<T, T>> const* selection,
                        device_span<std::uint8_t> keep, device_span<double> threshold) {
  using wide = log_ratio_t<T, T>;
  bool const any = selection->tokens > 0;
  auto const least = selection->prefix;
  if (blockIdx.x == 0 && threadIdx.x == 0 && !threshold.empty())
    threshold[0] =
        any ? static_cast<double>(entropy_key<wide>::number(least)) : __longlong_as_double(0x7ff8000000000000ll);
  gpu::detail::for_each_by_thread(static_cast<std::int64_t>(keep.size()), [&](std::int64_t token) {
    auto const i = static_cast<std::size_t>(token);
    if (keep[i] == 0) return;
    if (!takes_part<T>(entropy, keep, i) || entropy_key<wide>::of(static_cast<wide>(entropy[i])) < least) keep[i] = 0;
  });
}

template <int Pass, logprob_value T>
void enqueue_digits(device_span<T const> entropy, device_span<std::uint8_t const> keep, double share,
                    entropy_selection<log_ratio_t<T, T>>* selection, unsigned blocks, ::cuda::stream_ref stream) {
  if constexpr (Pass < entropy_key<log_ratio_t<T, T>>::passes) {
    launch("entropy_quantile: digit", entropy_digit_kernel<Pass, T>, blocks, entropy_threads, 0, stream, entropy, keep,
           share, selection);
    enqueue_digits<Pass + 1>(entropy, keep, share, selection, blocks, stream);
  }
}

}  // namespace detail

/// Bytes that entropy_quantile needs for entropies of type T, however many.
template <logprob_value T>
[[nodiscard]] std::size_t entropy_quantile_workspace_bytes() {
  workspace count;
  static_cast<void>(count.take<detail::entropy_selection<log_ratio_t<T, T>>>(1, "entropy_quantile: selection"));
  return count.used();
}

/// Clears all tokens but those whose entropy is among the highest of the batch: the device version, with the same bytes
/// and the same threshold.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. A radix selection: one
/// memset and 4 launches (doubles: 7).
/// @param[in]     entropy    [N] nats; double, or what converts exactly to float.
/// @param[in,out] keep       [N] of begin_token_mask, or of the rule before.
/// @param[out]    threshold  [1] the threshold, NaN without any token to choose from; or empty.
/// @throws precondition_error  sizes that differ, options as on the host, a workspace too small; nothing is enqueued.
/// @throws cuda_error          a launch was refused.
/// @par Complexity  4 reads of the entropies (doubles: 7).
/// @see turnwise::rejection::entropy_quantile
template <logprob_value T>
void entropy_quantile(device_span<T const> entropy, entropy_quantile_options const& options,
                      device_span<std::uint8_t> keep, device_span<double> threshold, workspace scratch,
                      ::cuda::stream_ref stream) {
  expects_size("entropy_quantile", "entropy", entropy.size(), keep.size(), "token, as keep");
  if (!threshold.empty()) expects_size("entropy_quantile", "threshold", threshold.size(), 1, "batch");
  turnwise::rejection::detail::check_entropy_options(options, "entropy_quantile");
  auto const selection =
      scratch.take<detail::entropy_selection<log_ratio_t<T, T>>>(1, "entropy_quantile: selection").data();
  check(cudaMemsetAsync(selection, 0, sizeof *selection, stream.get()), "entropy_quantile: clear");
  // Each block takes 16 tokens a thread at least, so that its counts are worth adding up.
  unsigned const blocks =
      grid_blocks(std::min<std::size_t>(entropy.size() / (16 * detail::entropy_threads) + 1, 1024), 1);
  detail::enqueue_digits<0, T>(entropy, keep, options.share, selection, blocks, stream);
  launch("entropy_quantile: mask", detail::entropy_mask_kernel<T>,
         grid_blocks(std::max<std::size_t>(keep.size(), 1), detail::entropy_threads), detail::entropy_threads, 0,
         stream, entropy, static_cast<detail::entropy_selection<log_ratio_t<T, T>> const*>(selection), keep, threshold);
}

}  // namespace turnwise::gpu::rejection
