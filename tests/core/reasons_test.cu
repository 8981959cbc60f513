#include "support/gpu_batches.cuh"

#include <turnwise/gpu/core/reasons.cuh>

#include <doctest/doctest.h>

namespace reasons_test {

using namespace support;

TEST_SUITE("gpu/core/reasons" * doctest::skip(!has_device())) {
  TEST_CASE("begin_reasons: the host's flags, with and without turn_valid") {
    for (std::uint64_t seed = 1; seed <= seeds(20); ++seed) {
      auto batch = random_batch<double>(seed);
      if (seed % 4 == 0) batch.turn_valid.clear();
      auto const expected = batch.reasons();
      device_rollout const device{batch.view()};
      device_array<reason_flags> const reasons{batch.turns()};
      on_stream_and_in_graph(
          [&] { fill_bytes(reasons, 0xff); },
          [&](cuda::stream_ref stream) { gpu::begin_reasons(device.view(), reasons.span(), stream); },
          [&] { CHECK(reasons.host() == expected); });
    }
  }

  TEST_CASE("begin_reasons: no turns, and wrong sizes throw with nothing written") {
    side_stream const stream;
    gpu::begin_reasons({}, {}, stream);
    auto const batch = random_batch<double>(2);
    device_rollout const device{batch.view()};
    device_array<reason_flags> const reasons{batch.turns() + 1};
    fill_bytes(reasons, 0x77);
    CHECK_THROWS_AS(gpu::begin_reasons(device.view(), reasons.span(), stream), turnwise::precondition_error);
    stream.wait();
    CHECK(reasons.host() == std::vector<reason_flags>(batch.turns() + 1, 0x77777777u));
  }

}  // TEST_SUITE

}  // namespace reasons_test
