/// @file
/// The one driver that turns any policy into loss, gradient and record, on the device.
#pragma once

#include <turnwise/gpu/core/workspace.cuh>
#include <turnwise/gpu/loss/detail/chunk_loss.cuh>
#include <turnwise/gpu/loss/detail/turn_ratio.cuh>
#include <turnwise/gpu/loss/inputs.cuh>
#include <turnwise/loss/policy_loss.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace turnwise::gpu::loss {
namespace detail {

inline constexpr unsigned turn_ratio_threads = 128;

/// The blocks of a call, for counting and for running alike.
template <typename F>
struct loss_blocks {
  device_span<host::loss_record> records, sums;
  device_span<F> turn_ratio;

  loss_blocks(std::size_t turns, std::size_t tokens, bool turn_level, workspace& scratch)
      : records(scratch.take<host::loss_record>(record_count(tokens), "policy_loss: records")),
        sums(scratch.take<host::loss_record>(ceil_div(record_count(tokens), sum_share), "policy_loss: sums")),
        turn_ratio(scratch.take<F>(turn_level ? turns : 0, "policy_loss: turn ratio")) {}
};

template <typename Inputs, typename Outputs>
void check_loss(token_plan const& plan, Inputs const& in, host::loss_options const& options, bool selection,
                device_span<double const> turn_scale, Outputs const& out, std::size_t record) {
  std::string_view const name = "policy_loss";
  auto const per_token = [&](std::string_view argument, std::size_t size, bool optional) {
    if (!optional || size > 0) expects_size(name, argument, size, plan.tokens, "token of the plan");
  };
  per_token("current_logprob", in.current_logprob.size(), false);
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
  if (in.token_advantage.empty() && plan.tokens > 0)
    expects_size(name, "turn_advantage", in.turn_advantage.size(), plan.turns, "turn of the plan");
  expects(out.entropy_gradient.empty() || !in.entropy.empty(), name, ": entropy_gradient without entropy");
  expects_size(name, "turn_scale", turn_scale.size(), plan.turns, "turn of the plan");
  expects(record == 1, name, ": record has ", record, " elements, expected 1");
  bool const none = plan.tokens == 0;  // then an array that is given is empty too
  host::detail::check_loss_options(options, none || !in.reference_logprob.empty(), none || !in.entropy.empty());
}

/// Whether rows of these arrays may be read and written as 16-byte words.
template <typename... T>
[[nodiscard]] bool are_aligned(device_span<T> const&... spans) {
  return ((reinterpret_cast<std::uintptr_t>(spans.data()) % 16 == 0) && ...);
}

}  // namespace detail

/// Scratch for policy_loss; F = log_ratio_t<Current, Old>, the type of its arithmetic.
template <typename Policy, real F = double>
[[nodiscard]] std::size_t policy_loss_workspace_bytes(std::size_t turns, std::size_t tokens) {
  workspace count;
  detail::loss_blocks<F>{turns, tokens, turnwise::loss::is_turn_level<Policy>, count};
  return count.used();
}

/// Loss of a batch under any policy, its gradient, and what happened: the device version of
/// turnwise::loss::policy_loss, with the same formulas and edge cases.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. Two launches; one more
/// above 4 Mi tokens; one more, a pass of its own over the log-probs, for a turn-level policy.
/// @param[in]  plan        of the batch, over arrays of N tokens.
/// @param[in]  turn_scale  [S] as aggregate writes it; 0 = the turn is not in the loss.
/// @param[out] out         gradient [N]; tokens in no turn get 0. Any element alignment (16 bytes is fastest).
/// @param[out] record      [1].
/// @param      status      may be null; gains `weight` (a scale that is negative, not finite or too large) and
///                         `turn_return` (an advantage that is not finite or too large, of a turn in the loss): that
///                         turn is then not in the loss.
/// @throws precondition_error  sizes that differ, options out of range or without their array, a workspace too small;
///         nothing is enqueued.
/// @throws cuda_error          a launch was refused.
/// @note  Run to run the same bits, whatever the launch shape. Against the host: gradients within 8 ulp of the largest
///        term that enters a token's gradient (compilers fuse products with sums), sums of the record within 1e-6
///        (float) and 1e-12 (double) of the sum of magnitudes, counts equal but for tokens that stand within such an
///        error of an edge.
/// @par Complexity  one read of the tokens and one write of the gradients; with weight, KL or entropy not by 16-byte
///                  words.
/// @see turnwise::loss::policy_loss
template <typename Policy, logprob_value Current, logprob_value Old, logprob_value Reference, real Advantage,
          logprob_value Weight, turnwise::loss::gradient_value Gradient>
void policy_loss(token_plan const& plan, loss_inputs<Current, Old, Reference, Advantage, Weight> const& inputs,
                 Policy const& policy, turnwise::loss::loss_options const& options,
                 no_deduce<device_span<double const>> turn_scale, loss_outputs<Gradient> const& out,
                 device_span<turnwise::loss::loss_record> record, status_record* status, workspace scratch,
                 ::cuda::stream_ref stream) {
  using inputs_type = loss_inputs<Current, Old, Reference, Advantage, Weight>;
  using F = typename inputs_type::number;
  using work_type = detail::loss_work<Policy, inputs_type, loss_outputs<Gradient>>;
  turnwise::loss::detail::check_policy(policy);
  detail::check_loss(plan, inputs, options, turnwise::loss::uses_selection<Policy>, turn_scale, out, record.size());
  detail::loss_blocks<F> const blocks{plan.turns, plan.tokens, turnwise::loss::is_turn_level<Policy>, scratch};
  bool const vectors = detail::are_aligned(inputs.current_logprob, inputs.old_logprob, inputs.mask,
                                           inputs.token_advantage, inputs.selected, out.gradient);
  work_type const work{plan, inputs,         policy, options, turn_scale, blocks.turn_ratio,
                       out,  blocks.records, status, vectors};

  if constexpr (turnwise::loss::is_turn_level<Policy>)
    launch("policy_loss: turn ratios", detail::turn_ratio_kernel<detail::turn_ratio_threads, work_type>,
           grid_blocks(plan.turns, 1), detail::turn_ratio_threads, 0, stream, work);
  bool const extras = !inputs.reference_logprob.empty() || !inputs.weight.empty() || !inputs.entropy.empty();
  launch("policy_loss",
         extras ? detail::policy_loss_kernel<true, work_type> : detail::policy_loss_kernel<false, work_type>,
         grid_blocks(blocks.records.size(), 1), gpu::detail::warp_block_threads, 0, stream, work);

  auto const sum = [&](device_span<turnwise::loss::loss_record const> from,
                       device_span<turnwise::loss::loss_record> to) {
    launch("policy_loss: sum", detail::sum_records_kernel, grid_blocks(to.size(), 1), detail::sum_threads, 0, stream,
           from, detail::sum_share, to);
  };
  if (blocks.sums.size() > 1) sum(blocks.records, blocks.sums);
  sum(blocks.sums.size() > 1 ? blocks.sums : blocks.records, record);
}

}  // namespace turnwise::gpu::loss
