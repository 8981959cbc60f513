/// @file
/// Keeps a correct turn with a probability that grows with the share of device time in its own kernels.
#pragma once

#include <turnwise/core/philox.hpp>
#include <turnwise/core/rollout.hpp>
#include <turnwise/reward/evaluation.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace turnwise::rejection {

/// What happens to a turn whose profile has no meaning.
enum class invalid_profile_policy : std::uint8_t { reject, keep, error };

/// Options of `profiling_filter`.
struct profiling_filter_options {
  double threshold = 0.3;  ///< profiling ratio up to which nothing is kept
  double softness = 0.1;   ///< width of the ramp from 0 to 1; 0: a hard cut, kept from the threshold on
  /// Turns at least this fast are kept whatever their profile.
  double keep_speedup = std::numeric_limits<double>::infinity();
  bool all_turns = false;  ///< also judge turns with C = 0, whose profiling ratio is 0
  invalid_profile_policy invalid_profile = invalid_profile_policy::reject;  ///< turns whose profile has no meaning
};

/// Probability to keep a turn: clip((ratio - threshold) / softness, 0, 1).
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr double keep_probability(double ratio, double threshold,
                                                                     double softness) noexcept {
  if (softness == 0) return ratio >= threshold ? 1.0 : 0.0;
  double const position = (ratio - threshold) / softness;
  return position < 0 ? 0.0 : position > 1 ? 1.0 : position;
}

/// Rejects turns by a seeded draw on their profiling ratio PR = generated / total: reason `profiling`.
///
///     keep iff u < clip((PR - threshold) / softness, 0, 1),   u = turn_uniform(key, group, trajectory, turn)
///
/// Also called: profiling-based rejection sampling (PRS).
/// @param[in]     evaluation  [S] each; read only where C = 1.
/// @param[in]     key         seed and step of the draws; the step must change from one training step to the next.
/// @param[in,out] reasons     [S] in which validity is settled; gains `profiling` and `invalid_profile`.
/// @throws precondition_error  sizes that differ; threshold or softness negative or not finite; keep_speedup NaN; ids
///         outside [0, 2^32); under invalid_profile = error a judged turn whose profile has no meaning. Nothing is
///         written.
/// @note  Only valid turns are judged. A profile without meaning makes no draw.
/// @note  Exact: the same key gives the same mask in any order, split and backend.
/// @par Complexity  O(S), no allocation.
/// @par Reference   Dr. Kernel, arXiv:2602.05885.
template <real E>
void profiling_filter(rollout_view const& batch, reward::evaluation<E> const& evaluation,
                      profiling_filter_options const& options, draw_key key, std::span<reason_flags> reasons) {
  check_rollout(batch, "profiling_filter");
  check_draw_ids(batch, "profiling_filter");
  reward::check_evaluation(evaluation, batch.turns(), "profiling_filter", true);
  expects_size("profiling_filter", "reasons", reasons.size(), batch.turns(), "turn");
  expects(options.threshold >= 0 && within_limit(options.threshold),
          "profiling_filter: threshold = ", options.threshold, ", expected a number from 0 to 2^500");
  expects(options.softness >= 0 && within_limit(options.softness), "profiling_filter: softness = ", options.softness,
          ", expected a number from 0 to 2^500");
  expects(!std::isnan(options.keep_speedup), "profiling_filter: keep_speedup is NaN");

  auto const judged = [&](std::size_t s) {
    if (!is_valid(reasons[s])) return false;
    if (!evaluation.counts_as_correct(s)) return options.all_turns;
    return !(static_cast<double>(evaluation.speedup[s]) >= options.keep_speedup);
  };
  auto const has_meaning = [&](std::size_t s) {
    return !evaluation.counts_as_correct(s) || reward::has_profile(evaluation.generated_us[s], evaluation.total_us[s]);
  };
  if (options.invalid_profile == invalid_profile_policy::error)
    for (std::size_t s = 0; s < reasons.size(); ++s)
      expects(!judged(s) || has_meaning(s), "profiling_filter: the profile of turn ", s,
              " has no meaning: generated_us = ", evaluation.generated_us[s], ", total_us = ", evaluation.total_us[s]);

  for (std::size_t j = 0; j < batch.trajectories(); ++j)
    for (std::size_t s = batch.first_turn(j); s < batch.first_turn(j + 1); ++s) {
      if (!judged(s)) continue;
      if (!has_meaning(s)) {
        if (options.invalid_profile == invalid_profile_policy::reject) reasons[s] |= reason::invalid_profile;
        continue;
      }
      double const ratio = evaluation.counts_as_correct(s)
                               ? reward::profiling_ratio(evaluation.generated_us[s], evaluation.total_us[s])
                               : 0.0;
      double const u = turn_uniform(key, batch.group_id[j], batch.trajectory_id[j], batch.index_of(j, s),
                                    draw_purpose::profiling_filter);
      if (!(u < keep_probability(ratio, options.threshold, options.softness))) reasons[s] |= reason::profiling;
    }
}

}  // namespace turnwise::rejection
