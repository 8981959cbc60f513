/// @file
/// Estimates of what k samples of a group reach, and their mean over groups: what every "at k" metric shares.
#pragma once

#include <turnwise/core/grouping.hpp>
#include <turnwise/core/ordered_sum.hpp>
#include <turnwise/metrics/group_estimate.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string_view>
#include <vector>

namespace turnwise::metrics {
namespace detail {

inline void check_at_k(std::int64_t k, std::string_view function) {
  expects(k >= 1, function, ": k = ", k, ", expected at least 1");
}

/// The mean of the counted estimates, in group order.
inline group_mean mean_of(std::span<group_estimate const> groups) {
  group_mean result;
  double const sum = ordered_sum(groups.size(), [&](std::size_t g) {
    ++(groups[g].counted ? result.groups : result.left_out);
    return groups[g].value;
  });
  if (result.groups > 0) result.mean = sum / static_cast<double>(result.groups);
  return result;
}

/// Estimates each group with estimate(samples, k), samples = gather(g) having size(), and writes them when all are
/// known.
template <typename Gather, typename Estimate>
group_mean estimate_groups(std::size_t groups, at_k_options const& options, std::string_view function, Gather gather,
                           Estimate estimate, std::span<group_estimate> per_group) {
  check_at_k(options.k, function);
  if (!per_group.empty()) expects_size(function, "per_group", per_group.size(), groups, "group");
  std::vector<group_estimate> all(groups);
  for (std::size_t g = 0; g < groups; ++g) {
    auto const samples = gather(g);
    auto const n = static_cast<std::int64_t>(samples.size());
    expects(n >= options.k || options.too_few != too_few_policy::error, function, ": group ", g, " has ", n,
            " samples, fewer than k = ", options.k);
    all[g].samples = n;
    all[g].counted = n >= options.k || (n > 0 && options.too_few == too_few_policy::all);
    if (all[g].counted) all[g].value = estimate(samples, std::min(n, options.k));
  }
  if (!per_group.empty()) std::ranges::copy(all, per_group.begin());
  return mean_of(all);
}

/// Groups of trajectories: member i of the batch is trajectory i. In canonical order, as make_grouping.
inline grouping group_trajectories(rollout_view const& batch) {
  std::vector<std::int64_t> offsets(batch.trajectories() + 1);
  std::iota(offsets.begin(), offsets.end(), std::int64_t{0});
  return make_grouping(
      {.trajectory_offsets = offsets, .group_id = batch.group_id, .trajectory_id = batch.trajectory_id},
      group_by::group);
}

}  // namespace detail
}  // namespace turnwise::metrics
