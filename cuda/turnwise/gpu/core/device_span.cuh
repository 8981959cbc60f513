/// @file
/// A span of device memory: a type of its own, so that host and device spans cannot be mixed up.
#pragma once

#include <turnwise/gpu/core/config.cuh>

#include <cstddef>
#include <type_traits>

namespace turnwise::gpu {

/// Elements in device memory: what std::span is to the host, and not convertible to or from it.
template <typename T>
class device_span {
 public:
  /// T.
  using element_type = T;

  constexpr device_span() noexcept = default;
  /// `size` elements at a device address.
  TURNWISE_HOST_DEVICE constexpr device_span(T* data, std::size_t size) noexcept : data_(data), size_(size) {}
  /// From a span of mutable elements.
  template <typename U>
  requires(std::is_same_v<T, U const> && !std::is_same_v<T, U>) TURNWISE_HOST_DEVICE
      constexpr device_span(device_span<U> other) noexcept
      : data_(other.data()), size_(other.size()) {}

  /// Device address of the first element.
  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr T* data() const noexcept { return data_; }
  /// Number of elements.
  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr std::size_t size() const noexcept { return size_; }
  /// No elements.
  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr bool empty() const noexcept { return size_ == 0; }
  /// The first `count` elements.
  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr device_span first(std::size_t count) const noexcept {
    return {data_, count};
  }
  /// All elements from `first` on.
  [[nodiscard]] TURNWISE_HOST_DEVICE constexpr device_span subspan(std::size_t first) const noexcept {
    return {data_ + first, size_ - first};
  }
  /// For code on the device only.
  [[nodiscard]] __device__ constexpr T& operator[](std::size_t i) const noexcept { return data_[i]; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace turnwise::gpu
