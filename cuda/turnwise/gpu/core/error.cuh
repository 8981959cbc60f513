/// @file
/// How CUDA failures are reported.
#pragma once

#include <turnwise/gpu/core/config.cuh>

#include <stdexcept>
#include <string>
#include <string_view>

namespace turnwise::gpu {

/// A CUDA call failed; holds its code. What was enqueued before it may have run.
class cuda_error : public std::runtime_error {
 public:
  /// Names the call and CUDA's own text.
  cuda_error(cudaError_t code, std::string_view call)
      : std::runtime_error(std::string(call) + ": " + cudaGetErrorName(code) + ": " + cudaGetErrorString(code)),
        code_(code) {}
  /// CUDA's error code.
  [[nodiscard]] cudaError_t code() const noexcept { return code_; }

 private:
  cudaError_t code_;
};

/// Throws cuda_error naming the call unless it succeeded.
inline void check(cudaError_t code, std::string_view call) {
  if (code != cudaSuccess) [[unlikely]]
    throw cuda_error(code, call);
}

}  // namespace turnwise::gpu
