#include "support/gpu_rules.cuh"

#include <turnwise/gpu/rejection/staleness.cuh>

namespace staleness_test {

using namespace support;
using turnwise::rejection::staleness_options;

namespace {

std::vector<std::int64_t> random_versions(std::uint64_t seed, std::size_t turns) {
  integers random{seed};
  std::vector<std::int64_t> result;
  for (std::size_t s = 0; s < turns; ++s)
    result.push_back(random.below(30) == 0 ? std::numeric_limits<std::int64_t>::min() : 100 - random.below(9));
  return result;
}

auto host_call(std::vector<std::int64_t> const& version, staleness_options const& options) {
  return [&version, options](auto const& batch, auto, auto reasons) {
    turnwise::rejection::staleness(batch, version, options, reasons);
  };
}
auto device_call(gpu::device_span<std::int64_t const> version, staleness_options const& options) {
  return
      [version, options](gpu::rollout_view const& batch, gpu::device_span<turn_statistics const>,
                         gpu::device_span<reason_flags> reasons, gpu::status_record* status, cuda::stream_ref stream) {
        gpu::rejection::staleness(batch, version, options, reasons, status, stream);
      };
}

}  // namespace

TEST_SUITE("gpu/rejection/staleness" * doctest::skip(!has_device())) {
  TEST_CASE("the host's flags") {
    for (std::uint64_t seed = 0; seed <= seeds(12); ++seed) {
      CAPTURE(seed);
      rule_case const one{seed};
      auto const version = random_versions(seed, one.reasons.size());
      auto const device_version = on_device(version);
      for (std::int64_t const max_lag : {std::int64_t{0}, std::int64_t{4}, std::numeric_limits<std::int64_t>::max()})
        for (std::int64_t const current : {std::int64_t{100}, std::numeric_limits<std::int64_t>::max()}) {
          staleness_options const options{current, max_lag};
          one.compare(host_call(version, options), device_call(device_version.view(), options));
        }
    }
  }

  TEST_CASE("a version of the future is reported and rejected") {
    rule_case const one{8};
    auto version = random_versions(8, one.reasons.size());
    auto past = version;
    std::int64_t first = -1;
    for (std::size_t s = 3; s < version.size(); s += 7) {
      version[s] = 101;
      past[s] = 0;
      if (first < 0 && turnwise::is_valid(one.reasons[s])) first = static_cast<std::int64_t>(s);
    }
    auto const device_version = on_device(version);
    staleness_options const options{100, 50};
    one.compare(host_call(past, options), device_call(device_version.view(), options), gpu::status_code::policy_version,
                first);
  }

  TEST_CASE("wrong sizes, no turns, wrong offsets, bad options") {
    rule_case const one{6};
    auto const version = on_device(random_versions(6, one.reasons.size()));
    one.check_sizes([&](gpu::rollout_view const& batch, gpu::device_span<turn_statistics const> statistics,
                        gpu::device_span<reason_flags> reasons, gpu::status_record* status, cuda::stream_ref stream) {
      gpu::rejection::staleness(batch, version.view().first(statistics.size()), {100, 3}, reasons, status, stream);
    });
    side_stream const stream;
    CHECK_THROWS_AS(
        gpu::rejection::staleness(one.device.view(), version.view(), {100, -1}, one.after.span(), nullptr, stream),
        turnwise::precondition_error);
  }

}  // TEST_SUITE

}  // namespace staleness_test
