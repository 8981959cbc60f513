/// @file
/// The covariance of log-prob and advantage, token by token, by which clip_cov and kl_cov choose.
#pragma once

#include <turnwise/advantage/per_token.hpp>
#include <turnwise/core/rollout.hpp>
#include <turnwise/loss/detail/evaluate.hpp>
#include <turnwise/loss/inputs.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace turnwise::loss::detail {

/// A token that may be chosen.
struct covariance_token {
  double covariance;
  std::uint64_t draw;  ///< smallest first
  std::size_t token;
};

/// How many tokens a share of them is: at least one, if there is any.
[[nodiscard]] inline std::size_t share_of(std::int64_t tokens, double share) {
  auto const wanted = static_cast<std::int64_t>(static_cast<double>(tokens) * share);
  return static_cast<std::size_t>(std::clamp<std::int64_t>(wanted, tokens > 0 ? 1 : 0, tokens));
}

template <typename Inputs>
class token_covariances {
  using T = typename Inputs::number;

 public:
  token_covariances(rollout_view const& batch, Inputs const& in, loss_options const& options,
                    std::span<double const> turn_scale, std::string_view function)
      : batch_(batch), in_(in), limit_(static_cast<T>(options.log_ratio_limit)), turn_scale_(turn_scale) {
    std::size_t const tokens = in.current_logprob.size();
    check_rollout(batch, function);
    check_token_ranges(batch, tokens, function);
    expects_size(function, "old_logprob", in.old_logprob.size(), tokens, "token, as current_logprob");
    if (!in.mask.empty()) expects_size(function, "mask", in.mask.size(), tokens, "token, as current_logprob");
    if (in.token_advantage.empty())
      expects_size(function, "turn_advantage", in.turn_advantage.size(), batch.turns(), "turn");
    else
      expects_size(function, "token_advantage", in.token_advantage.size(), tokens, "token, as current_logprob");
    expects_size(function, "turn_scale", turn_scale.size(), batch.turns(), "turn");
    expects(options.log_ratio_limit > 0 && options.log_ratio_limit <= exp_near_limit, function,
            ": log_ratio_limit = ", options.log_ratio_limit, ", expected nats within (0, 80]");
    for_each([&](std::size_t, std::size_t, std::size_t, loss_token<T> const& token) {
      mean_advantage_ += static_cast<double>(token.advantage);
      mean_logprob_ += static_cast<double>(token.current_logprob);
      ++tokens_;
    });
    if (tokens_ == 0) return;
    mean_advantage_ /= static_cast<double>(tokens_);
    mean_logprob_ /= static_cast<double>(tokens_);
  }

  /// Tokens in the loss.
  [[nodiscard]] std::int64_t tokens() const { return tokens_; }

  [[nodiscard]] double of(loss_token<T> const& token) const {
    return (static_cast<double>(token.advantage) - mean_advantage_) *
           (static_cast<double>(token.current_logprob) - mean_logprob_);
  }

  /// Calls body(trajectory, turn, token, values) for each token in the loss, trajectory by trajectory.
  template <typename Body>
  void for_each(Body body) const {
    for (std::size_t j = 0; j < batch_.trajectories(); ++j)
      for (std::size_t s = batch_.first_turn(j); s < batch_.first_turn(j + 1); ++s) {
        if (!(turn_scale_[s] > 0)) continue;
        for (auto n = static_cast<std::size_t>(batch_.turn_begin[s]); n < static_cast<std::size_t>(batch_.turn_end[s]);
             ++n) {
          if (!in_.mask.empty() && in_.mask[n] == 0) continue;
          auto const current = static_cast<T>(in_.current_logprob[n]);
          auto const old = static_cast<T>(in_.old_logprob[n]);
          auto const advantage =
              static_cast<T>(in_.token_advantage.empty() ? in_.turn_advantage[s] : in_.token_advantage[n]);
          clamped_log_ratio<T> const d{current, old, limit_};
          if (!d.finite || !is_bounded(advantage)) continue;
          T const ratio = ieee_exp(d.value);
          body(j, s, n, loss_token<T>{d.value, ratio, d.inside ? ratio : T{0}, advantage, current, old, false});
        }
      }
  }

 private:
  rollout_view batch_;
  Inputs in_;
  T limit_;
  std::span<double const> turn_scale_;
  double mean_advantage_ = 0, mean_logprob_ = 0;
  std::int64_t tokens_ = 0;
};

/// Marks the `count` tokens that come first by `less`.
template <typename Less>
void mark_first(std::vector<covariance_token>& candidates, std::size_t count, Less less,
                std::span<std::uint8_t> selected) {
  count = std::min(count, candidates.size());
  if (count > 0 && count < candidates.size())
    std::nth_element(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(count - 1), candidates.end(),
                     less);
  std::ranges::fill(selected, std::uint8_t{0});
  for (std::size_t i = 0; i < count; ++i) selected[candidates[i].token] = 1;
}

}  // namespace turnwise::loss::detail
