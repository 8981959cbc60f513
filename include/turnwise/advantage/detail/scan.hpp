/// @file
/// The recursion behind token-level advantages: temporal differences, summed from the last token of a segment to its
/// first. A method is a small rule:
///
///     static constexpr bool off_policy;                                           // reads log ratios
///     double gamma;
///     token_weights weights(double log_ratio) const;
///     double advantage(token, weights, later, excess) const;
#pragma once

#include <turnwise/advantage/token_segments.hpp>
#include <turnwise/core/concepts.hpp>
#include <turnwise/core/error.hpp>
#include <turnwise/core/parallel_for.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace turnwise::advantage {
namespace detail {

/// What a token needs of the next unmasked one of its segment; behind the last: the bootstrap value and 0.
struct later_token {
  double value = 0;
  double excess = 0;  ///< of its target over its value
};

struct token_numbers {
  double reward, value;
};

struct token_weights {
  double ratio;  ///< importance ratio
  double rho;    ///< weight of the token's temporal difference
  double trace;  ///< gamma times the weight of what follows
};

/// Target of a token minus its value:  rho (r + gamma V' - V) + trace excess'.
[[nodiscard]] TURNWISE_HOST_DEVICE inline double token_excess(token_numbers const& token, token_weights const& weights,
                                                              double gamma, later_token const& later) noexcept {
  using std::fma;
  double const difference = weights.rho * (fma(gamma, later.value, token.reward) - token.value);
  return fma(weights.trace, later.excess, difference);
}

/// Sizes, for spans of the host and of the device.
template <typename Segments, typename Span>
void check_segment_sizes(Segments const& segments, std::size_t count, Span const& reward, Span const& value,
                         std::string_view function) {
  std::size_t const tokens = reward.size();
  expects(count > 0 || tokens == 0, function, ": offsets name no segment, but there are ", tokens, " tokens");
  if (segments.cut.empty())
    expects(segments.next_value.empty(), function, ": next_value without cut, which tells where it is read");
  else
    expects_size(function, "cut", segments.cut.size(), count, "segment");
  if (!segments.cut.empty()) expects_size(function, "next_value", segments.next_value.size(), count, "segment");
  if (!segments.mask.empty()) expects_size(function, "mask", segments.mask.size(), tokens, "token, as reward");
  expects_size(function, "value", value.size(), tokens, "token, as reward");
}

/// One output; an empty one is not wanted.
template <typename Span>
void check_token_output(std::string_view name, Span const& output, std::size_t tokens, std::string_view function) {
  if (!output.empty()) expects_size(function, name, output.size(), tokens, "token, as reward");
}

inline void check_unit_interval(std::string_view name, double value, std::string_view function) {
  expects(value >= 0 && value <= 1, function, ": ", name, " = ", value, ", expected a number in [0, 1]");
}

/// Throws where an unmasked token's number is NaN or beyond the limit. A block is judged as a whole first, in a loop
/// that compilers turn into vector instructions.
template <real T>
void check_token_numbers(std::string_view name, std::span<T const> numbers, std::span<std::uint8_t const> mask, T limit,
                         int threads, std::string_view function) {
  constexpr std::size_t block = 1024;
  std::atomic<std::size_t> first_bad{numbers.size()};
  auto const bad = [&](std::size_t n) {
    return static_cast<unsigned>(!(numbers[n] <= limit)) | static_cast<unsigned>(!(numbers[n] >= -limit));
  };
  parallel_for(numbers.size(), std::size_t{1} << 17, threads, [&](std::size_t first, std::size_t last) {
    for (std::size_t begin = first; begin < last; begin += block) {
      std::size_t const end = std::min(begin + block, last);
      unsigned any = 0;
      if (mask.empty())
        for (std::size_t n = begin; n < end; ++n) any |= bad(n);
      else
        for (std::size_t n = begin; n < end; ++n) any |= bad(n) & static_cast<unsigned>(mask[n] != 0);
      if (any == 0) continue;
      std::size_t n = begin;
      while (bad(n) == 0 || (!mask.empty() && mask[n] == 0)) ++n;
      std::size_t seen = first_bad.load();
      while (n < seen && !first_bad.compare_exchange_weak(seen, n)) {
      }
      return;
    }
  });
  std::size_t const n = first_bad.load();
  if (n < numbers.size())
    fail(function, ": ", name, "[", n, "] = ", numbers[n], " of an unmasked token is not finite or beyond the limit");
}

template <real T>
void check_segments(token_segments<T> const& segments, std::span<T const> reward, std::span<T const> value,
                    std::string_view function) {
  check_segment_sizes(segments, segments.segments(), reward, value, function);
  auto const& offsets = segments.offsets;
  if (offsets.empty()) return;
  expects(offsets[0] == 0, function, ": offsets[0] is ", offsets[0], ", expected 0");
  for (std::size_t k = 1; k < offsets.size(); ++k)
    expects(offsets[k] >= offsets[k - 1], function, ": offsets[", k, "] = ", offsets[k],
            " is less than the offset before it, ", offsets[k - 1]);
  expects(static_cast<std::size_t>(offsets.back()) == reward.size(), function, ": the last offset is ", offsets.back(),
          ", expected the number of tokens, ", reward.size());
  for (std::size_t k = 0; k < segments.cut.size(); ++k)
    expects(segments.cut[k] == 0 || offsets[k] == offsets[k + 1] || within_limit(segments.next_value[k]), function,
            ": next_value[", k, "] = ", segments.next_value[k], " of a cut segment is not finite or beyond the limit");
}

/// The arrays of a scan; null: not wanted.
template <real T>
struct scan_arrays {
  T const* reward;
  T const* value;
  T const* log_ratio;  ///< read by rules that are off_policy
  std::uint8_t const* mask;
  T* advantage;
  T* target;
};

/// An empty span may have an address.
template <typename T>
[[nodiscard]] T* wanted(std::span<T> span) noexcept {
  return span.empty() ? nullptr : span.data();
}

/// The recursion over tokens [begin, end). Takes copies, so that no store can be thought to change what it reads.
template <real T, typename Rule>
void scan_segment(scan_arrays<T> arrays, Rule rule, std::size_t begin, std::size_t end, later_token later) {
  for (std::size_t n = end; n-- > begin;) {
    double advantage = 0, target = 0;
    if (arrays.mask == nullptr || arrays.mask[n] != 0) {
      token_numbers const token{static_cast<double>(arrays.reward[n]), static_cast<double>(arrays.value[n])};
      token_weights const weights = rule.weights(Rule::off_policy ? static_cast<double>(arrays.log_ratio[n]) : 0.0);
      double const excess = token_excess(token, weights, rule.gamma, later);
      advantage = rule.advantage(token, weights, later, excess);
      target = token.value + excess;
      later = {token.value, excess};
    }
    if (arrays.advantage != nullptr) arrays.advantage[n] = narrowed<T>(advantage);
    if (arrays.target != nullptr) arrays.target[n] = narrowed<T>(target);
  }
}

/// Runs a rule over all segments; masked tokens get 0. Arguments are checked by then.
template <real T, typename Rule>
void scan_segments(token_segments<T> const& segments, scan_arrays<T> const& arrays, std::size_t tokens,
                   Rule const& rule, int threads) {
  std::size_t const count = segments.segments();
  std::size_t const average = count == 0 ? 1 : tokens / count + 1;
  parallel_for(count, (std::size_t{1} << 16) / average, threads, [&](std::size_t first, std::size_t last) {
    for (std::size_t k = first; k < last; ++k) {
      auto const begin = static_cast<std::size_t>(segments.offsets[k]);
      auto const end = static_cast<std::size_t>(segments.offsets[k + 1]);
      bool const cut = begin < end && !segments.cut.empty() && segments.cut[k] != 0;
      scan_segment(arrays, rule, begin, end, {cut ? static_cast<double>(segments.next_value[k]) : 0.0, 0.0});
    }
  });
}

}  // namespace detail
}  // namespace turnwise::advantage
