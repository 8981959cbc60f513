#include "support/gpu_groups.cuh"

#include <turnwise/gpu/advantage/group_relative.cuh>

using namespace support;
using turnwise::group_by;
using turnwise::advantage::baseline_members;
using turnwise::advantage::group_relative_options;

namespace {

auto host_call(group_relative_options const& options) {
  return [options]<typename T>(turnwise::grouping const& groups, std::span<T const> returns,
                               std::span<reason_flags const> reasons, std::span<T> advantage) {
    turnwise::advantage::group_relative(groups, returns, reasons, options, advantage);
  };
}

template <typename T>
auto device_call(group_relative_options const& options) {
  return [options](gpu::grouping const& groups, gpu::device_span<T const> returns,
                   gpu::device_span<reason_flags const> reasons, gpu::device_span<T> advantage,
                   gpu::status_record* status, cuda::stream_ref stream) {
    gpu::advantage::group_relative(groups, returns, reasons, options, advantage, status, stream);
  };
}

}  // namespace

TEST_SUITE("gpu/advantage/group_relative" * doctest::skip(!has_device())) {
  TEST_CASE_TEMPLATE("the host's bits, all groupings and options", T, float, double) {
    for (std::uint64_t seed = 1; seed <= seeds(24); ++seed)
      for (group_by const by : every_kind) {
        CAPTURE(seed);
        CAPTURE(static_cast<int>(by));
        returns_case<T> const one{seed};
        auto const host_groups = turnwise::make_grouping(one.batch.view(), by);
        device_groups const device{one.batch.view(), by};
        for (auto const& [scale, ddof, epsilon] :
             {std::tuple{true, 1, 1e-6}, std::tuple{true, 0, 0.0}, std::tuple{false, 1, 1e-6}})
          for (auto const members : {baseline_members::valid, baseline_members::kept}) {
            CAPTURE(scale);
            CAPTURE(ddof);
            CAPTURE(static_cast<int>(members));
            group_relative_options const options{scale, ddof, epsilon, members, 1};
            same_advantages(host_groups, device.groups(), one.turn_return, one.reasons, host_call(options),
                            device_call<T>(options));
          }
      }
  }

  TEST_CASE_TEMPLATE("bad content and bad arguments", T, float, double) {
    check_group_errors<T>(host_call({}), device_call<T>({}));
    device_groups const empty{turnwise::rollout_view{}, group_by::turn};
    side_stream const stream;
    auto const call = [&](group_relative_options const& options) {
      device_call<T>(options)(empty.groups(), {}, {}, {}, nullptr, stream);
    };
    CHECK_THROWS_AS(call({.ddof = 2}), turnwise::precondition_error);
    CHECK_THROWS_AS(call({.epsilon = -1.0}), turnwise::precondition_error);
  }

}  // TEST_SUITE
