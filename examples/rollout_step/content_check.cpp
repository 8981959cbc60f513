#include "content_check.hpp"

#include "error.hpp"

#include <turnwise/advantage/turn_return.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <unordered_set>
#include <vector>

namespace rollout_step {
namespace {

using turnwise::reason_flags;

/// Random draws are counted by 32-bit words.
void check_draw_ids(input_rows const& rows) {
  constexpr std::int64_t limit = std::int64_t{1} << 32;
  auto const check = [&](std::string_view name, std::vector<std::int64_t> const& values) {
    for (std::size_t row = 0; row < values.size(); ++row)
      if (values[row] >= limit)
        fail(rows.file(name), ": row ", row, " is ", values[row],
             ", expected less than 2^32, which the draws of the profiling filter need");
  };
  check("turn_trajectory.npy", rows.turn_trajectory);
  check("turn_index.npy", rows.turn_index);
}

void check_missing(bool missing, input_rows const& rows, std::string_view name, std::size_t row,
                   step_options const& options) {
  if (missing && options.turn_return().unscored == unscored_policy::error)
    fail(rows.file(name), ": row ", row, " is NaN, a missing reward, which --unscored error refuses");
}

void check_given_reward(input_rows const& rows, step_options const& options) {
  for (std::size_t row = 0; row < rows.turns(); ++row) {
    if (rows.flagged_off(row)) continue;
    double const reward = (*rows.reward)[row];
    bool const missing = std::isnan(reward);
    if (!missing && !turnwise::within_limit(reward))
      fail(rows.file("reward.npy"), ": row ", row, " is ", reward, ", expected a finite reward of at most 2^500");
    check_missing(missing, rows, "reward.npy", row, options);
  }
}

void check_ingredients(input_rows const& rows, step_options const& options) {
  auto const turns = rows.evaluation->view();
  for (std::size_t row = 0; row < rows.turns(); ++row) {
    if (rows.flagged_off(row) || !turns.counts_as_correct(row)) continue;
    auto const finite = [&](std::string_view name, double value) {
      if (std::isinf(value)) fail(rows.file(name), ": row ", row, " is infinite, and its turn counts as correct");
    };
    finite("speedup.npy", turns.speedup[row]);
    double pays = turns.speedup[row];  // kernel_zero takes differences of speedups
    if (options.recipe == recipe_name::kevin) {
      pays = turnwise::reward::correct_kernel_reward(turns.speedup[row], 0, 0, options.kevin.reward.as_kernel_reward());
    } else if (options.recipe == recipe_name::dr_kernel) {
      finite("generated_us.npy", turns.generated_us[row]);
      finite("total_us.npy", turns.total_us[row]);
      pays = turnwise::reward::correct_kernel_reward(turns.speedup[row], turns.generated_us[row], turns.total_us[row],
                                                     options.dr_kernel.reward);
    }
    if (!std::isnan(pays) && !turnwise::within_limit(pays))
      fail(rows.file("speedup.npy"), ": row ", row, " is ", turns.speedup[row], ", which makes a reward beyond 2^500");
    check_missing(std::isnan(turns.speedup[row]), rows, "speedup.npy", row, options);
  }
}

/// Which proposals have no reward: the module is valid, and no attempt at it was judged.
std::vector<bool> unattempted(input_rows const& rows) {
  auto const& proposals = *rows.proposals;
  std::unordered_set<std::int64_t> judged;
  for (std::size_t row = 0; row < proposals.attempts.turns(); ++row)
    if (!proposals.attempts.flagged_off(row)) judged.insert(proposals.attempts.turn_group[row]);
  std::vector<bool> missing(rows.turns());
  for (std::size_t row = 0; row < rows.turns(); ++row) {
    bool const invalid = !proposals.invalid_module.empty() && proposals.invalid_module[row] != 0;
    missing[row] = !invalid && !judged.contains(proposals.group[row]);
  }
  return missing;
}

void check_proposals(input_rows const& rows, step_options const& options) {
  if (options.turn_return().unscored != unscored_policy::error) return;
  std::vector<bool> const missing = unattempted(rows);
  for (std::size_t row = 0; row < rows.turns(); ++row)
    if (missing[row] && !rows.flagged_off(row))
      fail(rows.file("proposal_group.npy"), ": row ", row, " is ", rows.proposals->group[row],
           ", a group without attempts, so its reward is missing, which --unscored error refuses");
}

/// Which rows are valid, by the library's own rules, once rewards are known to be finite or missing.
std::vector<reason_flags> settled_reasons(input_rows const& rows, turnwise::rollout const& order,
                                          step_options const& options) {
  std::size_t const turns = rows.turns();
  std::vector<double> reward(turns);
  std::vector<reason_flags> reasons(turns), by_row(turns);
  std::vector<bool> const without_attempts = rows.proposals ? unattempted(rows) : std::vector<bool>{};
  for (std::size_t s = 0; s < turns; ++s) {
    std::size_t const row = order.row[s];
    bool const missing =
        rows.reward      ? std::isnan((*rows.reward)[row])
        : rows.proposals ? without_attempts[row]
                         : rows.evaluation->view().counts_as_correct(row) && std::isnan(rows.evaluation->speedup[row]);
    reward[s] = missing ? std::numeric_limits<double>::quiet_NaN() : 0;
  }
  turnwise::rollout_view const batch = order.view();
  turnwise::begin_reasons(batch, reasons);
  turnwise::advantage::turn_return(batch, reward, options.turn_return(), std::span<reason_flags>{reasons},
                                   std::span<double>{reward});
  order.scatter(reasons, std::span<reason_flags>{by_row});
  return by_row;
}

template <typename Old, typename Rollout>
void check_log_ratios(input_rows const& rows, std::vector<reason_flags> const& reasons,
                      std::vector<Old> const& old_logprob, std::vector<Rollout> const& rollout_logprob) {
  for (std::size_t row = 0; row < rows.turns(); ++row) {
    if (!turnwise::is_valid(reasons[row])) continue;
    auto const end = static_cast<std::size_t>(rows.turn_offsets[row + 1]);
    for (auto n = static_cast<std::size_t>(rows.turn_offsets[row]); n < end; ++n) {
      if (!rows.token_mask.empty() && rows.token_mask[n] == 0) continue;
      if (turnwise::importance::is_finite(turnwise::importance::log_ratio(old_logprob[n], rollout_logprob[n])))
        continue;
      bool const old_is_fine = turnwise::importance::is_finite(old_logprob[n]);
      bool const rollout_is_broken = !turnwise::importance::is_finite(rollout_logprob[n]);
      fail(rows.file(old_is_fine && rollout_is_broken ? "rollout_logprob.npy" : "old_logprob.npy"), ": token ", n,
           " of row ", row, " has a log ratio that is not finite (", old_logprob[n], " - ", rollout_logprob[n],
           "), which --non-finite error refuses");
    }
  }
}

void check_profiles(input_rows const& rows, std::vector<reason_flags> const& reasons) {
  auto const turns = rows.evaluation->view();
  for (std::size_t row = 0; row < rows.turns(); ++row) {
    if (!turnwise::is_valid(reasons[row]) || !turns.counts_as_correct(row)) continue;
    if (!turnwise::reward::has_profile(turns.generated_us[row], turns.total_us[row]))
      fail(rows.file("total_us.npy"), ": row ", row, " has a profile without meaning (generated ",
           turns.generated_us[row], ", total ", turns.total_us[row], "), which --invalid-profile error refuses");
  }
}

}  // namespace

void check_content(input_rows const& rows, turnwise::rollout const& order, step_options const& options) {
  auto const& filters = options.filters();
  if (filters.profiling_filter) check_draw_ids(rows);
  if (rows.reward)
    check_given_reward(rows, options);
  else if (rows.proposals)
    check_proposals(rows, options);
  else
    check_ingredients(rows, options);

  bool const refuses_tokens = filters.usable_tokens.non_finite == non_finite_policy::error;
  bool const refuses_profiles =
      filters.profiling_filter && filters.profiling_filter->invalid_profile == invalid_profile_policy::error;
  if (!refuses_tokens && !refuses_profiles) return;
  std::vector<reason_flags> const reasons = settled_reasons(rows, order, options);
  if (refuses_tokens)
    std::visit([&](auto const& old_logprob,
                   auto const& rollout_logprob) { check_log_ratios(rows, reasons, old_logprob, rollout_logprob); },
               rows.old_logprob, rows.rollout_logprob);
  if (refuses_profiles) check_profiles(rows, reasons);
}

}  // namespace rollout_step
