/// @file
/// Takes some tokens of high covariance out of the gradient.
#pragma once

#include <turnwise/core/philox.hpp>
#include <turnwise/loss/detail/covariance.hpp>
#include <turnwise/loss/ppo_clip.hpp>

namespace turnwise::loss {

/// Clip-Cov, for policy_loss: PPO's clip, and loss and slope 0 for the tokens that select_clip_cov chose.
///
/// @par Reference  Cui et al. 2025, "The entropy mechanism of reinforcement learning", arXiv:2505.22617.
struct clip_cov {
  static constexpr bool uses_selection = true;

  double clip_low = 0.2;       ///< as of ppo_clip
  double clip_high = 0.2;      ///< as of ppo_clip
  double share = 0.0002;       ///< of the tokens in the loss, within [0, 1]; at least one token
  double covariance_low = 1;   ///< candidates lie strictly between these
  double covariance_high = 5;  ///< at least covariance_low

  void check() const {
    check_clip(clip_low, clip_high, "clip_cov");
    expects(share >= 0 && share <= 1, "clip_cov: share = ", share, ", expected a number within [0, 1]");
    expects(covariance_low <= covariance_high, "clip_cov: covariance_low = ", covariance_low,
            ", expected at most covariance_high = ", covariance_high);
  }

  template <typename F>
  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr loss_terms<F> operator()(loss_token<F> const& token) const {
    loss_terms<F> terms = ppo_clip{clip_low, clip_high}(token);
    terms.value = select<F>(token.selected, F{}, terms.value);
    terms.slope = select<F>(token.selected, F{}, terms.slope);
    return terms;
  }
};

/// Draws the tokens that clip_cov takes out: max(1, share of the tokens in the loss), fewer if there are not so many,
/// of those that PPO does not clip and whose covariance lies strictly within the bounds.
///
///     covariance = (A - mean A) (current_logprob - mean current_logprob), means over the tokens in the loss
///
/// @param[in]  batch, inputs, options, turn_scale  as policy_loss takes them.
/// @param[in]  key       seed and step of the draws, which must change from one training step to the next. A token's
///                       draw is words 2 and 3 of philox(counter = (place in its turn, turn index, trajectory id, the
///                       words of the group id joined by exclusive or), key); the smallest are drawn.
/// @param[out] selected  [N] 1 = taken out.
/// @throws precondition_error  sizes that differ, options out of range, ids outside [0, 2^32); nothing is written.
/// @note  No token in the loss or no candidate: none. Deterministic, whatever the order of trajectories but for the
///        last bits of the two means.
/// @note  Host only; the loss itself runs on the device with the selection given. The value of a chosen token is 0, as
///        in the published code; the paper cuts the gradient alone.
/// @par Complexity  two passes over the tokens, memory for the candidates.
template <logprob_value Current, logprob_value Old, logprob_value Reference, real Advantage, logprob_value Weight>
void select_clip_cov(rollout_view const& batch, loss_inputs<Current, Old, Reference, Advantage, Weight> const& inputs,
                     clip_cov const& policy, loss_options const& options, no_deduce<std::span<double const>> turn_scale,
                     draw_key key, std::span<std::uint8_t> selected) {
  policy.check();
  check_rollout(batch, "select_clip_cov");
  check_draw_ids(batch, "select_clip_cov");
  expects_size("select_clip_cov", "selected", selected.size(), inputs.current_logprob.size(), "token");
  detail::token_covariances const covariances{batch, inputs, options, turn_scale, "select_clip_cov"};
  std::vector<detail::covariance_token> candidates;
  covariances.for_each([&](std::size_t j, std::size_t s, std::size_t n, auto const& token) {
    auto const terms = policy(token);
    double const covariance = covariances.of(token);
    if (terms.clipped_low || terms.clipped_high) return;
    if (!(covariance > policy.covariance_low && covariance < policy.covariance_high)) return;
    auto const group = static_cast<std::uint64_t>(batch.group_id[j]);
    auto const place = static_cast<std::uint32_t>(n - static_cast<std::size_t>(batch.turn_begin[s]));
    auto const words = philox4x32_10(
        {{place, static_cast<std::uint32_t>(batch.index_of(j, s)), static_cast<std::uint32_t>(batch.trajectory_id[j]),
          static_cast<std::uint32_t>(group ^ group >> 32)}},
        key);
    candidates.push_back({covariance, std::uint64_t{words.word[2]} << 32 | words.word[3], n});
  });
  detail::mark_first(
      candidates, policy.share > 0 ? detail::share_of(covariances.tokens(), policy.share) : 0,
      [](auto const& a, auto const& b) { return a.draw != b.draw ? a.draw < b.draw : a.token < b.token; }, selected);
}

}  // namespace turnwise::loss
