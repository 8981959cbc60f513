#include "support/gpu_rules.cuh"

#include <turnwise/gpu/rejection/divergence_limit.cuh>

namespace divergence_limit_test {

using namespace support;
using turnwise::importance::turn_divergence;
using turnwise::rejection::divergence_estimate;
using turnwise::rejection::divergence_limit_options;
using turnwise::rejection::scope;
using turnwise::rejection::token_aggregate;

namespace {

/// Sums as a pass over tokens could leave them, some saturated, many around n times 0.001.
std::vector<turn_divergence> random_sums(std::vector<turn_statistics> const& statistics, std::uint64_t seed) {
  integers random{seed ^ 0xd1};
  std::vector<turn_divergence> sums;
  for (auto const& one : statistics) {
    std::int64_t const around = one.count * 8'589'935 + 1;  // 0.002 in units of 2^-32
    sums.push_back({random.below(around), random.below(40) == 0 ? INT64_MAX : random.below(around)});
  }
  return sums;
}

/// The rule after usable_tokens, as recipes call it.
auto host_call(std::vector<turn_divergence> const& sums, divergence_limit_options const& options) {
  return [&sums, options](auto const& batch, auto statistics, auto reasons) {
    turnwise::rejection::usable_tokens(batch, statistics, {}, reasons);
    turnwise::rejection::divergence_limit(batch, statistics, sums, options, reasons);
  };
}
auto device_call(gpu::device_span<turn_divergence const> sums, divergence_limit_options const& options) {
  return [sums, options](gpu::rollout_view const& batch, gpu::device_span<turn_statistics const> statistics,
                         gpu::device_span<reason_flags> reasons, gpu::status_record*, cuda::stream_ref stream) {
    gpu::rejection::usable_tokens(batch, statistics, {}, reasons, nullptr, stream);
    gpu::rejection::divergence_limit(batch, statistics, sums, options, reasons, stream);
  };
}

}  // namespace

TEST_SUITE("gpu/rejection/divergence_limit" * doctest::skip(!has_device())) {
  TEST_CASE("the host's flags, all estimates, aggregates and levels") {
    using enum divergence_estimate;
    using enum token_aggregate;
    for (std::uint64_t seed = 0; seed <= seeds(12); ++seed) {
      CAPTURE(seed);
      rule_case const one{seed};
      auto const sums = random_sums(one.statistics, seed);
      auto const device_sums = on_device(sums);
      for (auto const level : {scope::turn, scope::trajectory}) {
        for (auto const estimate : {k2, k3}) {
          for (auto const& [aggregate, high] : {std::pair{sum, 1.0}, std::pair{mean, 0.001}, std::pair{max, 2.0}}) {
            divergence_limit_options const options{estimate, aggregate, level, 1e-5, high};
            one.compare(host_call(sums, options), device_call(device_sums.view(), options));
          }
        }
        for (auto const& [aggregate, high] : {std::pair{sum, 0.0005}, std::pair{mean, 0.0005}, std::pair{max, 1.0}}) {
          divergence_limit_options const options{k1, aggregate, level, -0.001, high};
          one.compare(host_call(sums, options), device_call({}, options));
        }
      }
    }
  }

  TEST_CASE("wrong sizes, no turns, wrong offsets, bad options") {
    rule_case const one{6};
    auto const sums = on_device(random_sums(one.statistics, 6));
    divergence_limit_options const max{.aggregate = token_aggregate::max};
    one.check_sizes([&](gpu::rollout_view const& batch, gpu::device_span<turn_statistics const> statistics,
                        gpu::device_span<reason_flags> reasons, gpu::status_record*, cuda::stream_ref stream) {
      gpu::rejection::divergence_limit(batch, statistics, {}, max, reasons, stream);
    });
    side_stream const stream;
    auto const throws = [&](gpu::device_span<turn_divergence const> with, divergence_limit_options const& options) {
      CHECK_THROWS_AS(gpu::rejection::divergence_limit(one.device.view(), one.device_statistics.view(), with, options,
                                                       one.after.span(), stream),
                      turnwise::precondition_error);
    };
    throws({}, {});
    throws(sums.view().first(sums.view().size() - 1), {});
    throws(sums.view(), {.low = 1, .high = 0});
    throws(sums.view(), {.high = turnwise::test::nan_value});
  }

}  // TEST_SUITE

}  // namespace divergence_limit_test
