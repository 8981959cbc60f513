/// @file
/// Keeps a fixed number of turns or trajectories of each group, by a seeded draw.
#pragma once

#include <turnwise/core/grouping.hpp>
#include <turnwise/core/philox.hpp>
#include <turnwise/core/rollout.hpp>
#include <turnwise/rejection/usable_tokens.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace turnwise::rejection {

/// Options of `down_sampling`.
struct down_sampling_options {
  std::int64_t target = 1;          ///< how many stay in a group, at least 1
  scope level = scope::trajectory;  ///< whether turns are drawn, or whole trajectories
};

namespace detail {

/// The place of a turn, or of the first kept turn of a trajectory, in the draw: smaller ones stay.
struct draw_place {
  std::uint64_t word;   ///< of Philox
  std::int64_t member;  ///< place among the members of the group, in canonical order
  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr bool operator<(draw_place const& other) const noexcept {
    return word < other.word || (word == other.word && member < other.member);
  }
};

/// The word of a turn; of a trajectory, that of turn index 0, whatever turns it has.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr std::uint64_t draw_word(draw_key key, std::int64_t group_id,
                                                                     std::int64_t trajectory_id,
                                                                     std::int64_t turn_index, scope level) noexcept {
  std::int64_t const turn = level == scope::turn ? turn_index : 0;
  return static_cast<std::uint64_t>(0x1p32 *
                                    turn_uniform(key, group_id, trajectory_id, turn, draw_purpose::down_sampling));
}

inline void check_down_sampling_options(down_sampling_options const& options, std::string_view function) {
  expects(options.target >= 1, function, ": target = ", options.target, ", expected at least 1");
}

}  // namespace detail

/// Keeps min(target, kept) kept turns, or trajectories with kept turns, of each group and rejects the others' kept
/// turns: reason `not_drawn`.
///
///     those with the smallest words stay, equal words in canonical order;
///     word = philox(counter = (group low, group high, trajectory, turn or 0), key = (seed, step))[down_sampling]
///
/// Also called: rollout down-sampling, subsampling to a fixed group size.
/// @param[in]     batch    the ids of the draws.
/// @param[in]     groups   of the batch.
/// @param[in]     key      seed and step of the draws; the step must change from one training step to the next.
/// @param[in,out] reasons  [S] after all other rules: only kept turns are drawn, and gain `not_drawn`.
/// @throws precondition_error  sizes that differ; target below 1; ids outside [0, 2^32). Nothing is written.
/// @note  Each subset of a group is equally likely. A group with no more than target stays as it is.
/// @note  Exact: the same key gives the same choice in any order, in any split that keeps groups whole, and on every
///        backend.
/// @par Complexity  O(S) time, memory of the largest group.
/// @par Reference   ours; the words are of Philox4x32-10, Salmon et al. 2011.
inline void down_sampling(rollout_view const& batch, grouping const& groups, down_sampling_options const& options,
                          draw_key key, std::span<reason_flags> reasons) {
  check_rollout(batch, "down_sampling");
  check_draw_ids(batch, "down_sampling");
  expects_size("down_sampling", "groups", groups.turns(), batch.turns(), "turn");
  expects_size("down_sampling", "groups", groups.trajectories(), batch.trajectories(), "trajectory");
  expects_size("down_sampling", "reasons", reasons.size(), batch.turns(), "turn");
  detail::check_down_sampling_options(options, "down_sampling");

  std::vector<detail::draw_place> drawn;
  for (std::size_t g = 0; g < groups.groups(); ++g) {
    auto const turn = groups.members(g);
    auto const trajectory = groups.trajectories(g);
    auto const place_of = [&](std::size_t k) {
      auto const j = static_cast<std::size_t>(trajectory[k]);
      return detail::draw_place{detail::draw_word(key, batch.group_id[j], batch.trajectory_id[j],
                                                  batch.index_of(j, static_cast<std::size_t>(turn[k])), options.level),
                                static_cast<std::int64_t>(k)};
    };
    auto const kept = [&](std::size_t k) { return is_kept(reasons[static_cast<std::size_t>(turn[k])]); };

    drawn.clear();
    std::int64_t last = -1;  // trajectory that is drawn already
    for (std::size_t k = 0; k < turn.size(); ++k) {
      if (!kept(k) || (options.level == scope::trajectory && trajectory[k] == last)) continue;
      drawn.push_back(place_of(k));
      last = trajectory[k];
    }
    if (static_cast<std::int64_t>(drawn.size()) <= options.target) continue;
    // The first that goes: a trajectory's turns stand together, so with equal words all of them are before or after it.
    std::nth_element(drawn.begin(), drawn.begin() + options.target, drawn.end());
    detail::draw_place const cut = drawn[static_cast<std::size_t>(options.target)];
    for (std::size_t k = 0; k < turn.size(); ++k)
      if (kept(k) && !(place_of(k) < cut)) reasons[static_cast<std::size_t>(turn[k])] |= reason::not_drawn;
  }
}

}  // namespace turnwise::rejection
