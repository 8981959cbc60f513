/// @file
/// Reward of a proposed problem, on the device: highest where about half of the attempts at it succeed.
#pragma once

#include <turnwise/gpu/core/grouping_view.cuh>
#include <turnwise/gpu/core/rollout.cuh>
#include <turnwise/gpu/reward/detail/each_turn.cuh>
#include <turnwise/gpu/reward/kernel_reward.cuh>
#include <turnwise/reward/frontier_reward.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace turnwise::gpu::reward {

using turnwise::reward::frontier_reward_options;
using turnwise::reward::solved_by;

/// turnwise::reward::attempts on the device.
template <real E>
struct attempts {
  rollout_view batch{};                ///< the attempts
  grouping groups{};                   ///< of the batch, by group
  reward::evaluation<E> evaluation{};  ///< [S] of the attempts
};

namespace detail {

template <real E, real T>
struct frontier_of_proposal {
  attempts<E> of;
  device_span<std::int64_t const> proposal_group;
  device_span<std::uint8_t const> invalid_module;
  frontier_reward_options options;
  device_span<T> reward;

  __device__ void operator()(std::int64_t proposal) const {
    auto const p = static_cast<std::size_t>(proposal);
    bool const invalid = !invalid_module.empty() && invalid_module[p] != 0;
    reward[p] = narrowed<T>(invalid ? options.invalid_reward : of_group(proposal_group[p]));
  }

 private:
  [[nodiscard]] __device__ std::int64_t id_of_member(std::int64_t k) const {
    std::int64_t const turn = of.groups.members[static_cast<std::size_t>(k)];
    return of.batch.group_id[static_cast<std::size_t>(of.groups.turn_trajectory[static_cast<std::size_t>(turn)])];
  }
  [[nodiscard]] __device__ std::int64_t id_of(std::int64_t g) const {
    return id_of_member(of.groups.offsets[static_cast<std::size_t>(g)]);
  }

  /// Groups stand in the order of their ids.
  [[nodiscard]] __device__ double of_group(std::int64_t id) const {
    std::int64_t const groups = of.groups.counts == nullptr ? 0 : of.groups.counts->groups;
    std::int64_t low = 0;
    std::int64_t high = groups;
    while (low < high) {
      std::int64_t const middle = low + (high - low) / 2;
      if (id_of(middle) < id)
        low = middle + 1;
      else
        high = middle;
    }
    if (low == groups || id_of(low) != id) return unscored_value();
    std::int64_t const last = of.groups.offsets[static_cast<std::size_t>(low) + 1];
    bool const by_group = id_of_member(last - 1) == id && (low + 1 == groups || id_of(low + 1) != id);
    if (!by_group) return unscored_value();

    std::int64_t correct = 0;
    std::int64_t judged = 0;
    std::int64_t trajectory = -1;
    bool any = false;
    bool solved = false;
    for (std::int64_t k = of.groups.offsets[static_cast<std::size_t>(low)]; k < last; ++k) {
      std::int64_t const turn = of.groups.members[static_cast<std::size_t>(k)];
      auto const s = static_cast<std::size_t>(turn);
      if (of.groups.turn_trajectory[s] != trajectory) {  // members of one are adjacent
        judged += any;
        correct += solved;
        any = solved = false;
        trajectory = of.groups.turn_trajectory[s];
      }
      if (of.batch.flagged_off(turn)) continue;
      any = true;
      solved = of.evaluation.counts_as_correct(s) || (solved && options.solved == solved_by::any_turn);
    }
    return turnwise::reward::frontier_value(correct + solved, judged + any, options.target);
  }
};

/// Sizes alone; `proposals` as the reward has.
template <real E>
void check_attempts(attempts<E> const& of, device_span<std::int64_t const> proposal_group,
                    device_span<std::uint8_t const> invalid_module, std::size_t proposals) {
  constexpr std::string_view name = "frontier_reward";
  expects_size(name, "proposal_group", proposal_group.size(), proposals, "proposal");
  if (!invalid_module.empty()) expects_size(name, "invalid_module", invalid_module.size(), proposals, "proposal");
  if (proposals == 0) return;
  check_sizes(of.batch, name);
  expects(of.groups.counts != nullptr, "frontier_reward: the attempts have no grouping");
  std::size_t const turns = of.batch.turns;
  auto const check_flags = [&](device_span<std::uint8_t const> flags, std::string_view array) {
    if (!flags.empty()) expects_size(name, array, flags.size(), turns, "turn of the attempts");
  };
  expects_size(name, "groups", of.groups.turns, turns, "turn of the attempts");
  expects_size(name, "groups", of.groups.trajectory_order.size(), of.batch.trajectories(),
               "trajectory of the attempts");
  expects_size(name, "correct", of.evaluation.correct.size(), turns, "turn of the attempts");
  check_flags(of.evaluation.compiled, "compiled");
  check_flags(of.evaluation.decoy, "decoy");
  check_flags(of.evaluation.rule_violation, "rule_violation");
}

}  // namespace detail

inline constexpr std::size_t frontier_reward_workspace_bytes = 0;  ///< takes no workspace

/// Reward of each proposal by the share of attempts at it that succeed: the device version, with the same bits (of a
/// NaN it is not told which NaN).
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch.
/// @param[in]  of              the attempts, with their grouping by group.
/// @param[in]  proposal_group  [P] group id of the attempts at each proposal.
/// @param[in]  invalid_module  [P] or empty; not 0: the proposal is no valid problem.
/// @param[out] reward          [P]; NaN (unscored) for a proposal without attempts, and where the grouping is broken or
///                             not by group.
/// @throws precondition_error  sizes that differ, no grouping, options as on the host; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @par Complexity  O(S + P log groups) work, a thread a proposal.
/// @see turnwise::reward::frontier_reward
template <real E, real T>
void frontier_reward(attempts<E> const& of, device_span<std::int64_t const> proposal_group,
                     device_span<std::uint8_t const> invalid_module, frontier_reward_options const& options,
                     device_span<T> reward, ::cuda::stream_ref stream) {
  turnwise::reward::detail::check_frontier_reward<T>(options);
  detail::check_attempts(of, proposal_group, invalid_module, reward.size());
  detail::enqueue_each_turn("frontier_reward", reward.size(),
                            detail::frontier_of_proposal<E, T>{of, proposal_group, invalid_module, options, reward},
                            stream);
}

}  // namespace turnwise::gpu::reward
