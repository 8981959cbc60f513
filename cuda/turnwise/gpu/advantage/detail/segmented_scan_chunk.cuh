/// @file
/// A block's part in the scan of segmented_scan.cuh: the work on one chunk of tokens.
#pragma once

#include <turnwise/gpu/advantage/detail/segmented_scan_map.cuh>
#include <turnwise/gpu/advantage/detail/segmented_scan_stage.cuh>
#include <turnwise/gpu/advantage/token_segments.cuh>
#include <turnwise/gpu/core/device_span.cuh>
#include <turnwise/gpu/core/status.cuh>
#include <turnwise/gpu/core/workspace.cuh>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace turnwise::gpu::advantage {
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
  run_map warp[scan_warps + 1];  ///< of each warp, then of it and those above it; the last one: of none
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
  static constexpr int unrolled = Rule::off_policy ? 1 : each;  ///< an exp a token is code enough
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
    by_content([&](auto constant) { write<decltype(constant)::value>(later); });
    __syncthreads();
    constexpr int tokens = store_type::tokens;
    if (!call_.advantage.empty())
      unstage<scan_threads, tokens>(store_.reward, reward_phase_, first_, count_, call_.advantage.data());
    if (!call_.target.empty())
      unstage<scan_threads, tokens>(store_.value, value_phase_, first_, count_, call_.target.data());
  }

 private:
  __device__ void load() {
    auto const tokens = static_cast<std::int64_t>(call_.reward.size());
    reward_phase_ = stage<scan_threads, store_type::tokens>(call_.reward.data(), tokens, first_, count_, store_.reward);
    value_phase_ = stage<scan_threads, store_type::tokens>(call_.value.data(), tokens, first_, count_, store_.value);
    if constexpr (Rule::off_policy)
      ratio_phase_ =
          stage<scan_threads, store_type::tokens>(call_.log_ratio.data(), tokens, first_, count_, store_.log_ratio);
    __pipeline_commit();

    bool const broken = work_.control.data()->broken != 0;
    mark_unmasked(broken);
    for (int word = static_cast<int>(threadIdx.x); word <= store_type::bit_words; word += scan_threads)
      store_.last[word] = 0;
    __syncthreads();
    if (!broken) mark_ends();
    __pipeline_wait_prior(0);
    __syncthreads();
  }

  __device__ void mark_unmasked(bool broken) {
    int const thread = static_cast<int>(threadIdx.x);
    auto const& mask = call_.segments.mask;
    if (mask.empty() || broken) {
      for (int word = thread; word <= store_type::bit_words; word += scan_threads) {
        int const left = broken ? 0 : count_ - word * 32;
        store_.on[word] = left >= 32 ? ~0u : left > 0 ? (1u << left) - 1 : 0;
      }
      return;
    }
    std::uint8_t on[each];
#pragma unroll
    for (int i = 0; i < each; ++i) {
      int const at = thread + i * scan_threads;
      on[i] = at < count_ ? mask[static_cast<std::size_t>(first_ + at)] : std::uint8_t{0};
    }
#pragma unroll
    for (int i = 0; i < each; ++i) {
      unsigned const bits = __ballot_sync(gpu::detail::all_lanes, on[i] != 0);
      if (gpu::detail::lane_id() == 0) store_.on[thread / gpu::detail::lanes + i * scan_warps] = bits;
    }
    if (thread == 0) store_.on[store_type::bit_words] = 0;
  }

  /// Marks the last token of each segment that ends in the chunk.
  __device__ void mark_ends() {
    auto const& segments = call_.segments;
    std::int64_t const stop = work_.first_segment[static_cast<std::size_t>(chunk_) + 1];
#pragma unroll 1
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

  /// What a warp's tokens need; a path of code each, for most have it easy.
  enum class content { plain, ends, gaps };  ///< nothing; looking for segment ends; and for masked tokens

  /// Calls body with the content as a constant.
  template <typename Body>
  __device__ void by_content(Body body) {
    if (content_ == content::plain)
      body(std::integral_constant<content, content::plain>{});
    else if (content_ == content::ends)
      body(std::integral_constant<content, content::ends>{});
    else
      body(std::integral_constant<content, content::gaps>{});
  }

  /// This thread's tokens as one run; bad ones become masked.
  __device__ run_map reduce() {
    using gpu::detail::all_lanes;
    constexpr unsigned all = (1u << each) - 1;
    start_ = static_cast<int>(threadIdx.x) * each;
    on_ = bits_from(store_.on, start_) & all;
    last_ = bits_from(store_.last, start_) & all;
    if (__all_sync(all_lanes, on_ == all))
      content_ = __all_sync(all_lanes, last_ == 0) ? content::plain : content::ends;
    for (;;) {
      unsigned bad = 0;
      run_map run = empty_run();
      by_content([&](auto constant) { run = reduced<decltype(constant)::value>(bad); });
      if (__all_sync(all_lanes, bad == 0)) return run;
      on_ &= ~bad;
      content_ = content::gaps;
      for (; bad != 0; bad &= bad - 1)
        report(call_.status, status_code::token_value, first_ + start_ + gpu::detail::lowest_lane(bad));
    }
  }

  /// The map of this thread's tokens, and the bits of bad ones; only those count if there are any.
  template <content has>
  __device__ run_map reduced(unsigned& bad) const {
    // The unmasked token whose next one lies behind the run, if any.
    int const foremost = has == content::plain    ? each - 1
                         : (on_ & ~last_) > last_ ? gpu::detail::highest_lane(on_)
                                                  : -1;
    run_map run{1, 0, 0, 0};
#pragma unroll unrolled
    for (int i = each - 1; i >= 0; --i) {
      T const reward = store_.reward[reward_phase_ + start_ + i];
      T const value = store_.value[value_phase_ + start_ + i];
      bool fine = within(reward, limit) && within(value, limit);
      if constexpr (Rule::off_policy) fine = fine && within(store_.log_ratio[ratio_phase_ + start_ + i], largest<T>);
      bool const on = has != content::gaps || (on_ >> i & 1) != 0;
      if (on && !fine) bad |= 1u << i;
      if (has != content::plain && (last_ >> i & 1) != 0)
        run = segment_end(static_cast<double>(store_.next_value[start_ + i]));
      run.prepend({static_cast<double>(reward), static_cast<double>(value)}, weights(start_ + i, on), rule_.gamma, on,
                  i == foremost);
    }
    return has == content::gaps && (on_ | last_) == 0 ? empty_run() : run;
  }

  /// Publishes the chunk's map, waits for what reaches it from behind, and returns what reaches this thread's tokens.
  __device__ later_token carry(run_map const& mine) {
    int const lane = gpu::detail::lane_id();
    int const warp = static_cast<int>(threadIdx.x) / gpu::detail::lanes;
    run_map const with_above = with_lanes_above(mine);
    run_map above = from_above(with_above, 1);
    if (lane == gpu::detail::lanes - 1) above = empty_run();
    if (lane == 0) store_.warp[warp] = with_above;
    __syncthreads();
    if (warp == 0) {
      run_map const whole = with_lanes_above<scan_warps>(lane < scan_warps ? store_.warp[lane] : empty_run());
      if (lane == 0) work_.links[static_cast<std::size_t>(order_)].publish_map(whole);
      if (lane <= scan_warps) store_.warp[lane] = whole;
      later_token later{0, 0};
      if (order_ > 0) later = work_.links[static_cast<std::size_t>(order_) - 1].wait_for_next();
      if (lane == 0) store_.later_value = later.value, store_.later_excess = later.excess;
    }
    __syncthreads();
    return above(store_.warp[warp + 1]({store_.later_value, store_.later_excess}));
  }

  /// The recursion over this thread's tokens; results take the place of rewards and values.
  template <content has>
  __device__ void write(later_token later) {
    bool const wants_target = !call_.target.empty();
    T* const rewards = store_.reward + reward_phase_ + start_;
    T* const values = store_.value + value_phase_ + start_;
    T reward = rewards[each - 1], value = values[each - 1];
#pragma unroll unrolled
    for (int i = each - 1; i >= 0; --i) {
      token_numbers const token{static_cast<double>(reward), static_cast<double>(value)};
      // Before this token's results are stored: the compiler has to think that they might change the next.
      if (i > 0) reward = rewards[i - 1], value = values[i - 1];
      if (has != content::plain && (last_ >> i & 1) != 0)
        later = {static_cast<double>(store_.next_value[start_ + i]), 0};
      bool const on = has != content::gaps || (on_ >> i & 1) != 0;
      token_weights const of_token = weights(start_ + i, on);
      double const excess = turnwise::advantage::detail::token_excess(token, of_token, rule_.gamma, later);
      rewards[i] = on ? clamped(rule_.advantage(token, of_token, later, excess)) : T{0};
      if (wants_target) values[i] = on ? clamped(token.value + excess) : T{0};
      if (on) later = {token.value, excess};
    }
  }

  [[nodiscard]] __device__ token_weights weights(int at, bool on) const {
    if constexpr (Rule::off_policy)
      return on ? rule_.weights(static_cast<double>(store_.log_ratio[ratio_phase_ + at])) : token_weights{};
    else
      return rule_.weights(0);
  }
  [[nodiscard]] __device__ static bool within(T number, T bound) {
    using std::fabs;
    return fabs(number) <= bound;
  }
  /// narrowed<T>, with the comparisons in T.
  [[nodiscard]] __device__ static T clamped(double number) {
    using std::fmax, std::fmin;
    return fmax(fmin(static_cast<T>(number), largest<T>), -largest<T>);
  }

  static constexpr T limit = static_cast<T>(magnitude_limit<T>);
  scan_call<T> const& call_;
  Rule const& rule_;
  scan_blocks const& work_;
  store_type& store_;
  std::int64_t order_, chunk_, first_;
  int count_;
  int reward_phase_ = 0, value_phase_ = 0, ratio_phase_ = 0;
  int start_ = 0;               ///< this thread's first token in the chunk
  unsigned on_ = 0, last_ = 0;  ///< bits of its tokens
  content content_ = content::gaps;
};

}  // namespace detail
}  // namespace turnwise::gpu::advantage
