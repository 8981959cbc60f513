/// @file
/// How token losses become one number: every mode is one factor a turn.
#pragma once

#include <turnwise/core/rollout.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string_view>
#include <vector>

namespace turnwise::loss {

/// The loss is the sum over tokens in the loss of scale(turn) * token loss; D counts what `denominator` says.
enum class loss_mean : std::uint8_t {
  token_mean,                ///< 1 / D tokens (DAPO)
  token_sum,                 ///< 1
  sequence_mean_token_mean,  ///< 1 / (D units * tokens of the unit) (GRPO)
  sequence_mean_token_sum,   ///< 1 / D units
  sequence_mean_token_norm   ///< 1 / (D units * norm) (Dr. GRPO)
};

/// What a sequence is.
enum class loss_unit : std::uint8_t { turn, trajectory };

/// batch: one mean over all. prompt: the mean of each prompt's own mean, over prompts that have something to divide by.
enum class loss_scope : std::uint8_t { batch, prompt };

/// What D counts.
enum class loss_denominator : std::uint8_t {
  kept,    ///< what is in the loss: self-normalised
  valid,   ///< what takes part in baselines, rejected or not: the step shrinks with rejection
  nominal  ///< a given number: unbiased for the masked objective, the step shrinks with rejection
};

/// Options of `aggregate`.
struct aggregate_options {
  loss_mean mean = loss_mean::token_mean;                 ///< the mode
  loss_unit unit = loss_unit::turn;                       ///< what a sequence is
  loss_scope scope = loss_scope::batch;                   ///< one mean, or one a prompt
  loss_denominator denominator = loss_denominator::kept;  ///< what D counts
  double nominal =
      0;            ///< D under `nominal`: tokens or units as `mean` divides by (of each prompt, with scope = prompt)
  double norm = 0;  ///< the constant of sequence_mean_token_norm, such as the longest response
};

/// What a denominator may count. Counts of micro-batches and ranks add up to those of the whole.
struct loss_counts {
  std::int64_t kept_tokens = 0,   ///< unmasked tokens of kept turns
      valid_tokens = 0;           ///< unmasked tokens of valid turns
  std::int64_t kept_units = 0,    ///< units with at least one of the former
      valid_units = 0;            ///< units with at least one of the latter
  std::int64_t kept_prompts = 0,  ///< prompts with a kept unit
      valid_prompts = 0;          ///< prompts with a valid unit

  TURNWISE_HOST_DEVICE constexpr loss_counts& operator+=(loss_counts const& other) noexcept {
    kept_tokens += other.kept_tokens;
    valid_tokens += other.valid_tokens;
    kept_units += other.kept_units;
    valid_units += other.valid_units;
    kept_prompts += other.kept_prompts;
    valid_prompts += other.valid_prompts;
    return *this;
  }
  friend constexpr bool operator==(loss_counts const&, loss_counts const&) = default;
};

/// Counts the unmasked tokens of each turn. (What log_ratio_statistics counted, count + non_finite, is the same
/// number.)
///
/// @param[in]  mask    [N], or empty: all tokens were generated.
/// @param[out] tokens  [S].
/// @throws precondition_error  sizes that differ, ranges outside the mask; nothing is written.
/// @note  Deterministic: counts.
/// @par Complexity  one read of the mask, if any; O(S).
inline void count_tokens(rollout_view const& batch, std::span<std::uint8_t const> mask,
                         std::span<std::int64_t> tokens) {
  check_rollout(batch, "count_tokens");
  std::size_t const all = static_cast<std::size_t>(-1) / 2;
  check_token_ranges(batch, mask.empty() ? all : mask.size(), "count_tokens");
  expects_size("count_tokens", "tokens", tokens.size(), batch.turns(), "turn");
  for (std::size_t s = 0; s < tokens.size(); ++s) {
    tokens[s] = batch.turn_end[s] - batch.turn_begin[s];
    if (mask.empty()) continue;
    auto const first = mask.begin() + batch.turn_begin[s];
    tokens[s] -= std::count(first, mask.begin() + batch.turn_end[s], std::uint8_t{0});
  }
}

namespace detail {

/// Adds a turn's tokens to the counts of its unit.
TURNWISE_HOST_DEVICE constexpr void add_turn(loss_counts& unit, std::int64_t tokens, reason_flags reasons) noexcept {
  if (is_kept(reasons)) unit.kept_tokens += tokens;
  if (is_valid(reasons)) unit.valid_tokens += tokens;
  unit.kept_units = unit.kept_tokens > 0;
  unit.valid_units = unit.valid_tokens > 0;
}

/// The counts of the unit of turns [first, last).
inline loss_counts tokens_between(std::span<std::int64_t const> tokens, std::span<reason_flags const> reasons,
                                  std::size_t first, std::size_t last) {
  loss_counts counts;
  for (std::size_t s = first; s < last; ++s) add_turn(counts, tokens[s], reasons[s]);
  return counts;
}

inline void check_counts(rollout_view const& batch, std::span<std::int64_t const> tokens,
                         std::span<reason_flags const> reasons, std::string_view function) {
  check_rollout(batch, function);
  expects_size(function, "tokens", tokens.size(), batch.turns(), "turn");
  expects_size(function, "reasons", reasons.size(), batch.turns(), "turn");
  std::int64_t left = std::numeric_limits<std::int64_t>::max();
  for (std::size_t s = 0; s < tokens.size(); ++s) {
    expects(tokens[s] >= 0, function, ": tokens[", s, "] = ", tokens[s], ", expected at least 0");
    expects(tokens[s] <= left, function, ": tokens[", s, "] = ", tokens[s], " makes more than 2^63 - 1 of the batch");
    left -= tokens[s];
  }
}

/// Calls body(trajectories of the prompt, its counts) for each prompt.
template <typename Body>
void for_each_prompt(rollout_view const& batch, std::span<std::int64_t const> tokens,
                     std::span<reason_flags const> reasons, loss_unit unit, Body body) {
  std::vector<std::size_t> order(batch.trajectories());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t j) { return batch.group_id[j]; });
  for (std::size_t first = 0, last = 0; first < order.size(); first = last) {
    loss_counts counts;
    for (; last < order.size() && batch.group_id[order[last]] == batch.group_id[order[first]]; ++last) {
      std::size_t const begin = batch.first_turn(order[last]);
      std::size_t const end = batch.first_turn(order[last] + 1);
      if (unit == loss_unit::trajectory)
        counts += tokens_between(tokens, reasons, begin, end);
      else
        for (std::size_t s = begin; s < end; ++s) counts += tokens_between(tokens, reasons, s, s + 1);
    }
    counts.kept_prompts = counts.kept_tokens > 0;
    counts.valid_prompts = counts.valid_tokens > 0;
    body(std::span<std::size_t const>(order).subspan(first, last - first), counts);
  }
}

/// A given count: within what 64-bit counts and their inverses span, so that no factor leaves the range of double.
[[nodiscard]] inline bool is_nominal(double count) noexcept { return count >= 0x1p-63 && count <= 0x1p63; }

inline void check_aggregate(aggregate_options const& options) {
  std::string_view const name = "aggregate";
  bool const nominal = options.denominator == loss_denominator::nominal;
  expects(!nominal || is_nominal(options.nominal), name, ": nominal = ", options.nominal,
          ", expected a number within [2^-63, 2^63]");
  expects(nominal || options.nominal == 0, name, ": nominal = ", options.nominal, " without denominator = nominal");
  expects(options.mean != loss_mean::token_sum || options.denominator == loss_denominator::kept, name,
          ": token_sum divides by nothing, so it takes no denominator");
  bool const norm = options.mean == loss_mean::sequence_mean_token_norm;
  expects(!norm || is_nominal(options.norm), name, ": norm = ", options.norm,
          ", expected a number within [2^-63, 2^63]");
  expects(norm || options.norm == 0, name, ": norm = ", options.norm, " without mean = sequence_mean_token_norm");
}

/// D.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr double denominator_of(loss_counts const& counts,
                                                                   aggregate_options const& options) noexcept {
  if (options.mean == loss_mean::token_sum) return 1.0;
  if (options.denominator == loss_denominator::nominal) return options.nominal;
  bool const kept = options.denominator == loss_denominator::kept;
  if (options.mean == loss_mean::token_mean)
    return static_cast<double>(kept ? counts.kept_tokens : counts.valid_tokens);
  return static_cast<double>(kept ? counts.kept_units : counts.valid_units);
}

/// What a unit's token losses are divided by beside D.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr double unit_divisor(loss_counts const& unit,
                                                                 aggregate_options const& options) noexcept {
  if (options.mean == loss_mean::sequence_mean_token_norm) return options.norm;
  if (options.mean != loss_mean::sequence_mean_token_mean) return 1.0;
  return static_cast<double>(options.denominator == loss_denominator::kept ? unit.kept_tokens : unit.valid_tokens);
}

/// The factor of a turn, given D and the number of prompts multiplied; 0 where a total counts nothing to divide by.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr double scale_of(std::int64_t tokens, reason_flags reasons, double outer,
                                                             double divisor) noexcept {
  double const whole = outer * divisor;
  return is_kept(reasons) && tokens > 0 && whole > 0 ? 1.0 / whole : 0.0;
}

/// How many prompts a mean over prompts is over.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr double prompts_of(loss_counts const& counts,
                                                               aggregate_options const& options) noexcept {
  if (options.scope == loss_scope::batch) return 1.0;
  return static_cast<double>(options.denominator == loss_denominator::kept ? counts.kept_prompts
                                                                           : counts.valid_prompts);
}

}  // namespace detail

/// What the denominators of a batch may count.
///
/// @param[in] tokens   [S] unmasked tokens of each turn, see count_tokens.
/// @param[in] reasons  [S]; kept turns are in the loss.
/// @throws precondition_error  sizes that differ, a negative count, more than 2^63 - 1 tokens together.
/// @note  Counts of parts add up when each unit, and with scope = prompt each prompt, lies in one part.
/// @note  Deterministic: integers.
/// @par Complexity  O(S + J log J) time, O(J) memory.
[[nodiscard]] inline loss_counts count_for_loss(rollout_view const& batch, std::span<std::int64_t const> tokens,
                                                std::span<reason_flags const> reasons, loss_unit unit) {
  detail::check_counts(batch, tokens, reasons, "count_for_loss");
  loss_counts total;
  detail::for_each_prompt(batch, tokens, reasons, unit, [&](auto, loss_counts const& counts) { total += counts; });
  return total;
}

/// The factor by which each turn's token losses enter the loss.
///
///     scale(s) = 1 / (P * D * divisor of its unit);   0 where the turn is not kept or has no token
///
/// P = number of prompts with scope = prompt (those with a kept token, or with a valid one unless denominator = kept),
/// else 1. A unit's own token mean divides by its kept tokens, or by its valid ones unless denominator = kept.
/// @param[in]  tokens, reasons  [S] as count_for_loss takes them.
/// @param[in]  total       counts of the whole batch: of all micro-batches and ranks that one step adds up. The losses
///                         and gradients of the parts then add up to that of the whole, with no further division (a
///                         framework that averages over ranks needs them times the ranks).
/// @param[out] turn_scale  [S].
/// @throws precondition_error  sizes that differ, counts as for count_for_loss, options that contradict each other,
///         nominal or norm outside [2^-63, 2^63], a total smaller than the batch's own counts; nothing is written.
/// @note  Filler rows have mask 0 or are not kept: they count nowhere.
/// @note  Everything rejected: all 0.
/// @note  Deterministic: integers, then two products and a quotient a turn; the same bits for any order of
///        trajectories, any split that `total` is added up from, and on the device.
/// @par Complexity  O(S + J log J) time, O(J) memory.
/// @par Reference   token_mean: DAPO, arXiv:2503.14476; token_norm: Dr. GRPO, arXiv:2503.20783.
inline void aggregate(rollout_view const& batch, std::span<std::int64_t const> tokens,
                      std::span<reason_flags const> reasons, aggregate_options const& options, loss_counts const& total,
                      std::span<double> turn_scale) {
  detail::check_counts(batch, tokens, reasons, "aggregate");
  expects_size("aggregate", "turn_scale", turn_scale.size(), batch.turns(), "turn");
  detail::check_aggregate(options);
  loss_counts const own = count_for_loss(batch, tokens, reasons, options.unit);
  auto const covers = [](std::string_view name, std::int64_t all, std::int64_t of_batch) {
    expects(all >= of_batch, "aggregate: total.", name, " = ", all, ", less than the ", of_batch, " of this batch");
  };
  covers("kept_tokens", total.kept_tokens, own.kept_tokens);
  covers("valid_tokens", total.valid_tokens, own.valid_tokens);
  covers("kept_units", total.kept_units, own.kept_units);
  covers("valid_units", total.valid_units, own.valid_units);
  covers("kept_prompts", total.kept_prompts, own.kept_prompts);
  covers("valid_prompts", total.valid_prompts, own.valid_prompts);

  auto const write = [&](std::size_t first, std::size_t last, double outer) {
    double const divisor = detail::unit_divisor(detail::tokens_between(tokens, reasons, first, last), options);
    for (std::size_t s = first; s < last; ++s) turn_scale[s] = detail::scale_of(tokens[s], reasons[s], outer, divisor);
  };
  double const prompts = detail::prompts_of(total, options);
  detail::for_each_prompt(batch, tokens, reasons, options.unit,
                          [&](std::span<std::size_t const> members, loss_counts const& counts) {
                            bool const by_prompt = options.scope == loss_scope::prompt;
                            double const outer = prompts * detail::denominator_of(by_prompt ? counts : total, options);
                            for (std::size_t const j : members) {
                              std::size_t const begin = batch.first_turn(j);
                              std::size_t const end = batch.first_turn(j + 1);
                              if (options.unit == loss_unit::trajectory)
                                write(begin, end, outer);
                              else
                                for (std::size_t s = begin; s < end; ++s) write(s, s + 1, outer);
                            }
                          });
}

/// The same for a batch that is the whole.
inline void aggregate(rollout_view const& batch, std::span<std::int64_t const> tokens,
                      std::span<reason_flags const> reasons, aggregate_options const& options,
                      std::span<double> turn_scale) {
  aggregate(batch, tokens, reasons, options, count_for_loss(batch, tokens, reasons, options.unit), turn_scale);
}

}  // namespace turnwise::loss
