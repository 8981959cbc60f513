/// @file
/// Reward of a proposed problem: highest where about half of the attempts at it succeed.
#pragma once

#include <turnwise/core/grouping.hpp>
#include <turnwise/reward/detail/reward_limits.hpp>
#include <turnwise/reward/evaluation.hpp>
#include <turnwise/reward/kernel_reward.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

namespace turnwise::reward {

/// Which turn makes a trajectory correct.
enum class solved_by : std::uint8_t {
  last_turn,  ///< its last turn that is not flagged off
  any_turn    ///< any turn that is not flagged off
};

/// The defaults are those of the KernelZero paper.
struct frontier_reward_options {
  double target = 0.5;                      ///< share of correct trajectories that pays most, in [0, 1]
  double invalid_reward = -1.0;             ///< of a proposal whose module is invalid
  solved_by solved = solved_by::last_turn;  ///< which turn makes a trajectory correct
};

/// Reward for `correct` of `judged` trajectories; NaN (unscored) for none.
[[nodiscard]] TURNWISE_HOST_DEVICE inline double frontier_value(std::int64_t correct, std::int64_t judged,
                                                                double target) noexcept {
  double const share = static_cast<double>(correct) / static_cast<double>(judged);
  using std::fabs;
  using std::fma;
  return fma(-2.0, fabs(share - target), 1.0);
}

/// The attempts at the proposals: a batch of its own, with one group a proposal.
template <real E>
struct attempts {
  rollout_view batch{};                ///< the attempts
  grouping const* groups = nullptr;    ///< of the batch, by group
  reward::evaluation<E> evaluation{};  ///< [S] of the attempts
};

namespace detail {

template <real T>
void check_frontier_reward(frontier_reward_options const& options) {
  expects(options.target >= 0 && options.target <= 1, "frontier_reward: target = ", options.target,
          ", expected a share in [0, 1]");
  check_reward_option<T>(options.invalid_reward, "frontier_reward", "invalid_reward");
}

/// Groups are those of the batch, one an id.
template <real E>
void check_by_group(attempts<E> const& of) {
  auto const id = [&](std::int64_t trajectory) { return of.batch.group_id[static_cast<std::size_t>(trajectory)]; };
  for (std::size_t g = 0; g < of.groups->groups(); ++g) {
    auto const members = of.groups->trajectories(g);
    std::int64_t const first = id(members.front());
    expects(id(members.back()) == first && (g == 0 || id(of.groups->trajectories(g - 1)[0]) < first),
            "frontier_reward: groups are not by group_id, which is ", first, " and ", id(members.back()),
            " at the ends of group ", g, "; expected group_by::group, of this batch");
  }
}

/// The group of a proposal: groups stand in the order of their ids. groups() when there is none.
template <real E>
[[nodiscard]] std::size_t group_of(attempts<E> const& of, std::int64_t id) {
  std::size_t low = 0, high = of.groups->groups();
  while (low < high) {
    std::size_t const middle = low + (high - low) / 2;
    if (of.batch.group_id[static_cast<std::size_t>(of.groups->trajectories(middle)[0])] < id)
      low = middle + 1;
    else
      high = middle;
  }
  bool const found =
      low < of.groups->groups() && of.batch.group_id[static_cast<std::size_t>(of.groups->trajectories(low)[0])] == id;
  return found ? low : of.groups->groups();
}

/// The reward of one group of attempts.
template <real E>
[[nodiscard]] double frontier_of_group(attempts<E> const& of, std::size_t g, frontier_reward_options const& options) {
  if (g == of.groups->groups()) return std::numeric_limits<double>::quiet_NaN();
  auto const turn = of.groups->members(g);
  auto const trajectory = of.groups->trajectories(g);
  std::int64_t correct = 0, judged = 0;
  for (std::size_t first = 0, k = 0; first < turn.size(); first = k) {
    bool any = false, solved = false;
    for (; k < turn.size() && trajectory[k] == trajectory[first]; ++k) {
      auto const s = static_cast<std::size_t>(turn[k]);
      if (of.batch.flagged_off(s)) continue;
      bool const counts = of.evaluation.counts_as_correct(s);
      any = true;
      solved = counts || (solved && options.solved == solved_by::any_turn);
    }
    judged += any;
    correct += solved;
  }
  return frontier_value(correct, judged, options.target);
}

}  // namespace detail

/// Reward of each proposal by the share of attempts at it that succeed, each trajectory counted once.
///
///     reward = 1 - 2 |mean correctness - target|;   invalid_reward where the module is invalid
///
/// Also called: frontier reward, learnability reward, proposer reward.
/// @param[in]  of              the attempts; a trajectory without a turn that is not flagged off is no attempt.
/// @param[in]  proposal_group  [P] group id of the attempts at each proposal. For the rewards of all groups: their ids.
/// @param[in]  invalid_module  [P] or empty; not 0: the proposal is no valid problem and its attempts are not looked
///                             at.
/// @param[out] reward          [P]; NaN (unscored) for a proposal without attempts.
/// @throws precondition_error  sizes that differ, no grouping or one that is not by group, target outside [0, 1],
///         invalid_reward not finite or beyond magnitude_limit<T>; nothing is written.
/// @note  With a target of 1/2 the reward is in [0, 1]; a target t gives at least 1 - 2 max(t, 1 - t).
/// @note  Speedup and profile are not read and may be empty: a correct attempt without a speedup counts as correct.
/// @note  Deterministic: counts, one quotient, one fused multiply-add.
/// @par Complexity  O(S + P log groups), no allocation.
/// @par Reference   KernelZero, arXiv:2609.33074.
template <real E, real T>
void frontier_reward(attempts<E> const& of, std::span<std::int64_t const> proposal_group,
                     std::span<std::uint8_t const> invalid_module, frontier_reward_options const& options,
                     std::span<T> reward) {
  detail::check_frontier_reward<T>(options);
  expects_size("frontier_reward", "proposal_group", proposal_group.size(), reward.size(), "proposal");
  if (!invalid_module.empty())
    expects_size("frontier_reward", "invalid_module", invalid_module.size(), reward.size(), "proposal");
  if (reward.empty()) return;
  expects(of.groups != nullptr, "frontier_reward: the attempts have no grouping");
  check_rollout(of.batch, "frontier_reward");
  expects_size("frontier_reward", "groups", of.groups->turns(), of.batch.turns(), "turn of the attempts");
  expects_size("frontier_reward", "groups", of.groups->trajectories(), of.batch.trajectories(),
               "trajectory of the attempts");
  detail::check_by_group(of);
  auto const check_flags = [&](std::span<std::uint8_t const> flags, std::string_view name) {
    if (!flags.empty()) expects_size("frontier_reward", name, flags.size(), of.batch.turns(), "turn of the attempts");
  };
  expects_size("frontier_reward", "correct", of.evaluation.correct.size(), of.batch.turns(), "turn of the attempts");
  check_flags(of.evaluation.compiled, "compiled");
  check_flags(of.evaluation.decoy, "decoy");
  check_flags(of.evaluation.rule_violation, "rule_violation");
  for (std::size_t p = 0; p < reward.size(); ++p) {
    bool const invalid = !invalid_module.empty() && invalid_module[p] != 0;
    reward[p] = narrowed<T>(invalid ? options.invalid_reward
                                    : detail::frontier_of_group(of, detail::group_of(of, proposal_group[p]), options));
  }
}

}  // namespace turnwise::reward
