/// How the exactness programs print what the library computes: one line a batch and quantity.
#pragma once

#include <turnwise/turnwise.hpp>

#include <bit>
#include <concepts>
#include <cstdint>
#include <cstdio>
#include <ranges>
#include <string>

namespace digest {

namespace importance = turnwise::importance;
namespace metrics = turnwise::metrics;

/// FNV-1a over the bytes of numbers, least significant first.
class hash {
 public:
  void add(std::uint64_t word) {
    for (int byte = 0; byte < 8; ++byte) value_ = (value_ ^ ((word >> (8 * byte)) & 255)) * 0x100000001B3u;
  }
  void add(std::integral auto number) { add(static_cast<std::uint64_t>(number)); }
  void add(double number) { add(std::bit_cast<std::uint64_t>(number)); }
  void add(float number) { add(static_cast<std::uint64_t>(std::bit_cast<std::uint32_t>(number))); }
  void add(importance::turn_statistics const& s) {
    add(s.count), add(s.sum), add(s.min), add(s.max), add(s.non_finite), add(s.saturated);
  }
  void add(importance::turn_divergence const& d) { add(d.k2), add(d.k3); }
  void add(importance::ratio_moments const& m) { add(m.k3), add(m.excess_squared), add(m.rollout_logprob); }
  void add(metrics::kept_count const& c) { add(c.turns), add(c.kept); }
  void add(metrics::mismatch_record const& r) {
    add(r.turns), add(r.ratio_turns), add(r.ratio_tokens), add(r.non_finite_tokens), add(r.saturated_tokens);
    for (double const number :
         {r.kl, r.k3, r.old_log_ppl, r.rollout_log_ppl, r.log_ppl_difference, r.old_ppl, r.rollout_ppl, r.chi2_token,
          r.chi2_turn, r.effective_sample_size, r.ratio_min, r.ratio_max, r.low_turn_share, r.high_turn_share,
          r.low_token_share, r.high_token_share, r.kept_advantage_mean})
      add(number);
    add(r.valid), add(r.correct), add(r.incorrect), add(r.fast), add(r.kept_tokens);
    for (std::int64_t const count : r.reasons) add(count);
    for (auto const& of : r.by_length) add(of.shortest), add(of.longest), add(of.count);
    add(r.negative_groups), add(r.rejected_to_one), add(r.meaningless_profiles), add(r.speedup_outliers);
    add(r.low_keep), add(r.nothing_kept), add(r.profiler_suspect);
  }
  void add(importance::weight_counts const& c) {
    add(c.count), add(c.below), add(c.above), add(c.saturated), add(c.non_finite);
  }
  void add(turnwise::divergence::kl_sums const& k) { add(k.value), add(k.count), add(k.clamped), add(k.non_finite); }
  void add(metrics::group_mean const& m) { add(m.mean), add(m.groups), add(m.left_out); }
  void add(metrics::group_estimate const& e) { add(e.value), add(e.samples), add(e.counted); }
  void add(metrics::group_solves const& s) { add(s.trajectories), add(s.solved), add(s.mean_score); }
  void add(metrics::solve_record const& s) {
    add(s.groups), add(s.unscored), add(s.once), add(s.always), add(s.mean_rate), add(s.mean_score);
  }
  void add(metrics::budget_split const& b) { add(b.trajectories), add(b.turns), add(b.expected_best); }
  void add(metrics::length_summary const& l) {
    add(l.count), add(l.total), add(l.min), add(l.max), add(l.mean), add(l.quantiles);
  }
  void add(metrics::length_record const& l) {
    add(l.turn_tokens), add(l.trajectory_turns), add(l.trajectory_tokens);
    add(l.empty_trajectories), add(l.truncated_turns), add(l.truncated_trajectories);
  }
  void add(metrics::logprob_record const& l) {
    add(l.turns), add(l.tokens);
    for (double const number :
         {l.token_mean, l.turn_mean, l.turn_min, l.turn_max, l.token_ppl, l.turn_ppl, l.mean_turn_ppl})
      add(number);
  }
  void add(metrics::opening_record const& o) { add(o.turns), add(o.deviates); }
  void add(metrics::gradient_norm_record const& g) {
    add(g.sums.squares), add(g.sums.largest), add(g.sums.non_finite), add(g.sums.tiny_squares);
    add(g.norm), add(g.clip_factor), add(g.finite);
  }
  void add(std::ranges::sized_range auto const& values) {
    add(std::ranges::size(values));
    for (auto const& value : values) add(value);
  }
  [[nodiscard]] std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xCBF29CE484222325u;
};

template <typename... Parts>
std::uint64_t hash_of(Parts const&... parts) {
  hash result;
  (result.add(parts), ...);
  return result.value();
}

inline void print(std::string const& shape, std::string const& quantity, std::uint64_t value) {
  std::printf("%-28s %-52s %016llx\n", shape.c_str(), quantity.c_str(), static_cast<unsigned long long>(value));
}

/// Prints what `compute(threads)` hashes to, and says so if another number of threads gives something else.
template <typename Compute>
void print_threads(std::string const& shape, std::string const& quantity, Compute compute) {
  std::uint64_t const one = compute(1);
  print(shape, quantity, one);
  for (int const threads : {2, 0})
    if (std::uint64_t const other = compute(threads); other != one) print(shape, quantity + " WITH THREADS", other);
}

}  // namespace digest
