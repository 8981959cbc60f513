/// @file
/// Takes a KL estimate off the rewards, on the device.
#pragma once

#include <turnwise/gpu/divergence/kl_estimate.cuh>
#include <turnwise/reward/kl_penalty.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace turnwise::gpu::reward {

using turnwise::reward::kl_penalty_options;

namespace detail {

template <logprob_value Current, logprob_value Reference, real T>
TURNWISE_KERNEL void token_penalty_kernel(divergence::kl_logprobs<Current, Reference> tokens,
                                          kl_penalty_options options, device_span<T> token_reward) {
  gpu::detail::for_each_by_thread(static_cast<std::int64_t>(token_reward.size()), [&](std::int64_t token) {
    auto const i = static_cast<std::size_t>(token);
    if (!tokens.mask.empty() && tokens.mask[i] == 0) return;
    token_reward[i] = turnwise::reward::penalised_token(token_reward[i], tokens.current_logprob[i],
                                                        tokens.reference_logprob[i], options);
  });
}

template <real T>
TURNWISE_KERNEL void turn_penalty_kernel(device_span<divergence::kl_sums const> sums, double coefficient,
                                         device_span<T> turn_reward) {
  gpu::detail::for_each_by_thread(static_cast<std::int64_t>(turn_reward.size()), [&](std::int64_t turn) {
    auto const s = static_cast<std::size_t>(turn);
    turn_reward[s] = turnwise::reward::penalised_reward(turn_reward[s], coefficient, sums[s].value);
  });
}

}  // namespace detail

inline constexpr std::size_t kl_penalty_workspace_bytes = 0;  ///< takes no workspace

/// Takes the KL estimate of each token off its reward: the device version. With k1, k2 and absolute the host's bits;
/// with k3 the penalty is within 1e-5 of the host's (float; double: 1e-13).
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch, no workspace.
/// @param[in,out] token_reward  [N].
/// @throws precondition_error  sizes that differ, options as on the host; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @par Complexity  O(N).
/// @see turnwise::reward::kl_penalty
template <logprob_value Current, logprob_value Reference, real T>
void kl_penalty(divergence::kl_logprobs<Current, Reference> const& tokens, kl_penalty_options const& options,
                device_span<T> token_reward, ::cuda::stream_ref stream) {
  std::string_view const name = "kl_penalty";
  std::size_t const count = token_reward.size();
  expects_size(name, "current_logprob", tokens.current_logprob.size(), count, "token, as token_reward");
  expects_size(name, "reference_logprob", tokens.reference_logprob.size(), count, "token, as token_reward");
  if (!tokens.mask.empty()) expects_size(name, "mask", tokens.mask.size(), count, "token, as token_reward");
  turnwise::divergence::check_kl_options(options.estimate, name);
  turnwise::reward::check_kl_coefficient(options.coefficient, name);
  launch(name, detail::token_penalty_kernel<Current, Reference, T>, grid_blocks(count, 256), 256, 0, stream, tokens,
         options, token_reward);
}

/// Takes the coefficient times each turn's sum off its reward: the device version, with the host's bits given the same
/// sums.
///
/// Enqueues on `stream` and returns; never allocates or synchronizes; capturable in a graph. One launch, no workspace.
/// @param[in,out] turn_reward  [S].
/// @throws precondition_error  sizes that differ, a coefficient that is negative or not finite; nothing is enqueued.
/// @throws cuda_error          the launch was refused.
/// @see turnwise::reward::kl_penalty
template <real T>
void kl_penalty(device_span<divergence::kl_sums const> sums, double coefficient, device_span<T> turn_reward,
                ::cuda::stream_ref stream) {
  expects_size("kl_penalty", "sums", sums.size(), turn_reward.size(), "turn, as turn_reward");
  turnwise::reward::check_kl_coefficient(coefficient, "kl_penalty");
  launch("kl_penalty", detail::turn_penalty_kernel<T>, grid_blocks(turn_reward.size(), 256), 256, 0, stream, sums,
         coefficient, turn_reward);
}

}  // namespace turnwise::gpu::reward
