/// @file
/// The critic's loss: squared or Huber error of the value, with the value clipped to where it was.
#pragma once

#include <turnwise/advantage/per_token.hpp>
#include <turnwise/core/lane_fold.hpp>
#include <turnwise/core/rollout.hpp>
#include <turnwise/importance/log_ratio_statistics.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace turnwise::loss {

/// e(x) of the error x = value - target.
enum class value_error : std::uint8_t {
  squared,  ///< x^2 / 2
  huber     ///< x^2 / 2 within +-delta, delta (|x| - delta / 2) beyond
};

/// Options of `value_clip`.
struct value_clip_options {
  double clip = 0.2;  ///< how far the value may move from old_value, in its unit, above 0; infinity = no clip
  value_error error = value_error::squared;  ///< of the plain and of the clipped value
  double huber_delta = 10;                   ///< above 0 and finite; read with huber alone
};

/// The arrays of a value loss, N tokens each.
template <real T>
struct value_inputs {
  std::span<T const> value{};            ///< [N] under the weights being updated
  std::span<T const> old_value{};        ///< [N] when the batch was sampled; may be empty when clip is infinite
  std::span<T const> target{};           ///< [N] the return
  std::span<std::uint8_t const> mask{};  ///< [N] 0 = not in the loss; empty: all on
};

/// One token's loss and its derivative with respect to the value.
struct value_terms {
  double loss;   ///< e(x)
  double slope;  ///< d loss / d value
  bool clipped;  ///< the clipped value has the larger error: no gradient
};

/// Sums over the tokens in the loss; records of micro-batches and ranks add up.
struct value_record {
  double loss = 0;              ///< sum of scale * token loss
  std::int64_t tokens = 0;      ///< in the loss
  std::int64_t clipped = 0;     ///< of these, those whose gradient is cut
  std::int64_t non_finite = 0;  ///< left out: a number is NaN or infinite, or one or the term too large

  /// Share of tokens whose gradient is cut; 0 without tokens.
  [[nodiscard]] constexpr double clip_fraction() const noexcept {
    return tokens == 0 ? 0.0 : static_cast<double>(clipped) / static_cast<double>(tokens);
  }
  TURNWISE_HOST_DEVICE constexpr value_record& operator+=(value_record const& other) noexcept {
    loss += other.loss;
    tokens += other.tokens;
    clipped += other.clipped;
    non_finite += other.non_finite;
    return *this;
  }
  friend constexpr bool operator==(value_record const&, value_record const&) = default;
};

/// Checks the options.
inline void check_value_clip(value_clip_options const& options) {
  expects(options.clip > 0, "value_clip: clip = ", options.clip, ", expected a number above 0 (or infinity)");
  expects(options.error == value_error::squared || (options.huber_delta > 0 && !std::isinf(options.huber_delta)),
          "value_clip: huber_delta = ", options.huber_delta, ", expected a finite number above 0");
}

/// e(x) and its derivative.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr value_terms error_of_value(double x,
                                                                        value_clip_options const& options) noexcept {
  double const delta = options.huber_delta;
  if (options.error == value_error::squared || (x <= delta && x >= -delta)) return {0.5 * x * x, x, false};
  double const excess = (x < 0 ? -x : x) - 0.5 * delta;
  return {delta * excess, x < 0 ? -delta : delta, false};
}

/// The loss of one token whose numbers are finite; `old_value` is not read when clip is infinite.
///
///     max(e(value - target), e(clip(value, old_value - clip, old_value + clip) - target))
///
/// The slope is 0 where the clipped error is the larger one, strictly; else that of the plain error.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr value_terms value_term(double value, double old_value, double target,
                                                                    value_clip_options const& options) noexcept {
  value_terms const plain = error_of_value(value - target, options);
  if (!(options.clip <= largest<double>)) return plain;
  double const moved = value - old_value;
  if (moved <= options.clip && moved >= -options.clip) return plain;
  double const clipped = moved < 0 ? old_value - options.clip : old_value + options.clip;
  value_terms const cut = error_of_value(clipped - target, options);
  return cut.loss > plain.loss ? value_terms{cut.loss, 0.0, true} : plain;
}

/// Terms beyond this are left out, so that no sum over a batch overflows.
inline constexpr double value_term_limit = 0x1p980;

/// Record and gradient of an unmasked token of a turn with a scale.
/// @param old_value  anything when clip is infinite.
template <real T>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr value_record value_of_token(T value, T old_value, T target, double scale,
                                                                         value_clip_options const& options,
                                                                         T& gradient) noexcept {
  bool const clips = options.clip <= largest<double>;
  gradient = T{0};
  if (!within_limit(value) || !within_limit(target) || (clips && !within_limit(old_value))) return {.non_finite = 1};
  value_terms const terms =
      value_term(static_cast<double>(value), static_cast<double>(old_value), static_cast<double>(target), options);
  double const loss = scale * terms.loss;
  if (!(loss <= value_term_limit && loss >= -value_term_limit)) return {.non_finite = 1};
  gradient = narrowed<T>(scale * terms.slope);
  return {loss, 1, terms.clipped, 0};
}

namespace detail {

/// Sizes of a call, on the host and on the device.
template <typename Inputs>
void check_value_sizes(Inputs const& in, value_clip_options const& options, std::size_t turns, std::size_t scales,
                       std::size_t gradient) {
  std::string_view const name = "value_clip";
  check_value_clip(options);
  std::size_t const count = in.value.size();
  expects_size(name, "target", in.target.size(), count, "token, as value");
  if (!in.old_value.empty() || options.clip <= largest<double>)
    expects_size(name, "old_value", in.old_value.size(), count, "token, as value");
  if (!in.mask.empty()) expects_size(name, "mask", in.mask.size(), count, "token, as value");
  expects_size(name, "gradient", gradient, count, "token, as value");
  expects_size(name, "turn_scale", scales, turns, "turn");
}

}  // namespace detail

/// Clipped value loss and its gradient, in one pass.
///
///     loss = sum over tokens of turn_scale * max(e(v - R), e(clip(v, v_old +- clip) - R)),   gradient = d loss / d v
///
/// Also called: clipped value loss, cliprange_value, vf_loss; critic loss.
/// @param[in]  batch   S turns in any order; token ranges must not overlap.
/// @param[in]  in      [N] each; R is the return or GAE's target. Masked tokens are not read as numbers.
/// @param[in]  turn_scale  [S] of aggregate (times a coefficient of the caller); a turn of scale 0 is not in the loss
///                     and not read.
/// @param[out] gradient  [N]; 0 for tokens that are not in the loss.
/// @param[in]  threads 0 = the runtime's default.
/// @return the record; its loss is the sum above.
/// @throws precondition_error  sizes that differ, a token range outside the arrays, turns that overlap, a scale that is
///         NaN or infinite, clip not above 0, huber_delta not above 0 or not finite; nothing is written.
/// @note  NaN, infinite and too large numbers (magnitude_limit), and a term beyond value_term_limit: that token has
///        gradient 0 and is counted. Everything rejected: loss 0, gradient 0.
/// @note  Disagreements: 0.5 in front, as here, in most trainers; clip 0.2 in PPO's code, 0.5 in LLM trainers; the
///        plain error in some.
/// @note  The same bits for any threads; across builds, on the device and across splits of the batch the loss agrees to
///        a relative 1e-12, the gradient to the bit.
/// @par Complexity  one read and one write of the tokens, O(S) memory.
/// @par Reference   Schulman et al. 2017, arXiv:1707.06347 (its code); Engstrom et al. 2020, arXiv:2005.12729.
/// @see turnwise::gpu::loss::value_clip
template <real T>
value_record value_clip(rollout_view const& batch, value_inputs<T> const& in, value_clip_options const& options,
                        std::span<double const> turn_scale, no_deduce<std::span<T>> gradient, int threads = 0) {
  check_rollout(batch, "value_clip");
  detail::check_value_sizes(in, options, batch.turns(), turn_scale.size(), gradient.size());
  check_token_ranges(batch, in.value.size(), "value_clip");
  for (std::size_t s = 0; s < turn_scale.size(); ++s)
    expects(importance::is_finite(turn_scale[s]), "value_clip: turn_scale[", s, "] = ", turn_scale[s],
            ", expected a finite number");
  static_cast<void>(advantage::detail::token_order(batch, "value_clip"));  // each token has one writer

  std::fill(gradient.begin(), gradient.end(), T{0});
  std::vector<value_record> of_turn(batch.turns());
  parallel_for(batch.turns(), importance::detail::turn_grain(batch.turns(), in.value.size()), threads,
               [&](std::size_t first, std::size_t last) {
                 for (std::size_t s = first; s < last; ++s) {
                   if (turn_scale[s] == 0) continue;
                   auto const begin = static_cast<std::size_t>(batch.turn_begin[s]);
                   auto const size = static_cast<std::size_t>(batch.turn_end[s]) - begin;
                   of_turn[s] = lane_fold<value_record>(size, [&](std::size_t k) {
                     std::size_t const i = begin + k;
                     if (!in.mask.empty() && in.mask[i] == 0) return value_record{};
                     return value_of_token(in.value[i], in.old_value.empty() ? T{0} : in.old_value[i], in.target[i],
                                           turn_scale[s], options, gradient[i]);
                   });
                 }
               });
  return lane_fold<value_record>(of_turn.size(), [&](std::size_t s) { return of_turn[s]; });
}

}  // namespace turnwise::loss
