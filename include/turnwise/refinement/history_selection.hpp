/// @file
/// Which earlier turns are shown to the model again, when not all of them fit.
#pragma once

#include <turnwise/core/concepts.hpp>
#include <turnwise/core/error.hpp>
#include <turnwise/core/reason.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace turnwise::refinement {

/// How turns are chosen.
enum class history_rule : std::uint8_t {
  best_turns,  ///< the turns with the highest rewards, greedily
  best_window  ///< the run of consecutive turns with the highest sum of rewards
};

/// Options of `history_selection`.
struct history_selection_options {
  history_rule rule = history_rule::best_turns;                          ///< how turns are chosen
  std::int64_t most_turns = 4;                                           ///< w, at least 0
  std::int64_t token_budget = std::numeric_limits<std::int64_t>::max();  ///< carried tokens, at least 0
};

/// What is shown.
struct history {
  std::vector<std::int64_t> turns;  ///< positions, in time order
  std::int64_t tokens = 0;          ///< that they carry, together
};

namespace detail {

/// Turns by reward, then recency; each is taken if it still fits.
template <real T>
history best_turns(std::span<T const> reward, std::span<std::int64_t const> tokens, std::vector<std::int64_t> turns,
                   history_selection_options const& options) {
  auto const at = [](auto span, std::int64_t turn) { return span[static_cast<std::size_t>(turn)]; };
  std::ranges::sort(turns, [&](std::int64_t a, std::int64_t b) {
    return at(reward, a) != at(reward, b) ? at(reward, a) > at(reward, b) : a > b;
  });
  history result;
  for (std::int64_t const turn : turns) {
    if (static_cast<std::int64_t>(result.turns.size()) == options.most_turns) break;
    if (at(tokens, turn) > options.token_budget - result.tokens) continue;
    result.turns.push_back(turn);
    result.tokens += at(tokens, turn);
  }
  std::ranges::sort(result.turns);
  return result;
}

/// The best run among all that fit; of equal sums the longer, then the later one.
template <real T>
history best_window(std::span<T const> reward, std::span<std::int64_t const> tokens,
                    std::vector<std::int64_t> const& turns, history_selection_options const& options) {
  std::size_t best_first = 0;
  std::size_t best_count = 0;
  double best_sum = 0;
  history result;
  for (std::size_t first = 0; first < turns.size(); ++first) {
    double sum = 0;
    std::int64_t carried = 0;
    for (std::size_t last = first; last < turns.size(); ++last) {
      auto const s = static_cast<std::size_t>(turns[last]);
      std::size_t const count = last - first + 1;
      bool const follows = last == first || turns[last] == turns[last - 1] + 1;
      if (!follows || static_cast<std::int64_t>(count) > options.most_turns ||
          tokens[s] > options.token_budget - carried)
        break;
      sum += static_cast<double>(reward[s]);
      carried += tokens[s];
      if (best_count != 0 && (sum < best_sum || (sum == best_sum && count < best_count))) continue;
      best_first = first;
      best_count = count;
      best_sum = sum;
      result.tokens = carried;
    }
  }
  auto const begin = turns.begin() + static_cast<std::ptrdiff_t>(best_first);
  result.turns.assign(begin, begin + static_cast<std::ptrdiff_t>(best_count));
  return result;
}

}  // namespace detail

/// Chooses the earlier turns of one trajectory that its next prompt shows: at most w, within a budget of tokens.
///
///     best_turns:   by reward, highest first, of equal rewards the later turn first; a turn that no longer fits is
///                   skipped, and the search goes on until w turns are taken
///     best_window:  of all runs of 1 to w consecutive turns that fit, the one with the highest sum of rewards; of
///                   equal sums the longer one, then the later one
///
/// Also called: context management in sequential test-time scaling.
/// @param[in] reward   [T] of the turns so far, in time order; NaN: not scored.
/// @param[in] tokens   [T] what showing each turn costs, at least 0 (the code and feedback without the thoughts, say).
/// @param[in] reasons  [T], or empty: all valid.
/// @return  positions in time order. Invalid turns and those with a NaN reward are never chosen, and end a run.
/// @throws precondition_error  sizes that differ, most_turns or token_budget negative, negative tokens, a valid turn's
///         reward that is infinite or beyond magnitude_limit.
/// @note  Nothing fits, or no turns: nothing is shown. most_turns = 0 shows nothing. Rewards at or below 0 are shown
///        too: best_turns fills up to w, best_window takes what has the highest sum (a run of zeros in full).
/// @note  -0 and 0 are equal. Deterministic: sums of best_window are doubles added in time order.
/// @par Complexity  best_turns O(T log T), best_window O(T w); O(T) memory.
/// @par Reference   Dr. Kernel, arXiv:2602.05885 (w = 4, by reward); Kevin, arXiv:2507.11948 (refinement over turns).
template <real T>
[[nodiscard]] history history_selection(std::span<T const> reward, std::span<std::int64_t const> tokens,
                                        std::span<reason_flags const> reasons,
                                        history_selection_options const& options) {
  constexpr std::string_view name = "history_selection";
  expects_size(name, "tokens", tokens.size(), reward.size(), "turn");
  if (!reasons.empty()) expects_size(name, "reasons", reasons.size(), reward.size(), "turn");
  expects(options.most_turns >= 0, name, ": most_turns = ", options.most_turns, ", expected at least 0");
  expects(options.token_budget >= 0, name, ": token_budget = ", options.token_budget, ", expected at least 0");
  std::vector<std::int64_t> turns;
  for (std::size_t s = 0; s < reward.size(); ++s) {
    expects(tokens[s] >= 0, name, ": tokens[", s, "] = ", tokens[s], ", expected at least 0");
    if ((!reasons.empty() && !is_valid(reasons[s])) || reward[s] != reward[s]) continue;
    expects(within_limit(reward[s]), name, ": reward[", s, "] = ", reward[s],
            " is infinite or beyond the magnitude limit");
    turns.push_back(static_cast<std::int64_t>(s));
  }
  return options.rule == history_rule::best_turns ? detail::best_turns(reward, tokens, std::move(turns), options)
                                                  : detail::best_window(reward, tokens, turns, options);
}

}  // namespace turnwise::refinement
