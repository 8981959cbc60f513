/// @file
/// The one loop that turns any policy into loss, gradient and record.
#pragma once

#include <turnwise/advantage/per_token.hpp>
#include <turnwise/core/parallel_for.hpp>
#include <turnwise/core/rollout.hpp>
#include <turnwise/loss/detail/token_loop.hpp>
#include <turnwise/loss/inputs.hpp>
#include <turnwise/loss/policy.hpp>
#include <turnwise/loss/record.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace turnwise::loss {

namespace detail {

inline void check_loss_options(loss_options const& options, bool reference, bool entropy) {
  std::string_view const name = "policy_loss";
  expects(options.log_ratio_limit > 0 && options.log_ratio_limit <= 80, name,
          ": log_ratio_limit = ", options.log_ratio_limit, ", expected nats within (0, 80]");
  expects(within_limit(options.kl_coefficient), name, ": kl_coefficient = ", options.kl_coefficient,
          ", expected a number within +-2^500");
  expects(within_limit(options.entropy_coefficient), name, ": entropy_coefficient = ", options.entropy_coefficient,
          ", expected a number within +-2^500");
  expects(reference || options.kl_coefficient == 0, name, ": kl_coefficient = ", options.kl_coefficient,
          " without reference_logprob");
  expects(entropy || options.entropy_coefficient == 0, name, ": entropy_coefficient = ", options.entropy_coefficient,
          " without entropy");
  divergence::check_kl_options(options.kl, name);
}

template <typename Policy>
void check_policy(Policy const& policy) {
  if constexpr (requires { policy.check(); }) policy.check();
}

template <typename Inputs, typename Gradient>
void check_loss(rollout_view const& batch, Inputs const& in, loss_options const& options, bool selection,
                std::span<double const> turn_scale, loss_outputs<Gradient> const& out) {
  std::string_view const name = "policy_loss";
  std::size_t const tokens = in.current_logprob.size();
  check_rollout(batch, name);
  auto const per_token = [&](std::string_view argument, std::size_t size, bool optional) {
    if (!optional || size > 0) expects_size(name, argument, size, tokens, "token, as current_logprob");
  };
  per_token("old_logprob", in.old_logprob.size(), false);
  per_token("mask", in.mask.size(), true);
  per_token("token_advantage", in.token_advantage.size(), true);
  per_token("reference_logprob", in.reference_logprob.size(), true);
  per_token("weight", in.weight.size(), true);
  per_token("entropy", in.entropy.size(), true);
  per_token("selected", in.selected.size(), !selection);
  per_token("gradient", out.gradient.size(), false);
  per_token("entropy_gradient", out.entropy_gradient.size(), true);
  expects(in.turn_advantage.empty() || in.token_advantage.empty(), name,
          ": turn_advantage and token_advantage are both given, expected one");
  if (in.token_advantage.empty() && tokens > 0)
    expects_size(name, "turn_advantage", in.turn_advantage.size(), batch.turns(), "turn");
  expects(out.entropy_gradient.empty() || !in.entropy.empty(), name, ": entropy_gradient without entropy");
  expects_size(name, "turn_scale", turn_scale.size(), batch.turns(), "turn");
  check_token_ranges(batch, tokens, name);
  bool const none = tokens == 0;  // then an array that is given is empty too
  check_loss_options(options, none || !in.reference_logprob.empty(), none || !in.entropy.empty());
  for (std::size_t s = 0; s < batch.turns(); ++s) {
    expects(turn_scale[s] >= 0 && within_limit(turn_scale[s]), name, ": turn_scale[", s, "] = ", turn_scale[s],
            ", expected a number from 0 to 2^500");
    if (turn_scale[s] == 0 || in.turn_advantage.size() <= s) continue;
    expects(within_limit(in.turn_advantage[s]), name, ": turn_advantage[", s, "] = ", in.turn_advantage[s],
            " of a turn in the loss is not finite or too large");
  }
}

}  // namespace detail

/// Loss of a batch under any policy, its gradient, and what happened, in one pass over the tokens.
///
///     loss = sum over tokens in the loss of scale(turn) (weight value + kl_coefficient KL - entropy_coefficient H)
///     gradient = d loss / d current_logprob;   value, slope = policy(token), see loss_token and loss_terms
///     ratio = exp(clamp(current - old, +-log_ratio_limit)), whose slope is 0 where the clamp is active
///
/// A policy whose ratio is the turn's (is_turn_level) has its mean from a first pass over the turn, while the turn is
/// in the cache: over the tokens in the loss, of policy.turn_log_ratio(log ratio, advantage). Policies of this library:
/// ppo_clip, reinforce, cispo, sapo, gspo, gmpo, clip_cov, kl_cov; a policy of the caller's works the same way.
/// @param[in]  batch       S turns over N tokens; token ranges must not overlap.
/// @param[in]  policy      checked by its own check(), if it has one.
/// @param[in]  turn_scale  [S] from aggregate; 0 = the turn is not in the loss, and nothing of it is read.
/// @param[out] out         gradient: float, double, or a 16-bit type. Each token is written once.
/// @param[in]  threads     0 = the runtime's default.
/// @throws precondition_error  sizes that differ, ranges outside the arrays, turns that overlap, options out of range
///         or without their array, a scale that is negative, not finite or too large, an advantage of a turn in the
///         loss beyond magnitude_limit; nothing is written.
/// @note  A token of which any number that is read is NaN or infinite, or a term beyond 2^60 (float) or 2^480 (double),
///        adds nothing, has gradient 0 and is counted (non_finite). It disturbs no other, save that one whose term
///        alone is too large is still in its turn's mean. Masked tokens are not looked at.
/// @note  No token in the loss: loss 0, gradient 0, nothing_kept().
/// @note  Arithmetic is float, or double when either of current and old is double. The gradient is elementwise: cutting
///        the batch changes no more than its last bit, and the loss by at most 1e-6 (float) or 1e-13 (double) of the
///        sum of the terms' magnitudes. The same bits for any number of threads.
/// @note  The gradient of k1 as a KL term is constant: see divergence::kl_estimate. Importance weights do not multiply
///        the KL term (in some trainers they do).
/// @par Complexity  one read of the tokens and one write of the gradients; O(S) memory.
/// @see docs of each policy for formulas; aggregate for the scale
template <typename Policy, logprob_value Current, logprob_value Old, logprob_value Reference, real Advantage,
          logprob_value Weight, gradient_value Gradient>
loss_record policy_loss(rollout_view const& batch,
                        loss_inputs<Current, Old, Reference, Advantage, Weight> const& inputs, Policy const& policy,
                        loss_options const& options, no_deduce<std::span<double const>> turn_scale,
                        loss_outputs<Gradient> const& out, int threads = 0) {
  detail::check_policy(policy);
  detail::check_loss(batch, inputs, options, uses_selection<Policy>, turn_scale, out);
  std::vector<std::size_t> const order = advantage::detail::token_order(batch, "policy_loss");
  std::size_t const tokens = inputs.current_logprob.size();
  auto const begin_of = [&](std::size_t i) {
    return i < order.size() ? static_cast<std::size_t>(batch.turn_begin[order[i]]) : tokens;
  };
  detail::clear(out, 0, begin_of(0));
  if (order.empty()) return {};

  // Turns of about 64 Ki tokens share one record, so that sums do not depend on the threads.
  std::size_t const share = std::max<std::size_t>(1, (std::size_t{1} << 16) / (tokens / order.size() + 1));
  std::vector<loss_record> records((order.size() - 1) / share + 1);
  parallel_for(records.size(), 1, threads, [&](std::size_t first, std::size_t last) {
    for (std::size_t r = first; r < last; ++r) {
      detail::token_loop loop{inputs, policy, options, out};
      for (std::size_t i = r * share; i < std::min((r + 1) * share, order.size()); ++i) {
        std::size_t const s = order[i];
        auto const end = static_cast<std::size_t>(batch.turn_end[s]);
        loop.turn(s, begin_of(i), end, turn_scale[s]);
        detail::clear(out, end, begin_of(i + 1));
      }
      records[r] = loop.record();
    }
  });
  loss_record total;
  for (loss_record const& record : records) total += record;
  return total;
}

}  // namespace turnwise::loss
