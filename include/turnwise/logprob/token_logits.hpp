/// @file
/// Rows of raw logits in memory, and the token that was generated at each.
#pragma once

#include <turnwise/core/concepts.hpp>
#include <turnwise/core/error.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

namespace turnwise::logprob {

/// Type of a token id.
template <typename T>
concept token_id = std::signed_integral<T> &&(sizeof(T) == 4 || sizeof(T) == 8);

/// Where the rows of logits lie: the logits of a row are neighbours, rows are any number of elements apart. A view
/// [B][S][V] with strides (b, s, 1) has B * S rows, row_stride s, batch_rows S and batch_stride b.
struct logit_layout {
  std::size_t rows = 0;          ///< one a token
  std::size_t vocabulary = 0;    ///< logits of a row
  std::size_t row_stride = 0;    ///< elements from a row to the next; 0 = vocabulary
  std::size_t batch_rows = 0;    ///< rows of one batch entry, a divisor of rows; 0 = all rows
  std::size_t batch_stride = 0;  ///< elements from one batch entry to the next

  /// Elements from a row to the next.
  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr std::size_t stride() const noexcept {
    return row_stride == 0 ? vocabulary : row_stride;
  }
  /// Element at which a row begins.
  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr std::size_t offset(std::size_t row) const noexcept {
    return batch_rows == 0 ? row * stride() : row / batch_rows * batch_stride + row % batch_rows * stride();
  }
};

/// Logits and what belongs to each row.
template <logprob_value T, token_id Id>
struct token_logits {
  std::span<T const> values;             ///< all rows, as layout says; any scale, -inf for a filtered token
  logit_layout layout;                   ///< of values
  std::span<Id const> ids;               ///< [rows] the generated token
  std::span<std::uint8_t const> mask{};  ///< [rows] 0: the row is skipped, nothing of it is read; empty: none is
};

/// The part of a vocabulary that a rank holds: column 0 of its logits is token first_id.
struct vocabulary_shard {
  std::size_t first_id = 0;    ///< token of column 0
  std::size_t vocabulary = 0;  ///< tokens of all shards
};

namespace detail {

/// a * b + c, at most the largest number.
[[nodiscard]] constexpr std::size_t saturated(std::size_t a, std::size_t b, std::size_t c) noexcept {
  constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
  return b != 0 && a > (most - c) / b ? most : a * b + c;
}

/// Throws unless the rows lie in an array of `size` elements and, where they are written, apart from each other.
inline void check_layout(logit_layout const& layout, std::size_t size, bool written, std::string_view function,
                         std::string_view argument) {
  if (layout.rows == 0) return;
  expects(layout.vocabulary > 0, function, ": ", argument, " have a vocabulary of 0");
  expects(layout.batch_rows == 0 || layout.rows % layout.batch_rows == 0, function, ": ", argument, " have ",
          layout.rows, " rows, expected a multiple of batch_rows = ", layout.batch_rows);
  std::size_t const inner = layout.batch_rows == 0 ? layout.rows : layout.batch_rows;
  std::size_t const inner_extent = saturated(inner - 1, layout.stride(), layout.vocabulary);
  std::size_t const batches = layout.rows / inner;
  std::size_t const extent = saturated(batches - 1, layout.batch_stride, inner_extent);
  expects(extent <= size, function, ": ", argument, " have ", size, " elements, their layout needs ", extent);
  if (!written) return;
  bool const apart = inner == 1 || layout.stride() >= layout.vocabulary;
  std::size_t const outer_extent = saturated(batches - 1, layout.batch_stride, layout.vocabulary);
  bool const batches_apart =
      batches == 1 || layout.batch_stride >= inner_extent ||
      (layout.batch_stride >= layout.vocabulary && (inner == 1 || layout.stride() >= outer_extent));
  expects(apart && batches_apart, function, ": rows of ", argument, " overlap");
}

/// Throws unless all of it fits together.
template <typename Logits>
void check_token_logits(Logits const& logits, std::string_view function) {
  check_layout(logits.layout, logits.values.size(), false, function, "logits");
  expects_size(function, "ids", logits.ids.size(), logits.layout.rows, "row");
  if (!logits.mask.empty()) expects_size(function, "mask", logits.mask.size(), logits.layout.rows, "row");
}

/// Throws on the first id of an unmasked row outside [0, vocabulary).
template <logprob_value T, token_id Id>
void check_ids(token_logits<T, Id> const& logits, std::size_t vocabulary, std::string_view function) {
  for (std::size_t row = 0; row < logits.ids.size(); ++row) {
    if (!logits.mask.empty() && logits.mask[row] == 0) continue;
    Id const id = logits.ids[row];
    expects(id >= 0 && static_cast<std::uint64_t>(id) < vocabulary, function, ": ids[", row, "] = ", id,
            ", expected at least 0 and below the vocabulary ", vocabulary);
  }
}

/// Throws unless the columns of a layout are tokens of the vocabulary.
inline void check_shard(vocabulary_shard const& shard, logit_layout const& layout, std::string_view function) {
  expects(shard.first_id <= shard.vocabulary && layout.vocabulary <= shard.vocabulary - shard.first_id, function,
          ": a shard of ", layout.vocabulary, " tokens from first_id = ", shard.first_id,
          " leaves the vocabulary, which has ", shard.vocabulary);
}

/// Column of a token in a row of `columns`, or `columns` where another shard has it; any id may be asked for.
template <token_id Id>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr std::size_t column_of(Id id, std::size_t first_id,
                                                                   std::size_t columns) noexcept {
  bool const here =
      id >= 0 && static_cast<std::uint64_t>(id) >= first_id && static_cast<std::uint64_t>(id) - first_id < columns;
  return here ? static_cast<std::size_t>(id) - first_id : columns;
}

}  // namespace detail
}  // namespace turnwise::logprob
