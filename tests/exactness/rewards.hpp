/// The exactness programs' lines for the rewards that no recipe of step_digest.cpp pays.
#pragma once

#include "exactness/settled_turns.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace digest {

inline void rewards(std::string const& shape, sample_batch<double> const& batch, settled_turns const& turns) {
  using namespace reward;
  auto const view = batch.view();
  auto const evaluation = batch.evaluation();
  auto const& reasons = turns.reasons;
  std::vector<double> out(batch.turns());
  std::span<double> const to{out};
  auto const line = [&](std::string const& name, auto const&... calls) {
    hash all;
    ((calls(), all.add(out)), ...);
    print(shape, name, all.value());
  };

  print(shape, "kevin_score", hash_of(turns.reward));
  auto const overlong = [&](bool capped, length_scope of) {
    return [&, capped, of] {
      overlong_penalty(view, {}, {.max_length = 50, .buffer = 37, .factor = 0.7, .capped = capped, .scope = of}, to);
    };
  };
  line("overlong_penalty", overlong(true, length_scope::turn), overlong(false, length_scope::turn),
       overlong(true, length_scope::trajectory));

  auto const gate = [&](shaping_form form) {
    return [&, form] {
      outcome_gate(turns.reward, turns.turn_return, {.threshold = 0.35, .weight = 0.3, .high = 1.7, .form = form},
                   reasons, to);
    };
  };
  line("outcome_gate", gate(shaping_form::added), gate(shaping_form::factor));

  line("difference_shaping", [&] { difference_shaping(view, turns.reward, {.initial = 0.1}, reasons, to); });

  auto const negative = numbers(21, batch.turns(), 3);
  auto const penalty = [&](penalty_kind kind) {
    return [&, kind] { scaled_penalty(negative, batch.correct, {kind, 0.3}, reasons, to); };
  };
  line("scaled_penalty", penalty(penalty_kind::away), penalty(penalty_kind::multiply), penalty(penalty_kind::replace));

  auto const ladder = [&](speedup_ladder_options const& options) {
    return [&, options] { speedup_ladder(evaluation, batch.speedup, options, reasons, to); };
  };
  line("speedup_ladder", ladder(speedup_ladder_options::like_kernel()), ladder(speedup_ladder_options::weighted()),
       ladder(speedup_ladder_options::cuda_agent()));

  auto const groups = make_grouping(view, group_by::group);
  attempts<double> const of{view, &groups, evaluation};
  hash frontier;
  for (auto const solved : {solved_by::last_turn, solved_by::any_turn}) {
    std::vector<double> by_trajectory(view.trajectories());
    frontier_reward(of, view.group_id, {}, {.target = 0.3, .solved = solved}, std::span{by_trajectory});
    frontier.add(by_trajectory);
  }
  print(shape, "frontier_reward", frontier.value());

  std::vector<divergence::kl_sums> sums(batch.turns());
  divergence::kl_estimate(view, divergence::kl_logprobs<double, double>{batch.old_logprob, batch.rollout_logprob, {}},
                          {.kind = divergence::kl_kind::k1}, sums);
  line("kl_penalty", [&] {
    out = turns.turn_return;
    kl_penalty(sums, 0.013, to);
  });
}

}  // namespace digest
