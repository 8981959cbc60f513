/// @file
/// Generalized advantage estimation over packed tokens.
#pragma once

#include <turnwise/advantage/detail/scan.hpp>
#include <turnwise/advantage/token_segments.hpp>

namespace turnwise::advantage {

/// Options of `gae`.
struct gae_options {
  double gamma = 1.0;   ///< discount a token, in [0, 1]
  double lambda = 1.0;  ///< in [0, 1]: 0 = one step, 1 = the whole return minus the value
  int threads = 0;      ///< 0 = the runtime's default
};

namespace detail {

struct gae_rule {
  static constexpr bool off_policy = false;
  double gamma;
  double trace;

  explicit gae_rule(gae_options const& options) : gamma(options.gamma), trace(options.gamma * options.lambda) {}
  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr token_weights weights(double) const noexcept { return {1, 1, trace}; }
  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr double advantage(token_numbers const&, token_weights const&,
                                                                later_token const&, double excess) const noexcept {
    return excess;
  }
};

inline void check_gae_options(gae_options const& options) {
  check_unit_interval("gamma", options.gamma, "gae");
  check_unit_interval("lambda", options.lambda, "gae");
}

}  // namespace detail

/// Advantage of each token: the discounted sum of the temporal differences from it on.
///
///     delta = r + gamma V' - V,   A = delta + gamma lambda A',   target = V + A
///
/// where ' is the next unmasked token of the segment. Behind the last one V' = next_value if the segment was cut, else
/// 0, and A' = 0. Also called: GAE(gamma, lambda), TD(lambda) advantage; the target is the lambda-return.
/// @param[in]  segments   K segments over N tokens; or over turns, with offsets = trajectory_offsets.
/// @param[in]  reward, value  [N]; where masked they are not read as numbers.
/// @param[out] advantage  [N], unit of reward, or empty: not wanted. 0 where masked.
/// @param[out] target     [N], or empty: not wanted. What the value is trained on; 0 where masked. With another lambda
///             for the critic (decoupled GAE): call twice, with one output each.
/// @throws precondition_error  sizes that differ, offsets that decrease or do not end at N, gamma or lambda outside
///         [0, 1], a reward or value of an unmasked token or the next_value of a cut segment that is not finite or
///         beyond magnitude_limit; nothing is written.
/// @note  Unbiased for the undiscounted return with lambda = gamma = 1, if the value does not depend on the token's own
///        action (a constant, say). A smaller lambda is biased by the error of the value, a smaller gamma by discounting.
/// @note  A masked token is passed over: V' and A' reach across it, and it is no step of gamma.
/// @note  An output may be the same span as reward or value; no other overlap. No tokens, empty segments: nothing to do.
/// @note  Deterministic: doubles from the last token to the first, the same bits for any order of segments, any thread
///        count and compiler.
/// @par Complexity  O(N + K): a vectorised pass that checks, and one that computes; no allocation.
/// @par Reference   Schulman et al. 2016, arXiv:1506.02438.
/// @see turnwise::gpu::advantage::gae
template <real T>
void gae(no_deduce<token_segments<T>> const& segments, no_deduce<std::span<T const>> reward,
         no_deduce<std::span<T const>> value, gae_options const& options, std::span<T> advantage,
         no_deduce<std::span<T>> target = {}) {
  constexpr T limit = static_cast<T>(magnitude_limit<T>);
  detail::check_gae_options(options);
  detail::check_segments<T>(segments, reward, value, "gae");
  detail::check_token_output("advantage", advantage, reward.size(), "gae");
  detail::check_token_output("target", target, reward.size(), "gae");
  detail::check_token_numbers<T>("reward", reward, segments.mask, limit, options.threads, "gae");
  detail::check_token_numbers<T>("value", value, segments.mask, limit, options.threads, "gae");
  detail::scan_arrays<T> const arrays{
      reward.data(),         value.data(), nullptr, detail::wanted(segments.mask), detail::wanted(advantage),
      detail::wanted(target)};
  detail::scan_segments<T>(segments, arrays, reward.size(), detail::gae_rule{options}, options.threads);
}

}  // namespace turnwise::advantage
