/// @file
/// Which turns have log ratios that ratio rules can use.
#pragma once

#include <turnwise/core/rollout.hpp>
#include <turnwise/importance/turn_statistics.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace turnwise::rejection {

/// Log of a band edge or threshold, by the platform's library at run time: compilers that know the argument would fold
/// it with another rounding.
[[nodiscard]] inline double log_of_option(double ratio) {
  double volatile const opaque = ratio;
  return std::log(opaque);
}

/// What a token whose log ratio is NaN or infinite does to its turn.
enum class non_finite_policy : std::uint8_t {
  reject,   ///< the turn gets `non_finite`, no ratio reason, and enters no trajectory ratio
  neutral,  ///< the token is left out; a turn left with none gets `no_token`
  error     ///< throws
};

/// What a rule looks at, or rejects: the turn, or its whole trajectory.
enum class scope : std::uint8_t { turn, trajectory };

/// Options of `usable_tokens`.
struct usable_tokens_options {
  non_finite_policy non_finite = non_finite_policy::reject;  ///< what a NaN or infinite log ratio does
  scope non_finite_scope = scope::turn;  ///< trajectory: one such turn marks every valid turn that has tokens
};

/// Marks valid turns without tokens (`no_token`) or with log ratios that are not finite (`non_finite`). The first of
/// the ratio rules: ratio_band and token_veto pass over what it marks.
///
/// @param[in]     statistics  [S] from log_ratio_statistics.
/// @param[in,out] reasons     [S] in which validity is settled (begin_reasons, discounted_return).
/// @throws precondition_error  sizes that differ; under non_finite_policy::error a valid turn with such a token. Nothing
///         is written.
/// @note  Exact and free of order.
/// @par Complexity  O(S), no allocation.
/// @par Reference   ours.
inline void usable_tokens(rollout_view const& batch, std::span<importance::turn_statistics const> statistics,
                          usable_tokens_options const& options, std::span<reason_flags> reasons) {
  check_rollout(batch, "usable_tokens");
  expects_size("usable_tokens", "statistics", statistics.size(), batch.turns(), "turn");
  expects_size("usable_tokens", "reasons", reasons.size(), batch.turns(), "turn");
  if (options.non_finite == non_finite_policy::error)
    for (std::size_t s = 0; s < reasons.size(); ++s)
      expects(!is_valid(reasons[s]) || statistics[s].non_finite == 0, "usable_tokens: turn ", s, " has ",
              statistics[s].non_finite, " log ratios that are not finite");

  bool const rejects = options.non_finite == non_finite_policy::reject;
  for (std::size_t j = 0; j < batch.trajectories(); ++j) {
    bool any = false;
    for (std::size_t s = batch.first_turn(j); s < batch.first_turn(j + 1); ++s) {
      if (!is_valid(reasons[s])) continue;
      bool const broken = rejects && statistics[s].non_finite > 0;
      any |= broken;
      if (broken)
        reasons[s] |= reason::non_finite;
      else if (statistics[s].count == 0)
        reasons[s] |= reason::no_token;
    }
    if (!any || options.non_finite_scope == scope::turn) continue;
    for (std::size_t s = batch.first_turn(j); s < batch.first_turn(j + 1); ++s)
      if (has_ratio(reasons[s])) reasons[s] |= reason::non_finite;
  }
}

namespace detail {

/// Total of record(s) over the turns of trajectory j that have a ratio, those rejected by other rules included.
template <typename Record>
auto trajectory_total(rollout_view const& batch, std::span<reason_flags const> reasons, std::size_t j, Record record) {
  decltype(record(j)) total{};
  for (std::size_t s = batch.first_turn(j); s < batch.first_turn(j + 1); ++s)
    if (has_ratio(reasons[s])) total += record(s);
  return total;
}

inline importance::turn_statistics trajectory_statistics(rollout_view const& batch,
                                                         std::span<importance::turn_statistics const> statistics,
                                                         std::span<reason_flags const> reasons, std::size_t j) {
  return trajectory_total(batch, reasons, j, [&](std::size_t s) { return statistics[s]; });
}

/// Gives every turn s that has a ratio the reasons rule(total, s): the total is record(s), or that of its trajectory.
template <typename Record, typename Rule>
void apply_ratio_rule(rollout_view const& batch, scope level, std::span<reason_flags> reasons, Record record,
                      Rule rule) {
  for (std::size_t j = 0; j < batch.trajectories(); ++j) {
    decltype(record(j)) of_trajectory{};
    if (level == scope::trajectory) of_trajectory = trajectory_total(batch, reasons, j, record);
    for (std::size_t s = batch.first_turn(j); s < batch.first_turn(j + 1); ++s)
      if (has_ratio(reasons[s])) reasons[s] |= rule(level == scope::trajectory ? of_trajectory : record(s), s);
  }
}

}  // namespace detail
}  // namespace turnwise::rejection
