/// @file
/// The coefficient of a KL term over the course of training: fixed, or steered towards a target.
#pragma once

#include <turnwise/core/error.hpp>
#include <turnwise/importance/log_ratio.hpp>

#include <cmath>
#include <cstdint>

namespace turnwise::divergence {

/// Whether the coefficient stays or follows the measured KL.
enum class kl_schedule : std::uint8_t { fixed, adaptive };

/// The defaults of the adaptive schedule are those of Ziegler et al.
struct kl_controller_options {
  kl_schedule schedule = kl_schedule::adaptive;  ///< what an update does
  double target = 6;                             ///< KL to hold, in the unit of what is measured, above 0
  double horizon = 10000;   ///< samples over which an error of 1 would move the coefficient by its own size, above 0
  double error_clip = 0.2;  ///< largest proportional error, above 0
};

/// What to keep between updates (and in checkpoints).
struct kl_controller_state {
  double coefficient = 0.2;  ///< finite, at least 0
  std::int64_t skipped = 0;  ///< measurements that were NaN or infinite
};

/// One update of the coefficient after `samples` samples with a measured KL.
///
///     fixed:     unchanged
///     adaptive:  coefficient *= 1 + clip(measured / target - 1, -error_clip, error_clip) * samples / horizon
///
/// Also called: AdaptiveKLController, FixedKLController; K_beta = samples / horizon.
/// @param[in,out] state
/// @param measured  e.g. the mean of kl_estimate over a step: a sum a sequence in the paper, a mean a token elsewhere;
///                  the target has its unit.
/// @param samples   since the last update, at least 0.
/// @throws precondition_error  target, horizon or error_clip not above 0 or not finite; a coefficient that is negative
///         or not finite; samples so many that the coefficient could reach 0 (error_clip * samples >= horizon). The
///         state is unchanged.
/// @note  A NaN or infinite measurement changes nothing but `skipped`.
/// @note  The same bits everywhere. Ranks that share the measured KL keep the same coefficient.
/// @par Complexity  O(1).
/// @par Reference   Ziegler et al. 2019, arXiv:1909.08593, section 2.2.
inline void kl_controller(kl_controller_state& state, double measured, std::int64_t samples,
                          kl_controller_options const& options) {
  using importance::is_finite;
  auto const positive = [](double value) { return value > 0 && is_finite(value); };
  expects(is_finite(state.coefficient) && state.coefficient >= 0, "kl_controller: coefficient = ", state.coefficient,
          ", expected a finite number, at least 0");
  expects(samples >= 0, "kl_controller: samples = ", samples, ", expected at least 0");
  if (options.schedule == kl_schedule::adaptive) {
    expects(positive(options.target), "kl_controller: target = ", options.target, ", expected a number above 0");
    expects(positive(options.horizon), "kl_controller: horizon = ", options.horizon, ", expected a number above 0");
    expects(positive(options.error_clip), "kl_controller: error_clip = ", options.error_clip,
            ", expected a number above 0");
    expects(options.error_clip * static_cast<double>(samples) < options.horizon, "kl_controller: samples = ", samples,
            ", expected less than horizon / error_clip, or the coefficient may reach 0");
  }
  if (!is_finite(measured)) {
    ++state.skipped;
    return;
  }
  if (options.schedule == kl_schedule::fixed) return;
  double const error = measured / options.target - 1;
  double const clipped = error < -options.error_clip  ? -options.error_clip
                         : error > options.error_clip ? options.error_clip
                                                      : error;
  double const next = state.coefficient * std::fma(clipped, static_cast<double>(samples) / options.horizon, 1.0);
  if (is_finite(next)) state.coefficient = next;
}

}  // namespace turnwise::divergence
