#include "support/gpu_rules.cuh"

#include <turnwise/gpu/importance/divergence_sums.cuh>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace divergence_sums_test {

using namespace support;
using turnwise::importance::turn_divergence;

namespace {

/// Host and device over one batch, token arrays `shift` elements past an aligned address.
template <typename Old, typename Rollout>
void compare(token_case const& batch, bool masked, std::size_t shift = 0) {
  auto const old_logprob = random_logprobs<Old>(1, batch.tokens() + shift);
  auto const rollout_logprob = random_logprobs<Rollout>(2, batch.tokens() + shift);
  turnwise::token_logprobs<Old, Rollout> host{
      std::span{old_logprob}.subspan(shift), std::span{rollout_logprob}.subspan(shift), {}};
  auto const device_old = on_device(old_logprob);
  auto const device_rollout = on_device(rollout_logprob);
  auto const mask = on_device(batch.mask);
  gpu::token_logprobs<Old, Rollout> device{device_old.view().subspan(shift), device_rollout.view().subspan(shift), {}};
  if (masked) {
    host.mask = batch.mask;
    device.mask = mask.view();
  }
  std::vector<turn_divergence> expected(batch.turns());
  turnwise::importance::divergence_sums(batch.view(), host, std::span{expected});
  device_array<turn_divergence> const sums{batch.turns()};
  on_stream_and_in_graph(
      [&] { fill_bytes(sums, 0xa5); },
      [&](cuda::stream_ref stream) { gpu::importance::divergence_sums(batch.plan, device, sums.span(), stream); },
      [&] { CHECK(sums.host() == expected); });
}

}  // namespace

TEST_SUITE("gpu/importance/divergence_sums" * doctest::skip(!has_device())) {
  TEST_CASE("the host's bits, any mean length, mask, order and alignment") {
    unsigned seed = 0;
    for (double const mean : {1.0, 6.0, 40.0, 300.0, 9000.0})
      for (bool const shuffled : {false, true}) {
        CAPTURE(mean);
        CAPTURE(shuffled);
        ++seed;
        token_case const batch{seed, mean > 1000 ? 30u : 700u, mean, shuffled};
        compare<float, float>(batch, seed % 2 == 0, seed % 3);
      }
  }

  TEST_CASE("half types, doubles and mixed types") {
    token_case const batch{99, 300, 90, true};
    compare<__nv_bfloat16, __nv_bfloat16>(batch, true, 1);
    compare<__half, float>(batch, false);
    compare<double, double>(batch, true);
    compare<float, double>(batch, false, 1);
  }

  TEST_CASE("sums that cross chunks stop at 2^31 and do not wrap") {
    token_case const batch{3, 3, 60000, false};
    std::vector<float> const old_logprob(batch.tokens(), 30.0f), rollout_logprob(batch.tokens());
    std::vector<turn_divergence> expected(3);
    turnwise::importance::divergence_sums(
        batch.view(), turnwise::token_logprobs<float, float>{old_logprob, rollout_logprob, {}}, std::span{expected});
    auto const device_old = on_device(old_logprob);
    auto const device_rollout = on_device(rollout_logprob);
    device_array<turn_divergence> const sums{3};
    side_stream const stream;
    gpu::importance::divergence_sums(batch.plan,
                                     gpu::token_logprobs<float, float>{device_old.view(), device_rollout.view(), {}},
                                     sums.span(), stream);
    stream.wait();
    CHECK(sums.host() == expected);
    CHECK(std::max({expected[0].k3, expected[1].k3, expected[2].k3}) == INT64_MAX);
  }

  TEST_CASE("no turns, turns without tokens; wrong sizes throw and nothing is written") {
    compare<float, float>(token_case{1, 0, 1, false}, false);
    token_case const batch{4, 20, 30, false};
    auto const values = on_device(std::vector<float>(batch.tokens()));
    device_array<turn_divergence> const sums{20};
    fill_bytes(sums, 0x11);
    auto const untouched = sums.host();
    side_stream const stream;
    auto const throws = [&](std::size_t old_size, std::size_t rollout_size, std::size_t mask_size, std::size_t out) {
      auto const mask = on_device(std::vector<std::uint8_t>(mask_size));
      gpu::token_logprobs<float, float> const tokens{values.view().first(old_size), values.view().first(rollout_size),
                                                     mask.view()};
      CHECK_THROWS_AS(gpu::importance::divergence_sums(batch.plan, tokens, sums.span().first(out), stream),
                      turnwise::precondition_error);
    };
    std::size_t const n = batch.tokens();
    throws(n - 1, n, n, 20);
    throws(n, n - 1, n, 20);
    throws(n, n, n - 1, 20);
    throws(n, n, 0, 19);
    stream.wait();
    CHECK(same_bits(sums.host(), untouched));
  }

}  // TEST_SUITE

}  // namespace divergence_sums_test
