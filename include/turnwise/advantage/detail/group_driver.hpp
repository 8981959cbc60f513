/// @file
/// The loop that every group-wise advantage runs in. A method is a small policy:
///
///     state prepare(group) const;                   // once a group
///     double advantage(state, one) const;           // once a valid turn
///
/// and where a turn may have to look at the others of its group or pool:
///
///     bool needs_others(state, one) const;          // once a valid turn
///     anything others(group, state, one) const;     // where needs_others says so; on the device by the whole warp
///     double advantage(state, one, others) const;   // once a valid turn; others = {} where they were not needed
///
/// What it can ask of a group is in group_values.hpp.
#pragma once

#include <turnwise/advantage/detail/group_values.hpp>
#include <turnwise/core/parallel_for.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

namespace turnwise::advantage::detail {

/// The turn that an advantage is computed for.
struct group_member {
  double value;             ///< its return
  bool is_member;           ///< takes part in the baseline
  member_total own;         ///< the baseline members of its trajectory in this group
  std::int64_t turn;        ///< s
  std::int64_t trajectory;  ///< j
};

/// State of most methods: A = (G - centre) / divisor, and 0 throughout the group where the divisor is 0.
struct centre_and_divisor {
  double centre = 0;
  double divisor = 0;

  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr double advantage(double value) const noexcept {
    return divisor > 0 ? (value - centre) / divisor : 0.0;
  }
};

/// Policies that may look at others.
template <typename Policy, typename State>
concept looks_at_others = requires(Policy const& policy, State const& state, group_member const& one) {
  policy.needs_others(state, one);
};

inline void check_epsilon(double epsilon, std::string_view function) {
  expects(epsilon >= 0 && within_limit(epsilon), function, ": epsilon = ", epsilon,
          ", expected a number from 0 to 2^500");
}

template <real T>
void check_group_call(group_call<T> const& call, std::string_view function) {
  std::size_t const turns = call.groups.turns();
  auto const valid = [&](std::size_t s) { return call.reasons.empty() || is_valid(call.reasons[s]); };
  expects_size(function, "turn_return", call.turn_return.size(), turns, "turn");
  if (!call.reasons.empty()) expects_size(function, "reasons", call.reasons.size(), turns, "turn");
  expects_size(function, "advantage", call.advantage.size(), turns, "turn");
  auto const check_apart = [&]<typename U>(std::span<U const> input, std::string_view name) {
    std::less_equal<void const*> const not_after;  // unlike <=, for any two pointers
    expects(input.empty() || not_after(input.data() + input.size(), call.advantage.data()) ||
                not_after(call.advantage.data() + call.advantage.size(), input.data()),
            function, ": advantage must not overlap ", name);
  };
  check_apart(call.turn_return, "turn_return");
  check_apart(call.weight, "weight");
  for (std::size_t s = 0; s < turns; ++s)
    expects(!valid(s) || within_limit(call.turn_return[s]), function, ": turn_return[", s, "] = ", call.turn_return[s],
            " of a valid turn is not finite or beyond the magnitude limit");
  for (std::size_t s = 0; s < call.weight.size(); ++s)
    expects(!valid(s) || (call.weight[s] >= 0 && within_limit(call.weight[s])), function, ": weight[", s,
            "] = ", call.weight[s], " of a valid turn is negative, not finite or beyond the magnitude limit");
}

/// The advantage of a turn that looks at others: apart, which keeps the loop over those that need not fast.
template <typename Policy, typename Group, typename State>
[[gnu::noinline]] double compared_advantage(Policy const& policy, Group const& group, State const& state,
                                            group_member const& one) {
  return policy.advantage(state, one, policy.others(group, state, one));
}

/// The advantages of one group.
template <real T, typename Policy>
void advantages_of_group(group_call<T> const& call, Policy const& policy, std::size_t g) {
  group_values<T> const group{call, g};
  auto const turn = group.turns();
  auto const trajectory = group.trajectories();
  auto const state = policy.prepare(group);
  auto const advantage = [&](group_member const& one) {
    if constexpr (looks_at_others<Policy, decltype(state)>)
      return policy.needs_others(state, one) ? compared_advantage(policy, group, state, one)
                                             : policy.advantage(state, one, {});
    else
      return policy.advantage(state, one);
  };
  for (std::size_t first = 0, last = 0; first < turn.size(); first = last) {
    member_total own;
    for (; last < turn.size() && trajectory[last] == trajectory[first]; ++last) {
      if (!group.member(turn[last])) continue;
      own.sum += group.value(turn[last]);
      ++own.count;
    }
    for (std::size_t k = first; k < last; ++k) {
      double result = 0;
      if (group.valid(turn[k]))
        result = advantage({group.value(turn[k]), group.member(turn[k]), own, turn[k], trajectory[k]});
      call.advantage[static_cast<std::size_t>(turn[k])] = narrowed<T>(result);
    }
  }
}

/// Calls body(first, last) on ranges that cover the groups, threads sharing them.
template <real T, typename Body>
void for_each_group_range(group_call<T> const& call, Body body) {
  std::size_t const groups = call.groups.groups();
  std::size_t const average = groups == 0 ? 1 : call.groups.turns() / groups + 1;
  parallel_for(groups, 8192 / average, call.threads, body);
}

/// Runs a policy over all groups; invalid turns get 0. Arguments are checked by check_group_call.
template <real T, typename Policy>
void for_each_group(group_call<T> const& call, Policy const& policy) {
  for_each_group_range(call, [&](std::size_t first, std::size_t last) {
    for (std::size_t g = first; g < last; ++g) advantages_of_group(call, policy, g);
  });
}

}  // namespace turnwise::advantage::detail
