/// @file
/// Batches of turns without tokens: written down by hand or random, and the same batch in another memory order.
#pragma once

#include "batches.hpp"

#include <turnwise/core/rollout.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace turnwise::test {

/// One trajectory: `turns` holds one number a turn (a reward or a return).
template <typename T = double>
struct turn_values {
  std::int64_t group = 0, id = 0;
  std::vector<T> turns{};
  std::vector<std::int64_t> index{};  ///< empty: positions; given for all trajectories or for none
  std::vector<std::uint8_t> valid{};  ///< empty: all on
};

/// The arrays behind a rollout_view, and the value of each turn.
template <typename T = double>
struct ragged_batch {
  std::vector<std::int64_t> offsets{0}, group_id, trajectory_id, turn_index;
  std::vector<std::uint8_t> turn_valid;
  std::vector<T> value;

  explicit ragged_batch(std::vector<turn_values<T>> const& trajectories) {
    for (auto const& one : trajectories) {
      group_id.push_back(one.group);
      trajectory_id.push_back(one.id);
      value.insert(value.end(), one.turns.begin(), one.turns.end());
      turn_index.insert(turn_index.end(), one.index.begin(), one.index.end());
      for (std::size_t t = 0; t < one.turns.size(); ++t) turn_valid.push_back(one.valid.empty() ? 1 : one.valid[t]);
      offsets.push_back(static_cast<std::int64_t>(value.size()));
    }
  }

  [[nodiscard]] rollout_view view() const {
    return {.trajectory_offsets = offsets,
            .group_id = group_id,
            .trajectory_id = trajectory_id,
            .turn_index = turn_index,
            .turn_valid = turn_valid};
  }
  [[nodiscard]] std::size_t turns() const { return value.size(); }
  [[nodiscard]] std::vector<reason_flags> reasons() const {
    std::vector<reason_flags> result(turns());
    begin_reasons(view(), result);
    return result;
  }
};

/// Trajectories in the memory order `order`.
template <typename T>
std::vector<turn_values<T>> in_order(std::vector<turn_values<T>> const& trajectories,
                                     std::vector<std::size_t> const& order) {
  std::vector<turn_values<T>> result;
  for (std::size_t const j : order) result.push_back(trajectories[j]);
  return result;
}

/// For each turn of the batch in memory order `order`: which turn it is when the order is 0, 1, 2, ...
template <typename T>
std::vector<std::size_t> source_turns(std::vector<turn_values<T>> const& trajectories,
                                      std::vector<std::size_t> const& order) {
  std::vector<std::size_t> first(trajectories.size() + 1);
  for (std::size_t j = 0; j < trajectories.size(); ++j) first[j + 1] = first[j] + trajectories[j].turns.size();
  std::vector<std::size_t> result;
  for (std::size_t const j : order)
    for (std::size_t s = first[j]; s < first[j + 1]; ++s) result.push_back(s);
  return result;
}

/// A number of many magnitudes, so that the order of a sum shows in its last bits.
template <typename T = double>
T uneven_number(integers& random) {
  double const magnitude = 1.0 / static_cast<double>(std::int64_t{1} << random.below(20));
  return static_cast<T>(static_cast<double>(random.below(2'000'001) - 1'000'000) * 1.1e-4 * magnitude);
}

/// Groups of the given sizes, each trajectory of 0 to most_turns turns; a few turns flagged off, a few NaN.
template <typename T>
std::vector<turn_values<T>> random_values(integers& random, std::span<std::int64_t const> group_sizes,
                                          std::int64_t most_turns) {
  std::vector<turn_values<T>> result;
  std::int64_t g = 0;
  for (std::int64_t const size : group_sizes) {
    std::int64_t const group = g % 2 == 0 ? -(g << 34) - 1 : 7919 * g;
    ++g;
    bool const constant = random.below(6) == 0;
    T const only = uneven_number<T>(random);
    for (std::int64_t k = 0; k < size; ++k) {
      turn_values<T> one{.group = group, .id = 3 * (size - k)};
      std::int64_t const turns = random.below(most_turns + 1);
      std::int64_t index = random.below(2);
      for (std::int64_t t = 0; t < turns; ++t, index += 1 + random.below(2)) {
        bool const unscored = random.below(25) == 0;
        one.turns.push_back(unscored   ? std::numeric_limits<T>::quiet_NaN()
                            : constant ? only
                                       : uneven_number<T>(random));
        one.index.push_back(index);
        one.valid.push_back(random.below(15) != 0);
      }
      result.push_back(one);
    }
  }
  return result;
}

}  // namespace turnwise::test
