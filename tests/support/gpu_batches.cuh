/// Batches of turns without tokens for GPU tests: on the host, and the same in device memory.
#pragma once

#include "support/gpu.cuh"
#include "support/ragged.hpp"

#include <turnwise/advantage/discounted_return.hpp>
#include <turnwise/gpu/core/rollout.cuh>
#include <turnwise/gpu/core/status.cuh>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

namespace support {

using turnwise::reason_flags;
using turnwise::test::integers;
using turnwise::test::ragged_batch;
using turnwise::test::turn_values;

template <typename T>
bool same_bits(std::vector<T> const& a, std::vector<T> const& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// The same bits, or NaN in both: which NaN is not told.
template <typename T>
bool same_numbers(std::vector<T> const& a, std::vector<T> const& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (std::memcmp(&a[i], &b[i], sizeof(T)) != 0 && !(a[i] != a[i] && b[i] != b[i])) return false;
  return true;
}

template <typename T>
device_array<T> on_device(std::vector<T> const& values) {
  return device_array<T>{std::span<T const>{values}};
}

/// Sets every byte of device memory, before work on any stream.
template <typename T>
void fill_bytes(device_array<T> const& memory, int byte) {
  if (memory.span().empty()) return;
  gpu::check(cudaMemset(memory.span().data(), byte, memory.span().size() * sizeof(T)), "cudaMemset");
  gpu::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

/// An array in device memory, `shift` elements behind an aligned address, with `shift` elements around it that nobody
/// may write. At shift 0 it ends where its memory does.
template <typename T>
class shifted_array {
 public:
  shifted_array(std::size_t size, std::size_t shift) : shift_(shift), size_(size), memory_(size + 2 * shift) {
    fill_bytes(memory_, around);
  }
  shifted_array(std::vector<T> const& values, std::size_t shift) : shifted_array(values.size(), shift) {
    if (size_ == 0) return;
    gpu::check(cudaMemcpy(span().data(), values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
    gpu::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  [[nodiscard]] gpu::device_span<T> span() const { return memory_.span().subspan(shift_).first(size_); }
  [[nodiscard]] gpu::device_span<T const> view() const { return span(); }
  [[nodiscard]] std::vector<T> host() const {
    auto const all = memory_.host();
    auto const* const bytes = reinterpret_cast<unsigned char const*>(all.data());
    bool untouched = true;
    for (std::size_t i = 0; i < all.size() * sizeof(T); ++i)
      untouched = untouched && (i / sizeof(T) - shift_ < size_ || bytes[i] == around);
    CHECK(untouched);
    auto const begin = all.begin() + static_cast<std::ptrdiff_t>(shift_);
    return {begin, begin + static_cast<std::ptrdiff_t>(size_)};
  }
  void fill(int byte) const {
    if (size_ == 0) return;
    gpu::check(cudaMemset(span().data(), byte, size_ * sizeof(T)), "cudaMemset");
    gpu::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

 private:
  static constexpr int around = 77;
  std::size_t shift_, size_;
  device_array<T> memory_;
};

/// A status record in device memory.
class device_status {
 public:
  device_status() : memory_(1) { clear(); }
  void clear() const { fill_bytes(memory_, 0); }
  [[nodiscard]] gpu::status_record* get() const { return memory_.span().data(); }
  [[nodiscard]] gpu::status_record host() const { return memory_.host()[0]; }
  [[nodiscard]] bool ok() const { return host().code() == gpu::status_code::ok; }

 private:
  device_array<gpu::status_record> memory_;
};

/// A batch in device memory.
class device_rollout {
 public:
  explicit device_rollout(turnwise::rollout_view const& host, std::size_t turns)
      : turns_(turns),
        trajectory_offsets_(host.trajectory_offsets),
        group_id_(host.group_id),
        trajectory_id_(host.trajectory_id),
        turn_index_(host.turn_index),
        turn_valid_(host.turn_valid) {}
  explicit device_rollout(turnwise::rollout_view const& host) : device_rollout(host, host.turns()) {}

  [[nodiscard]] gpu::rollout_view view() const {
    return {.turns = turns_,
            .trajectory_offsets = trajectory_offsets_.view(),
            .group_id = group_id_.view(),
            .trajectory_id = trajectory_id_.view(),
            .turn_index = turn_index_.view(),
            .turn_valid = turn_valid_.view()};
  }

 private:
  std::size_t turns_;
  device_array<std::int64_t> trajectory_offsets_, group_id_, trajectory_id_, turn_index_;
  device_array<std::uint8_t> turn_valid_;
};

/// Rewards of a ragged batch: groups of 1 to 300 trajectories of 0 to 9 turns in shuffled order, ids of any sign and
/// size. Every fifth seed has small groups of zeros of both signs and ones; every tenth has more than 4096 turns.
template <typename T>
ragged_batch<T> random_batch(std::uint64_t seed) {
  integers random{seed};
  std::vector<std::int64_t> sizes;
  std::int64_t const groups = seed % 10 == 0 ? 40 : 1 + random.below(12);
  std::int64_t const most = seed % 5 == 1 ? 4 : seed % 2 == 0 ? 300 : 20;
  for (std::int64_t g = 0; g < groups; ++g) sizes.push_back(1 + random.below(most));
  auto trajectories = turnwise::test::random_values<T>(random, sizes, 9);
  for (auto& one : trajectories) {
    if (one.group == trajectories.front().group) one.group = std::numeric_limits<std::int64_t>::min();
    if (one.group == trajectories.back().group) one.group = std::numeric_limits<std::int64_t>::max();
    if (seed % 5 != 1) continue;
    for (T& value : one.turns) {
      auto const kind = random.below(3);
      value = kind == 0 ? T{0} : kind == 1 ? -T{0} : T{1};
    }
  }
  return ragged_batch<T>{
      turnwise::test::in_order(trajectories, turnwise::test::random_order(trajectories.size(), random))};
}

/// Returns of a random batch, with reasons: invalid and unscored turns, and some that filters rejected.
template <typename T>
struct returns_case {
  ragged_batch<T> batch;
  std::vector<reason_flags> reasons;
  std::vector<T> turn_return;

  explicit returns_case(std::uint64_t seed)
      : batch(random_batch<T>(seed)), reasons(batch.reasons()), turn_return(batch.turns()) {
    turnwise::advantage::discounted_return(batch.view(), batch.value, {.gamma = seed % 2 == 0 ? 1.0 : 0.0}, reasons,
                                           std::span{turn_return});
    integers random{seed ^ 0x5eed};
    for (reason_flags& flags : reasons)
      if (turnwise::is_valid(flags) && random.below(4) == 0)
        flags |= random.below(2) == 0 ? turnwise::reason::ratio_low : turnwise::reason::token_veto;
  }
};

}  // namespace support
