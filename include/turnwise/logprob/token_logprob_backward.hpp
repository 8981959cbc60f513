/// @file
/// Gradient of log-prob and entropy with respect to the logits.
#pragma once

#include <turnwise/logprob/row_sums.hpp>
#include <turnwise/logprob/token_logprob.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace turnwise::logprob {

/// What token_logprob gave, and the gradient of the loss with respect to it.
template <real T>
struct logprob_gradients {
  std::span<log_normalizer<T> const> normalizer;  ///< [rows] of token_logprob
  std::span<T const> entropy{};                   ///< [rows] of token_logprob; needed with entropy_gradient
  std::span<T const> logprob_gradient{};          ///< [rows] d loss / d logprob; empty: 0
  std::span<T const> entropy_gradient{};          ///< [rows] d loss / d entropy; empty: 0
};

namespace detail {

/// A row's gradient: p (slope log2 p + level), and `at_target` more at the row's token.
template <real T>
struct row_gradient {
  T maximum;
  T log2_sum;
  T level;
  T slope;
  T at_target;

  TURNWISE_HOST_DEVICE row_gradient(log_normalizer<T> const& normalizer, T entropy, T logprob_gradient,
                                    T entropy_gradient, T inverse) noexcept
      : maximum(normalizer.maximum),
        log2_sum(rounded_product(normalizer.log_sum, log2_e<T>)),
        level(-inverse * std::fma(entropy_gradient, entropy, logprob_gradient)),
        slope(-inverse * (entropy_gradient * ln_2<T>)),
        at_target(inverse * logprob_gradient) {}

  [[nodiscard]] TURNWISE_HOST_DEVICE T operator()(T logit, T log2_scale, bool is_target) const noexcept {
    T const log2_p = exponent_of(logit - maximum, log2_scale) - log2_sum;
    return std::fma(exp2_of(log2_p), std::fma(slope, log2_p, level), is_target ? at_target : T{0});
  }
};

/// Whether a row's gradient is 0 whatever its logits: nothing flows back, or the row was bad.
template <real T>
[[nodiscard]] TURNWISE_HOST_DEVICE constexpr bool is_zero_row(log_normalizer<T> const& normalizer, T logprob_gradient,
                                                              T entropy_gradient) noexcept {
  return (logprob_gradient == 0 && entropy_gradient == 0) || normalizer.log_sum != normalizer.log_sum;
}

template <typename Gradients>
void check_gradients(Gradients const& from, std::size_t rows, std::string_view function) {
  expects_size(function, "normalizer", from.normalizer.size(), rows, "row");
  if (!from.logprob_gradient.empty())
    expects_size(function, "logprob_gradient", from.logprob_gradient.size(), rows, "row");
  if (from.entropy_gradient.empty()) return;
  expects_size(function, "entropy_gradient", from.entropy_gradient.size(), rows, "row");
  expects_size(function, "entropy", from.entropy.size(), rows, "row");
}

template <typename Layout>
void check_gradient_layout(Layout const& layout, logit_layout const& of_logits, std::size_t size,
                           std::string_view function) {
  expects(layout.rows == of_logits.rows && layout.vocabulary == of_logits.vocabulary, function, ": gradient is ",
          layout.rows, " rows of ", layout.vocabulary, ", expected ", of_logits.rows, " of ", of_logits.vocabulary,
          " as the logits");
  check_layout(layout, size, true, function, "gradient");
}

}  // namespace detail

/// Gradient of a loss with respect to the logits, from its gradients with respect to token_logprob's results.
///
///     d logprob / d x_j = (1[j = id] - p_j) / temperature
///     d entropy / d x_j = -p_j (log p_j + entropy) / temperature
///
/// @param[in]  logits           [rows, columns] as token_logprob saw them; of one shard, where `first_id` is not 0 or
///                              the normalizer and entropy are of a larger vocabulary.
/// @param[in]  from             [rows] each; double where the logits are.
/// @param[in]  temperature      as token_logprob's.
/// @param[in]  first_id         token of column 0.
/// @param[out] gradient         every column of every row is written; may be the array of the logits with the same
///                              layout (in place), no other overlap.
/// @param[in]  gradient_layout  of gradient; the same rows and vocabulary as the logits'.
/// @throws precondition_error  sizes, layouts or temperature that do not fit; nothing is written.
/// @note  Zero without a read of the row's logits and id: a masked row, a row whose two gradients are 0 (a rejected
///        turn), a row that token_logprob found bad (its normalizer is NaN). A gradient that is not finite affects its
///        own row. A filtered logit (-inf) has gradient 0, or that of a token of probability 0 where it is the target.
/// @note  Deterministic: each element on its own, in double; the same bits for any number of threads and whatever the
///        other rows. exp2 is the C library's, so the last bits may differ between platforms.
/// @par Complexity  O(rows * columns) time, no allocation.
/// @par Reference   ours: the derivatives of the softmax.
/// @see turnwise::gpu::logprob::token_logprob_backward
template <logprob_value L, token_id Id, real T>
void token_logprob_backward(token_logits<L, Id> const& logits, logprob_gradients<T> const& from, double temperature,
                            std::size_t first_id, std::span<no_deduce<L>> gradient, logit_layout const& gradient_layout,
                            int threads = 0) {
  static_assert(!std::same_as<L, double> || std::same_as<T, double>,
                "the normalizer of double logits is double: a float would round their maximum");
  constexpr std::string_view name = "token_logprob_backward";
  logit_layout const& layout = logits.layout;
  detail::check_token_logits(logits, name);
  detail::check_gradients(from, layout.rows, name);
  detail::check_gradient_layout(gradient_layout, layout, gradient.size(), name);
  detail::softmax_scale<double> const scale{temperature, name};
  auto const at = [](std::span<T const> values, std::size_t row) {
    return values.empty() ? 0.0 : static_cast<double>(values[row]);
  };
  parallel_for(layout.rows, 1, threads, [&](std::size_t first, std::size_t last) {
    for (std::size_t row = first; row < last; ++row) {
      L* const to = gradient.data() + gradient_layout.offset(row);
      bool const masked = !logits.mask.empty() && logits.mask[row] == 0;
      log_normalizer<double> const normalizer{static_cast<double>(from.normalizer[row].maximum),
                                              static_cast<double>(from.normalizer[row].log_sum)};
      double const of_logprob = at(from.logprob_gradient, row);
      double const of_entropy = at(from.entropy_gradient, row);
      if (masked || detail::is_zero_row(normalizer, of_logprob, of_entropy)) {
        std::fill_n(to, layout.vocabulary, static_cast<L>(0.0f));
        continue;
      }
      L const* const values = logits.values.data() + layout.offset(row);
      double const entropy = of_entropy == 0 ? 0.0 : at(from.entropy, row);
      detail::row_gradient<double> const slope{normalizer, entropy, of_logprob, of_entropy, scale.inverse};
      std::size_t const target = detail::column_of(logits.ids[row], first_id, layout.vocabulary);
      for (std::size_t i = 0; i < layout.vocabulary; ++i) {
        double const value = slope(static_cast<double>(values[i]), scale.log2_scale, i == target);
        to[i] = static_cast<L>(narrowed<log_ratio_t<L, L>>(value));  // a half type takes floats
      }
    }
  });
}

}  // namespace turnwise::logprob
