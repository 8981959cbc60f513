#include "support/gpu_batches.cuh"

#include <turnwise/gpu/core/exact_sum.cuh>
#include <turnwise/gpu/core/launch.cuh>

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace exact_sum_test {

using namespace support;
using turnwise::exact_sum;

namespace {

/// Every thread adds its values to one record in memory.
TURNWISE_KERNEL void add_up(gpu::device_span<double const> values, gpu::device_span<std::int64_t const> times,
                            unsigned long long* record) {
  auto const stride = std::size_t{gridDim.x} * blockDim.x;
  for (auto i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < values.size(); i += stride)
    gpu::atomic_add_times(record, values[i], times[i]);
}

TURNWISE_KERNEL void read_out(exact_sum const* record, std::int64_t divisor, double* results) {
  results[0] = record->value();
  results[1] = record->quotient(divisor);
}

std::vector<double> on_host(std::vector<double> const& values, std::vector<std::int64_t> const& times,
                            std::int64_t divisor) {
  exact_sum sum;
  for (std::size_t i = 0; i < values.size(); ++i) sum.add_times(values[i], times[i]);
  return {sum.value(), sum.quotient(divisor)};
}

std::vector<double> on_the_device(std::vector<double> const& values, std::vector<std::int64_t> const& times,
                                  std::int64_t divisor) {
  auto const device_values = on_device(values);
  auto const device_times = on_device(times);
  device_array<exact_sum> const record{1};
  fill_bytes(record, 0);
  device_array<double> const results{2};
  side_stream const stream;
  gpu::launch("add_up", add_up, 7, 96, 0, stream, device_values.view(), device_times.view(),
              reinterpret_cast<unsigned long long*>(record.span().data()));
  gpu::launch("read_out", read_out, 1, 1, 0, stream, static_cast<exact_sum const*>(record.span().data()), divisor,
              results.span().data());
  stream.wait();
  return results.host();
}

}  // namespace

TEST_SUITE("gpu/core/exact_sum" * doctest::skip(!has_device())) {
  TEST_CASE("atomics in any order give the host's sum and quotient, over all doubles") {
    for (std::uint64_t seed = 1; seed <= seeds(20); ++seed) {
      integers random{seed};
      std::vector<double> values;
      std::vector<std::int64_t> times;
      std::int64_t total = 1;
      while (values.size() < 3000) {
        double const value = std::bit_cast<double>(random());
        values.push_back(seed % 4 == 0 && std::isfinite(value) ? std::ldexp(value, -1100) : value);  // NaN too
        times.push_back(seed % 2 == 0 ? 1 : static_cast<std::int64_t>(random() >> (14 + random.below(50))));
        total += times.back();
      }
      CHECK(same_bits(on_the_device(values, times, total), on_host(values, times, total)));
    }
  }

  TEST_CASE("cancellation, ties and equal values") {
    double const smallest = 5e-324;
    CHECK(same_bits(on_the_device({1e308, 1, -1e308}, {1, 1, 1}, 2), {1.0, 0.5}));
    CHECK(same_bits(on_the_device({1, 0x1p-53, smallest}, {1, 1, 1}, 1), {1 + 0x1p-52, 1 + 0x1p-52}));
    CHECK(same_bits(on_the_device({3 * smallest}, {1}, 2), {3 * smallest, 2 * smallest}));
    CHECK(same_bits(on_the_device({0.1, 0.1, 0.1}, {1, 5, 1}, 7), {0.1 * 7, 0.1}));
    CHECK(same_bits(on_the_device({-0.0, 0.0}, {1, 1}, 1), {0.0, 0.0}));
  }

}  // TEST_SUITE

}  // namespace exact_sum_test
