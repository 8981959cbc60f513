/// What the device tests of topic logprob share.
#pragma once

#include "logprob/logits.hpp"
#include "support/gpu.cuh"
#include "support/message_of.hpp"

#include <turnwise/gpu/core/status.cuh>
#include <turnwise/gpu/logprob/token_logprob.cuh>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace support {

namespace logprob = turnwise::gpu::logprob;

template <typename T>
device_array<T> on_device(std::vector<T> const& values) {
  return device_array<T>{std::span<T const>{values}};
}

template <typename T>
bool same_bits(std::vector<T> const& a, std::vector<T> const& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// Rows in a buffer that begins `shift` elements behind an aligned address; what lies between rows is NaN.
template <typename T>
struct placed_rows {
  turnwise::logprob::logit_layout layout;
  std::size_t shift;
  device_array<T> memory;

  placed_rows(std::vector<T> const& packed, std::size_t rows, std::size_t vocabulary, std::size_t stride,
              std::size_t begin)
      : layout{rows, vocabulary, stride}, shift(begin), memory(on_device(placed(packed))) {}

  [[nodiscard]] gpu::device_span<T const> view() const { return memory.view().subspan(shift); }
  [[nodiscard]] gpu::device_span<T> span() const { return memory.span().subspan(shift); }

 private:
  [[nodiscard]] std::vector<T> placed(std::vector<T> const& packed) const {
    std::size_t const last = layout.rows == 0 ? 0 : layout.offset(layout.rows - 1) + layout.vocabulary;
    std::vector<T> buffer(shift + last, static_cast<T>(static_cast<float>(test::nan_value)));
    for (std::size_t row = 0; row < layout.rows; ++row)
      for (std::size_t i = 0; i < layout.vocabulary; ++i)
        buffer[shift + layout.offset(row) + i] = packed[row * layout.vocabulary + i];
    return buffer;
  }
};

/// All outputs of token_logprob in device memory.
struct row_outputs {
  device_array<float> logprob, entropy, sum_squares;
  device_array<turnwise::logprob::log_normalizer<float>> normalizer;

  explicit row_outputs(std::size_t rows) : logprob(rows), entropy(rows), sum_squares(rows), normalizer(rows) {}
  [[nodiscard]] logprob::token_logprob_outputs all() const {
    return {logprob.span(), entropy.span(), sum_squares.span(), normalizer.span()};
  }
  void poison() const {
    auto const fill = []<typename T>(device_array<T> const& array) {
      if (array.span().empty()) return;
      gpu::check(cudaMemset(array.span().data(), 0x7b, array.span().size() * sizeof(T)), "cudaMemset");
    };
    fill(logprob);
    fill(entropy);
    fill(sum_squares);
    fill(normalizer);
    gpu::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
};

/// The same on the host.
struct row_values {
  std::vector<float> logprob, entropy, sum_squares, normalizer;

  row_values() = default;
  explicit row_values(row_outputs const& from)
      : logprob(from.logprob.host()), entropy(from.entropy.host()), sum_squares(from.sum_squares.host()) {
    for (auto const& one : from.normalizer.host()) {
      normalizer.push_back(one.maximum);
      normalizer.push_back(one.log_sum);
    }
  }
  [[nodiscard]] bool same(row_values const& other) const {
    return same_bits(logprob, other.logprob) && same_bits(entropy, other.entropy) &&
           same_bits(sum_squares, other.sum_squares) && same_bits(normalizer, other.normalizer);
  }
  /// Bits of one row.
  [[nodiscard]] row_values row(std::size_t r) const {
    row_values one;
    one.logprob = {logprob[r]};
    one.entropy = {entropy[r]};
    one.sum_squares = {sum_squares[r]};
    one.normalizer = {normalizer[2 * r], normalizer[2 * r + 1]};
    return one;
  }
};

/// A zeroed status record.
class status_memory {
 public:
  status_memory() { clear(); }
  void clear() const {
    gpu::check(cudaMemset(memory_.span().data(), 0, sizeof(gpu::status_record)), "cudaMemset");
    gpu::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  [[nodiscard]] gpu::status_record* get() const { return memory_.span().data(); }
  [[nodiscard]] gpu::status_record host() const { return memory_.host()[0]; }

 private:
  device_array<gpu::status_record> memory_{1};
};

/// Runs token_logprob once with all outputs.
template <typename T, typename Id>
row_values run_rows(placed_rows<T> const& rows, std::vector<Id> const& ids,
                    logprob::token_logprob_options const& options = {}, gpu::status_record* status = nullptr,
                    std::vector<std::uint8_t> const& mask = {}) {
  auto const device_ids = on_device(ids);
  auto const device_mask = on_device(mask);
  row_outputs const out{rows.layout.rows};
  out.poison();
  side_stream const stream;
  logprob::token_logprob(logprob::token_logits<T, Id>{rows.view(), rows.layout, device_ids.view(), device_mask.view()},
                         options, out.all(), status, stream);
  stream.wait();
  return row_values{out};
}

}  // namespace support
