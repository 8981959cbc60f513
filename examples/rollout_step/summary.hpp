/// @file
/// What a step did, turn index by turn index: the numbers behind the report.
#pragma once

#include "step.hpp"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace rollout_step {

/// Smallest, mean, largest value and standard deviation (of the population) of some turns; zeros without any.
struct spread {
  std::int64_t count = 0;
  double min = 0, mean = 0, max = 0, deviation = 0;
};

struct turn_index_summary {
  std::int64_t turn_index = 0;
  std::int64_t turns = 0, valid = 0, kept = 0;
  std::array<std::int64_t, turnwise::reason::names.size()> reasons{};  ///< turns that carry each, in bit order
  spread reward, advantage;                                            ///< over valid turns
};

/// Something that the numbers of a step say should be looked at.
struct warning {
  std::string name;
  std::string text;
};

struct step_summary {
  std::int64_t turns = 0, trajectories = 0, groups = 0, tokens = 0;
  bool given_reward = false;                      ///< by reward.npy
  std::vector<turn_index_summary> by_turn_index;  ///< in order of the index
  std::vector<warning> warnings;
};

/// The same bits for any order of the rows.
[[nodiscard]] step_summary summarise(input_rows const& rows, turnwise::rollout const& order,
                                     step_options const& options, step_result const& result);

}  // namespace rollout_step
