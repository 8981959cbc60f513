#include "support/gpu_groups.cuh"
#include "support/gpu_rules.cuh"

#include <turnwise/gpu/rejection/group_accuracy.cuh>

namespace group_accuracy_test {

using namespace support;
using turnwise::rejection::group_accuracy_options;
using turnwise::rejection::scope;

namespace {

/// Values of which groups have few or many; those of invalid turns are not numbers.
template <typename T>
std::vector<T> random_values_of(rule_case const& one, std::uint64_t seed) {
  integers random{seed ^ 0x9a};
  std::vector<T> result;
  std::int64_t const kinds = 1 + static_cast<std::int64_t>(seed % 4);
  for (reason_flags const flags : one.reasons)
    result.push_back(turnwise::is_valid(flags) ? static_cast<T>(random.below(kinds)) * T(0.3)
                                               : static_cast<T>(turnwise::test::nan_value));
  return result;
}

template <typename T>
void compare(std::uint64_t seed) {
  rule_case const one{seed};
  auto const value = random_values_of<T>(one, seed);
  auto const device_value = on_device(value);
  for (auto const by : every_kind) {
    CAPTURE(static_cast<int>(by));
    auto const groups = turnwise::make_grouping(one.batch.view(), by);
    device_groups const device{one.batch.view(), by};
    for (auto const level : {scope::turn, scope::trajectory})
      for (group_accuracy_options options :
           {group_accuracy_options{}, group_accuracy_options{0.3, 0.3}, group_accuracy_options{0.25, 0.5}}) {
        options.level = level;
        one.compare(
            [&](auto const&, auto, auto reasons) {
              turnwise::rejection::group_accuracy(groups, std::span<T const>{value}, options, reasons);
            },
            [&](gpu::rollout_view const&, gpu::device_span<turn_statistics const>,
                gpu::device_span<reason_flags> reasons, gpu::status_record* status, cuda::stream_ref stream) {
              gpu::rejection::group_accuracy(device.groups(), device_value.view(), options, reasons, status, stream);
            });
      }
  }
}

}  // namespace

TEST_SUITE("gpu/rejection/group_accuracy" * doctest::skip(!has_device())) {
  TEST_CASE("the host's flags, all groupings and options") {
    for (std::uint64_t seed = 0; seed <= seeds(16); ++seed) {
      CAPTURE(seed);
      compare<float>(seed);
      compare<double>(seed);
    }
  }

  TEST_CASE("a value that is not finite is reported, and its turn is not looked at") {
    rule_case const one{8};
    auto value = random_values_of<double>(one, 8);
    auto without = one.reasons;
    std::int64_t first = -1;
    for (std::size_t s = 4; s < value.size(); s += 9) {
      if (!turnwise::is_valid(one.reasons[s])) continue;
      value[s] = s % 2 == 0 ? turnwise::test::infinity : turnwise::test::nan_value;
      without[s] = turnwise::reason::invalid;
      if (first < 0) first = static_cast<std::int64_t>(s);
    }
    auto const groups = turnwise::make_grouping(one.batch.view(), turnwise::group_by::turn);
    auto expected = without;
    turnwise::rejection::group_accuracy(groups, std::span<double const>{value}, {}, expected);
    device_groups const device{one.batch.view(), turnwise::group_by::turn};
    auto const device_value = on_device(value);
    auto const reasons = on_device(one.reasons);
    device_status const status;
    side_stream const stream;
    gpu::rejection::group_accuracy(device.groups(), device_value.view(), {}, reasons.span(), status.get(), stream);
    stream.wait();
    auto const got = reasons.host();
    for (std::size_t s = 0; s < got.size(); ++s)
      if (without[s] == one.reasons[s]) CHECK(got[s] == expected[s]);
    CHECK(status.host().code() == gpu::status_code::turn_return);
    CHECK(status.host().index() == first);
  }

  TEST_CASE("no turns, wrong offsets; bad sizes and options throw and nothing is written") {
    side_stream const stream;
    device_groups const empty{turnwise::rollout_view{}, turnwise::group_by::group};
    gpu::rejection::group_accuracy<float>(empty.groups(), {}, {}, {}, nullptr, stream);
    rule_case const one{6};
    auto const value = on_device(random_values_of<double>(one, 6));
    auto const reasons = on_device(one.reasons);
    auto offsets = one.batch.offsets;
    offsets[1] = static_cast<std::int64_t>(one.reasons.size()) + 7;
    auto view = one.batch.view();
    view.trajectory_offsets = offsets;
    device_groups const broken{view, one.reasons.size(), turnwise::group_by::group};
    gpu::rejection::group_accuracy(broken.groups(), value.view(), {}, reasons.span(), nullptr, stream);
    device_groups const device{one.batch.view(), turnwise::group_by::group};
    std::size_t const fewer = one.reasons.size() - 1;
    auto const throws = [&](std::size_t values, std::size_t out, group_accuracy_options const& options) {
      CHECK_THROWS_AS(gpu::rejection::group_accuracy(device.groups(), value.view().first(values), options,
                                                     reasons.span().first(out), nullptr, stream),
                      turnwise::precondition_error);
    };
    throws(fewer, fewer + 1, {});
    throws(fewer + 1, fewer, {});
    throws(fewer + 1, fewer + 1, {.low = 1, .high = 0});
    throws(fewer + 1, fewer + 1, {.low = turnwise::test::nan_value});
    stream.wait();
    CHECK(reasons.host() == one.reasons);
  }

}  // TEST_SUITE

}  // namespace group_accuracy_test
