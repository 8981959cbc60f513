/// @file
/// A block's part in the scan of segmented_scan.cuh: the work on one chunk of tokens.
#pragma once

#include <turnwise/gpu/advantage/detail/segmented_scan_map.cuh>
#include <turnwise/gpu/advantage/detail/segmented_scan_stage.cuh>
#include <turnwise/gpu/core/device_span.cuh>
#include <turnwise/gpu/core/status.cuh>
#include <turnwise/gpu/core/workspace.cuh>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::advantage {

/// turnwise::advantage::token_segments in device memory: same meaning, same sizes.
template <real T>
struct token_segments {
  device_span<std::int64_t const> offsets{};
  device_span<std::uint8_t const> cut{};
  device_span<T const> next_value{};
  device_span<std::uint8_t const> mask{};

  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr std::size_t segments() const noexcept {
    return offsets.empty() ? 0 : offsets.size() - 1;
  }
};

namespace detail {

inline constexpr int scan_threads = 256;
inline constexpr int scan_warps = scan_threads / gpu::detail::lanes;

/// Tokens of a thread. Odd, so that threads meet no bank twice in shared memory; as many as let a block fit in 48 KiB.
template <real T, typename Rule>
inline constexpr int thread_tokens = sizeof(T) == 4 ? (Rule::off_policy ? 11 : 15) : (Rule::off_policy ? 5 : 7);

template <real T, typename Rule>
inline constexpr int scan_chunk = scan_threads* thread_tokens<T, Rule>;

template <real T>
struct scan_call {
  token_segments<T> segments;
  device_span<T const> reward, value, log_ratio;
  device_span<T> advantage, target;
  status_record* status;
};

struct scan_control {
  unsigned long long ticket;  ///< next block's; blocks take chunks in the order in which they begin to run
  unsigned long long broken;  ///< not 0: offsets are wrong
};

/// The blocks of the workspace, for counting and for use alike.
struct scan_blocks {
  device_span<scan_control> control;
  device_span<std::int64_t> first_segment;  ///< [chunks + 1] first segment that ends behind the chunk's first token
  device_span<chunk_link> links;            ///< [chunks]

  scan_blocks(std::size_t chunks, workspace& scratch)
      : control(scratch.take<scan_control>(1, "scan: control")),
        first_segment(scratch.take<std::int64_t>(chunks + 1, "scan: first segments")),
        links(scratch.take<chunk_link>(chunks, "scan: links")) {}
};

/// Shared memory of a block with a chunk.
template <real T, typename Rule>
struct chunk_store {
  static constexpr int tokens = scan_chunk<T, Rule>;
  static constexpr int staged = tokens + word_elements<T>;
  static constexpr int bit_words = tokens / 32;

  alignas(16) T reward[staged];  ///< then the advantages
  alignas(16) T value[staged];   ///< then the targets
  alignas(16) T log_ratio[Rule::off_policy ? staged : word_elements<T>];
  T next_value[tokens];          ///< at the last token of each segment
  unsigned on[bit_words + 1];    ///< bit: the token is not masked
  unsigned last[bit_words + 1];  ///< bit: a segment's last token
  run_map warp[scan_warps];
  double later_value, later_excess;
};

/// 32 bits of an array from bit `start` on.
__device__ inline unsigned bits_from(unsigned const* words, int start) {
  return __funnelshift_r(words[start / 32], words[start / 32 + 1], static_cast<unsigned>(start % 32));
}

/// A block's work on one chunk.
template <real T, typename Rule>
class chunk_scan {
 public:
  static constexpr int each = thread_tokens<T, Rule>;
  static constexpr int unrolled = Rule::off_policy ? 1 : each;
  using store_type = chunk_store<T, Rule>;

  __device__ chunk_scan(scan_call<T> const& call, Rule const& rule, scan_blocks const& work, store_type& store,
                        std::int64_t order)
      : call_(call), rule_(rule), work_(work), store_(store), order_(order) {
    auto const tokens = static_cast<std::int64_t>(call.reward.size());
    chunk_ = static_cast<std::int64_t>(work.links.size()) - 1 - order;
    first_ = chunk_ * store_type::tokens;
    count_ = static_cast<int>(tokens - first_ < store_type::tokens ? tokens - first_ : store_type::tokens);
  }

  __device__ void run() {
    load();
    run_map const mine = reduce();
    later_token const later = carry(mine);
    write(later);
    __syncthreads();
    if (!call_.advantage.empty()) unstage(store_.reward, reward_phase_, first_, count_, call_.advantage.data());
    if (!call_.target.empty()) unstage(store_.value, value_phase_, first_, count_, call_.target.data());
  }

 private:
  __device__ void load() {
    auto const tokens = static_cast<std::int64_t>(call_.reward.size());
    reward_phase_ = stage(call_.reward.data(), tokens, first_, count_, store_.reward);
    value_phase_ = stage(call_.value.data(), tokens, first_, count_, store_.value);
    if constexpr (Rule::off_policy)
      ratio_phase_ = stage(call_.log_ratio.data(), tokens, first_, count_, store_.log_ratio);
    __pipeline_commit();

    int const thread = static_cast<int>(threadIdx.x);
    int const lane = gpu::detail::lane_id();
    bool const broken = work_.control.data()->broken != 0;
    auto const& mask = call_.segments.mask;
#pragma unroll 4
    for (int word = thread / gpu::detail::lanes; word < store_type::bit_words; word += scan_warps) {
      int const at = word * 32 + lane;
      bool const on = at < count_ && !broken && (mask.empty() || mask[static_cast<std::size_t>(first_ + at)] != 0);
      unsigned const bits = __ballot_sync(gpu::detail::all_lanes, on);
      if (lane == 0) store_.on[word] = bits;
    }
    for (int word = thread; word <= store_type::bit_words; word += scan_threads) store_.last[word] = 0;
    if (thread == 0) store_.on[store_type::bit_words] = 0;
    __syncthreads();
    if (!broken) mark_ends();
    __pipeline_wait_prior(0);
    __syncthreads();
  }

  /// Marks the last token of each segment that ends in the chunk.
  __device__ void mark_ends() {
    auto const& segments = call_.segments;
    std::int64_t const stop = work_.first_segment[static_cast<std::size_t>(chunk_) + 1];
    for (std::int64_t k = work_.first_segment[static_cast<std::size_t>(chunk_)] + threadIdx.x; k < stop;
         k += scan_threads) {
      auto const segment = static_cast<std::size_t>(k);
      std::int64_t const end = segments.offsets[segment + 1];
      std::int64_t const at = end - 1 - first_;
      if (segments.offsets[segment] >= end || at < 0 || at >= count_) continue;
      T next = !segments.cut.empty() && segments.cut[segment] != 0 ? segments.next_value[segment] : T{0};
      if (!within(next, limit)) {
        report(call_.status, status_code::token_value, end - 1);
        next = T{0};
      }
      store_.next_value[at] = next;
      atomicOr(&store_.last[at / 32], 1u << (at % 32));
    }
  }

  /// This thread's tokens as one run; bad ones become masked.
  __device__ run_map reduce() {
    int const start = static_cast<int>(threadIdx.x) * each;
    on_ = bits_from(store_.on, start);
    last_ = bits_from(store_.last, start);
    run_map run = empty_run();
#pragma unroll unrolled
    for (int i = each - 1; i >= 0; --i) {
      if ((last_ >> i & 1) != 0) run = segment_end(static_cast<double>(store_.next_value[start + i]));
      if ((on_ >> i & 1) == 0) continue;
      T const reward = store_.reward[reward_phase_ + start + i];
      T const value = store_.value[value_phase_ + start + i];
      bool fine = within(reward, limit) && within(value, limit);
      if constexpr (Rule::off_policy) fine = fine && within(store_.log_ratio[ratio_phase_ + start + i], largest<T>);
      if (!fine) {
        report(call_.status, status_code::token_value, first_ + start + i);
        on_ &= ~(1u << i);
        continue;
      }
      run.prepend({static_cast<double>(reward), static_cast<double>(value)}, weights(start + i), rule_.gamma);
    }
    return run;
  }

  /// Publishes the chunk's map, waits for what reaches it from behind, and returns what reaches this thread's tokens.
  __device__ later_token carry(run_map const& mine) {
    int const lane = gpu::detail::lane_id();
    int const warp = static_cast<int>(threadIdx.x) / gpu::detail::lanes;
    run_map const with_above = with_lanes_above(mine);
    run_map above = shifted_down(with_above, 1);
    if (lane == gpu::detail::lanes - 1) above = empty_run();
    if (lane == 0) store_.warp[warp] = with_above;
    __syncthreads();
    if (threadIdx.x == 0) {
      run_map whole = store_.warp[scan_warps - 1];
      for (int w = scan_warps - 2; w >= 0; --w) whole = joined(store_.warp[w], whole);
      work_.links[static_cast<std::size_t>(order_)].publish_map(whole);
      later_token const later = wait();
      store_.later_value = later.value;
      store_.later_excess = later.excess;
    }
    __syncthreads();
    later_token later{store_.later_value, store_.later_excess};
    for (int w = scan_warps - 1; w > warp; --w) later = store_.warp[w](later);
    return above(later);
  }

  __device__ later_token wait() const {
    later_token later{0, 0};
    if (order_ == 0) return later;
    for (;;) {
      if (work_.links[static_cast<std::size_t>(order_)].received_later(later)) return later;
      run_map behind;
      if (work_.links[static_cast<std::size_t>(order_) - 1].received_map(behind) && behind.is_constant())
        return {behind.value, behind.beta};
    }
  }

  /// The recursion over this thread's tokens; results take the place of rewards and values.
  __device__ void write(later_token later) {
    int const start = static_cast<int>(threadIdx.x) * each;
#pragma unroll unrolled
    for (int i = each - 1; i >= 0; --i) {
      T& reward = store_.reward[reward_phase_ + start + i];
      T& value = store_.value[value_phase_ + start + i];
      if ((last_ >> i & 1) != 0) later = {static_cast<double>(store_.next_value[start + i]), 0};
      if ((on_ >> i & 1) == 0) {
        reward = value = T{0};
        continue;
      }
      token_numbers const token{static_cast<double>(reward), static_cast<double>(value)};
      token_weights const of_token = weights(start + i);
      double const excess = turnwise::advantage::detail::token_excess(token, of_token, rule_.gamma, later);
      reward = narrowed<T>(rule_.advantage(token, of_token, later, excess));
      value = narrowed<T>(token.value + excess);
      later = {token.value, excess};
    }
  }

  [[nodiscard]] __device__ token_weights weights(int at) const {
    if constexpr (Rule::off_policy)
      return rule_.weights(static_cast<double>(store_.log_ratio[ratio_phase_ + at]));
    else
      return rule_.weights(0);
  }
  [[nodiscard]] __device__ static bool within(T number, T bound) { return number <= bound && number >= -bound; }

  static constexpr T limit = static_cast<T>(magnitude_limit<T>);
  scan_call<T> const& call_;
  Rule const& rule_;
  scan_blocks const& work_;
  store_type& store_;
  std::int64_t order_, chunk_, first_;
  int count_;
  int reward_phase_ = 0, value_phase_ = 0, ratio_phase_ = 0;
  unsigned on_ = 0, last_ = 0;
};

}  // namespace detail
}  // namespace turnwise::gpu::advantage
