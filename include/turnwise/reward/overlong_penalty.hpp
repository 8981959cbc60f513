/// @file
/// Penalty that grows as a response nears the longest that is allowed.
#pragma once

#include <turnwise/core/rollout.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace turnwise::reward {

/// Whose length is judged.
enum class length_scope : std::uint8_t { turn, trajectory };

/// Options of `overlong_penalty`.
struct overlong_penalty_options {
  std::int64_t max_length = 0;  ///< tokens at which the penalty is whole; to be given
  std::int64_t buffer = 0;      ///< tokens before it over which the penalty grows; 0: none up to max_length, then whole
  double factor = 1.0;          ///< the whole penalty, at least 0
  bool capped = true;           ///< no more than the whole penalty (DAPO, OpenRLHF, TRL); false: it goes on (AReaL)
  length_scope scope = length_scope::turn;  ///< whose length is judged
};

/// Penalty of a length, at most 0.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr double overlong_term(std::int64_t length,
                                                                  overlong_penalty_options const& options) noexcept {
  std::int64_t const excess = length - (options.max_length - options.buffer);
  if (excess <= 0) return 0.0;
  bool const whole = options.capped && excess >= options.buffer;
  return whole ? -options.factor
               : -options.factor * (static_cast<double>(excess) / static_cast<double>(options.buffer));
}

namespace detail {

inline void check_overlong_penalty(overlong_penalty_options const& options) {
  expects(options.max_length > 0, "overlong_penalty: max_length = ", options.max_length, ", expected at least 1");
  expects(options.buffer >= 0 && options.buffer <= options.max_length, "overlong_penalty: buffer = ", options.buffer,
          ", expected a length in [0, max_length = ", options.max_length, "]");
  expects(options.factor >= 0 && options.factor <= 0x1p30, "overlong_penalty: factor = ", options.factor,
          ", expected a number in [0, 2^30]");
  expects(options.capped || options.buffer > 0, "overlong_penalty: without a buffer the penalty has no slope to go on");
}

}  // namespace detail

/// What each turn, or each trajectory, pays for its length: a reward term, 0 or negative.
///
///     penalty = min(0, (max_length - buffer - length) / buffer * factor), not below -factor if capped
///
/// Also called: soft overlong punishment, DAPO length penalty.
/// @param[in]  batch    S turns.
/// @param[in]  length   [S] tokens of each turn, raw: whatever a loss mask or a filter leaves of them; empty: those of
///                      the batch's token ranges.
/// @param[in]  options  max_length has no default.
/// @param[out] penalty  [S]. With scope = trajectory its turns' lengths are added, those of turns flagged off too, and
///                      the last turn that is not flagged off gets the penalty, the others 0.
/// @throws precondition_error  an inconsistent batch, sizes that differ, a negative length or one of 2^40 and more,
///         max_length below 1, buffer outside [0, max_length], factor negative or beyond 2^30, capped = false without a
///         buffer; nothing is written.
/// @note  length = max_length pays -factor, except with buffer = 0: then only a longer one does.
/// @note  Turns without tokens pay 0 and count as 0 tokens of their trajectory.
/// @note  Deterministic: integer lengths, one quotient, one product.
/// @par Complexity  O(S), no allocation.
/// @par Reference   DAPO, arXiv:2503.14476.
template <real T>
void overlong_penalty(rollout_view const& batch, std::span<std::int64_t const> length,
                      overlong_penalty_options const& options, std::span<T> penalty) {
  check_rollout(batch, "overlong_penalty");
  detail::check_overlong_penalty(options);
  expects_size("overlong_penalty", "penalty", penalty.size(), batch.turns(), "turn");
  if (length.empty()) {
    check_token_ranges(batch, std::size_t{1} << 62, "overlong_penalty");
  } else {
    expects_size("overlong_penalty", "length", length.size(), batch.turns(), "turn");
  }
  auto const length_of = [&](std::size_t s) {
    return length.empty() ? batch.turn_end[s] - batch.turn_begin[s] : length[s];
  };
  for (std::size_t s = 0; s < penalty.size(); ++s)
    expects(length_of(s) >= 0 && length_of(s) < std::int64_t{1} << 40, "overlong_penalty: length[", s,
            "] = ", length_of(s), ", expected a count below 2^40");

  for (std::size_t j = 0; j < batch.trajectories(); ++j) {
    std::int64_t total = 0;
    std::size_t payer = batch.turns();
    for (std::size_t s = batch.first_turn(j); s < batch.first_turn(j + 1); ++s) {
      bool const of_turn = options.scope == length_scope::turn;
      total += length_of(s);
      penalty[s] = narrowed<T>(of_turn ? overlong_term(length_of(s), options) : 0.0);
      if (!of_turn && !batch.flagged_off(s)) payer = s;
    }
    if (payer < batch.turns()) penalty[payer] = narrowed<T>(overlong_term(total, options));
  }
}

}  // namespace turnwise::reward
