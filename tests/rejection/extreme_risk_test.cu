#include "support/gpu_rules.cuh"

#include <turnwise/gpu/rejection/extreme_risk.cuh>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace extreme_risk_test {

using namespace support;

namespace {

/// Arrays lie `shift` elements behind an aligned address.
template <typename T, typename P>
void compare(token_case const& batch, std::size_t shift = 0) {
  auto const logprob = random_logprobs<P>(5, batch.tokens());
  auto const advantage = random_logprobs<T>(6, batch.turns(), 10);  // mostly negative
  shifted_array<P> const device_logprob{logprob, shift};
  shifted_array<T> const device_advantage{advantage, shift};
  for (double const threshold : {0.0, 0.2, 0.4, 1.0})
    same_token_mask(
        batch.mask,
        [&](std::span<std::uint8_t> keep) {
          turnwise::rejection::extreme_risk(batch.view(), std::span<T const>{advantage}, std::span<P const>{logprob},
                                            {.threshold = threshold}, keep);
        },
        [&](gpu::device_span<std::uint8_t> keep, cuda::stream_ref stream) {
          gpu::rejection::extreme_risk(batch.plan, device_advantage.view(), device_logprob.view(),
                                       {.threshold = threshold}, keep, stream);
        },
        shift);
}

}  // namespace

TEST_SUITE("gpu/rejection/extreme_risk" * doctest::skip(!has_device())) {
  TEST_CASE("the host's bytes, any length, order and type") {
    for (double const mean : {1.0, 8.0, 90.0, 3000.0})
      for (bool const shuffled : {false, true}) {
        token_case const batch{static_cast<unsigned>(mean), mean > 1000 ? 40u : 500u, mean, shuffled};
        compare<float, float>(batch);
        compare<double, __nv_bfloat16>(batch);
      }
    token_case const batch{11, 100, 50, true};
    compare<double, double>(batch);
    compare<float, __half>(batch);
    compare<float, float>(token_case{1, 0, 1, false});
  }

  TEST_CASE("arrays that are aligned to their elements alone") {
    token_case const batch{7, 300, 40, true};
    for (std::size_t const shift : {1, 3}) {
      CAPTURE(shift);
      compare<float, float>(batch, shift);
      compare<double, __nv_bfloat16>(batch, shift);
    }
  }

  TEST_CASE("wrong sizes and a bad threshold throw and nothing is written") {
    token_case const batch{2, 10, 20, false};
    auto const advantage = on_device(std::vector<float>(10, -1.0f));
    auto const logprob = on_device(std::vector<float>(batch.tokens(), -50.0f));
    auto const keep = on_device(std::vector<std::uint8_t>(batch.tokens(), 1));
    side_stream const stream;
    std::size_t const n = batch.tokens();
    auto const throws = [&](std::size_t turns, std::size_t logprobs, std::size_t out, double threshold) {
      CHECK_THROWS_AS(
          gpu::rejection::extreme_risk(batch.plan, advantage.view().first(turns), logprob.view().first(logprobs),
                                       {.threshold = threshold}, keep.span().first(out), stream),
          turnwise::precondition_error);
    };
    throws(9, n, n, 0.1);
    throws(10, n - 1, n, 0.1);
    throws(10, n, n - 1, 0.1);
    throws(10, n, n, 1.5);
    throws(10, n, n, turnwise::test::nan_value);
    stream.wait();
    CHECK(keep.host() == std::vector<std::uint8_t>(n, 1));
  }

}  // TEST_SUITE

}  // namespace extreme_risk_test
