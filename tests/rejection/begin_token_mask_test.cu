#include "support/gpu_rules.cuh"

#include <turnwise/gpu/rejection/begin_token_mask.cuh>

namespace begin_token_mask_test {

using namespace support;

namespace {

/// With and without mask and reasons; arrays lie `shift` elements behind an aligned address.
void compare(token_case const& batch, std::size_t shift = 0) {
  shifted_array<std::uint8_t> const mask{batch.mask, shift};
  shifted_array<reason_flags> const reasons{batch.reasons, shift};
  for (bool const masked : {false, true})
    for (bool const rejects : {false, true}) {
      std::span<std::uint8_t const> host_mask{batch.mask};
      std::span<reason_flags const> host_reasons{batch.reasons};
      auto const device_mask = masked ? mask.view() : gpu::device_span<std::uint8_t const>{};
      auto const device_reasons = rejects ? reasons.view() : gpu::device_span<reason_flags const>{};
      same_token_mask(
          std::vector<std::uint8_t>(batch.tokens(), 7),
          [&](std::span<std::uint8_t> keep) {
            turnwise::rejection::begin_token_mask(batch.view(), host_mask.first(masked ? host_mask.size() : 0),
                                                  host_reasons.first(rejects ? host_reasons.size() : 0), keep);
          },
          [&](gpu::device_span<std::uint8_t> keep, cuda::stream_ref stream) {
            gpu::rejection::begin_token_mask(batch.plan, device_mask, device_reasons, keep, stream);
          },
          shift);
    }
}

}  // namespace

TEST_SUITE("gpu/rejection/begin_token_mask" * doctest::skip(!has_device())) {
  TEST_CASE("the host's bytes, any length, order, with and without mask and reasons") {
    for (double const mean : {1.0, 8.0, 90.0, 3000.0})
      for (bool const shuffled : {false, true}) {
        CAPTURE(mean);
        compare(token_case{static_cast<unsigned>(mean), mean > 1000 ? 40u : 500u, mean, shuffled});
      }
  }

  TEST_CASE("arrays that are aligned to their elements alone") {
    token_case const batch{7, 300, 40, true};
    for (std::size_t const shift : {1, 3}) {
      CAPTURE(shift);
      compare(batch, shift);
    }
  }

  TEST_CASE("no turns; wrong sizes throw and nothing is written") {
    side_stream const stream;
    token_case const none{1, 0, 1, false};
    gpu::rejection::begin_token_mask(none.plan, {}, {}, {}, stream);
    token_case const batch{2, 10, 20, false};
    auto const mask = on_device(batch.mask);
    auto const reasons = on_device(batch.reasons);
    auto const keep = on_device(std::vector<std::uint8_t>(batch.tokens(), 7));
    std::size_t const n = batch.tokens();
    auto const throws = [&](gpu::device_span<std::uint8_t const> of, std::size_t turns, std::size_t out) {
      CHECK_THROWS_AS(
          gpu::rejection::begin_token_mask(batch.plan, of, reasons.view().first(turns), keep.span().first(out), stream),
          turnwise::precondition_error);
    };
    throws(mask.view().first(n - 1), 10, n);
    throws(mask.view(), 9, n);
    throws(mask.view(), 10, n - 1);
    throws(keep.view(), 10, n);
    device_array<std::uint8_t> const both{n + 1};
    CHECK_THROWS_AS(gpu::rejection::begin_token_mask(batch.plan, both.view().first(n), reasons.view(),
                                                     both.span().subspan(1), stream),
                    turnwise::precondition_error);
    CHECK_THROWS_AS(gpu::rejection::begin_token_mask(batch.plan, both.view().subspan(1), reasons.view(),
                                                     both.span().first(n), stream),
                    turnwise::precondition_error);
    stream.wait();
    CHECK(keep.host() == std::vector<std::uint8_t>(n, 7));
  }

}  // TEST_SUITE

}  // namespace begin_token_mask_test
