/// @file
/// Log-prob of the generated token, entropy and what the gradient needs, from raw logits.
#pragma once

#include <turnwise/core/parallel_for.hpp>
#include <turnwise/logprob/detail/softmax.hpp>
#include <turnwise/logprob/row_sums.hpp>
#include <turnwise/logprob/token_logits.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace turnwise::logprob {

/// Options of `token_logprob`.
struct token_logprob_options {
  double temperature = 1;  ///< logits are divided by it; between 1e-30 and 1e30
  /// Logits that are summed on their own before parts are joined from left to right; 0 = the whole row. Where the
  /// vocabulary is split over ranks at multiples of it, one rank and many get the same bits (logprob_partials).
  std::size_t tile = 0;
};

/// Each [rows] or empty; float is precise enough (but for the normalizer of double logits), bfloat16 is not.
template <real T>
struct token_logprob_outputs {
  std::span<T> logprob{};                     ///< log p of the row's token, nats; at most 0
  std::span<T> entropy{};                     ///< -sum of p log p, nats
  std::span<T> sum_squares{};                 ///< sum of p^2, the weight of the optimal token baseline
  std::span<log_normalizer<T>> normalizer{};  ///< log-sum-exp, kept for token_logprob_backward
};

namespace detail {

template <typename Outputs>
void check_outputs(Outputs const& out, std::size_t rows, std::string_view function) {
  auto const check = [&](auto const& span, std::string_view name) {
    if (!span.empty()) expects_size(function, name, span.size(), rows, "row");
  };
  check(out.logprob, "logprob");
  check(out.entropy, "entropy");
  check(out.sum_squares, "sum_squares");
  check(out.normalizer, "normalizer");
}

/// Calls body(begin, end, index) for each tile of `columns` logits.
template <typename Body>
void for_each_tile(std::size_t columns, std::size_t tile, Body body) {
  std::size_t const width = tile == 0 ? columns : tile;
  for (std::size_t begin = 0, index = 0; begin < columns; begin += std::min(width, columns - begin), ++index)
    body(begin, begin + std::min(width, columns - begin), index);
}

/// Sums over columns [begin, end), in index order; the row's token is in column `target`, if that is one of them.
template <logprob_value T>
[[nodiscard]] logprob_partial<double> fold_logits(T const* row, std::size_t begin, std::size_t end, std::size_t target,
                                                  double log2_scale) {
  logprob_partial<double> part = empty_partial<double>();
  for (std::size_t i = begin; i < end; ++i) part.maximum = max_or_nan(part.maximum, static_cast<double>(row[i]));
  for (std::size_t i = begin; i < end; ++i) {
    double const exponent = exponent_of(static_cast<double>(row[i]) - part.maximum, log2_scale);
    double const e = exp2_of(exponent);
    part.sum += e;
    part.e_log_e = std::fma(exponent, e, part.e_log_e);
    part.squares = std::fma(e, e, part.squares);
  }
  if (target >= begin && target < end) part.target = static_cast<double>(row[target]);
  return part;
}

template <real T>
void store_row(token_logprob_outputs<T> const& out, std::size_t row, row_result<double> const& result) {
  if (!out.logprob.empty()) out.logprob[row] = static_cast<T>(result.logprob);
  if (!out.entropy.empty()) out.entropy[row] = static_cast<T>(result.entropy);
  if (!out.sum_squares.empty()) out.sum_squares[row] = static_cast<T>(result.sum_squares);
  if (!out.normalizer.empty())
    out.normalizer[row] = {static_cast<T>(result.normalizer.maximum), static_cast<T>(result.normalizer.log_sum)};
}

}  // namespace detail

/// Log-prob of each row's token, with entropy and sum of squared probabilities where asked.
///
///     p = softmax(x / temperature);  logprob = log p[id];  entropy = -sum p log p;  sum_squares = sum p^2
///
/// Also called: selective log-softmax, token log-probs, fused log-prob and entropy.
/// @param[in]  logits   [rows, vocabulary]; float, double or a half type.
/// @param[out] out      [rows] each, float or double.
/// @param      threads  most threads to use, 0 = the OpenMP default.
/// @throws precondition_error  sizes, layout or temperature that do not fit, an id of an unmasked row outside the
///                             vocabulary; nothing is written.
/// @note  A masked row gives 0 in all outputs, and nothing of it is read (its id may be -100). A row with a NaN, a +inf
///        or nothing but -inf gives NaN in all outputs: log ratios then reject its turn (reason `non_finite`), and its
///        gradient is 0. A token whose logit is -inf has log-prob -inf.
/// @note  Never positive: the token's logit and the log-sum-exp are subtracted before either is rounded.
/// @note  Sums in double, in index order; a row's result does not depend on the other rows. exp2 and log are the C
///        library's, so the last bits may differ between platforms.
/// @par Complexity  O(rows * vocabulary) time, each logit read twice; no allocation.
/// @par Reference   ours, by the log-sum-exp about the maximum; sum_squares: Li et al. 2026, arXiv:2602.07078.
/// @see turnwise::gpu::logprob::token_logprob
template <logprob_value L, token_id Id, real T>
void token_logprob(token_logits<L, Id> const& logits, token_logprob_options const& options,
                   token_logprob_outputs<T> const& out, int threads = 0) {
  constexpr std::string_view name = "token_logprob";
  logit_layout const& layout = logits.layout;
  detail::check_token_logits(logits, name);
  detail::check_outputs(out, layout.rows, name);
  detail::softmax_scale<double> const scale{options.temperature, name};
  detail::check_ids(logits, layout.vocabulary, name);
  parallel_for(layout.rows, 1, threads, [&](std::size_t first, std::size_t last) {
    for (std::size_t row = first; row < last; ++row) {
      if (!logits.mask.empty() && logits.mask[row] == 0) {
        detail::store_row(out, row, {});
        continue;
      }
      L const* const values = logits.values.data() + layout.offset(row);
      logprob_partial<double> total = detail::empty_partial<double>();
      detail::for_each_tile(layout.vocabulary, options.tile, [&](std::size_t begin, std::size_t end, std::size_t) {
        auto const target = static_cast<std::size_t>(logits.ids[row]);
        auto const part = detail::fold_logits(values, begin, end, target, scale.log2_scale);
        total = begin == 0 ? part : detail::merged(total, part, scale.log2_scale);
      });
      detail::store_row(out, row, detail::finish_row(total, scale.inverse));
    }
  });
}

}  // namespace turnwise::logprob
