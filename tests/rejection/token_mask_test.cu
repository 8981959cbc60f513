#include "support/gpu_rules.cuh"

#include <turnwise/gpu/rejection/token_mask.cuh>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace token_mask_test {

using namespace support;
using turnwise::rejection::token_mask_options;
using turnwise::rejection::token_measure;

namespace {

/// All arrays lie `shift` elements behind an aligned address.
template <typename Old, typename Rollout>
void compare(std::size_t tokens, bool masked, std::size_t shift = 0) {
  auto const old_logprob = random_logprobs<Old>(1, tokens);
  auto const rollout_logprob = random_logprobs<Rollout>(2, tokens);
  integers random{tokens};
  std::vector<std::uint8_t> mask, before;
  for (std::size_t i = 0; i < tokens; ++i) {
    mask.push_back(random.below(5) != 0);
    before.push_back(static_cast<std::uint8_t>(random.below(4)));
  }
  shifted_array<Old> const device_old{old_logprob, shift};
  shifted_array<Rollout> const device_rollout{rollout_logprob, shift};
  shifted_array<std::uint8_t> const device_mask{mask, shift};
  turnwise::token_logprobs<Old, Rollout> host{old_logprob, rollout_logprob, {}};
  gpu::token_logprobs<Old, Rollout> device{device_old.view(), device_rollout.view(), {}};
  if (masked) {
    host.mask = mask;
    device.mask = device_mask.view();
  }
  for (auto const& options :
       {token_mask_options{}, token_mask_options{token_measure::ratio, 0, 1.2},
        token_mask_options{token_measure::k1, -0.1, 0.4}, token_mask_options{token_measure::k2, 0, 0.05},
        token_mask_options{token_measure::k3, 0.001, 0.1}})
    same_token_mask(
        before, [&](std::span<std::uint8_t> keep) { turnwise::rejection::token_mask(host, options, keep); },
        [&](gpu::device_span<std::uint8_t> keep, cuda::stream_ref stream) {
          gpu::rejection::token_mask(device, options, keep, stream);
        },
        shift);
}

}  // namespace

TEST_SUITE("gpu/rejection/token_mask" * doctest::skip(!has_device())) {
  TEST_CASE("the host's bytes, all measures and types") {
    for (bool const masked : {false, true}) {
      compare<float, float>(100'003, masked);
      compare<double, double>(30'001, masked);
      compare<float, double>(5000, masked);
      compare<__half, float>(5000, masked);
      compare<__nv_bfloat16, __nv_bfloat16>(5000, masked);
      compare<float, float>(0, masked);
    }
  }

  TEST_CASE("arrays that are aligned to their elements alone") {
    for (std::size_t const shift : {1, 3}) {
      CAPTURE(shift);
      compare<float, float>(30'011, true, shift);
      compare<double, double>(5000, false, shift);
      compare<__half, float>(5000, true, shift);
    }
  }

  TEST_CASE("the mask of the tokens may be the mask that is written") {
    auto const old_logprob = random_logprobs<float>(1, 3000);
    auto const rollout_logprob = random_logprobs<float>(2, 3000);
    auto const device_old = on_device(old_logprob);
    auto const device_rollout = on_device(rollout_logprob);
    same_token_mask(
        std::vector<std::uint8_t>(3000, 1),
        [&](std::span<std::uint8_t> keep) {
          turnwise::rejection::token_mask(turnwise::token_logprobs<float, float>{old_logprob, rollout_logprob, keep},
                                          {}, keep);
        },
        [&](gpu::device_span<std::uint8_t> keep, cuda::stream_ref stream) {
          gpu::rejection::token_mask(gpu::token_logprobs<float, float>{device_old.view(), device_rollout.view(), keep},
                                     {}, keep, stream);
        });
  }

  TEST_CASE("wrong sizes and bad bounds throw and nothing is written") {
    auto const values = on_device(std::vector<float>(8));
    auto const keep = on_device(std::vector<std::uint8_t>(8, 7));
    side_stream const stream;
    auto const throws = [&](std::size_t old_size, std::size_t rollout_size, std::size_t mask_size,
                            token_mask_options const& options) {
      gpu::token_logprobs<float, float> const tokens{values.view().first(old_size), values.view().first(rollout_size),
                                                     keep.view().first(mask_size)};
      CHECK_THROWS_AS(gpu::rejection::token_mask(tokens, options, keep.span(), stream), turnwise::precondition_error);
    };
    throws(7, 8, 0, {});
    throws(8, 7, 0, {});
    throws(8, 8, 7, {});
    throws(8, 8, 0, {.low = 2, .high = 1});
    throws(8, 8, 0, {.low = -1});
    stream.wait();
    CHECK(keep.host() == std::vector<std::uint8_t>(8, 7));
  }

}  // TEST_SUITE

}  // namespace token_mask_test
