/// @file
/// What a policy loss reports.
#pragma once

#include <turnwise/core/config.hpp>

#include <cstdint>
#include <limits>

namespace turnwise::loss {

/// Sums over the tokens in the loss; records of micro-batches and ranks add up with +=.
///
/// A token is in the loss when its turn has a scale, it is unmasked and all its numbers are finite.
struct loss_record {
  double policy_loss = 0;   ///< sum of scale * weight * value
  double kl_loss = 0;       ///< sum of scale * kl_coefficient * KL
  double entropy_loss = 0;  ///< minus the sum of scale * entropy_coefficient * entropy

  std::int64_t tokens = 0;        ///< in the loss
  std::int64_t turns = 0;         ///< with a scale, and a token of any kind
  std::int64_t non_finite = 0;    ///< unmasked tokens of turns with a scale that were left out
  std::int64_t saturated = 0;     ///< tokens whose log ratio was clamped
  std::int64_t clipped_low = 0;   ///< whose gradient is cut (cispo, reinforce: whose weight is) for a small ratio
  std::int64_t clipped_high = 0;  ///< likewise for a large ratio

  double log_ratio_sum = 0;                                     ///< of current - old, clamped, nats
  double ratio_sum = 0;                                         ///< of the ratio that the policy saw
  double ratio_min = std::numeric_limits<double>::infinity();   ///< of the ratios that the policy saw
  double ratio_max = -std::numeric_limits<double>::infinity();  ///< of the ratios that the policy saw
  double kl_sum = 0;       ///< of KL(current || reference), nats; 0 without a reference
  double entropy_sum = 0;  ///< nats; 0 without an entropy

  /// Policy, KL and entropy terms together.
  [[nodiscard]] constexpr double loss() const noexcept { return policy_loss + kl_loss + entropy_loss; }
  /// No token is in the loss.
  [[nodiscard]] constexpr bool nothing_kept() const noexcept { return tokens == 0; }
  /// Share of tokens that are clipped from below; 0 without tokens.
  [[nodiscard]] constexpr double clip_fraction_low() const noexcept {
    return mean_of(static_cast<double>(clipped_low));
  }
  /// Share of tokens that are clipped from above; 0 without tokens.
  [[nodiscard]] constexpr double clip_fraction_high() const noexcept {
    return mean_of(static_cast<double>(clipped_high));
  }
  /// Mean ratio over the tokens in the loss; 0 without.
  [[nodiscard]] constexpr double ratio_mean() const noexcept { return mean_of(ratio_sum); }
  /// Mean KL(current || reference), nats; 0 without tokens.
  [[nodiscard]] constexpr double kl_mean() const noexcept { return mean_of(kl_sum); }
  /// Mean entropy, nats; 0 without tokens.
  [[nodiscard]] constexpr double entropy_mean() const noexcept { return mean_of(entropy_sum); }
  /// k1 estimate of KL(old || current): the mean of old - current.
  [[nodiscard]] constexpr double old_kl_mean() const noexcept { return mean_of(-log_ratio_sum); }

  TURNWISE_HOST_DEVICE constexpr loss_record& operator+=(loss_record const& other) noexcept {
    policy_loss += other.policy_loss;
    kl_loss += other.kl_loss;
    entropy_loss += other.entropy_loss;
    tokens += other.tokens;
    turns += other.turns;
    non_finite += other.non_finite;
    saturated += other.saturated;
    clipped_low += other.clipped_low;
    clipped_high += other.clipped_high;
    log_ratio_sum += other.log_ratio_sum;
    ratio_sum += other.ratio_sum;
    ratio_min = other.ratio_min < ratio_min ? other.ratio_min : ratio_min;
    ratio_max = other.ratio_max > ratio_max ? other.ratio_max : ratio_max;
    kl_sum += other.kl_sum;
    entropy_sum += other.entropy_sum;
    return *this;
  }
  friend constexpr bool operator==(loss_record const&, loss_record const&) = default;

 private:
  /// Per token in the loss; 0 when there is none.
  [[nodiscard]] constexpr double mean_of(double sum) const noexcept {
    return tokens == 0 ? 0.0 : sum / static_cast<double>(tokens);
  }
};

}  // namespace turnwise::loss
