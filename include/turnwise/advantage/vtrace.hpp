/// @file
/// V-trace: value targets and policy-gradient advantages for tokens that another policy sampled.
#pragma once

#include <turnwise/advantage/detail/scan.hpp>
#include <turnwise/advantage/token_segments.hpp>
#include <turnwise/core/exp.hpp>
#include <turnwise/importance/log_ratio.hpp>

namespace turnwise::advantage {

/// The advantage that goes into the policy gradient, where v' is the target of the next token.
enum class vtrace_advantage : std::uint8_t {
  next_target,   ///< rho (r + gamma v' - V), the paper's
  mixed_target,  ///< rho (r + gamma ((1 - lambda) V' + lambda v') - V), RLax's; on-policy it is GAE
  excess         ///< v - V, PufferLib's
};

/// Options of `vtrace`.
struct vtrace_options {
  double gamma = 1.0;       ///< discount a token, in [0, 1]
  double lambda = 1.0;      ///< in [0, 1], scales c
  double rho_bar = 1.0;     ///< cap of the ratio in temporal differences; infinity: none
  double c_bar = 1.0;       ///< cap of the ratio in the trace; at most rho_bar, and gamma lambda c_bar at most 1
  double pg_rho_bar = 1.0;  ///< cap of the ratio in the advantage; infinity: none (the paper: rho_bar)
  vtrace_advantage advantage = vtrace_advantage::next_target;  ///< form of the advantage
  int threads = 0;                                             ///< 0 = the runtime's default
};

namespace detail {

struct vtrace_rule {
  static constexpr bool off_policy = true;
  double gamma, trace, rho_bar, c_bar, pg_rho_bar, mix;
  bool takes_excess;

  explicit vtrace_rule(vtrace_options const& options)
      : gamma(options.gamma),
        trace(options.gamma * options.lambda),
        rho_bar(options.rho_bar),
        c_bar(options.c_bar),
        pg_rho_bar(options.pg_rho_bar),
        mix(options.advantage == vtrace_advantage::mixed_target ? options.lambda : 1.0),
        takes_excess(options.advantage == vtrace_advantage::excess) {}

  [[nodiscard]] TURNWISE_HOST_DEVICE token_weights weights(double log_ratio) const noexcept {
    constexpr double limit = importance::log_ratio_limit;
    static_assert(limit <= exp_near_limit);
    double const ratio = ieee_exp<true>(log_ratio < -limit ? -limit : log_ratio > limit ? limit : log_ratio);
    return {ratio, ratio < rho_bar ? ratio : rho_bar, trace * (ratio < c_bar ? ratio : c_bar)};
  }
  [[nodiscard]] TURNWISE_HOST_DEVICE double advantage(token_numbers const& token, token_weights const& weights,
                                                      later_token const& later, double excess) const noexcept {
    if (takes_excess) return excess;
    using std::fma;
    double const next = fma(mix, later.excess, later.value);
    return (weights.ratio < pg_rho_bar ? weights.ratio : pg_rho_bar) * (fma(gamma, next, token.reward) - token.value);
  }
};

inline void check_vtrace_options(vtrace_options const& options) {
  check_unit_interval("gamma", options.gamma, "vtrace");
  check_unit_interval("lambda", options.lambda, "vtrace");
  expects(options.rho_bar >= 0, "vtrace: rho_bar = ", options.rho_bar, ", expected a number, at least 0");
  expects(options.c_bar >= 0 && options.c_bar <= options.rho_bar, "vtrace: c_bar = ", options.c_bar,
          ", expected a number in [0, rho_bar = ", options.rho_bar, "]");
  // So that no trace, a product over the tokens of a segment, can overflow (and infinity times 0 is no number).
  expects(options.c_bar <= largest<double> && options.gamma * options.lambda * options.c_bar <= 1,
          "vtrace: c_bar = ", options.c_bar, ", expected gamma * lambda * c_bar to be at most 1");
  expects(options.pg_rho_bar >= 0, "vtrace: pg_rho_bar = ", options.pg_rho_bar, ", expected a number, at least 0");
}

}  // namespace detail

/// Value target v and policy-gradient advantage A of each token, corrected for the policy that sampled it.
///
///     ratio = exp(log_ratio),   rho = min(rho_bar, ratio),   c = lambda min(c_bar, ratio)
///     v = V + rho (r + gamma V' - V) + gamma c (v' - V')
///     A = min(pg_rho_bar, ratio) (r + gamma v' - V)          other forms: vtrace_options::advantage
///
/// where ' is the next unmasked token of the segment. Behind the last one V' = v' = next_value if the segment was cut,
/// else 0. On-policy v is the lambda-return, with lambda = 1 the n-step return.
/// @param[in]  segments   K segments over N tokens; or over turns, with offsets = trajectory_offsets.
/// @param[in]  reward, value  [N]; where masked they are not read as numbers.
/// @param[in]  log_ratio  [N] log-prob under the policy being trained minus that under the one that sampled, nats;
///             clamped to +-64.
/// @param[out] advantage  [N], unit of reward, or empty: not wanted. 0 where masked.
/// @param[out] target     [N] v, or empty: not wanted. 0 where masked.
/// @throws precondition_error  as gae; c_bar above rho_bar, gamma lambda c_bar above 1, a NaN or negative cap; a log
///         ratio of an unmasked token that is NaN or infinite; nothing is written.
/// @note  Unbiased on-policy with lambda = gamma = 1, if the value does not depend on the token's own action. Biased
///        off-policy: caps cut the ratios, and without caps tokens are still met as often as the sampler meets them.
/// @note  Results beyond the range of T become its largest number.
/// @note  A masked token is passed over, and is no step of gamma. Outputs may be the same spans as inputs.
/// @note  Deterministic: the same bits for any order of segments and thread count. The ratio is that of ieee_exp, within
///        1.1 ulp; its last bit depends on whether the compiler fuses products with sums, not on a library.
/// @par Complexity  O(N + K), no allocation.
/// @par Reference   Espeholt et al. 2018, arXiv:1802.01561, eqs. 1, 4 and remark 2.
/// @see turnwise::gpu::advantage::vtrace
template <real T>
void vtrace(no_deduce<token_segments<T>> const& segments, no_deduce<std::span<T const>> reward,
            no_deduce<std::span<T const>> value, no_deduce<std::span<T const>> log_ratio, vtrace_options const& options,
            std::span<T> advantage, no_deduce<std::span<T>> target = {}) {
  constexpr T limit = static_cast<T>(magnitude_limit<T>);
  detail::check_vtrace_options(options);
  detail::check_segments<T>(segments, reward, value, "vtrace");
  expects_size("vtrace", "log_ratio", log_ratio.size(), reward.size(), "token, as reward");
  detail::check_token_output("advantage", advantage, reward.size(), "vtrace");
  detail::check_token_output("target", target, reward.size(), "vtrace");
  detail::check_token_numbers<T>("reward", reward, segments.mask, limit, options.threads, "vtrace");
  detail::check_token_numbers<T>("value", value, segments.mask, limit, options.threads, "vtrace");
  detail::check_token_numbers<T>("log_ratio", log_ratio, segments.mask, largest<T>, options.threads, "vtrace");
  detail::scan_arrays<T> const arrays{
      reward.data(),         value.data(), log_ratio.data(), detail::wanted(segments.mask), detail::wanted(advantage),
      detail::wanted(target)};
  detail::scan_segments<T>(segments, arrays, reward.size(), detail::vtrace_rule{options}, options.threads);
}

}  // namespace turnwise::advantage
