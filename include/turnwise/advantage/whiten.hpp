/// @file
/// Returns of the whole batch brought to mean 0 and deviation 1, also when the batch is spread over ranks.
#pragma once

#include <turnwise/advantage/detail/group_driver.hpp>
#include <turnwise/core/exact_sum.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace turnwise::advantage {

/// Where epsilon stands in the divisor.
enum class epsilon_place : std::uint8_t {
  outside,  ///< deviation + epsilon
  inside,   ///< sqrt(variance + epsilon)
  floor     ///< sqrt(max(variance, epsilon))
};

/// Options of `whiten`.
struct whiten_options {
  int ddof = 1;                                  ///< 0 or 1: the sum of squares is divided by the total weight - ddof
  double epsilon = 1e-6;                         ///< at least 0; where it stands: place
  epsilon_place place = epsilon_place::outside;  ///< where epsilon stands
  baseline_members members = baseline_members::valid;  ///< whose returns form mean and deviation

  /// As verl and SkyRL have it: sample variance, sqrt(variance + 1e-8).
  [[nodiscard]] static constexpr whiten_options verl() { return {1, 1e-8, epsilon_place::inside}; }
  /// As OpenRLHF and NeMo-RL have it: population variance of at least 1e-8.
  [[nodiscard]] static constexpr whiten_options open_rlhf() { return {0, 1e-8, epsilon_place::floor}; }
};

/// The largest weight of a turn.
inline constexpr std::int64_t most_weight = std::int64_t{1} << 32;

/// Exact sum over the members of a shard. Records of shards are joined by += or, since they are 64-bit integers and
/// nothing else, by an all-reduce (sum) of sizeof(whiten_moments) / 8 of them.
struct whiten_moments {
  exact_sum sum{};           ///< of weight * return
  std::int64_t weight = 0;   ///< of the members
  std::int64_t members = 0;  ///< turns of positive weight

  TURNWISE_HOST_DEVICE constexpr whiten_moments& operator+=(whiten_moments const& other) noexcept {
    sum += other.sum;
    weight += other.weight;
    members += other.members;
    return *this;
  }
};
static_assert(sizeof(whiten_moments) == 8 * (exact_sum::digits + 2));

/// What is subtracted, and what it is divided by; divisor 0: every turn gets 0.
struct whiten_scale {
  double mean = 0;     ///< is subtracted
  double divisor = 0;  ///< what divides
};

/// Mean of all members, rounded once; 0 when there is none.
[[nodiscard]] inline TURNWISE_HOST_DEVICE double whiten_mean(whiten_moments const& all) noexcept {
  return all.weight > 0 ? all.sum.quotient(all.weight) : 0.0;
}

/// What one member adds to the sum of squares, weight times.
[[nodiscard]] inline TURNWISE_HOST_DEVICE double whiten_square(double value, double mean) noexcept {
  return (value - mean) * (value - mean);
}

/// Mean and divisor of the batch, from the joined records of both phases.
[[nodiscard]] inline TURNWISE_HOST_DEVICE whiten_scale make_whiten_scale(whiten_moments const& all,
                                                                         exact_sum const& squares,
                                                                         whiten_options const& options) noexcept {
  if (all.members < 2) return {};
  double const variance = squares.quotient(all.weight - options.ddof);
  using std::sqrt;
  double const divisor = options.place == epsilon_place::outside ? sqrt(variance) + options.epsilon
                         : options.place == epsilon_place::inside
                             ? sqrt(variance + options.epsilon)
                             : sqrt(variance > options.epsilon ? variance : options.epsilon);
  return {whiten_mean(all), divisor};
}

/// The whitened value.
[[nodiscard]] inline TURNWISE_HOST_DEVICE double whitened(double value, whiten_scale const& scale) noexcept {
  return scale.divisor > 0 ? (value - scale.mean) / scale.divisor : 0.0;
}

namespace detail {

inline void check_whiten(whiten_options const& options, std::string_view function) {
  expects(options.ddof == 0 || options.ddof == 1, function, ": ddof = ", options.ddof, ", expected 0 or 1");
  expects(options.epsilon >= 0 && within_limit(options.epsilon), function, ": epsilon = ", options.epsilon,
          ", expected a number from 0 to 2^500");
}

/// Weight of a turn in the moments; 0 for one that is no member.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr std::int64_t member_weight(reason_flags reasons, std::int64_t weight,
                                                                        baseline_members members) noexcept {
  return (members == baseline_members::valid ? is_valid(reasons) : is_kept(reasons)) ? weight : 0;
}

/// The turns of a shard as both phases read them.
template <real T>
struct whiten_turns {
  std::span<T const> turn_return;
  std::span<std::int64_t const> weight;
  std::span<reason_flags const> reasons;

  void check(whiten_options const& options, std::string_view function) const {
    check_whiten(options, function);
    if (!weight.empty()) expects_size(function, "weight", weight.size(), turn_return.size(), "turn");
    if (!reasons.empty()) expects_size(function, "reasons", reasons.size(), turn_return.size(), "turn");
    for (std::size_t s = 0; s < turn_return.size(); ++s) {
      if (!is_valid(flags(s))) continue;
      expects(within_limit(turn_return[s]), function, ": turn_return[", s, "] = ", turn_return[s],
              " of a valid turn is not finite or beyond the magnitude limit");
      expects(weight.empty() || (weight[s] >= 0 && weight[s] <= most_weight), function, ": weight[", s,
              "] = ", weight.empty() ? 0 : weight[s], ", expected a count in [0, 2^32]");
    }
  }
  [[nodiscard]] reason_flags flags(std::size_t s) const { return reasons.empty() ? 0 : reasons[s]; }

  /// Adds term(return) weight times for each member; the sum is carried.
  template <typename Term>
  [[nodiscard]] whiten_moments add_up(baseline_members members, Term term) const {
    whiten_moments result;
    std::int64_t adds = 0;
    for (std::size_t s = 0; s < turn_return.size(); ++s) {
      std::int64_t const times = member_weight(flags(s), weight.empty() ? 1 : weight[s], members);
      if (times == 0) continue;
      result.sum.add_times(term(static_cast<double>(turn_return[s])), times);
      result.weight += times;
      ++result.members;
      if (++adds % (exact_sum::most_adds / 2) == 0) result.sum.carry();
    }
    result.sum.carry();
    return result;
  }
  [[nodiscard]] whiten_moments sum(whiten_options const& options) const {
    return add_up(options.members, [](double value) { return value; });
  }
  [[nodiscard]] exact_sum squares(whiten_moments const& all, whiten_options const& options) const {
    double const mean = whiten_mean(all);
    return add_up(options.members, [mean](double value) { return whiten_square(value, mean); }).sum;
  }
  void apply(whiten_scale const& scale, std::span<T> advantage) const {
    for (std::size_t s = 0; s < turn_return.size(); ++s)
      advantage[s] = narrowed<T>(is_valid(flags(s)) ? whitened(static_cast<double>(turn_return[s]), scale) : 0.0);
  }
};

}  // namespace detail

/// First phase of whiten over a batch in shards: the sum of this shard. Join the records of all shards.
///
/// @param[in] turn_return, weight, reasons, options  as for whiten.
/// @throws precondition_error  as whiten.
/// @par Complexity  O(S), no allocation.
template <real T>
[[nodiscard]] whiten_moments whiten_sum(std::span<T const> turn_return, std::span<std::int64_t const> weight,
                                        std::span<reason_flags const> reasons, whiten_options const& options) {
  detail::whiten_turns<T> const turns{turn_return, weight, reasons};
  turns.check(options, "whiten_sum");
  return turns.sum(options);
}

/// Second phase: the sum of squares of this shard about the mean of all. Join the sums of all shards.
///
/// @param[in] all  the joined records of the first phase.
/// @throws precondition_error  as whiten.
/// @par Complexity  O(S), no allocation.
template <real T>
[[nodiscard]] exact_sum whiten_squares(std::span<T const> turn_return, std::span<std::int64_t const> weight,
                                       std::span<reason_flags const> reasons, whiten_moments const& all,
                                       whiten_options const& options) {
  detail::whiten_turns<T> const turns{turn_return, weight, reasons};
  turns.check(options, "whiten_squares");
  return turns.squares(all, options);
}

/// Last phase: the advantages of this shard.
///
/// @param[in]  all, squares  the joined records of both phases.
/// @param[out] advantage     [S]; may be the same span as turn_return. 0 where the turn is invalid.
/// @throws precondition_error  as whiten; nothing is written.
/// @par Complexity  O(S), no allocation.
template <real T>
void whiten_apply(no_deduce<std::span<T const>> turn_return, no_deduce<std::span<reason_flags const>> reasons,
                  whiten_moments const& all, exact_sum const& squares, whiten_options const& options,
                  std::span<T> advantage) {
  detail::whiten_turns<T> const turns{turn_return, {}, reasons};
  turns.check(options, "whiten_apply");
  expects_size("whiten_apply", "advantage", advantage.size(), turn_return.size(), "turn");
  turns.apply(make_whiten_scale(all, squares, options), advantage);
}

/// Advantage of each valid turn over the mean of the batch, in units of the batch's deviation.
///
///     A = (G - mean) / (deviation + epsilon),   mean = sum w G / sum w,
///     deviation = sqrt(sum w (G - mean)^2 / (sum w - ddof)), two passes; epsilon elsewhere: epsilon_place
///
/// Also called: masked_whiten, batch standardisation, advantage normalisation.
/// @param[in]  turn_return  [S] returns, or advantages over another baseline.
/// @param[in]  weight       [S] how often a turn counts, e.g. its tokens (token-level whitening), in [0, 2^32]; empty:
///                          once. A turn of weight 0 is no member and has an advantage all the same.
/// @param[in]  reasons      [S], or empty: all valid and kept.
/// @param[out] advantage    [S], no unit; may be the same span as turn_return. 0 where the turn is invalid.
/// @throws precondition_error  sizes that differ, ddof not 0 or 1, epsilon negative or not finite, a valid turn's
///         return that is not finite or beyond magnitude_limit, or its weight outside [0, 2^32]; nothing is written.
/// @note  Fewer than two members: 0 for every turn (verl throws). Equal members: exactly 0 for them. A divisor of 0: 0.
/// @note  Biased: the turn is part of the mean and of the deviation. At a constant deviation what is left is the bias of
///        the mean over all turns.
/// @note  Deterministic: sums are exact, so the same bits for any order of turns and any split into shards.
/// @par Complexity  O(S) time in one thread, no allocation.
/// @par Reference   Hu et al. 2025, arXiv:2501.03262.
/// @see whiten_sum, whiten_squares, whiten_apply: the same over a batch in shards.
template <real T>
void whiten(no_deduce<std::span<T const>> turn_return, no_deduce<std::span<std::int64_t const>> weight,
            no_deduce<std::span<reason_flags const>> reasons, whiten_options const& options, std::span<T> advantage) {
  detail::whiten_turns<T> const turns{turn_return, weight, reasons};
  turns.check(options, "whiten");
  expects_size("whiten", "advantage", advantage.size(), turn_return.size(), "turn");
  whiten_moments const all = turns.sum(options);
  turns.apply(make_whiten_scale(all, turns.squares(all, options), options), advantage);
}

}  // namespace turnwise::advantage
