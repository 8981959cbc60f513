/// @file
/// Log-probs over a vocabulary that is split over ranks: what each rank contributes, and how it is joined.
#pragma once

#include <turnwise/logprob/row_sums.hpp>
#include <turnwise/logprob/token_logprob.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

namespace turnwise::logprob {

/// Parts of each row over `columns` logits: one a tile.
[[nodiscard]] constexpr std::size_t partial_tiles(std::size_t columns, std::size_t tile) noexcept {
  std::size_t const width = tile == 0 ? columns : tile;
  return columns == 0 ? 0 : columns / width + (columns % width != 0);
}

namespace detail {

template <typename Outputs>
void check_merge(std::size_t partials, std::size_t rows, std::size_t mask, Outputs const& out,
                 std::string_view function) {
  expects(rows == 0 || (partials > 0 && partials % rows == 0), function, ": partials has ", partials,
          " elements, expected a positive multiple of rows = ", rows);
  if (mask > 0) expects_size(function, "mask", mask, rows, "row");
  check_outputs(out, rows, function);
}

}  // namespace detail

/// What a rank's part of the vocabulary adds to each row. Gather the ranks' arrays one after the other in vocabulary
/// order and hand them to merge_logprob_partials: the step between, the communication, is the caller's.
///
/// Also called: vocabulary-parallel (tensor-parallel) log-probs and cross entropy.
/// @param[in]  logits    [rows, columns] of this rank; ids are those of the whole vocabulary.
/// @param[in]  shard     where the columns stand in the vocabulary.
/// @param[in]  options   the same on all ranks; where first_id of every shard is a multiple of `tile`, the merged
///                       result has the same bits for any number of ranks, one included (token_logprob with that tile).
/// @param[out] partials  [tiles, rows], tile by tile: partial_tiles(columns, tile) * rows. A masked row: empty parts.
/// @throws precondition_error  sizes, layout, shard or temperature that do not fit, an id of an unmasked row outside
///                             the whole vocabulary; nothing is written.
/// @note  The target's logit is 0 in all parts but the one that holds it, so its sum is right whatever the padding.
/// @note  Deterministic as token_logprob.
/// @par Complexity  O(rows * columns) time, no allocation; 20 or 40 bytes a row and tile to exchange.
/// @par Reference   Milakov and Gimelshein 2018, arXiv:1805.02867 (joining sums about different maxima); Shoeybi et al.
///                  2019, arXiv:1909.08053 (cross entropy over a split vocabulary).
/// @see turnwise::gpu::logprob::logprob_partials
template <logprob_value L, token_id Id>
void logprob_partials(token_logits<L, Id> const& logits, vocabulary_shard const& shard,
                      token_logprob_options const& options, std::span<logprob_partial<double>> partials,
                      int threads = 0) {
  constexpr std::string_view name = "logprob_partials";
  logit_layout const& layout = logits.layout;
  detail::check_token_logits(logits, name);
  detail::check_shard(shard, layout, name);
  expects_size(name, "partials", partials.size(), partial_tiles(layout.vocabulary, options.tile) * layout.rows,
               "tile and row");
  detail::softmax_scale<double> const scale{options.temperature, name};
  detail::check_ids(logits, shard.vocabulary, name);
  parallel_for(layout.rows, 1, threads, [&](std::size_t first, std::size_t last) {
    for (std::size_t row = first; row < last; ++row) {
      bool const masked = !logits.mask.empty() && logits.mask[row] == 0;
      L const* const values = logits.values.data() + layout.offset(row);
      detail::for_each_tile(
          layout.vocabulary, options.tile, [&](std::size_t begin, std::size_t end, std::size_t index) {
            auto& part = partials[index * layout.rows + row];
            part = masked ? detail::empty_partial<double>()
                          : detail::fold_logits(values, begin, end,
                                                detail::column_of(logits.ids[row], shard.first_id, layout.vocabulary),
                                                scale.log2_scale);
          });
    }
  });
}

/// Joins the parts of each row from left to right: the outputs of token_logprob.
///
/// @param[in]  partials  [tiles, rows]: the arrays of logprob_partials of all ranks, in vocabulary order.
/// @param[in]  mask      [rows] as for the parts, or empty.
/// @param[in]  options   as for the parts.
/// @param[out] out       [rows] each, or empty.
/// @throws precondition_error  sizes or temperature that do not fit; nothing is written.
/// @note  Edge cases as token_logprob's.
/// @note  Deterministic: in the order given, which is that of the vocabulary.
/// @par Complexity  O(rows * tiles), no allocation.
/// @par Reference   as for the parts.
/// @see turnwise::gpu::logprob::merge_logprob_partials
template <real P, real T>
void merge_logprob_partials(std::span<logprob_partial<P> const> partials, std::size_t rows,
                            std::span<std::uint8_t const> mask, token_logprob_options const& options,
                            token_logprob_outputs<T> const& out) {
  constexpr std::string_view name = "merge_logprob_partials";
  detail::check_merge(partials.size(), rows, mask.size(), out, name);
  detail::softmax_scale<P> const scale{options.temperature, name};
  for (std::size_t row = 0; row < rows; ++row) {
    if (!mask.empty() && mask[row] == 0) {
      detail::store_row(out, row, detail::row_result<P>{});
      continue;
    }
    logprob_partial<P> total = partials[row];
    for (std::size_t at = row + rows; at < partials.size(); at += rows)
      total = detail::merged(total, partials[at], scale.log2_scale);
    detail::store_row(out, row, detail::finish_row(total, scale.inverse));
  }
}

}  // namespace turnwise::logprob
