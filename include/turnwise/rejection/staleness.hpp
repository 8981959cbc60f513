/// @file
/// Rejects turns that a policy of too old a version sampled.
#pragma once

#include <turnwise/core/rollout.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace turnwise::rejection {

/// Options of `staleness`.
struct staleness_options {
  std::int64_t current_version = 0;  ///< of the weights being updated
  std::int64_t max_lag = 0;          ///< versions, inclusive, at least 0; 0: on-policy turns alone
};

/// `stale` where current - version > max_lag; the version is not above the current one.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr reason_flags staleness_reason(std::int64_t version,
                                                                           staleness_options const& options) noexcept {
  // Unsigned, so that no difference overflows.
  std::uint64_t const lag = static_cast<std::uint64_t>(options.current_version) - static_cast<std::uint64_t>(version);
  return lag > static_cast<std::uint64_t>(options.max_lag) ? reason::stale : 0;
}

/// Rejects each turn whose policy version lags by more than max_lag: reason `stale`.
///
///     stale iff current_version - policy_version > max_lag
///
/// Also called: staleness limit, max off-policy steps.
/// @param[in]     policy_version  [S] of the weights that sampled the turn; where they changed during a turn, the
///                                oldest.
/// @param[in,out] reasons         [S] in which validity is settled; gains `stale`.
/// @throws precondition_error  sizes that differ; max_lag negative; a valid turn's version above the current one.
///         Nothing is written.
/// @note  Only valid turns are judged; versions of others are not read as numbers.
/// @note  Exact for any versions, negative ones included.
/// @par Complexity  O(S), no allocation.
/// @par Reference   AReaL, arXiv:2505.24298 (which bounds the lag when it samples).
inline void staleness(rollout_view const& batch, std::span<std::int64_t const> policy_version,
                      staleness_options const& options, std::span<reason_flags> reasons) {
  check_rollout(batch, "staleness");
  expects_size("staleness", "policy_version", policy_version.size(), batch.turns(), "turn");
  expects_size("staleness", "reasons", reasons.size(), batch.turns(), "turn");
  expects(options.max_lag >= 0, "staleness: max_lag = ", options.max_lag, ", expected at least 0");
  for (std::size_t s = 0; s < reasons.size(); ++s)
    expects(!is_valid(reasons[s]) || policy_version[s] <= options.current_version, "staleness: policy_version[", s,
            "] = ", policy_version[s], " is above current_version = ", options.current_version);
  for (std::size_t s = 0; s < reasons.size(); ++s)
    if (is_valid(reasons[s])) reasons[s] |= staleness_reason(policy_version[s], options);
}

}  // namespace turnwise::rejection
