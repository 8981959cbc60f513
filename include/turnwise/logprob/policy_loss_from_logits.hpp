/// @file
/// Policy loss and its gradient with respect to the logits, without log-probs or their gradients in between.
#pragma once

#include <turnwise/logprob/token_logprob_backward.hpp>
#include <turnwise/loss/policy_loss.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace turnwise::logprob {

/// What the loss knows of each row beside its logits: [rows] each. A row is one token.
template <real T>
struct row_loss_inputs {
  std::span<T const> old_logprob;            ///< what the ratio is to: old, or rollout (bypass), nats
  std::span<T const> advantage;              ///< of the token
  std::span<T const> scale;                  ///< its turn's from loss::aggregate; 0: the row is not in the loss
  std::span<T const> reference_logprob{};    ///< or empty: no KL, nats
  std::span<T const> weight{};               ///< on the policy term alone, constant; empty: 1
  std::span<std::uint8_t const> selected{};  ///< for policies that ask for it (clip_cov, kl_cov)
};

/// What policy_loss_from_logits writes.
template <logprob_value L, real T>
struct row_loss_outputs {
  std::span<L> gradient;   ///< d loss / d logits; may be the logits themselves with the same layout (in place)
  logit_layout layout;     ///< of gradient
  std::span<T> logprob{};  ///< [rows] or empty: not wanted
  std::span<T> entropy{};  ///< [rows] or empty: taken only if the loss needs it
};

namespace detail {

/// The loss of one row's token.
template <real F>
struct row_loss {
  loss::detail::token_result<F> token{};
  F entropy_gradient = 0;
};

template <typename Policy, real F>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr row_loss<F> evaluate_row(Policy const& policy,
                                                                      loss::loss_options const& options,
                                                                      loss::detail::token_values<F> const& values) {
  auto const token = loss::detail::evaluate<true>(policy, options, values);
  F const slope = -static_cast<F>(options.entropy_coefficient) * values.scale;
  return {token, token.in_loss ? slope : F{0}};
}

/// Adds a token whose row was read.
template <real F>
TURNWISE_HOST_DEVICE constexpr void add_to(loss::loss_record& record, loss::detail::token_result<F> const& token) {
  if (!token.in_loss) {
    ++record.non_finite;
    return;
  }
  double const ratio = static_cast<double>(token.ratio);
  ++record.tokens;
  record.policy_loss += static_cast<double>(token.policy_loss);
  record.kl_loss += static_cast<double>(token.kl_loss);
  record.entropy_loss += static_cast<double>(token.entropy_loss);
  record.saturated += token.saturated ? 1 : 0;
  record.clipped_low += token.clipped_low ? 1 : 0;
  record.clipped_high += token.clipped_high ? 1 : 0;
  record.log_ratio_sum += static_cast<double>(token.log_ratio);
  record.ratio_sum += ratio;
  record.ratio_min = ratio < record.ratio_min ? ratio : record.ratio_min;
  record.ratio_max = ratio > record.ratio_max ? ratio : record.ratio_max;
  record.kl_sum += static_cast<double>(token.kl);
  record.entropy_sum += static_cast<double>(token.entropy);
}

/// Whether the loss needs the entropy.
template <typename Outputs>
[[nodiscard]] bool takes_entropy(loss::loss_options const& options, Outputs const& out) {
  return options.entropy_coefficient != 0 || !out.entropy.empty();
}

/// The checks that host and device share.
template <typename Policy, typename Inputs, typename Outputs>
void check_row_loss(logit_layout const& layout, Inputs const& in, Policy const& policy,
                    loss::loss_options const& options, Outputs const& out, std::string_view function) {
  static_assert(!loss::is_turn_level<Policy>, "a turn's ratio needs all its log-probs: use token_logprob, policy_loss");
  loss::detail::check_policy(policy);
  auto const rows = [&](std::string_view name, std::size_t size, bool optional) {
    if (!optional || size > 0) expects_size(function, name, size, layout.rows, "row");
  };
  rows("old_logprob", in.old_logprob.size(), false);
  rows("advantage", in.advantage.size(), false);
  rows("scale", in.scale.size(), false);
  rows("reference_logprob", in.reference_logprob.size(), true);
  rows("weight", in.weight.size(), true);
  rows("selected", in.selected.size(), !loss::uses_selection<Policy>);
  rows("logprob", out.logprob.size(), true);
  rows("entropy", out.entropy.size(), true);
  loss::detail::check_loss_options(options, layout.rows == 0 || !in.reference_logprob.empty(), true);
  check_gradient_layout(out.layout, layout, out.gradient.size(), function);
}

/// A row's values as the policy takes them.
#ifdef __CUDACC__
#pragma nv_exec_check_disable  // of host spans on the host, of device spans on the device
#endif
template <real F, typename Inputs>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr loss::detail::token_values<F> values_of(Inputs const& in, std::size_t row,
                                                                                     F logprob, F entropy) {
  loss::detail::token_values<F> values{};
  values.current = logprob;
  values.old = static_cast<F>(in.old_logprob[row]);
  values.advantage = static_cast<F>(in.advantage[row]);
  values.weight = in.weight.empty() ? F{1} : static_cast<F>(in.weight[row]);
  values.reference = in.reference_logprob.empty() ? logprob : static_cast<F>(in.reference_logprob[row]);
  values.entropy = entropy;
  values.scale = static_cast<F>(in.scale[row]);
  values.on = true;
  values.selected = !in.selected.empty() && in.selected[row] != 0;
  return values;
}

}  // namespace detail

/// Loss of a batch of tokens under a token-level policy, and its gradient with respect to their logits: what
/// token_logprob, loss::policy_loss and token_logprob_backward give in three steps.
///
///     d loss / d x = d loss / d logprob * d logprob / d x + d loss / d entropy * d entropy / d x
///
/// Also called: fused GRPO loss, loss from logits.
/// @param[in]  logits   [rows, vocabulary].
/// @param[in]  inputs   [rows] each.
/// @param[in]  policy   ppo_clip, reinforce, cispo, sapo, clip_cov, kl_cov, or the caller's; not one whose ratio is the
///                      turn's.
/// @param[out] out      gradient: every column of every row is written.
/// @param      threads  most threads to use, 0 = the OpenMP default.
/// @return the record of the loss; its `turns` is 0, as rows know of none.
/// @throws precondition_error  sizes, layouts, temperature or options that do not fit, a scale that is negative or not
///         finite, an id of a row in the loss outside the vocabulary; nothing is written.
/// @note  A row that is masked or has scale 0 gets gradient 0 and 0 in the outputs; nothing else of it is read. A bad
///        row (token_logprob) or one whose numbers are not finite gets gradient 0 and counts as non_finite.
/// @note  In double; the same bits for any number of threads.
/// @par Complexity  O(rows * vocabulary) time, O(rows) memory.
/// @par Reference   ours; the losses are those of their policies.
/// @see turnwise::gpu::logprob::policy_loss_from_logits
template <typename Policy, logprob_value L, token_id Id, real T>
loss::loss_record policy_loss_from_logits(token_logits<L, Id> const& logits, row_loss_inputs<T> const& inputs,
                                          Policy const& policy, loss::loss_options const& options, double temperature,
                                          row_loss_outputs<no_deduce<L>, no_deduce<T>> const& out, int threads = 0) {
  constexpr std::string_view name = "policy_loss_from_logits";
  logit_layout const& layout = logits.layout;
  detail::check_token_logits(logits, name);
  detail::check_row_loss(layout, inputs, policy, options, out, name);
  std::vector<std::uint8_t> in_loss(layout.rows);
  for (std::size_t row = 0; row < layout.rows; ++row) {
    expects(inputs.scale[row] >= 0 && within_limit(inputs.scale[row]), name, ": scale[", row, "] = ", inputs.scale[row],
            ", expected a number from 0 to 2^", std::same_as<T, float> ? 100 : 500);
    in_loss[row] = inputs.scale[row] > 0 && (logits.mask.empty() || logits.mask[row] != 0);
  }
  token_logits<L, Id> const read{logits.values, layout, logits.ids, in_loss};
  std::vector<double> logprob(layout.rows), entropy(layout.rows), of_logprob(layout.rows), of_entropy(layout.rows);
  std::vector<log_normalizer<double>> normalizer(layout.rows);
  detail::check_ids(read, layout.vocabulary, name);
  token_logprob(read, {.temperature = temperature},
                token_logprob_outputs<double>{.logprob = logprob, .entropy = entropy, .normalizer = normalizer},
                threads);
  loss::loss_record record;
  bool const with_entropy = detail::takes_entropy(options, out);
  for (std::size_t row = 0; row < layout.rows; ++row) {
    if (!out.logprob.empty()) out.logprob[row] = static_cast<T>(logprob[row]);
    if (!out.entropy.empty()) out.entropy[row] = static_cast<T>(entropy[row]);
    if (in_loss[row] == 0) continue;
    auto const result = detail::evaluate_row(
        policy, options, detail::values_of(inputs, row, logprob[row], with_entropy ? entropy[row] : 0.0));
    detail::add_to(record, result.token);
    of_logprob[row] = result.token.gradient;
    of_entropy[row] = result.entropy_gradient;
  }
  token_logprob_backward(read, logprob_gradients<double>{normalizer, entropy, of_logprob, of_entropy}, temperature, 0,
                         out.gradient, out.layout, threads);
  return record;
}

}  // namespace turnwise::logprob
