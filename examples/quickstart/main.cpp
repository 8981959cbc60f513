// One training step of Dr. Kernel: log-probs and rewards in, advantages and keep decisions out.
#include <turnwise/recipe/dr_kernel.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

int main() {
  // Two prompts, two conversations each, one or two turns each, three tokens a turn.
  std::vector<std::int64_t> const turn_begin{0, 3, 6, 9, 12, 15, 18}, turn_end{3, 6, 9, 12, 15, 18, 21};
  std::vector<std::int64_t> const trajectory_offsets{0, 2, 4, 5, 7}, prompt{7, 7, 9, 9}, trajectory{0, 1, 0, 1};
  std::vector<double> const reward{1, 3, 0, 1, 3, 0, 1};

  // The last conversation drifted: the trainer finds its tokens 1% likelier than the engine that sampled them.
  std::vector<float> const rollout_logprob(21, -0.50f);
  std::vector<float> old_logprob(21, -0.50f);
  std::fill(old_logprob.begin() + 15, old_logprob.end(), -0.49f);

  turnwise::rollout_view const batch{.turn_begin = turn_begin,
                                     .turn_end = turn_end,
                                     .trajectory_offsets = trajectory_offsets,
                                     .group_id = prompt,
                                     .trajectory_id = trajectory};
  turnwise::recipe::step_inputs<float, float, double> const inputs{.tokens = {old_logprob, rollout_logprob},
                                                                   .given_reward = reward};
  turnwise::recipe::dr_kernel_options options;
  options.filters.ratio_band.emplace();  // geometric ratio of the trajectory in [0.999, 1.001]

  std::vector<double> advantage(batch.turns());
  std::vector<turnwise::reason_flags> reasons(batch.turns());
  turnwise::recipe::dr_kernel(batch, inputs, options, {.seed = 1, .step = 0},
                              {.advantage = advantage, .reasons = reasons});
  for (std::size_t s = 0; s < batch.turns(); ++s)
    std::printf("turn %zu: advantage %+g, %s\n", s, advantage[s], turnwise::is_kept(reasons[s]) ? "kept" : "rejected");
}
