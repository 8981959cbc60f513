/// @file
/// The token loop of policy_loss: a register of tokens a step. Tokens that are plain, as almost all are, go by tiles
/// with nothing to decide; what is not plain shows in a tile's sums, and the tile is done again with care.
#pragma once

#include <turnwise/importance/detail/lanes.hpp>
#include <turnwise/loss/detail/evaluate.hpp>
#include <turnwise/loss/detail/lane_record.hpp>
#include <turnwise/loss/inputs.hpp>
#include <turnwise/loss/policy.hpp>
#include <turnwise/loss/record.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

namespace turnwise::loss::detail {
inline namespace TURNWISE_VECTOR_NAMESPACE {

/// Zeros for tokens [first, last).
template <typename Gradient>
void clear(loss_outputs<Gradient> const& out, std::size_t first, std::size_t last) {
  Gradient const zero = static_cast<Gradient>(0.0f);
  std::fill(out.gradient.data() + first, out.gradient.data() + last, zero);
  if (!out.entropy_gradient.empty())
    std::fill(out.entropy_gradient.data() + first, out.entropy_gradient.data() + last, zero);
}

/// Turns, one after the other, into one record.
template <typename Inputs, typename Policy, typename Outputs>
class token_loop {
  using number_type = typename Inputs::number;
  using F = pack<number_type>;
  static constexpr std::size_t size = lanes_of<F>;
  static constexpr std::size_t tile = 8 * size;

 public:
  token_loop(Inputs const& in, Policy const& policy, loss_options const& options, Outputs const& out)
      : in_(in),
        policy_(policy),
        options_(options),
        out_(out),
        extras_(!in.reference_logprob.empty() || !in.weight.empty() || !in.entropy.empty()) {}

  /// Turn s, of tokens [first, last).
  void turn(std::size_t s, std::size_t first, std::size_t last, double scale) {
    if (scale == 0)
      clear(out_, first, last);
    else
      run(s, first, last, scale);
  }

  [[nodiscard]] loss_record record() {
    loss_record result;
    sums_.add_to(result);
    extra_.add_to(result);
    result.turns = turns_;
    return result;
  }

 private:
  /// Calls step(first token, how many, whether that is a whole register).
  template <typename Step>
  [[gnu::always_inline]] static void for_each_pack(std::size_t first, std::size_t last, Step step) {
    for (; first + size <= last; first += size) step(first, size, std::true_type{});
    if (first < last) step(first, last - first, std::false_type{});
  }

  template <bool Whole, typename Value>
  [[gnu::always_inline]] static F load(std::span<Value const> from, std::size_t first, std::size_t count) {
    if constexpr (real<F>)
      return static_cast<F>(from[first]);
    else if constexpr (Whole)
      return importance::detail::load<number_type, size>(from.data() + first);
    else
      return importance::detail::load_first<number_type, size>(from.data() + first, count);
  }
  /// Flags from bytes; an empty span: all on.
  template <bool Whole>
  [[gnu::always_inline]] static flag<F> load_flags(std::span<std::uint8_t const> from, std::size_t first,
                                                   std::size_t count) {
    using importance::detail::word;
    if constexpr (real<F>) {
      return from.empty() || from[first] != 0;
    } else if constexpr (Whole) {
      if (from.empty()) return F{} == F{};
      return importance::detail::lanes_on<word<number_type>, size>(
          importance::detail::load<std::uint8_t, size>(from.data() + first));
    } else {
      flag<F> const there = ~importance::detail::lanes_from<word<number_type>, size>(count);
      if (from.empty()) return there;
      return there & importance::detail::lanes_on<word<number_type>, size>(
                         importance::detail::load_first<std::uint8_t, size>(from.data() + first, count));
    }
  }
  template <bool Whole, typename Gradient>
  [[gnu::always_inline]] static void store(std::span<Gradient> to, std::size_t first, std::size_t count,
                                           F const& value) {
    if constexpr (real<F>) {
      to[first] = gradient_as<Gradient>(value);
    } else if constexpr (Whole && std::is_same_v<Gradient, number_type>) {
      std::memcpy(to.data() + first, &value, sizeof value);
    } else {
      Gradient values[size];
      for (std::size_t l = 0; l < size; ++l) values[l] = gradient_as<Gradient>(number_type{value[l]});
      std::copy_n(values, Whole ? size : count, to.data() + first);
    }
  }

  template <bool Extras, bool Whole, bool ByToken = true>
  [[gnu::always_inline]] token_values<F> read(std::size_t first, std::size_t count) const {
    token_values<F> values{};
    values.current = load<Whole>(in_.current_logprob, first, count);
    values.old = load<Whole>(in_.old_logprob, first, count);
    if (ByToken && !in_.token_advantage.empty()) values.advantage = load<Whole>(in_.token_advantage, first, count);
    if constexpr (uses_selection<Policy>) values.selected = load_flags<Whole>(in_.selected, first, count);
    if constexpr (Extras) {
      values.weight = in_.weight.empty() ? constant<F>(1) : load<Whole>(in_.weight, first, count);
      values.reference =
          in_.reference_logprob.empty() ? values.current : load<Whole>(in_.reference_logprob, first, count);
      if (!in_.entropy.empty()) values.entropy = load<Whole>(in_.entropy, first, count);
    }
    return values;
  }

  /// exp of the mean that a turn-level policy asks for.
  template <bool Extras>
  [[nodiscard, gnu::flatten]] number_type turn_ratio(std::size_t first, std::size_t last,
                                                     F const& turn_advantage) const {
    F const limit = constant<F>(options_.log_ratio_limit);
    wide_sums<F> sum{};
    flag_counts<F> tokens{};
    for_each_pack(
        first, last, [&](std::size_t at, std::size_t count, auto whole) __attribute__((always_inline)) {
          auto values = read<Extras, whole()>(at, count);
          values.on = load_flags<whole()>(in_.mask, at, count);
          if (in_.token_advantage.empty()) values.advantage = turn_advantage;
          clamped_log_ratio<F> const d{values.current, values.old, limit};
          flag<F> const on = is_usable<Extras>(values, d);
          F term = select<F>(on, policy_.turn_log_ratio(d.value, values.advantage), F{});
          widen<F>(sum, term);
          count_flags<F>(tokens, on);
        });
    auto const n = total(tokens);
    return n == 0 ? number_type{1} : ieee_exp(static_cast<number_type>(total(sum) / static_cast<double>(n)));
  }

  /// What the tokens of a turn share.
  struct turn_values {
    F advantage, ratio, scale;
  };

  /// Up to a tile of whole registers, without mask, weight, KL and entropy. False if a log ratio is beyond the limit or
  /// not finite or a term too large: the sums are then as before.
  template <bool ByToken>
  [[nodiscard, gnu::flatten]] bool plain_tile(std::size_t first, std::size_t last, turn_values const& turn) {
    Policy const policy = policy_;  // copies that no store can alias
    turn_values const of_turn = turn;
    lane_sums<F> sums;
    F log_ratio_squares{}, term_squares{};
    for (std::size_t at = first; at < last; at += size) {
      auto values = read<false, true, ByToken>(at, size);
      if constexpr (!ByToken) values.advantage = of_turn.advantage;
      values.scale = of_turn.scale;
      values.turn_ratio = of_turn.ratio;
      auto const token = evaluate_plain(policy, values);
      store<true>(out_.gradient, at, size, token.slope);
      sums.add(token);
      log_ratio_squares += token.log_ratio * token.log_ratio;
      term_squares += token.squares;
      if constexpr (ByToken) term_squares += values.advantage - values.advantage;  // NaN that the policy may not show
    }
    auto const log_ratio_limit = static_cast<number_type>(options_.log_ratio_limit);
    auto const limit = static_cast<number_type>(term_limit<number_type>);
    F const shares =
        log_ratio_squares * (1 / (log_ratio_limit * log_ratio_limit)) + term_squares * (1 / (limit * limit));
    constexpr double short_of_one = 1 - 0x1p-20;  // what stands at a limit is for the other path, rounding or not
    if (!(total(shares) <= static_cast<number_type>(short_of_one))) return false;
    sums_.add(sums, last - first);
    return true;
  }

  /// Any tokens [first, last).
  template <bool Extras>
  [[gnu::flatten]] void any_tokens(std::size_t first, std::size_t last, turn_values const& turn) {
    Policy const policy = policy_;
    loss_options const options = options_;
    F const slope = entropy_slope(options, turn.scale);
    for_each_pack(
        first, last, [&](std::size_t at, std::size_t count, auto whole) __attribute__((always_inline)) {
          auto values = read<Extras, whole()>(at, count);
          values.on = load_flags<whole()>(in_.mask, at, count);
          if (in_.token_advantage.empty()) values.advantage = turn.advantage;
          values.scale = turn.scale;
          values.turn_ratio = turn.ratio;
          auto const result = evaluate<Extras>(policy, options, values);
          store<whole()>(out_.gradient, at, count, result.gradient);
          sums_.add(result, values.on);
          if constexpr (!Extras) return;
          extra_.add(result);
          if (!out_.entropy_gradient.empty())
            store<whole()>(out_.entropy_gradient, at, count, select<F>(result.in_loss, slope, F{}));
        });
  }

  void run(std::size_t s, std::size_t first, std::size_t last, double scale) {
    turn_values turn{};
    turn.advantage = constant<F>(in_.turn_advantage.empty() ? 0.0 : static_cast<double>(in_.turn_advantage[s]));
    turn.scale = constant<F>(scale);
    if constexpr (is_turn_level<Policy>)
      turn.ratio = F{} + (extras_ ? turn_ratio<true>(first, last, turn.advantage)
                                  : turn_ratio<false>(first, last, turn.advantage));
    for (std::size_t at = first, end = 0; at < last; at = end) {
      std::size_t const rest = last - at;
      end = at + (rest < size ? rest : std::min(rest / size * size, tile));
      if (extras_)
        any_tokens<true>(at, end, turn);
      else if (rest < size || !all_on(at, end) || !plain(at, end, turn))
        any_tokens<false>(at, end, turn);
    }
    ++turns_;
  }

  [[nodiscard]] bool plain(std::size_t first, std::size_t last, turn_values const& turn) {
    return in_.token_advantage.empty() ? plain_tile<false>(first, last, turn) : plain_tile<true>(first, last, turn);
  }
  [[nodiscard]] bool all_on(std::size_t first, std::size_t last) const {
    return in_.mask.empty() || std::memchr(in_.mask.data() + first, 0, last - first) == nullptr;
  }

  Inputs in_;
  Policy policy_;
  loss_options options_;
  Outputs out_;
  bool extras_;
  lane_record<F> sums_{};
  extra_lanes<F> extra_{};
  std::int64_t turns_ = 0;
};

}  // namespace TURNWISE_VECTOR_NAMESPACE
}  // namespace turnwise::loss::detail
