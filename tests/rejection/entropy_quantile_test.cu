#include "support/gpu_rules.cuh"

#include <turnwise/gpu/rejection/entropy_quantile.cuh>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstring>

namespace entropy_quantile_test {

using namespace support;

namespace {

/// Entropies, and the mask that they are chosen under.
template <typename T>
void compare(std::vector<T> const& entropy, std::vector<std::uint8_t> const& before, double share) {
  auto const device = on_device(entropy);
  exact_workspace const memory{gpu::rejection::entropy_quantile_workspace_bytes<T>()};
  device_array<double> const threshold{1};
  double expected = 0;
  same_token_mask(
      before,
      [&](std::span<std::uint8_t> keep) {
        expected = turnwise::rejection::entropy_quantile(std::span<T const>{entropy}, {.share = share}, keep);
      },
      [&](gpu::device_span<std::uint8_t> keep, cuda::stream_ref stream) {
        gpu::rejection::entropy_quantile(device.view(), {.share = share}, keep, threshold.span(), memory.whole(),
                                         stream);
      });
  CHECK(same_numbers(threshold.host(), {expected}));
}

template <typename T>
void compare_random(std::size_t tokens, unsigned odd) {
  auto entropy = random_logprobs<T>(static_cast<unsigned>(tokens), tokens, odd);
  integers random{tokens};
  std::vector<std::uint8_t> before;
  for (std::size_t i = 0; i < tokens; ++i) before.push_back(random.below(4) != 0);
  for (double const share : {0.2, 0.58, 1e-9, 1.0}) {
    CAPTURE(tokens);
    CAPTURE(share);
    compare(entropy, before, share);
  }
}

}  // namespace

TEST_SUITE("gpu/rejection/entropy_quantile" * doctest::skip(!has_device())) {
  TEST_CASE("the host's bytes and threshold, all types and sizes") {
    for (std::size_t const tokens : {1u, 2u, 31u, 257u, 5000u, 300'001u}) {
      compare_random<float>(tokens, 0);
      compare_random<float>(tokens, 20);
      compare_random<double>(tokens, 20);
    }
    compare_random<__half>(5000, 20);
    compare_random<__nv_bfloat16>(5000, 20);
  }

  TEST_CASE("doubles that differ in their last bits, ties, zeros of both signs, negative numbers") {
    std::vector<double> entropy;
    for (int i = 0; i < 4000; ++i) entropy.push_back(1.0 + (i * 37 % 1000) * 0x1p-52);
    compare(entropy, std::vector<std::uint8_t>(4000, 1), 0.3);
    std::vector<float> few;
    float const some[]{-0.0f, 0.0f, -2.5f, 1e-40f, -1e-40f};
    for (int i = 0; i < 999; ++i) few.push_back(some[i * 7 % 5]);
    for (double const share : {0.1, 0.2, 0.5, 0.9}) compare(few, std::vector<std::uint8_t>(999, 1), share);
    compare(std::vector<float>(70'000, 0.25f), std::vector<std::uint8_t>(70'000, 1), 0.2);
  }

  TEST_CASE("nothing to choose from: everything is cleared, the threshold is NaN") {
    float const nan = std::numeric_limits<float>::quiet_NaN();
    compare(std::vector<float>(100, nan), std::vector<std::uint8_t>(100, 1), 0.2);
    compare(std::vector<float>(100, 1.0f), std::vector<std::uint8_t>(100, 0), 0.2);
    compare(std::vector<float>{}, {}, 0.2);
  }

  TEST_CASE("no threshold wanted; wrong sizes, a bad share and short scratch throw and nothing is written") {
    auto const entropy = on_device(std::vector<float>{1, 2, 3});
    auto const keep = on_device(std::vector<std::uint8_t>(3, 1));
    exact_workspace const memory{gpu::rejection::entropy_quantile_workspace_bytes<float>()};
    device_array<double> const threshold{2};
    side_stream const stream;
    auto const call = [&](std::size_t out, double share, std::size_t thresholds, gpu::workspace const& scratch) {
      gpu::rejection::entropy_quantile(entropy.view(), {.share = share}, keep.span().first(out),
                                       threshold.span().first(thresholds), scratch, stream);
    };
    using turnwise::precondition_error;
    CHECK_THROWS_AS(call(2, 0.2, 0, memory.whole()), precondition_error);
    CHECK_THROWS_AS(call(3, 0.0, 0, memory.whole()), precondition_error);
    CHECK_THROWS_AS(call(3, 1.1, 0, memory.whole()), precondition_error);
    CHECK_THROWS_AS(call(3, 0.2, 2, memory.whole()), precondition_error);
    CHECK_THROWS_AS(call(3, 0.2, 0, memory.short_by_one()), precondition_error);
    stream.wait();
    CHECK(keep.host() == std::vector<std::uint8_t>(3, 1));
    call(3, 0.2, 0, memory.whole());
    stream.wait();
    CHECK(keep.host() == std::vector<std::uint8_t>{0, 0, 1});
  }

}  // TEST_SUITE

}  // namespace entropy_quantile_test
