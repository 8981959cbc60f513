/// @file
/// What a backend is given and what it hands back, both in the order of the turns.
#pragma once

#include "batch.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace rollout_step {

struct recipe_inputs {
  turnwise::rollout_view batch;
  logprob_array const& old_logprob;
  logprob_array const& rollout_logprob;
  std::span<std::uint8_t const> token_mask;
  turnwise::reward::evaluation<double> evaluation;
  std::span<double const> given_reward;
  turnwise::recipe::proposal_results<double> proposals;  ///< of kernel_zero_proposer

  [[nodiscard]] std::size_t tokens() const {
    return std::visit([](auto const& values) { return values.size(); }, old_logprob);
  }
};

struct turn_results {
  std::vector<double> reward, turn_return, advantage;
  std::vector<turnwise::reason_flags> reasons;
  std::vector<turnwise::importance::turn_statistics> statistics;
  std::vector<float> token_advantage;
  turnwise::metrics::mismatch_record metrics;
  double seconds = 0;

  turn_results(std::size_t turns, std::size_t tokens)
      : reward(turns),
        turn_return(turns),
        advantage(turns),
        reasons(turns),
        statistics(turns),
        token_advantage(tokens) {}
};

#ifdef TURNWISE_STEP_CUDA
[[nodiscard]] bool has_cuda_device();

/// Runs the recipe on the current CUDA device. Metrics are taken on the host, from the device's statistics.
///
/// @throws tool_error                    there is no device.
/// @throws turnwise::precondition_error  what the device found wrong with the content.
/// @throws turnwise::gpu::cuda_error     memory ran out, a launch was refused.
[[nodiscard]] turn_results run_on_cuda(recipe_inputs const& inputs, step_options const& options);
#endif

}  // namespace rollout_step
