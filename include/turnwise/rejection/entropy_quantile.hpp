/// @file
/// Keeps the tokens of highest entropy.
#pragma once

#include <turnwise/core/concepts.hpp>
#include <turnwise/core/error.hpp>
#include <turnwise/importance/log_ratio.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

namespace turnwise::rejection {

/// Options of `entropy_quantile`.
struct entropy_quantile_options {
  double share = 0.2;  ///< of the tokens that stay, in (0, 1]; 0.2 is the paper's
};

/// How many of n tokens stay, ties aside: 1 + floor(share (n - 1)), those that reach the linearly interpolated quantile
/// 1 - share. A share written as a decimal counts as that decimal: 0.58 of 50 is 29.
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr std::int64_t top_tokens(std::int64_t n, double share) noexcept {
  if (n < 2) return n;
  double const steps = static_cast<double>(n - 1);
  auto const whole = static_cast<std::int64_t>(share * steps);
  bool const one_more = static_cast<double>(whole + 1) / steps <= share;  // the product may fall short
  return 1 + whole + (one_more ? 1 : 0);
}

namespace detail {

inline void check_entropy_options(entropy_quantile_options const& options, std::string_view function) {
  expects(options.share > 0 && options.share <= 1, function, ": share = ", options.share, ", expected (0, 1]");
}

}  // namespace detail

/// Clears all tokens but those whose entropy is among the highest of the batch.
///
///     keep[i] stays iff entropy[i] >= threshold,   threshold: number 1 + floor(share (n - 1)) from the top of n
///
/// Also called: high-entropy minority tokens, forking tokens, top_entropy_quantile (TRL).
/// @param[in]     entropy  [N] of the token's distribution, nats; double, or what converts exactly to float.
/// @param[in,out] keep     [N] of begin_token_mask, or of the rule before; bytes of 0 take no part and are not read as
///                         numbers.
/// @returns  the threshold; NaN without any token to choose from.
/// @throws precondition_error  sizes that differ; share outside (0, 1]; nothing is written.
/// @note  All tokens that tie at the threshold stay, so more than the share can. -0 counts as +0.
/// @note  A NaN or infinite entropy takes no part and is cleared. At least one token stays where any takes part.
/// @note  The choice is over all of [N]: ranks that shall choose together gather entropies first.
/// @note  Exact: comparisons alone, the same bits in any order and on every backend.
/// @par Complexity  O(N) time, N numbers of memory.
/// @par Reference   Wang et al. 2025, "Beyond the 80/20 rule", arXiv:2506.01939.
template <logprob_value T>
double entropy_quantile(std::span<T const> entropy, entropy_quantile_options const& options,
                        std::span<std::uint8_t> keep) {
  using wide = log_ratio_t<T, T>;
  expects_size("entropy_quantile", "entropy", entropy.size(), keep.size(), "token, as keep");
  detail::check_entropy_options(options, "entropy_quantile");
  std::vector<wide> values;
  for (std::size_t i = 0; i < keep.size(); ++i)
    if (keep[i] != 0 && importance::is_finite(static_cast<wide>(entropy[i])))
      values.push_back(static_cast<wide>(entropy[i]));
  wide threshold = std::numeric_limits<wide>::quiet_NaN();
  if (!values.empty()) {
    auto const top = values.begin() + (top_tokens(static_cast<std::int64_t>(values.size()), options.share) - 1);
    std::nth_element(values.begin(), top, values.end(), std::greater<>{});
    threshold = *top + wide{0};  // -0 becomes +0
  }
  for (std::size_t i = 0; i < keep.size(); ++i) {
    wide const value = static_cast<wide>(entropy[i]);
    if (keep[i] != 0 && !(value >= threshold && importance::is_finite(value))) keep[i] = 0;
  }
  return static_cast<double>(threshold);
}

}  // namespace turnwise::rejection
