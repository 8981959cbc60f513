/// @file
/// The tokens of one lane: rows of plain tokens, loaded, evaluated and stored together; any token on its own.
#pragma once

#include <turnwise/gpu/core/warp.cuh>
#include <turnwise/gpu/loss/inputs.cuh>
#include <turnwise/loss/detail/evaluate.hpp>
#include <turnwise/loss/record.hpp>

#include <cstddef>
#include <cstdint>

namespace turnwise::gpu::loss::detail {

namespace host = turnwise::loss;

/// What the tokens of a turn share; scale 0: not in the loss.
template <real F>
struct turn_values {
  F scale = 0, advantage = 0, ratio = 1;
};

/// `Count` values at an address aligned to their size, up to 16 bytes, in as few loads as there are words.
template <int Count, typename T>
__device__ void load_row(T const* from, T (&to)[Count]) {
  constexpr unsigned bytes = Count * sizeof(T);
  static_assert(bytes == 4 || bytes == 8 || bytes % 16 == 0);
  if constexpr (bytes % 16 == 0) {
    uint4 words[bytes / 16];
#pragma unroll
    for (unsigned w = 0; w < bytes / 16; ++w) words[w] = __ldcs(reinterpret_cast<uint4 const*>(from) + w);  // read once
    __builtin_memcpy(&to, &words, bytes);
  } else if constexpr (bytes == 8) {
    uint2 const word = __ldcs(reinterpret_cast<uint2 const*>(from));
    __builtin_memcpy(&to, &word, bytes);
  } else {
    unsigned const word = __ldcs(reinterpret_cast<unsigned const*>(from));
    __builtin_memcpy(&to, &word, bytes);
  }
}

template <int Count, typename T>
__device__ void store_row(T* to, T const (&from)[Count]) {
  constexpr unsigned bytes = Count * sizeof(T);
  static_assert(bytes == 8 || bytes % 16 == 0);
  if constexpr (bytes % 16 == 0) {
    uint4 words[bytes / 16];
    __builtin_memcpy(&words, &from, bytes);
#pragma unroll
    for (unsigned w = 0; w < bytes / 16; ++w) reinterpret_cast<uint4*>(to)[w] = words[w];
  } else {
    uint2 word;
    __builtin_memcpy(&word, &from, bytes);
    *reinterpret_cast<uint2*>(to) = word;
  }
}

/// Gradients of tokens that are not in the loss.
template <int Count, typename T>
__device__ void clear_row(T* to) {
  T zeros[Count];
#pragma unroll
  for (T& value : zeros) value = static_cast<T>(0.0f);
  store_row(to, zeros);
}

/// The lanes' values joined in a fixed order, in lane 0.
template <typename T, typename Join>
__device__ T warp_join(T value, Join join) {
#pragma unroll
  for (unsigned offset = gpu::detail::lanes / 2; offset > 0; offset /= 2)
    value = join(value, __shfl_down_sync(gpu::detail::all_lanes, value, offset));
  return value;
}

/// Sums of one lane.
template <real F>
struct lane_record {
  double policy_loss = 0, kl_loss = 0, entropy_loss = 0, log_ratio = 0, ratio = 0, kl = 0, entropy = 0;
  F ratio_min = static_cast<F>(INFINITY), ratio_max = -static_cast<F>(INFINITY);
  std::int32_t tokens = 0, turns = 0, non_finite = 0, saturated = 0, clipped_low = 0, clipped_high = 0;

  template <bool Extras>
  __device__ void add(host::detail::token_result<F> const& token, bool on) {
    non_finite += on && !token.in_loss;
    if (!token.in_loss) return;
    ++tokens;
    policy_loss += static_cast<double>(token.policy_loss);
    log_ratio += static_cast<double>(token.log_ratio);
    ratio += static_cast<double>(token.ratio);
    ratio_min = fmin(ratio_min, token.ratio);
    ratio_max = fmax(ratio_max, token.ratio);
    saturated += token.saturated;
    clipped_low += token.clipped_low;
    clipped_high += token.clipped_high;
    if constexpr (Extras) {
      kl += static_cast<double>(token.kl);
      kl_loss += static_cast<double>(token.kl_loss);
      entropy += static_cast<double>(token.entropy);
      entropy_loss += static_cast<double>(token.entropy_loss);
    }
  }

  /// Of the whole warp, in lane 0.
  template <bool Extras>
  [[nodiscard]] __device__ host::loss_record warp_total() const {
    auto const sum = [](double value) { return warp_join(value, [](double a, double b) { return a + b; }); };
    auto const count = [](std::int32_t value) { return __reduce_add_sync(gpu::detail::all_lanes, value); };
    host::loss_record total;
    total.policy_loss = sum(policy_loss);
    total.tokens = count(tokens);
    total.turns = count(turns);
    total.non_finite = count(non_finite);
    total.saturated = count(saturated);
    total.clipped_low = count(clipped_low);
    total.clipped_high = count(clipped_high);
    total.log_ratio_sum = sum(log_ratio);
    total.ratio_sum = sum(ratio);
    total.ratio_min = static_cast<double>(warp_join(ratio_min, [](F a, F b) { return fmin(a, b); }));
    total.ratio_max = static_cast<double>(warp_join(ratio_max, [](F a, F b) { return fmax(a, b); }));
    if constexpr (Extras) {
      total.kl_loss = sum(kl_loss);
      total.entropy_loss = sum(entropy_loss);
      total.kl_sum = sum(kl);
      total.entropy_sum = sum(entropy);
    }
    return total;
  }
};

/// `Count` neighbours of one turn, none of them masked. False, with nothing stored or added, if not all of them are as
/// evaluate_plain takes them.
/// @param advantage_of  the advantage of the row's token v.
template <bool ByToken, int Count, typename Work, typename Current, typename Old, typename AdvantageOf>
__device__ bool plain_row(Work const& work, std::size_t first, Current const (&current)[Count], Old const (&old)[Count],
                          turn_values<typename Work::F> const& turn, AdvantageOf advantage_of,
                          lane_record<typename Work::F>& sums) {
  using F = typename Work::F;
  using policy_type = decltype(work.policy);
  using gradient_type = typename decltype(work.out.gradient)::element_type;
  std::uint8_t selected[Count];
  if constexpr (host::uses_selection<policy_type>) load_row(work.in.selected.data() + first, selected);
  gradient_type gradient[Count];
  F policy_loss = 0, log_ratio = 0, ratio = 0, furthest = 0, squares = 0, low = sums.ratio_min, high = sums.ratio_max;
  int clipped_low = 0, clipped_high = 0;
#pragma unroll
  for (int v = 0; v < Count; ++v) {
    host::detail::token_values<F> values{};
    values.current = static_cast<F>(current[v]);
    values.old = static_cast<F>(old[v]);
    values.advantage = advantage_of(v);
    values.turn_ratio = turn.ratio;
    values.scale = turn.scale;
    if constexpr (host::uses_selection<policy_type>) values.selected = selected[v] != 0;
    auto const token = host::detail::evaluate_plain(work.policy, values);
    gradient[v] = host::detail::gradient_as<gradient_type>(token.slope);
    policy_loss += token.value;
    log_ratio += token.log_ratio;
    ratio += token.ratio;
    furthest = fmax(furthest, fabs(token.log_ratio));
    squares += token.squares;
    if constexpr (ByToken) squares += values.advantage - values.advantage;  // NaN that the policy may not show
    low = fmin(low, token.ratio);
    high = fmax(high, token.ratio);
    clipped_low += token.clipped_low;
    clipped_high += token.clipped_high;
  }
  // The sum is there for NaN, which the maximum drops.
  auto const limit = static_cast<F>(work.options.log_ratio_limit);
  constexpr F most =
      static_cast<F>(host::detail::term_limit<F> * (1 - 0x1p-20));  // short of the limit, as squares round
  if (!(furthest <= limit && fabs(log_ratio) <= Count * limit && squares <= most * most)) return false;
  store_row(work.out.gradient.data() + first, gradient);
  sums.policy_loss += static_cast<double>(policy_loss);
  sums.log_ratio += static_cast<double>(log_ratio);
  sums.ratio += static_cast<double>(ratio);
  sums.ratio_min = low;
  sums.ratio_max = high;
  sums.tokens += Count;
  sums.clipped_low += clipped_low;
  sums.clipped_high += clipped_high;
  return true;
}

template <int Count, typename Work, typename Current, typename Old>
__device__ bool plain_row(Work const& work, std::size_t first, Current const (&current)[Count], Old const (&old)[Count],
                          turn_values<typename Work::F> const& turn, lane_record<typename Work::F>& sums) {
  using F = typename Work::F;
  if (work.in.token_advantage.empty())
    return plain_row<false>(
        work, first, current, old, turn, [&](int) { return turn.advantage; }, sums);
  std::remove_const_t<typename decltype(work.in.token_advantage)::element_type> advantage[Count];
  load_row(work.in.token_advantage.data() + first, advantage);
  return plain_row<true>(
      work, first, current, old, turn, [&](int v) { return static_cast<F>(advantage[v]); }, sums);
}

/// One token, whatever it is.
template <bool Extras, typename Work>
__device__ void any_token(Work const& work, std::size_t n, turn_values<typename Work::F> const& turn,
                          lane_record<typename Work::F>& sums) {
  using F = typename Work::F;
  using policy_type = decltype(work.policy);
  using gradient_type = typename decltype(work.out.gradient)::element_type;
  auto const& in = work.in;
  host::detail::token_values<F> values{};
  values.current = static_cast<F>(in.current_logprob[n]);
  values.old = static_cast<F>(in.old_logprob[n]);
  values.advantage = in.token_advantage.empty() ? turn.advantage : static_cast<F>(in.token_advantage[n]);
  values.turn_ratio = turn.ratio;
  values.scale = turn.scale;
  values.on = turn.scale != 0 && (in.mask.empty() || in.mask[n] != 0);
  if constexpr (host::uses_selection<policy_type>) values.selected = in.selected[n] != 0;
  if constexpr (Extras) {
    values.weight = in.weight.empty() ? F{1} : static_cast<F>(in.weight[n]);
    values.reference = in.reference_logprob.empty() ? values.current : static_cast<F>(in.reference_logprob[n]);
    if (!in.entropy.empty()) values.entropy = static_cast<F>(in.entropy[n]);
  }
  auto const token = host::detail::evaluate<Extras>(work.policy, work.options, values);
  work.out.gradient[n] = host::detail::gradient_as<gradient_type>(token.gradient);
  if (Extras && !work.out.entropy_gradient.empty())
    work.out.entropy_gradient[n] = host::detail::gradient_as<gradient_type>(
        token.in_loss ? host::detail::entropy_slope(work.options, values.scale) : F{0});
  sums.template add<Extras>(token, values.on);
}

}  // namespace turnwise::gpu::loss::detail
