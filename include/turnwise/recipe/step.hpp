/// @file
/// Inputs, filters and outputs of every recipe.
#pragma once

#include <turnwise/core/reason.hpp>
#include <turnwise/importance/log_ratio_statistics.hpp>
#include <turnwise/metrics/mismatch_record.hpp>
#include <turnwise/rejection/profiling_filter.hpp>
#include <turnwise/rejection/ratio_band.hpp>
#include <turnwise/rejection/token_veto.hpp>
#include <turnwise/rejection/usable_tokens.hpp>
#include <turnwise/reward/evaluation.hpp>

#include <cstdint>
#include <optional>
#include <span>

namespace turnwise::recipe {

/// The filters of a step; an empty one is off.
struct filter_options {
  rejection::usable_tokens_options usable_tokens{};                       ///< always on
  std::optional<rejection::ratio_band_options> ratio_band{};              ///< of ratio_band
  std::optional<rejection::token_veto_options> token_veto{};              ///< of token_veto
  std::optional<rejection::profiling_filter_options> profiling_filter{};  ///< of profiling_filter
};

/// Where a step writes. Spans that are empty are not wanted, `metrics` may be null.
struct step_outputs {
  std::span<double> reward{};                           ///< [S]
  std::span<double> turn_return{};                      ///< [S]
  std::span<double> advantage{};                        ///< [S] a rejected turn keeps its value
  std::span<reason_flags> reasons{};                    ///< [S] 0 = kept
  std::span<importance::turn_statistics> statistics{};  ///< [S]
  std::span<float> token_advantage{};                   ///< [N] 0 where not kept, masked or in no turn
  std::span<std::uint8_t> token_mask{};                 ///< [N]
  metrics::mismatch_record* metrics = nullptr;          ///< or null: not wanted
};

/// The inputs of a step besides the batch.
template <logprob_value Old, logprob_value Rollout, real E>
struct step_inputs {
  token_logprobs<Old, Rollout> tokens{};   ///< [N] each
  reward::evaluation<E> evaluation{};      ///< [S] each; all empty with a given reward and no profiling filter
  std::span<double const> given_reward{};  ///< [S] replaces the recipe's reward; NaN = unscored; empty: not given
};

}  // namespace turnwise::recipe
