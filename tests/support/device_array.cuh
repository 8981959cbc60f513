/// Device memory for tests and benchmarks.
#pragma once

#include <turnwise/gpu/core/error.cuh>
#include <turnwise/gpu/core/workspace.cuh>

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace support {

namespace gpu = turnwise::gpu;

/// Owning device memory.
template <typename T>
class device_array {
 public:
  explicit device_array(std::size_t size) : size_(size) {
    if (size > 0) gpu::check(cudaMalloc(&data_, size * sizeof(T)), "cudaMalloc");
  }
  explicit device_array(std::span<T const> values) : device_array(values.size()) {
    if (size_ == 0) return;
    gpu::check(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
    // A copy from pageable memory may still be under way, and side streams do not wait for it.
    gpu::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  device_array(device_array&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  device_array& operator=(device_array&&) = delete;
  ~device_array() { cudaFree(data_); }

  [[nodiscard]] gpu::device_span<T> span() const { return {data_, size_}; }
  [[nodiscard]] gpu::device_span<T const> view() const { return {data_, size_}; }
  [[nodiscard]] std::vector<T> host() const {
    std::vector<T> values(size_);
    if (size_ > 0)
      gpu::check(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return values;
  }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

inline gpu::workspace workspace_of(device_array<std::byte> const& memory) { return gpu::workspace{memory.span()}; }

}  // namespace support
