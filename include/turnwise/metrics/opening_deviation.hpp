/// @file
/// Share of turns that no longer begin as the model used to: an early warning of collapse.
#pragma once

#include <turnwise/core/rollout.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

namespace turnwise::metrics {

/// Type of token ids.
template <typename T>
concept token_id = std::same_as<T, std::int32_t> || std::same_as<T, std::int64_t>;

/// What a turn is that ends before the opening does, with all its tokens as in the opening.
enum class short_turn_policy : std::uint8_t {
  deviates,  ///< it lacks the opening
  ignore     ///< it is not counted: it tells nothing
};

/// Options of `opening_deviation`.
struct opening_deviation_options {
  short_turn_policy short_turn = short_turn_policy::deviates;  ///< turns that end within the prefix
};

/// How a turn begins; the numbers are those of the flags.
enum class opening : std::uint8_t {
  as_given = 0,    ///< with the given tokens
  deviates = 1,    ///< with others
  not_counted = 2  ///< invalid, without tokens, or too short under short_turn_policy::ignore
};

/// What opening_deviation returns.
struct opening_record {
  std::int64_t turns = 0;     ///< counted
  std::int64_t deviates = 0;  ///< of these

  /// Share of counted turns that deviate; 0 without turns.
  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr double share() const noexcept {
    return turns == 0 ? 0.0 : static_cast<double>(deviates) / static_cast<double>(turns);
  }
  friend constexpr bool operator==(opening_record const&, opening_record const&) = default;
};

/// How the unmasked ones of `count` tokens begin. `mask` may be null: all on.
template <token_id Token>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr opening opening_of(Token const* token, std::uint8_t const* mask,
                                                                std::int64_t count, Token const* prefix,
                                                                std::int64_t prefix_length,
                                                                short_turn_policy short_turn) noexcept {
  std::int64_t matched = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (mask != nullptr && mask[i] == 0) continue;
    if (token[i] != prefix[matched]) return opening::deviates;
    if (++matched == prefix_length) return opening::as_given;
  }
  return matched == 0 || short_turn == short_turn_policy::ignore ? opening::not_counted : opening::deviates;
}

/// The share of turns whose first tokens differ from a given prefix, and which they are.
///
///     deviates(s) = the first P unmasked tokens of turn s are not the P tokens of the prefix
///
/// Also called: Not Okay Ratio (the prefix being the tokens of "Okay,").
/// @param[in]  batch    S turns with their token ranges.
/// @param[in]  tokens   [N] token ids.
/// @param[in]  mask     [N] 0 = not a generated token (an observation), or empty: all on.
/// @param[in]  prefix   [P] at least one token.
/// @param[in]  reasons  [S], or empty: turns that are not flagged off are valid. Invalid turns do not count.
/// @param[out] flags    [S], or empty.
/// @throws precondition_error  sizes that differ, an inconsistent batch, a token range outside the arrays, no prefix;
///         nothing is written.
/// @note  A turn without unmasked tokens does not count. A turn that ends within the prefix: `short_turn`; one that
///        already differs deviates. Texts have several tokenisations: give the prefix as the model writes it.
/// @note  Deterministic: comparisons and counts.
/// @par Complexity  O(S P) and the masked tokens before the opening's end, no allocation.
/// @par Reference   Kevin, Baronio et al. 2025, arXiv:2507.11948.
/// @see turnwise::gpu::metrics::opening_deviation
template <token_id Token>
opening_record opening_deviation(rollout_view const& batch, std::span<Token const> tokens,
                                 std::span<std::uint8_t const> mask, no_deduce<std::span<Token const>> prefix,
                                 std::span<reason_flags const> reasons, opening_deviation_options const& options,
                                 std::span<opening> flags = {}) {
  check_rollout(batch, "opening_deviation");
  check_token_ranges(batch, tokens.size(), "opening_deviation");
  if (!mask.empty()) expects_size("opening_deviation", "mask", mask.size(), tokens.size(), "token");
  expects(!prefix.empty(), "opening_deviation: prefix is empty, expected at least one token");
  if (!reasons.empty()) expects_size("opening_deviation", "reasons", reasons.size(), batch.turns(), "turn");
  if (!flags.empty()) expects_size("opening_deviation", "flags", flags.size(), batch.turns(), "turn");

  opening_record record;
  for (std::size_t s = 0; s < batch.turns(); ++s) {
    bool const valid = reasons.empty() ? !batch.flagged_off(s) : is_valid(reasons[s]);
    auto const begin = static_cast<std::size_t>(batch.turn_begin[s]);
    opening const one = !valid ? opening::not_counted
                               : opening_of(tokens.data() + begin, mask.empty() ? nullptr : mask.data() + begin,
                                            batch.turn_end[s] - batch.turn_begin[s], prefix.data(),
                                            static_cast<std::int64_t>(prefix.size()), options.short_turn);
    record.turns += one != opening::not_counted;
    record.deviates += one == opening::deviates;
    if (!flags.empty()) flags[s] = one;
  }
  return record;
}

}  // namespace turnwise::metrics
