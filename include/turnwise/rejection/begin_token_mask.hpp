/// @file
/// The mask that rules on single tokens start from.
#pragma once

#include <turnwise/core/rollout.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace turnwise::rejection {
namespace detail {

/// Throws where keep and mask, of one size or mask empty, share memory.
inline void check_keep_apart(std::uint8_t const* mask, std::size_t masked, std::uint8_t const* keep, std::size_t size) {
  std::less<> const before;  // of any two pointers
  expects(masked == 0 || !before(mask, keep + size) || !before(keep, mask + masked),
          "begin_token_mask: keep must not overlap mask");
}

}  // namespace detail

/// Sets each token's keep byte to 1 where a kept turn generated it, else to 0: the first step of the token rules.
/// token_mask, entropy_quantile and extreme_risk then clear bytes and never set one; the result is the token mask of
/// the loss.
///
/// @param[in]  batch    turns with tokens; what lies outside every turn (padding) gets 0.
/// @param[in]  mask     [N] 0 = not a generated token (an observation); or empty: all on.
/// @param[in]  reasons  [S], or empty: all kept. Tokens of turns that are not kept get 0.
/// @param[out] keep     [N], overwritten; no overlap with mask.
/// @throws precondition_error  sizes that differ, a token range outside the arrays, keep that overlaps mask; nothing is
///         written.
/// @note  Turns may overlap: one kept turn is enough. Deterministic: the same bytes everywhere.
/// @par Complexity  O(N), no allocation.
/// @par Reference   ours.
inline void begin_token_mask(rollout_view const& batch, std::span<std::uint8_t const> mask,
                             std::span<reason_flags const> reasons, std::span<std::uint8_t> keep) {
  check_rollout(batch, "begin_token_mask");
  if (!mask.empty()) expects_size("begin_token_mask", "mask", mask.size(), keep.size(), "token, as keep");
  if (!reasons.empty()) expects_size("begin_token_mask", "reasons", reasons.size(), batch.turns(), "turn");
  check_token_ranges(batch, keep.size(), "begin_token_mask");
  detail::check_keep_apart(mask.data(), mask.size(), keep.data(), keep.size());

  std::ranges::fill(keep, std::uint8_t{0});
  for (std::size_t s = 0; s < batch.turns(); ++s) {
    if (!reasons.empty() && !is_kept(reasons[s])) continue;
    for (auto i = static_cast<std::size_t>(batch.turn_begin[s]); i < static_cast<std::size_t>(batch.turn_end[s]); ++i)
      keep[i] = mask.empty() || mask[i] != 0;
  }
}

}  // namespace turnwise::rejection
