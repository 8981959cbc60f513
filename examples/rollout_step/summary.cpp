#include "summary.hpp"

#include <algorithm>
#include <cmath>
#include <map>

namespace rollout_step {
namespace {

spread spread_of(std::vector<double> const& values) {
  if (values.empty()) return {};
  auto const n = static_cast<double>(values.size());
  double sum = 0;
  for (double const value : values) sum += value;
  double const mean = sum / n;
  double squares = 0;
  for (double const value : values) squares += (value - mean) * (value - mean);
  auto const [min, max] = std::ranges::minmax(values);
  return {static_cast<std::int64_t>(values.size()), min, mean, max, std::sqrt(squares / n)};
}

std::vector<turn_index_summary> summarise_indices(input_rows const& rows, turnwise::rollout const& order,
                                                  step_result const& result) {
  struct collected {
    turn_index_summary summary;
    std::vector<double> reward, advantage;
  };
  std::map<std::int64_t, collected> by_index;
  // Turns in the library's order, so that sums do not depend on the order of the rows.
  for (std::size_t const row : order.row) {
    auto& [summary, reward, advantage] = by_index[rows.turn_index[row]];
    turnwise::reason_flags const reasons = result.reason[row];
    ++summary.turns;
    for (std::size_t bit = 0; bit < summary.reasons.size(); ++bit) summary.reasons[bit] += (reasons >> bit) & 1;
    if (!turnwise::is_valid(reasons)) continue;
    ++summary.valid;
    summary.kept += turnwise::is_kept(reasons);
    reward.push_back(result.reward[row]);
    advantage.push_back(result.advantage[row]);
  }
  std::vector<turn_index_summary> indices;
  for (auto& [index, of_index] : by_index) {
    of_index.summary.turn_index = index;
    of_index.summary.reward = spread_of(of_index.reward);
    of_index.summary.advantage = spread_of(of_index.advantage);
    indices.push_back(of_index.summary);
  }
  return indices;
}

std::string turns_text(std::int64_t count, std::string const& one, std::string const& many) {
  return std::to_string(count) + (count == 1 ? one : many);
}

/// Two names at most, long ones cut, so that the line fits the page.
std::string names_text(std::vector<std::string> const& names) {
  constexpr std::size_t most_names = 2, most_letters = 20;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), most_names); ++i)
    text +=
        (i > 0 ? ", " : "") + (names[i].size() > most_letters ? names[i].substr(0, most_letters) + "..." : names[i]);
  return text + (names.size() > most_names ? " and " + std::to_string(names.size() - most_names) + " more" : "");
}

std::vector<warning> warnings_of(std::vector<std::string> const& unknown_arrays,
                                 turnwise::metrics::mismatch_record const& metrics, step_options const& options) {
  std::vector<warning> warnings;
  auto const percent = [](double share) { return std::to_string(static_cast<int>(std::lround(100 * share))) + "%"; };
  double const low = options.metrics().low_keep_share;
  std::string const group = options.groups() == turnwise::group_by::turn ? " turn group" : " prompt";
  if (!unknown_arrays.empty())
    warnings.push_back({"unknown_file", names_text(unknown_arrays) + ": not read (--help has the names)"});
  if (metrics.nothing_kept)
    warnings.push_back({"nothing_kept", "no turn is kept: this step has no gradient"});
  else if (metrics.low_keep)
    warnings.push_back({"low_keep", "fewer than " + percent(low) + " of the valid turns are kept"});
  if (metrics.profiler_suspect)
    warnings.push_back({"profiler_suspect", std::to_string(metrics.meaningless_profiles) + " of " +
                                                std::to_string(metrics.correct.turns) +
                                                " correct turns have a profile without meaning"});
  if (metrics.speedup_outliers > 0)
    warnings.push_back(
        {"speedup_outlier", turns_text(metrics.speedup_outliers, " correct turn is", " correct turns are") +
                                " faster than the speedup cap"});
  if (metrics.rejected_to_one > 0)
    warnings.push_back({"rejected_to_one", turns_text(metrics.rejected_to_one, group + " has", group + "s have") +
                                               " a single turn left after rejection"});
  if (metrics.negative_groups > 0)
    warnings.push_back({"negative_groups", turns_text(metrics.negative_groups, group + " keeps", group + "s keep") +
                                               " turns with negative advantages alone"});
  if (metrics.non_finite_tokens > 0)
    warnings.push_back({"non_finite_tokens", turns_text(metrics.non_finite_tokens, " token has", " tokens have") +
                                                 " a log ratio that is NaN or infinite"});
  return warnings;
}

}  // namespace

step_summary summarise(input_rows const& rows, turnwise::rollout const& order, step_options const& options,
                       step_result const& result) {
  step_summary summary;
  summary.turns = static_cast<std::int64_t>(rows.turns());
  summary.tokens = static_cast<std::int64_t>(rows.tokens());
  summary.trajectories = static_cast<std::int64_t>(order.group_id.size());
  auto groups = order.group_id;
  std::ranges::sort(groups);
  summary.groups = std::unique(groups.begin(), groups.end()) - groups.begin();
  summary.given_reward = rows.reward.has_value();
  summary.by_turn_index = summarise_indices(rows, order, result);
  summary.warnings = warnings_of(rows.unknown_arrays, result.metrics, options);
  return summary;
}

}  // namespace rollout_step
