/// @file
/// What the calls of both backends read and make: the fields of the library's structs, which have the same names on the
/// host and on the device.
#pragma once

#include "tensors.hpp"

#include <turnwise/recipe/dr_kernel.hpp>

#include <cstddef>

namespace turnwise_torch {

template <typename Place, typename View>
void view_batch(arguments<Place> const& in, View& to) {
  in.view("trajectory_offsets", to.trajectory_offsets);
  in.view("group_id", to.group_id);
  in.view("trajectory_id", to.trajectory_id);
  in.view("turn_begin", to.turn_begin);
  in.view("turn_end", to.turn_end);
  in.view("turn_index", to.turn_index);
  in.view("turn_valid", to.turn_valid);
}

/// The log-probs and the mask; `tokens` is what the batch was said to have.
template <typename Place, typename Tokens>
void view_tokens(arguments<Place> const& in, std::size_t tokens, std::string_view function, Tokens& to) {
  in.view("old_logprob", to.old_logprob);
  in.view("rollout_logprob", to.rollout_logprob);
  in.view("mask", to.mask);
  turnwise::expects_size(function, "old_logprob", to.old_logprob.size(), tokens, "token of the batch");
}

/// Throws unless what the step reads of the turns is given.
template <typename Place>
void check_step(arguments<Place> const& in, turnwise::recipe::dr_kernel_options const& recipe) {
  bool const evaluated = in.has("correct");
  turnwise::expects(evaluated || in.has("reward"),
                    "dr_kernel: neither reward nor correct is given: pass the reward of each turn, or the "
                    "evaluation that it is formed of");
  turnwise::expects(evaluated || !recipe.filters.profiling_filter,
                    "dr_kernel: correct is not given, but the profiling filter, which is on in every preset, reads it: "
                    "pass profiling_filter=False, or correct, speedup, generated_us and total_us");
}

template <typename Place, typename Inputs>
void view_step(arguments<Place> const& in, std::size_t turns, std::size_t tokens, Inputs& to) {
  view_tokens(in, tokens, "dr_kernel", to.tokens);
  in.view("reward", to.given_reward);
  if (in.has("reward"))
    turnwise::expects_size("dr_kernel", "reward", to.given_reward.size(), turns, "turn of the batch");
  in.view("compiled", to.evaluation.compiled);
  in.view("correct", to.evaluation.correct);
  in.view("decoy", to.evaluation.decoy);
  in.view("rule_violation", to.evaluation.rule_violation);
  in.view("speedup", to.evaluation.speedup);
  in.view("generated_us", to.evaluation.generated_us);
  in.view("total_us", to.evaluation.total_us);
}

template <typename Outputs>
void make_step(results& made, Outputs& to, std::size_t turns, std::size_t tokens, bool token_outputs) {
  made.make("reward", to.reward, turns);
  made.make("turn_return", to.turn_return, turns);
  made.make("advantage", to.advantage, turns);
  made.make("reasons", to.reasons, turns);
  made.make("statistics", to.statistics, turns);
  if (!token_outputs) return;
  made.make("token_advantage", to.token_advantage, tokens);
  made.make("token_mask", to.token_mask, tokens);
}

/// body.operator()<A>() for advantages of type A: those of turns are double, those of tokens float or double.
template <typename Place, typename Body>
void dispatch_advantage(arguments<Place> const& in, Body body) {
  if (in.has("token_advantage"))
    in.template dispatch<float, double>("token_advantage", body);
  else
    body.template operator()<double>();
}

template <typename Place, typename Inputs>
void view_loss(arguments<Place> const& in, std::size_t tokens, Inputs& to) {
  in.view("current_logprob", to.current_logprob);
  in.view("old_logprob", to.old_logprob);
  in.view("mask", to.mask);
  in.view("turn_advantage", to.turn_advantage);
  in.view("token_advantage", to.token_advantage);
  in.view("reference_logprob", to.reference_logprob);
  in.view("weight", to.weight);
  turnwise::expects_size("ppo_clip", "current_logprob", to.current_logprob.size(), tokens, "token of the batch");
}

template <typename Place, typename Logits>
void view_logits(arguments<Place> const& in, Logits& to) {
  in.view_rows("logits", to.values, to.layout);
  in.view("ids", to.ids);
  in.view("mask", to.mask);
}

template <typename Place, typename Inputs>
void view_row_loss(arguments<Place> const& in, Inputs& to) {
  in.view("old_logprob", to.old_logprob);
  in.view("advantage", to.advantage);
  in.view("scale", to.scale);
  in.view("reference_logprob", to.reference_logprob);
  in.view("weight", to.weight);
}

template <typename Place, typename Gradients>
void view_gradients(arguments<Place> const& in, Gradients& to) {
  in.view("normalizer", to.normalizer);
  in.view("entropy", to.entropy);
  in.view("logprob_gradient", to.logprob_gradient);
  in.view("entropy_gradient", to.entropy_gradient);
}

template <typename Outputs>
void make_logprob(results& made, Outputs& to, std::size_t rows, bool entropy) {
  made.make("logprob", to.logprob, rows);
  if (entropy) made.make("entropy", to.entropy, rows);
  made.make("normalizer", to.normalizer, rows);
}

/// A gradient without gaps, of the shape of the logits.
template <typename Span>
[[nodiscard]] turnwise::logprob::logit_layout make_gradient(results& made, Span& to, at::Tensor const& logits,
                                                            turnwise::logprob::logit_layout const& layout) {
  made.make("gradient", to, logits.sizes());
  return {layout.rows, layout.vocabulary};
}

}  // namespace turnwise_torch
