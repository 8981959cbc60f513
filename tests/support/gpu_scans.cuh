/// Packed tokens for GPU tests of token-level advantages: on the host, and the same in device memory, at addresses that
/// suit no more than their elements.
#pragma once

#include "support/gpu_batches.cuh"

#include <turnwise/gpu/advantage/detail/segmented_scan.cuh>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace support {

/// Segments of tokens, with garbage wherever nothing is read.
template <typename T>
struct token_batch {
  std::vector<std::int64_t> offsets{0};
  std::vector<std::uint8_t> cut, mask;
  std::vector<T> next_value, reward, value, log_ratio;

  static constexpr T garbage = std::numeric_limits<T>::quiet_NaN();

  [[nodiscard]] std::size_t tokens() const { return reward.size(); }
  [[nodiscard]] turnwise::advantage::token_segments<T> view() const {
    return {.offsets = offsets, .cut = cut, .next_value = next_value, .mask = mask};
  }
  /// Adds a segment; about one token in `masked_in` is masked (0: none), and now and then a long run of them.
  void add(integers& random, std::int64_t size, std::int64_t masked_in) {
    cut.push_back(random.below(2) == 0);
    next_value.push_back(cut.back() != 0 && size > 0 ? number(random) : garbage);
    std::int64_t run = 0;
    for (std::int64_t t = 0; t < size; ++t) {
      if (masked_in > 0 && random.below(3000) == 0) run = random.below(9000);
      bool const off = masked_in > 0 && (run-- > 0 || random.below(masked_in) == 0);
      mask.push_back(!off);
      reward.push_back(off ? garbage : number(random));
      value.push_back(off ? -garbage : number(random));
      log_ratio.push_back(off ? garbage : static_cast<T>(static_cast<double>(random.below(2001) - 1000) * 1e-3));
    }
    offsets.push_back(offsets.back() + size);
  }
  static T number(integers& random) {
    return static_cast<T>(static_cast<double>(random.below(20001) - 10000) * 1.1e-4);
  }
};

/// Segments of `mean` tokens on average, a third of them empty.
template <typename T>
token_batch<T> random_tokens(std::uint64_t seed, std::int64_t tokens, std::int64_t mean, std::int64_t masked_in) {
  integers random{seed};
  token_batch<T> batch;
  while (batch.offsets.back() < tokens)
    batch.add(random, random.below(3) == 0 ? 0 : std::min(tokens - batch.offsets.back(), 1 + random.below(2 * mean)),
              masked_in);
  for (std::int64_t empty = random.below(300); empty > 0; --empty) batch.add(random, 0, 0);
  return batch;
}

/// A token batch in device memory.
template <typename T>
struct device_tokens {
  device_array<std::int64_t> offsets;
  device_array<std::uint8_t> cut;
  device_array<T> next_value;
  shifted_array<std::uint8_t> mask;
  shifted_array<T> reward, value, log_ratio, advantage, target;
  bool masked;

  /// Array i begins `shift * (i + 1)` elements behind an aligned address.
  device_tokens(token_batch<T> const& batch, std::size_t shift, bool with_mask = true)
      : offsets(on_device(batch.offsets)),
        cut(on_device(batch.cut)),
        next_value(on_device(batch.next_value)),
        mask(batch.mask, shift),
        reward(batch.reward, shift),
        value(batch.value, 2 * shift),
        log_ratio(batch.log_ratio, 3 * shift),
        advantage(batch.reward, 4 * shift),
        target(batch.reward, 5 * shift),
        masked(with_mask) {}

  [[nodiscard]] gpu::advantage::token_segments<T> segments() const {
    gpu::advantage::token_segments<T> result{offsets.view(), cut.view(), next_value.view(), {}};
    if (masked) result.mask = mask.view();
    return result;
  }
  void clear() const {
    advantage.fill(0xa5);
    target.fill(0xa5);
  }
};

/// Both results of the host, and how far from them the device may be, less one ulp of T.
template <typename T>
struct expected_tokens {
  std::vector<T> advantage, target;
  std::vector<double> advantage_slack, target_slack;

  explicit expected_tokens(std::size_t tokens)
      : advantage(tokens), target(tokens), advantage_slack(tokens), target_slack(tokens) {}
};

/// Fills the slacks of a rule: (each n + 128) 2^-53 times its results on magnitudes.
template <typename T, typename Rule>
void bound(token_batch<T> const& batch, Rule const& rule, double each, bool target_or_excess, double mix, double pg_bar,
           expected_tokens<T>& expected) {
  for (std::size_t k = 0; k + 1 < batch.offsets.size(); ++k) {
    auto const end = static_cast<std::size_t>(batch.offsets[k + 1]);
    bool const cut = batch.offsets[k] < batch.offsets[k + 1] && batch.cut[k] != 0;
    double later = cut ? std::abs(static_cast<double>(batch.next_value[k])) : 0.0;
    double excess = 0, count = 0;
    for (std::size_t n = end; n-- > static_cast<std::size_t>(batch.offsets[k]);) {
      if (batch.mask[n] == 0) continue;
      double const value = std::abs(static_cast<double>(batch.value[n]));
      double const reward = std::abs(static_cast<double>(batch.reward[n]));
      auto const weights = rule.weights(static_cast<double>(batch.log_ratio[n]));
      double const advantage = std::min(weights.ratio, pg_bar) * (reward + rule.gamma * (later + mix * excess) + value);
      excess = weights.rho * (reward + rule.gamma * later + value) + weights.trace * excess;
      later = value;
      double const unit = (each * ++count + 128) * 0x1p-53;
      expected.advantage_slack[n] = unit * (target_or_excess ? excess : advantage);
      expected.target_slack[n] = unit * (value + excess);
    }
  }
}

/// Whether each number is within its slack and one ulp of T of what is expected, and 0 where the token is masked.
template <typename T>
bool within_slack(std::vector<T> const& got, std::vector<T> const& wanted, std::vector<double> const& slack,
                  std::vector<std::uint8_t> const& mask) {
  if (got.size() != wanted.size()) return false;
  for (std::size_t n = 0; n < got.size(); ++n) {
    T const size = std::abs(wanted[n]);
    double const ulp =
        static_cast<double>(std::nextafter(size, std::numeric_limits<T>::infinity())) - static_cast<double>(size);
    double const error = std::abs(static_cast<double>(got[n]) - static_cast<double>(wanted[n]));
    if (error <= slack[n] + ulp && (mask[n] != 0 || got[n] == 0)) continue;
    CAPTURE(n);
    CAPTURE(slack[n]);
    CHECK(got[n] == wanted[n]);
    return false;
  }
  return true;
}

}  // namespace support
