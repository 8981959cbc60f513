/// @file
/// Options and record of mismatch.
#pragma once

#include <turnwise/core/config.hpp>
#include <turnwise/core/reason.hpp>
#include <turnwise/rejection/ratio_band.hpp>

#include <array>
#include <cstdint>
#include <limits>

namespace turnwise::metrics {

/// Number of turns in a class, and how many of them are kept.
struct kept_count {
  std::int64_t turns = 0;  ///< in the class
  std::int64_t kept = 0;   ///< of these

  /// Share kept; 0 without turns.
  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr double rate() const noexcept {
    return turns == 0 ? 0.0 : static_cast<double>(kept) / static_cast<double>(turns);
  }
};

/// Keep counts of the turns whose number of unmasked tokens lies in [shortest, longest].
struct length_class {
  std::int64_t shortest = 0;  ///< tokens, inclusive
  std::int64_t longest = 0;   ///< tokens, inclusive
  kept_count count;           ///< its turns
};

/// Options of `mismatch`.
struct mismatch_options {
  /// Band by which turns count as low or high. Its level and kind are those of the filter.
  rejection::ratio_band_options band{};
  double low_keep_share = 0.1;  ///< kept share of valid turns below which `low_keep` is raised
  double fast_speedup = 1.0;    ///< correct turns above it count as fast
  double speedup_cap = std::numeric_limits<double>::infinity();  ///< correct turns above it are outliers
};

/// One record a step; every number is finite. "Ratio turns" are the valid turns with usable tokens (has_ratio); token
/// sums run over their unmasked tokens with a finite log ratio.
struct mismatch_record {
  std::int64_t turns = 0;              ///< S
  std::int64_t ratio_turns = 0;        ///< turns that the mismatch is taken over
  std::int64_t ratio_tokens = 0;       ///< their tokens
  std::int64_t non_finite_tokens = 0;  ///< tokens of valid turns whose log ratio is NaN or infinite
  std::int64_t saturated_tokens = 0;   ///< tokens of ratio turns clamped to +-64

  double kl = 0;                  ///< k1: mean of rollout - old, nats
  double k3 = 0;                  ///< mean of e^d - 1 - d
  double old_log_ppl = 0;         ///< minus the mean old log-prob, = rollout_log_ppl + kl
  double rollout_log_ppl = 0;     ///< minus the mean rollout log-prob
  double log_ppl_difference = 0;  ///< old - rollout, = kl
  double old_ppl = 1;             ///< exp, its argument clamped to +-64
  double rollout_ppl = 1;         ///< likewise
  double chi2_token = 0;          ///< mean squared token ratio - 1
  double chi2_turn = 0;           ///< mean squared product ratio of a turn - 1, its log clamped to +-64
  /// (sum w)^2 / (n sum w^2) over token ratios, in (0, 1]; without digits when all log ratios are below -15.
  double effective_sample_size = 1;
  double ratio_min = 1;         ///< smallest token ratio, its log clamped to +-64
  double ratio_max = 1;         ///< largest, likewise
  double low_turn_share = 0;    ///< share of ratio turns below the band
  double high_turn_share = 0;   ///< above it
  double low_token_share = 0;   ///< share of ratio tokens in turns below the band
  double high_token_share = 0;  ///< above it

  kept_count valid;                                          ///< valid turns
  std::int64_t kept_tokens = 0;                              ///< tokens of kept turns
  std::array<std::int64_t, reason::names.size()> reasons{};  ///< turns that carry each reason, in bit order
  std::array<length_class, 4> by_length{};                   ///< valid turns with tokens, by quartile of length
  kept_count correct;                                        ///< valid turns with C = 1
  kept_count incorrect;                                      ///< the other valid turns
  kept_count fast;                                           ///< correct turns faster than fast_speedup
  double kept_advantage_mean = 0;                            ///< mean advantage of kept turns
  std::int64_t negative_groups = 0;                          ///< groups whose kept turns all have a negative advantage
  std::int64_t rejected_to_one = 0;                          ///< groups of two or more valid turns with one left
  std::int64_t meaningless_profiles = 0;                     ///< valid correct turns whose profile has no meaning
  std::int64_t speedup_outliers = 0;                         ///< valid correct turns above the cap

  bool low_keep = false;          ///< kept share of valid turns below low_keep_share
  bool nothing_kept = false;      ///< no turn is kept
  bool profiler_suspect = false;  ///< over half of the valid correct turns lack a meaningful profile
};

}  // namespace turnwise::metrics
