/// @file
/// Exact sums that the threads of a kernel add to at once.
#pragma once

#include <turnwise/core/exact_sum.hpp>
#include <turnwise/gpu/core/config.cuh>

#include <cstdint>

namespace turnwise::gpu {
namespace detail {

struct atomic_digits {
  unsigned long long* digit;

  __device__ void operator()(int i, std::int64_t amount) const {
    atomicAdd(digit + i, static_cast<unsigned long long>(amount));
  }
};

}  // namespace detail

/// Adds a finite number `times` times to the digits of an exact_sum in shared or global memory; see exact_sum for how
/// often that may be done before it is carried.
__device__ inline void atomic_add_times(unsigned long long* digit, double value, std::int64_t times) {
  exact_sum::split(value, times, detail::atomic_digits{digit});
}

}  // namespace turnwise::gpu
