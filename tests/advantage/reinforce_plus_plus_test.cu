#include "support/gpu_groups.cuh"

#include <turnwise/gpu/advantage/reinforce_plus_plus.cuh>

namespace reinforce_plus_plus_test {

using namespace support;
using turnwise::group_by;
using turnwise::advantage::baseline_members;
using turnwise::advantage::reinforce_plus_plus_options;
using turnwise::advantage::whiten_options;

namespace {

auto host_call(reinforce_plus_plus_options const& options, std::vector<std::int64_t> const& weight = {}) {
  return [options, weight]<typename T>(turnwise::grouping const& groups, std::span<T const> returns,
                                       std::span<reason_flags const> reasons, std::span<T> advantage) {
    turnwise::advantage::reinforce_plus_plus(groups, returns, weight, reasons, options, advantage);
  };
}

template <typename T>
auto device_call(reinforce_plus_plus_options const& options, exact_workspace const& memory,
                 gpu::device_span<std::int64_t const> weight = {}) {
  return [options, weight, &memory](gpu::grouping const& groups, gpu::device_span<T const> returns,
                                    gpu::device_span<reason_flags const> reasons, gpu::device_span<T> advantage,
                                    gpu::status_record* status, cuda::stream_ref stream) {
    gpu::advantage::reinforce_plus_plus(groups, returns, weight, reasons, options, advantage, status, memory.whole(),
                                        stream);
  };
}

}  // namespace

TEST_SUITE("gpu/advantage/reinforce_plus_plus" * doctest::skip(!has_device())) {
  TEST_CASE_TEMPLATE("the host's bits, all groupings and options", T, float, double) {
    exact_workspace const memory{gpu::advantage::reinforce_plus_plus_workspace_bytes()};
    for (std::uint64_t seed = 1; seed <= seeds(15); ++seed)
      for (group_by const by : every_kind) {
        CAPTURE(seed);
        CAPTURE(static_cast<int>(by));
        returns_case<T> const one{seed};
        integers random{seed};
        std::vector<std::int64_t> weight;
        for (std::size_t s = 0; s < one.turn_return.size(); ++s) weight.push_back(random.below(500));
        auto const device_weight = on_device(weight);
        auto const host_groups = turnwise::make_grouping(one.batch.view(), by);
        device_groups const device{one.batch.view(), by};
        for (bool const baseline : {false, true})
          for (auto const members : {baseline_members::valid, baseline_members::kept}) {
            reinforce_plus_plus_options options{.group_baseline = baseline, .whiten = whiten_options::verl()};
            options.whiten.members = members;
            same_advantages(host_groups, device.groups(), one.turn_return, one.reasons, host_call(options),
                            device_call<T>(options, memory));
            same_advantages(host_groups, device.groups(), one.turn_return, one.reasons, host_call(options, weight),
                            device_call<T>(options, memory, device_weight.view()));
          }
      }
  }

  TEST_CASE_TEMPLATE("bad content and bad arguments", T, float, double) {
    exact_workspace const memory{gpu::advantage::reinforce_plus_plus_workspace_bytes()};
    reinforce_plus_plus_options const baseline{.group_baseline = true};
    check_group_errors<T>(host_call(baseline), device_call<T>(baseline, memory));
    returns_case<T> const one{3};
    device_groups const device{one.batch.view(), group_by::group};
    auto const returns = on_device(one.turn_return);
    auto const reasons = on_device(one.reasons);
    device_array<T> const advantage{one.turn_return.size()};
    fill_bytes(advantage, 0x42);
    auto const untouched = advantage.host();
    side_stream const stream;
    auto const call = [&](reinforce_plus_plus_options const& options, gpu::workspace const& scratch) {
      gpu::advantage::reinforce_plus_plus(device.groups(), returns.view(), {}, reasons.view(), options,
                                          advantage.span(), nullptr, scratch, stream);
    };
    using turnwise::precondition_error;
    CHECK_THROWS_AS(call({.whiten = {.ddof = 2}}, memory.whole()), precondition_error);
    CHECK_THROWS_AS(call({.whiten = {.epsilon = -1.0}}, memory.whole()), precondition_error);
    CHECK_THROWS_AS(call(baseline, memory.short_by_one()), precondition_error);
    stream.wait();
    CHECK(same_bits(advantage.host(), untouched));
  }

}  // TEST_SUITE

}  // namespace reinforce_plus_plus_test
