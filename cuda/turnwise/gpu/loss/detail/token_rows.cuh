/// @file
/// A few tokens of one lane: loaded together, evaluated, stored together, summed.
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
  if constexpr (bytes % 16 == 0) {
    uint4 words[bytes / 16];
#pragma unroll
    for (unsigned w = 0; w < bytes / 16; ++w) words[w] = __ldcs(reinterpret_cast<uint4 const*>(from) + w);  // read once
    __builtin_memcpy(&to, &words, bytes);
  } else if constexpr (bytes == 8) {
    uint2 const word = __ldcs(reinterpret_cast<uint2 const*>(from));
    __builtin_memcpy(&to, &word, bytes);
  } else if constexpr (bytes == 4) {
    unsigned const word = __ldcs(reinterpret_cast<unsigned const*>(from));
    __builtin_memcpy(&to, &word, bytes);
  } else {
#pragma unroll
    for (int v = 0; v < Count; ++v) to[v] = from[v];
  }
}

template <int Count, typename T>
__device__ void store_row(T* to, T const (&from)[Count]) {
  constexpr unsigned bytes = Count * sizeof(T);
  if constexpr (bytes % 16 == 0) {
    uint4 words[bytes / 16];
    __builtin_memcpy(&words, &from, bytes);
#pragma unroll
    for (unsigned w = 0; w < bytes / 16; ++w) reinterpret_cast<uint4*>(to)[w] = words[w];
  } else if constexpr (bytes == 8) {
    uint2 word;
    __builtin_memcpy(&word, &from, bytes);
    *reinterpret_cast<uint2*>(to) = word;
  } else {
#pragma unroll
    for (int v = 0; v < Count; ++v) to[v] = from[v];
  }
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
    add_ratio(token.ratio);
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
  __device__ void add_ratio(F value) {
    ratio_min = value < ratio_min ? value : ratio_min;
    ratio_max = value > ratio_max ? value : ratio_max;
  }

  [[nodiscard]] __device__ host::loss_record record() const {
    host::loss_record result;
    result.policy_loss = policy_loss;
    result.kl_loss = kl_loss;
    result.entropy_loss = entropy_loss;
    result.tokens = tokens;
    result.turns = turns;
    result.non_finite = non_finite;
    result.saturated = saturated;
    result.clipped_low = clipped_low;
    result.clipped_high = clipped_high;
    result.log_ratio_sum = log_ratio;
    result.ratio_sum = ratio;
    result.ratio_min = static_cast<double>(ratio_min);
    result.ratio_max = static_cast<double>(ratio_max);
    result.kl_sum = kl;
    result.entropy_sum = entropy;
    return result;
  }
};

/// `Count` tokens in a row: current and old are there, the rest is read where it is needed.
template <int Count, bool Extras, typename Policy, typename Inputs, typename Outputs>
struct token_row {
  using F = typename Inputs::number;

  Inputs const& in;
  Outputs const& out;
  Policy const& policy;
  host::loss_options const& options;

  /// @param turn_of  the turn_values of the row's token v.
  template <typename Current, typename Old, typename TurnOf>
  __device__ void operator()(std::int64_t first, Current const (&current)[Count], Old const (&old)[Count],
                             TurnOf turn_of, lane_record<F>& sums) const {
    host::detail::token_values<F> values[Count];
    read(first, current, old, turn_of, values);
    F slope[Count];
    bool done = false;
    if constexpr (!Extras) done = is_plain(values) && add_plain(values, slope, sums);
    if (!done) add_any(first, values, slope, sums);
    write(out.gradient, first, slope);
  }

 private:
  template <typename Current, typename Old, typename TurnOf>
  __device__ void read(std::int64_t first, Current const (&current)[Count], Old const (&old)[Count], TurnOf turn_of,
                       host::detail::token_values<F> (&values)[Count]) const {
    std::uint8_t mask[Count], selected[Count];
    if (!in.mask.empty()) load_row(in.mask.data() + first, mask);
    if constexpr (host::uses_selection<Policy>) load_row(in.selected.data() + first, selected);
    typename std::remove_const_t<typename decltype(in.token_advantage)::element_type> advantage[Count];
    bool const by_token = !in.token_advantage.empty();
    if (by_token) load_row(in.token_advantage.data() + first, advantage);
#pragma unroll
    for (int v = 0; v < Count; ++v) {
      turn_values<F> const turn = turn_of(v);
      auto& value = values[v];
      value = {};
      value.current = static_cast<F>(current[v]);
      value.old = static_cast<F>(old[v]);
      value.advantage = by_token ? static_cast<F>(advantage[v]) : turn.advantage;
      value.turn_ratio = turn.ratio;
      value.scale = turn.scale;
      value.on = turn.scale != 0 && (in.mask.empty() || mask[v] != 0);
      if constexpr (host::uses_selection<Policy>) value.selected = selected[v] != 0;
      if constexpr (Extras) {
        auto const at = static_cast<std::size_t>(first + v);
        value.weight = in.weight.empty() ? F{1} : static_cast<F>(in.weight[at]);
        value.reference = in.reference_logprob.empty() ? value.current : static_cast<F>(in.reference_logprob[at]);
        if (!in.entropy.empty()) value.entropy = static_cast<F>(in.entropy[at]);
      }
    }
  }

  /// Whether all tokens are as evaluate_plain takes them.
  [[nodiscard]] __device__ bool is_plain(host::detail::token_values<F> const (&values)[Count]) const {
    auto const limit = static_cast<F>(options.log_ratio_limit);
    bool plain = true;
#pragma unroll
    for (int v = 0; v < Count; ++v) {
      F const d = values[v].current - values[v].old;
      plain = plain && values[v].on && d <= limit && d >= -limit;
    }
    return plain;
  }

  /// False if a term is too large; nothing is then added.
  __device__ bool add_plain(host::detail::token_values<F> const (&values)[Count], F (&slope)[Count],
                            lane_record<F>& sums) const {
    F policy_loss{}, log_ratio{}, ratio{}, squares{}, low = sums.ratio_min, high = sums.ratio_max;
    int clipped_low = 0, clipped_high = 0;
#pragma unroll
    for (int v = 0; v < Count; ++v) {
      auto const token = host::detail::evaluate_plain(policy, values[v]);
      slope[v] = token.slope;
      policy_loss += token.value;
      log_ratio += token.log_ratio;
      ratio += token.ratio;
      squares += token.squares;
      low = token.ratio < low ? token.ratio : low;
      high = token.ratio > high ? token.ratio : high;
      clipped_low += token.clipped_low;
      clipped_high += token.clipped_high;
    }
    constexpr F most = static_cast<F>(host::detail::term_limit<F>);
    if (!(squares <= most * most)) return false;
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

  __device__ void add_any(std::int64_t first, host::detail::token_values<F> const (&values)[Count], F (&slope)[Count],
                          lane_record<F>& sums) const {
    F entropy_slope[Count];
#pragma unroll
    for (int v = 0; v < Count; ++v) {
      auto const token = host::detail::evaluate<Extras>(policy, options, values[v]);
      slope[v] = token.gradient;
      entropy_slope[v] = token.in_loss ? static_cast<F>(-options.entropy_coefficient) * values[v].scale : F{0};
      sums.template add<Extras>(token, values[v].on);
    }
    if (Extras && !out.entropy_gradient.empty()) write(out.entropy_gradient, first, entropy_slope);
  }

  template <typename Gradient>
  __device__ void write(device_span<Gradient> to, std::int64_t first, F const (&from)[Count]) const {
    Gradient values[Count];
#pragma unroll
    for (int v = 0; v < Count; ++v) values[v] = host::detail::gradient_as<Gradient>(from[v]);
    store_row(to.data() + first, values);
  }
};

}  // namespace turnwise::gpu::loss::detail
