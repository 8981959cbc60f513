#include "support/gpu_rules.cuh"

#include <turnwise/gpu/rejection/ratio_band.cuh>

#include <algorithm>
#include <cmath>
#include <utility>

namespace ratio_band_test {

using namespace support;
using turnwise::rejection::ratio_band_options;
using turnwise::rejection::ratio_kind;
using turnwise::rejection::scope;

namespace {

/// The rule after usable_tokens, as recipes call it.
auto host_call(ratio_band_options const& options) {
  return [options](auto const& batch, auto statistics, auto reasons) {
    turnwise::rejection::usable_tokens(batch, statistics, {}, reasons);
    turnwise::rejection::ratio_band(batch, statistics, options, reasons);
  };
}
auto device_call(ratio_band_options const& options) {
  return [options](gpu::rollout_view const& batch, gpu::device_span<turn_statistics const> statistics,
                   gpu::device_span<reason_flags> reasons, gpu::status_record*, cuda::stream_ref stream) {
    gpu::rejection::usable_tokens(batch, statistics, {}, reasons, nullptr, stream);
    gpu::rejection::ratio_band(batch, statistics, options, reasons, stream);
  };
}

}  // namespace

TEST_SUITE("gpu/rejection/ratio_band" * doctest::skip(!has_device())) {
  TEST_CASE("the host's flags, all options") {
    for (std::uint64_t seed = 0; seed <= seeds(20); ++seed) {
      CAPTURE(seed);
      rule_case const one{seed};
      for (auto const level : {scope::turn, scope::trajectory})
        for (auto const kind : {ratio_kind::geometric, ratio_kind::product})
          for (auto const& [low, high] : {std::pair{0.999, 1.001}, std::pair{0.5, 2.0}, std::pair{0.0, 1.0005},
                                          std::pair{0.9995, turnwise::test::infinity}}) {
            ratio_band_options const options{level, kind, low, high};
            one.compare(host_call(options), device_call(options));
          }
    }
  }

  TEST_CASE("both edges are inclusive, as on the host") {
    auto statistics = random_statistics(8, rule_batch(8).turns());
    for (std::size_t s = 0; s < statistics.size(); ++s)  // means of whole units, some of them on the edges
      statistics[s].sum = statistics[s].count * (static_cast<std::int64_t>(s % 7) - 3);
    rule_case const one{8, statistics};
    double const unit = turnwise::importance::log_ratio_unit;
    for (auto const level : {scope::turn, scope::trajectory}) {
      ratio_band_options const options{level, ratio_kind::geometric, std::exp(-2 * unit), std::exp(2 * unit)};
      one.compare(host_call(options), device_call(options));
    }
  }

  TEST_CASE("geometric_ratio: within 2 ulp of the host") {
    for (std::uint64_t seed = 0; seed <= seeds(20); ++seed)
      for (auto const level : {scope::turn, scope::trajectory}) {
        CAPTURE(seed);
        rule_case const one{seed};
        std::vector<double> expected(one.reasons.size());
        turnwise::rejection::geometric_ratio(one.batch.view(), one.statistics, one.reasons, level, expected);
        device_array<double> const ratio{expected.size()};
        on_stream_and_in_graph([&] { fill_bytes(ratio, 0xa5); },
                               [&](cuda::stream_ref stream) {
                                 gpu::rejection::geometric_ratio(one.device.view(), one.device_statistics.view(),
                                                                 one.before.view(), level, ratio.span(), stream);
                               },
                               [&] {
                                 auto const got = ratio.host();
                                 double worst = 0;
                                 for (std::size_t s = 0; s < got.size(); ++s)
                                   worst = std::max(worst, std::abs(got[s] / expected[s] - 1));
                                 CHECK(worst <= 0x1p-51);
                               });
      }
  }

  TEST_CASE("wrong sizes, no turns, wrong offsets, bad options") {
    rule_case const one{6};
    one.check_sizes(device_call({}));
    one.check_sizes([](gpu::rollout_view const& batch, gpu::device_span<turn_statistics const> statistics,
                       gpu::device_span<reason_flags> reasons, gpu::status_record*, cuda::stream_ref stream) {
      gpu::rejection::ratio_band(batch, statistics, {}, reasons, stream);
    });
    side_stream const stream;
    auto const call = [&](ratio_band_options const& options) {
      gpu::rejection::ratio_band(one.device.view(), one.device_statistics.view(), options, one.after.span(), stream);
    };
    CHECK_THROWS_AS(call({.low = -1}), turnwise::precondition_error);
    CHECK_THROWS_AS(call({.low = 2, .high = 1}), turnwise::precondition_error);
    device_array<double> const ratio{one.reasons.size() - 1};
    CHECK_THROWS_AS(gpu::rejection::geometric_ratio(one.device.view(), one.device_statistics.view(), one.before.view(),
                                                    scope::turn, ratio.span(), stream),
                    turnwise::precondition_error);
  }

}  // TEST_SUITE

}  // namespace ratio_band_test
