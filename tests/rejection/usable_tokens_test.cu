#include "support/gpu_rules.cuh"

#include <turnwise/gpu/rejection/usable_tokens.cuh>

namespace usable_tokens_test {

using namespace support;
using gpu::status_code;
using turnwise::rejection::non_finite_policy;
using turnwise::rejection::scope;
using turnwise::rejection::usable_tokens_options;

namespace {

auto host_call(usable_tokens_options const& options) {
  return [options](auto const& batch, auto statistics, auto reasons) {
    turnwise::rejection::usable_tokens(batch, statistics, options, reasons);
  };
}
auto device_call(usable_tokens_options const& options) {
  return [options](gpu::rollout_view const& batch, gpu::device_span<turn_statistics const> statistics,
                   gpu::device_span<reason_flags> reasons, gpu::status_record* status, cuda::stream_ref stream) {
    gpu::rejection::usable_tokens(batch, statistics, options, reasons, status, stream);
  };
}

}  // namespace

TEST_SUITE("gpu/rejection/usable_tokens" * doctest::skip(!has_device())) {
  TEST_CASE("the host's flags, all options") {
    for (std::uint64_t seed = 0; seed <= seeds(20); ++seed) {
      CAPTURE(seed);
      rule_case const one{seed};
      for (auto const level : {scope::turn, scope::trajectory})
        for (auto const policy : {non_finite_policy::reject, non_finite_policy::neutral})
          one.compare(host_call({policy, level}), device_call({policy, level}));
    }
  }

  TEST_CASE("under `error` a log ratio that is not finite is reported and rejected") {
    rule_case const one{8};
    std::int64_t first = 0;
    while (!turnwise::is_valid(one.reasons[first]) || one.statistics[first].non_finite == 0) ++first;
    one.compare(host_call({}), device_call({.non_finite = non_finite_policy::error}), status_code::non_finite, first);
  }

  TEST_CASE("wrong sizes, no turns, wrong offsets") { rule_case{6}.check_sizes(device_call({})); }

}  // TEST_SUITE

}  // namespace usable_tokens_test
