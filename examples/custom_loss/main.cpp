// A policy loss of one's own: a trust region in total variation. Nothing of the library is touched: the policy below is
// all that is new, and it runs on registers of tokens here and on the GPU (turnwise::gpu::loss::policy_loss) as it
// stands.
#include <turnwise/loss/aggregate.hpp>
#include <turnwise/loss/policy_loss.hpp>
#include <turnwise/loss/ppo_clip.hpp>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

namespace {

namespace loss = turnwise::loss;

/// -A r while the token's probability has moved by at most `radius` in the direction that A asks for; then no gradient.
struct total_variation {
  double radius = 0.2;

  template <typename F>
  TURNWISE_HOST_DEVICE loss::loss_terms<F> operator()(loss::loss_token<F> const& token) const {
    F const moved = turnwise::ieee_exp(token.current_logprob) - turnwise::ieee_exp(token.old_logprob);
    F const most = loss::constant<F>(radius);
    loss::flag<F> const high = (token.advantage > F{}) & (moved > most);
    loss::flag<F> const low = (token.advantage < F{}) & (moved < -most);
    loss::flag<F> const outside = high | low;
    return {-token.advantage * token.ratio, -token.advantage * loss::select<F>(outside, F{}, token.ratio_slope), low,
            high};
  }
};

}  // namespace

int main() {
  // One prompt, two trajectories of one turn each: 3 and 2 tokens.
  std::vector<std::int64_t> const begin{0, 3}, end{3, 5}, trajectory_offsets{0, 1, 2}, group{7, 7}, trajectory{0, 1};
  turnwise::rollout_view const batch{.turn_begin = begin,
                                     .turn_end = end,
                                     .trajectory_offsets = trajectory_offsets,
                                     .group_id = group,
                                     .trajectory_id = trajectory};
  auto const logs = [](std::vector<double> probability) {
    for (double& p : probability) p = std::log(p);
    return probability;
  };
  std::vector<double> const old = logs({0.50, 0.01, 0.90, 0.60, 0.02});
  std::vector<double> const current = logs({0.80, 0.02, 0.85, 0.30, 0.01});
  std::vector<double> const advantage{1.0, -1.0};

  // Which turns are in the loss, and what it is divided by.
  std::vector<turnwise::reason_flags> const reasons{0, 0};
  std::vector<std::int64_t> tokens(2);
  std::vector<double> scale(2);
  loss::count_tokens(batch, {}, tokens);
  loss::aggregate(batch, tokens, reasons, {.mean = loss::loss_mean::token_mean}, scale);

  std::vector<double> gradient(5), clipped(5);
  loss::loss_inputs<double> const inputs{.current_logprob = current, .old_logprob = old, .turn_advantage = advantage};
  auto const record = loss::policy_loss(batch, inputs, total_variation{.radius = 0.2}, {}, scale,
                                        loss::loss_outputs<double>{.gradient = gradient});
  loss::policy_loss(batch, inputs, loss::ppo_clip{}, {}, scale, loss::loss_outputs<double>{.gradient = clipped});

  std::puts("token  old   current  A     gradient (total variation)  gradient (PPO clip)");
  for (std::size_t i = 0; i < 5; ++i)
    std::printf("%zu      %.2f  %.2f     %+.0f    %+.4f                     %+.4f\n", i, std::exp(old[i]),
                std::exp(current[i]), advantage[i / 3], gradient[i] + 0.0, clipped[i] + 0.0);
  std::printf("loss %.4f, clipped low %.0f%%, high %.0f%%\n", record.loss(), 100 * record.clip_fraction_low(),
              100 * record.clip_fraction_high());

  // By hand: the rare tokens 1 and 4 doubled or halved their probability, which PPO cuts and the trust region does not;
  // tokens 0 and 3 moved by 0.3, which both cut.
  double const expected[]{0, -2.0 / 5, -0.85 / 0.90 / 5, 0, 0.5 / 5};
  for (std::size_t i = 0; i < 5; ++i)
    if (!(std::abs(gradient[i] - expected[i]) < 1e-12)) return EXIT_FAILURE;
  double const loss_by_hand = (-1.6 - 2.0 - 0.85 / 0.90 + 0.5 + 0.5) / 5;
  return std::abs(record.loss() - loss_by_hand) < 1e-12 ? EXIT_SUCCESS : EXIT_FAILURE;
}
