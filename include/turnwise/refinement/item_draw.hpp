/// @file
/// Draws sets of items (functions, operators) for new tasks: what failed before, and what goes with it.
#pragma once

#include <turnwise/core/error.hpp>
#include <turnwise/core/philox.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

namespace turnwise::refinement {

/// Bound of counts and weights, so that no total leaves 63 bits.
inline constexpr std::int64_t item_count_limit = std::int64_t{1} << 31;

/// How often two items occurred together, as a symmetric matrix of n items. The diagonal takes no part in
/// a draw, but counts below 0 are refused there too. Dense (count of
/// n * n) or as sparse rows (CSR: row_offsets, item, count), absent entries 0.
struct cooccurrence {
  std::span<std::int64_t const> count{};        ///< [n * n] row after row; sparse: [E]
  std::span<std::int64_t const> row_offsets{};  ///< sparse: [n + 1]; empty: dense
  std::span<std::int64_t const> item{};         ///< sparse: [E] columns, strictly increasing in each row
};

/// Options of `item_draw`.
struct item_draw_options {
  std::int64_t set_size = 3;   ///< m distinct items a set, in [1, n]
  std::int64_t base = 1;       ///< weight of an item that never failed, at least 0
  std::int64_t smoothing = 1;  ///< weight of an item that never occurred with those drawn, at least 0
  std::int64_t first_set = 0;  ///< id of the first set, at least 0: a set depends on its id, not on the call
};

/// 64 uniform bits for the draw at one position of one set.
///
///     words 2 (low) and 3 (high) of philox(counter = (set low, set high, position, 2^32 - 1), key = (seed, step))
///
/// Apart from the draws of turns: no trajectory reaches turn index 2^32 - 1.
[[nodiscard]] constexpr std::uint64_t item_bits(draw_key key, std::int64_t set, std::int64_t position) noexcept {
  auto const id = static_cast<std::uint64_t>(set);
  philox_words const counter{{static_cast<std::uint32_t>(id), static_cast<std::uint32_t>(id >> 32),
                              static_cast<std::uint32_t>(position), std::numeric_limits<std::uint32_t>::max()}};
  auto const out = philox4x32_10(counter, key);
  return std::uint64_t{out.word[3]} << 32 | out.word[2];
}

/// floor(bits * total / 2^64): a number in [0, total), each with probability 1 / total to within 2^-64; total > 0.
[[nodiscard]] constexpr std::uint64_t scaled_bits(std::uint64_t bits, std::uint64_t total) noexcept {
  constexpr std::uint64_t low = 0xffffffffu;
  std::uint64_t const cross = (bits >> 32) * (total & low) + ((bits & low) * (total & low) >> 32);
  std::uint64_t const other = (bits & low) * (total >> 32) + (cross & low);
  return (bits >> 32) * (total >> 32) + (cross >> 32) + (other >> 32);
}

/// The item that 64 uniform bits pick: the first i with scaled_bits(bits, total) < weight[0] + ... + weight[i].
/// Weights are not negative. All 0: each item that is `open` weighs 1; the others weigh 0 in any case.
[[nodiscard]] inline std::size_t picked_item(std::span<std::uint64_t const> weight, std::span<std::uint8_t const> open,
                                             std::uint64_t bits) noexcept {
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < weight.size(); ++i) total += open[i] != 0 ? weight[i] : 0;
  bool const uniform = total == 0;
  if (uniform) total = static_cast<std::uint64_t>(std::ranges::count_if(open, [](auto one) { return one != 0; }));
  std::uint64_t left = scaled_bits(bits, total);
  std::size_t i = 0;
  for (;; ++i) {
    std::uint64_t const own = open[i] == 0 ? 0 : uniform ? 1 : weight[i];
    if (left < own) return i;
    left -= own;
  }
}

namespace detail {

/// Calls visit(other, count) for the entries of an item's row.
template <typename Visit>
void for_each_partner(cooccurrence const& pairs, std::size_t item, std::size_t items, Visit visit) {
  if (pairs.row_offsets.empty()) {
    for (std::size_t other = 0; other < items; ++other) visit(other, pairs.count[item * items + other]);
    return;
  }
  for (auto e = pairs.row_offsets[item]; e < pairs.row_offsets[item + 1]; ++e)
    visit(static_cast<std::size_t>(pairs.item[static_cast<std::size_t>(e)]), pairs.count[static_cast<std::size_t>(e)]);
}

inline void check_sparse_rows(cooccurrence const& pairs, std::size_t items) {
  constexpr std::string_view name = "item_draw";
  auto const& offsets = pairs.row_offsets;
  expects(offsets.size() == items + 1, name, ": row_offsets has ", offsets.size(), " elements, expected ", items + 1,
          " (one an item, and one)");
  expects_size(name, "item", pairs.item.size(), pairs.count.size(), "entry");
  expects(offsets[0] == 0, name, ": row_offsets[0] is ", offsets[0], ", expected 0");
  for (std::size_t i = 0; i < items; ++i)
    expects(offsets[i + 1] >= offsets[i] && offsets[i + 1] <= static_cast<std::int64_t>(pairs.item.size()), name,
            ": row_offsets[", i + 1, "] = ", offsets[i + 1], " decreases or is beyond the ", pairs.item.size(),
            " entries");
  expects(offsets[items] == static_cast<std::int64_t>(pairs.item.size()), name, ": row_offsets[", items,
          "] = ", offsets[items], ", expected the number of entries, ", pairs.item.size());
  for (std::size_t i = 0; i < items; ++i)
    for (auto e = static_cast<std::size_t>(offsets[i]); e < static_cast<std::size_t>(offsets[i + 1]); ++e)
      expects(pairs.item[e] >= 0 && pairs.item[e] < static_cast<std::int64_t>(items) &&
                  (e == static_cast<std::size_t>(offsets[i]) || pairs.item[e] > pairs.item[e - 1]),
              name, ": item[", e, "] = ", pairs.item[e], ", expected increasing items of a row in [0, ", items, ")");
}

/// The count of a pair; for the check of symmetry.
inline std::int64_t pair_count(cooccurrence const& pairs, std::size_t a, std::size_t b, std::size_t items) {
  if (pairs.row_offsets.empty()) return pairs.count[a * items + b];
  auto const first = static_cast<std::size_t>(pairs.row_offsets[a]);
  auto const row = pairs.item.subspan(first, static_cast<std::size_t>(pairs.row_offsets[a + 1]) - first);
  auto const at = std::ranges::lower_bound(row, static_cast<std::int64_t>(b));
  bool const found = at != row.end() && *at == static_cast<std::int64_t>(b);
  return found ? pairs.count[first + static_cast<std::size_t>(at - row.begin())] : 0;
}

inline void check_item_draw(cooccurrence const& pairs, std::span<std::int64_t const> failures,
                            item_draw_options const& options, std::size_t out) {
  constexpr std::string_view name = "item_draw";
  std::size_t const items = failures.size();
  auto const weight = [](std::int64_t value) { return value >= 0 && value < item_count_limit; };
  expects(options.set_size >= 1 && static_cast<std::uint64_t>(options.set_size) <= items, name,
          ": set_size = ", options.set_size, ", expected [1, ", items, "], the number of items");
  expects(items <= static_cast<std::size_t>(item_count_limit) / (static_cast<std::size_t>(options.set_size) + 1), name,
          ": ", items, " items in sets of ", options.set_size, ", expected items * (set_size + 1) up to 2^31");
  expects(weight(options.base), name, ": base = ", options.base, ", expected [0, 2^31)");
  expects(weight(options.smoothing), name, ": smoothing = ", options.smoothing, ", expected [0, 2^31)");
  expects(options.first_set >= 0, name, ": first_set = ", options.first_set, ", expected at least 0");
  expects(out % static_cast<std::size_t>(options.set_size) == 0, name, ": sets has ", out,
          " elements, expected a multiple of set_size = ", options.set_size);
  auto const sets = static_cast<std::int64_t>(out / static_cast<std::size_t>(options.set_size));
  expects(options.first_set <= std::numeric_limits<std::int64_t>::max() - sets, name,
          ": first_set = ", options.first_set, " and ", sets, " sets, expected ids below 2^63 - 1");
  for (std::size_t i = 0; i < items; ++i)
    expects(weight(failures[i]), name, ": failures[", i, "] = ", failures[i], ", expected [0, 2^31)");
  if (!pairs.row_offsets.empty())
    check_sparse_rows(pairs, items);
  else
    expects(pairs.item.empty() && pairs.count.size() == items * items, name, ": count has ", pairs.count.size(),
            " elements, expected ", items * items, " (one a pair of items)");
  for (std::size_t e = 0; e < pairs.count.size(); ++e)
    expects(weight(pairs.count[e]), name, ": count[", e, "] = ", pairs.count[e], ", expected [0, 2^31)");
  for (std::size_t a = 0; a < items; ++a)
    for_each_partner(pairs, a, items, [&](std::size_t b, std::int64_t count) {
      expects(pair_count(pairs, b, a, items) == count, name, ": the counts of items ", a, " and ", b, " are ", count,
              " and ", pair_count(pairs, b, a, items), ", expected a symmetric matrix");
    });
}

}  // namespace detail

/// Draws sets of distinct items: the first by past failures, the others by how often they occurred with those drawn.
///
///     first:   P(i) proportional to base + failures[i]
///     further: P(i) proportional to smoothing + sum over drawn j of count[i, j],  over the items not yet drawn
///
/// When all these weights are 0, each item not yet drawn has the same chance; else an item of weight 0 is not drawn.
/// For the sets of functions that a proposer builds its next tasks from; the form of the weights is ours.
/// @param[in]  pairs     co-occurrence counts of n items.
/// @param[in]  failures  [n] how often each item's tasks failed.
/// @param[in]  key       seed and step of the draws (item_bits).
/// @param[out] sets      [sets * m] item numbers, set after set, in the order drawn; set i has the id first_set + i.
/// @throws precondition_error  m outside [1, n] (no items: none can be drawn), sets of another size, a count or weight
///         outside [0, 2^31), set ids from 2^63 - 1 on, counts that are not symmetric or sparse rows that are
///         inconsistent; nothing is written.
/// @note  Deterministic: integers only, the same sets on every machine; a set depends on its id, not on the call.
/// @note  Probabilities are exact to within 2^-64 an item (scaled_bits).
/// @par Complexity  O(n) a draw and its row; the check reads all counts once (sparse: with a search each).
/// @par Reference   KernelZero, arXiv:2609.33074 (a proposer that draws sets of functions).
inline void item_draw(cooccurrence const& pairs, std::span<std::int64_t const> failures, draw_key key,
                      item_draw_options const& options, std::span<std::int64_t> sets) {
  detail::check_item_draw(pairs, failures, options, sets.size());
  std::size_t const items = failures.size();
  auto const size = static_cast<std::size_t>(options.set_size);
  std::vector<std::uint64_t> weight(items);
  std::vector<std::uint8_t> open(items);
  for (std::size_t set = 0; set < sets.size() / size; ++set) {
    std::ranges::fill(open, std::uint8_t{1});
    for (std::size_t i = 0; i < items; ++i) weight[i] = static_cast<std::uint64_t>(options.base + failures[i]);
    for (std::size_t position = 0; position < size; ++position) {
      std::uint64_t const bits =
          item_bits(key, options.first_set + static_cast<std::int64_t>(set), static_cast<std::int64_t>(position));
      std::size_t const drawn = picked_item(weight, open, bits);
      sets[set * size + position] = static_cast<std::int64_t>(drawn);
      open[drawn] = 0;
      if (position == 0) std::ranges::fill(weight, static_cast<std::uint64_t>(options.smoothing));
      detail::for_each_partner(pairs, drawn, items, [&](std::size_t other, std::int64_t count) {
        weight[other] += static_cast<std::uint64_t>(count);
      });
    }
  }
}

}  // namespace turnwise::refinement
