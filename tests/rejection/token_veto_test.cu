#include "support/gpu_rules.cuh"

#include <turnwise/gpu/rejection/token_veto.cuh>

namespace token_veto_test {

using namespace support;
using turnwise::rejection::scope;
using turnwise::rejection::token_veto_options;

namespace {

/// The rule after usable_tokens, as recipes call it.
auto host_call(token_veto_options const& options) {
  return [options](auto const& batch, auto statistics, auto reasons) {
    turnwise::rejection::usable_tokens(batch, statistics, {}, reasons);
    turnwise::rejection::token_veto(batch, statistics, options, reasons);
  };
}
auto device_call(token_veto_options const& options) {
  return [options](gpu::rollout_view const& batch, gpu::device_span<turn_statistics const> statistics,
                   gpu::device_span<reason_flags> reasons, gpu::status_record*, cuda::stream_ref stream) {
    gpu::rejection::usable_tokens(batch, statistics, {}, reasons, nullptr, stream);
    gpu::rejection::token_veto(batch, statistics, options, reasons, stream);
  };
}

}  // namespace

TEST_SUITE("gpu/rejection/token_veto" * doctest::skip(!has_device())) {
  TEST_CASE("the host's flags, all options") {
    for (std::uint64_t seed = 0; seed <= seeds(20); ++seed) {
      CAPTURE(seed);
      rule_case const one{seed};
      for (auto const level : {scope::turn, scope::trajectory})
        for (double const threshold : {0.0, 1e-5, 1e-4, 0.01})
          for (double const outlier : {turnwise::test::infinity, 2.0}) {
            token_veto_options const options{threshold, level, outlier};
            one.compare(host_call(options), device_call(options));
          }
    }
  }

  TEST_CASE("wrong sizes, no turns, wrong offsets, bad options") {
    rule_case const one{6};
    one.check_sizes([](gpu::rollout_view const& batch, gpu::device_span<turn_statistics const> statistics,
                       gpu::device_span<reason_flags> reasons, gpu::status_record*, cuda::stream_ref stream) {
      gpu::rejection::token_veto(batch, statistics, {}, reasons, stream);
    });
    side_stream const stream;
    for (double const threshold : {-1.0, turnwise::test::infinity, turnwise::test::nan_value})
      CHECK_THROWS_AS(gpu::rejection::token_veto(one.device.view(), one.device_statistics.view(),
                                                 {.threshold = threshold}, one.after.span(), stream),
                      turnwise::precondition_error);
    CHECK_THROWS_AS(gpu::rejection::token_veto(one.device.view(), one.device_statistics.view(), {.outlier = 1e-5},
                                               one.after.span(), stream),
                    turnwise::precondition_error);
  }

}  // TEST_SUITE

}  // namespace token_veto_test
