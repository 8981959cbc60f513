#include "support/gpu_batches.cuh"

#include <turnwise/gpu/importance/weight_normalisation.cuh>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace weight_normalisation_test {

using namespace support;
using turnwise::importance::weight_normalisation_options;
using turnwise::importance::weight_sums;

namespace {

/// Weights of many magnitudes, every 40th NaN or infinite; flags of which a third are 0.
template <typename W, typename Flag>
struct weight_case {
  std::vector<W> weight;
  std::vector<Flag> flags;
  weight_case(std::size_t count, std::uint64_t seed) {
    integers random{seed};
    for (std::size_t i = 0; i < count; ++i) {
      weight.push_back(static_cast<W>(static_cast<double>(random.below(1 << 30)) * 0x1.1p-28));
      if (random.below(40) == 0)
        weight.back() = random.below(2) == 0 ? std::numeric_limits<W>::quiet_NaN() : std::numeric_limits<W>::infinity();
      flags.push_back(static_cast<Flag>(random.below(3) * 8));
    }
  }
};

template <typename W, typename Flag>
void compare(weight_case<W, Flag> const& one, bool flagged) {
  std::size_t const count = one.weight.size();
  CAPTURE(count);
  auto const flags = flagged ? one.flags : std::vector<Flag>{};
  weight_sums const sums =
      turnwise::importance::sum_weights(std::span<W const>{one.weight}, std::span<Flag const>{flags});
  auto expected = one.weight;
  turnwise::importance::weight_normalisation(sums, {}, std::span{expected});

  auto const start = on_device(one.weight);
  auto const device_flags = on_device(flags);
  device_array<W> const weight{count};
  device_array<weight_sums> const total{1};
  exact_workspace const memory{gpu::importance::sum_weights_workspace_bytes(count)};
  on_stream_and_in_graph(
      [&] {
        fill_bytes(total, 0xa5);
        fill_bytes(weight, 0xa5);
      },
      [&](cuda::stream_ref stream) {
        if (count > 0)
          gpu::check(cudaMemcpyAsync(weight.span().data(), start.view().data(), count * sizeof(W),
                                     cudaMemcpyDeviceToDevice, stream.get()),
                     "copy");
        gpu::importance::sum_weights(start.view(), device_flags.view(), total.span().data(), memory.whole(), stream);
        gpu::importance::weight_normalisation(total.span().data(), weight_normalisation_options{}, weight.span(),
                                              stream);
      },
      [&] {
        CHECK(total.host()[0] == sums);
        CHECK(same_numbers(weight.host(), expected));
      });
}

}  // namespace

TEST_SUITE("gpu/importance/weight_normalisation" * doctest::skip(!has_device())) {
  TEST_CASE_TEMPLATE("the host's bits, over tokens and over turns", W, float, double) {
    for (std::size_t const count : {0u, 1u, 32u, 33u, 4095u, 4096u, 4097u, 500'000u}) {
      weight_case<W, std::uint8_t> const tokens{count, 3};
      compare(tokens, true);
      compare(tokens, false);
      compare(weight_case<W, turnwise::reason_flags>{count, 4}, true);
    }
  }

  TEST_CASE("nothing kept: unchanged") {
    weight_case<float, std::uint8_t> none{1000, 5};
    none.flags.assign(1000, 0);
    compare(none, true);
    weight_case<float, turnwise::reason_flags> rejected{1000, 5};
    rejected.flags.assign(1000, turnwise::reason::stale);
    compare(rejected, true);
  }

  TEST_CASE("bad sizes, floors and workspaces throw") {
    device_array<float> const weight{5000};
    device_array<std::uint8_t> const keep{4999};
    device_array<turnwise::reason_flags> const reasons{4999};
    device_array<weight_sums> const total{1};
    exact_workspace const memory{gpu::importance::sum_weights_workspace_bytes(5000)};
    side_stream const stream;
    using turnwise::precondition_error;
    CHECK_THROWS_AS(
        gpu::importance::sum_weights(weight.view(), keep.view(), total.span().data(), memory.whole(), stream),
        precondition_error);
    CHECK_THROWS_AS(
        gpu::importance::sum_weights(weight.view(), reasons.view(), total.span().data(), memory.whole(), stream),
        precondition_error);
    CHECK_THROWS_AS(gpu::importance::sum_weights(weight.view(), gpu::device_span<std::uint8_t const>{},
                                                 total.span().data(), memory.short_by_one(), stream),
                    precondition_error);
    CHECK_THROWS_AS(gpu::importance::weight_normalisation(
                        total.span().data(), weight_normalisation_options{.floor = -1}, weight.span(), stream),
                    precondition_error);
  }

}  // TEST_SUITE

}  // namespace weight_normalisation_test
