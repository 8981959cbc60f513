#include "support/gpu_groups.cuh"

#include <turnwise/gpu/advantage/leave_one_out.cuh>

using namespace support;
using turnwise::group_by;
using turnwise::advantage::baseline_members;
using turnwise::advantage::exclude_policy;
using turnwise::advantage::leave_one_out_options;
using turnwise::advantage::singleton_policy;

namespace {

auto host_call(leave_one_out_options const& options) {
  return [options]<typename T>(turnwise::grouping const& groups, std::span<T const> returns,
                               std::span<reason_flags const> reasons, std::span<T> advantage) {
    turnwise::advantage::leave_one_out(groups, returns, reasons, options, advantage);
  };
}

template <typename T>
auto device_call(leave_one_out_options const& options) {
  return [options](gpu::grouping const& groups, gpu::device_span<T const> returns,
                   gpu::device_span<reason_flags const> reasons, gpu::device_span<T> advantage,
                   gpu::status_record* status, cuda::stream_ref stream) {
    gpu::advantage::leave_one_out(groups, returns, reasons, options, advantage, status, stream);
  };
}

template <typename T>
void compare(returns_case<T> const& one, group_by by, bool all_options) {
  auto const host_groups = turnwise::make_grouping(one.batch.view(), by);
  device_groups const device{one.batch.view(), by};
  for (auto const singleton : {singleton_policy::keep, singleton_policy::zero, singleton_policy::others})
    for (auto const exclude : {exclude_policy::trajectory, exclude_policy::member})
      for (auto const members : {baseline_members::valid, baseline_members::kept}) {
        if (!all_options && singleton == singleton_policy::zero) continue;
        leave_one_out_options const options{singleton, exclude, members, true, 1};
        CAPTURE(static_cast<int>(singleton));
        CAPTURE(static_cast<int>(exclude));
        CAPTURE(static_cast<int>(members));
        same_advantages(host_groups, device.groups(), one.turn_return, one.reasons, host_call(options),
                        device_call<T>(options));
      }
}

}  // namespace

TEST_SUITE("gpu/advantage/leave_one_out" * doctest::skip(!has_device())) {
  TEST_CASE_TEMPLATE("the host's bits, all groupings and options", T, float, double) {
    for (std::uint64_t seed = 1; seed <= seeds(24); ++seed)
      for (group_by const by : every_kind) {
        CAPTURE(seed);
        CAPTURE(static_cast<int>(by));
        compare(returns_case<T>{seed}, by, seed % 4 == 0);
      }
  }

  TEST_CASE("groups in all three sum orders, at their borders") {
    integers random{77};
    for (std::int64_t const size : {1, 2, 31, 32, 33, 63, 64, 65, 300, 4095, 4096, 4097, 5119, 9000}) {
      CAPTURE(size);
      std::vector<turn_values<double>> trajectories;
      for (std::int64_t k = 0; k < size; ++k)
        trajectories.push_back({.group = 5, .id = size - k, .turns = {turnwise::test::uneven_number(random)}});
      returns_case<double> one{1};
      one.batch = ragged_batch<double>{trajectories};
      one.turn_return = one.batch.value;
      one.reasons.assign(one.turn_return.size(), 0);
      for (auto& flags : one.reasons) flags = random.below(5) == 0 ? turnwise::reason::ratio_low : 0;
      compare(one, group_by::turn, false);
    }
  }

  TEST_CASE("trajectories of many turns: their own sum is taken in order") {
    integers random{78};
    std::vector<turn_values<double>> trajectories;
    for (std::int64_t const turns : {31, 0, 32, 1, 33, 64, 2, 700, 65, 1, 1, 96, 5000, 3}) {
      turn_values<double> one{.group = -9, .id = static_cast<std::int64_t>(trajectories.size())};
      for (std::int64_t t = 0; t < turns; ++t) one.turns.push_back(turnwise::test::uneven_number(random));
      trajectories.push_back(one);
    }
    for (bool const alone : {false, true}) {
      if (alone) trajectories.erase(trajectories.begin(), trajectories.end() - 2);
      returns_case<double> one{1};
      one.batch = ragged_batch<double>{trajectories};
      one.turn_return = one.batch.value;
      one.reasons.assign(one.turn_return.size(), 0);
      for (auto& flags : one.reasons) flags = random.below(6) == 0 ? turnwise::reason::invalid : 0;
      for (group_by const by : every_kind) compare(one, by, true);
    }
  }

  TEST_CASE("without reasons all turns are valid") {
    returns_case<float> one{6};
    for (float& value : one.turn_return) value = value == value ? value : 0.0f;
    device_groups const device{one.batch.view(), group_by::group};
    same_advantages(turnwise::make_grouping(one.batch.view(), group_by::group), device.groups(), one.turn_return, {},
                    host_call({}), device_call<float>({}));
  }

  TEST_CASE_TEMPLATE("bad content and bad arguments", T, float, double) {
    leave_one_out_options const options{.singleton = singleton_policy::others};
    check_group_errors<T>(host_call(options), device_call<T>(options));
    device_groups const empty{turnwise::rollout_view{}, group_by::turn};
    side_stream const stream;
    CHECK_THROWS_AS(device_call<T>({.members = baseline_members::kept})(empty.groups(), {}, {}, {}, nullptr, stream),
                    turnwise::precondition_error);
  }

}  // TEST_SUITE
