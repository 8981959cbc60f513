/// @file
/// Advantages normalised over the whole batch, not over their group.
#pragma once

#include <turnwise/advantage/group_relative.hpp>
#include <turnwise/advantage/whiten.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace turnwise::advantage {

/// Options of `reinforce_plus_plus`.
struct reinforce_plus_plus_options {
  bool group_baseline = false;  ///< subtract the mean of the group first (REINFORCE++-baseline)
  whiten_options whiten{};      ///< its `members` are those of the group's mean too
  int threads = 0;              ///< of the group's mean; 0 = the runtime's default
};

/// Returns, or their distance from the mean of their group, whitened over the batch.
///
///     A = whiten(G)                              group_baseline = false (REINFORCE++)
///     A = whiten(G - mean of its group)          group_baseline = true (REINFORCE++-baseline)
///
/// @param[in]  groups       group_by::group or group_by::turn; read with group_baseline alone, otherwise its size
///                          counts.
/// @param[in]  turn_return  [S].
/// @param[in]  weight       [S] as for whiten, or empty.
/// @param[in]  reasons      [S], or empty: all valid and kept.
/// @param[out] advantage    [S], no unit; with group_baseline not the same span as turn_return. 0 where the turn is
///                          invalid.
/// @throws precondition_error  as group_relative and whiten; nothing is written.
/// @note  With group_baseline a lone member enters the whitening with 0, and groups of equal returns get what whitening
///        makes of 0: all of them equal give exactly 0.
/// @note  Biased in both forms: the turn is part of the mean and of the deviation. At a constant deviation the rest is
///        the bias of the mean: of all turns, or of the group (group_relative without scale).
/// @note  A batch over ranks: group_relative on the rank that has the group, then whiten_sum and the rest.
/// @note  Deterministic: the same bits for any order of trajectories and any thread count.
/// @par Complexity  O(S) time, no allocation.
/// @par Reference   Hu et al. 2025, arXiv:2501.03262.
template <real T>
void reinforce_plus_plus(grouping const& groups, no_deduce<std::span<T const>> turn_return,
                         no_deduce<std::span<std::int64_t const>> weight,
                         no_deduce<std::span<reason_flags const>> reasons, reinforce_plus_plus_options const& options,
                         std::span<T> advantage) {
  detail::whiten_turns<T>{turn_return, weight, reasons}.check(options.whiten, "reinforce_plus_plus");
  expects_size("reinforce_plus_plus", "turn_return", turn_return.size(), groups.turns(), "turn");
  expects_size("reinforce_plus_plus", "advantage", advantage.size(), groups.turns(), "turn");
  if (!options.group_baseline) return whiten(turn_return, weight, reasons, options.whiten, advantage);
  // So that the centred returns, which are whitened, are within the limit.
  for (std::size_t s = 0; s < turn_return.size(); ++s)
    expects((!reasons.empty() && !is_valid(reasons[s])) || within_limit(T{2} * turn_return[s]),
            "reinforce_plus_plus: turn_return[", s, "] = ", turn_return[s],
            " of a valid turn is beyond half the magnitude limit, which group_baseline needs");
  group_relative(groups, turn_return, reasons,
                 {.scale = false, .members = options.whiten.members, .threads = options.threads}, advantage);
  whiten<T>(advantage, weight, reasons, options.whiten, advantage);
}

}  // namespace turnwise::advantage
