#include "support/gpu_evaluation.cuh"
#include "support/gpu_rules.cuh"

#include <turnwise/gpu/rejection/profiling_filter.cuh>

namespace profiling_filter_test {

using namespace support;
using gpu::status_code;
using turnwise::rejection::invalid_profile_policy;
using turnwise::rejection::profiling_filter_options;

namespace {

constexpr turnwise::draw_key key{20261129u, 41u};

template <typename E>
auto host_call(random_evaluation<E> const& turns, profiling_filter_options const& options) {
  return [&turns, options](auto const& batch, auto, auto reasons) {
    turnwise::rejection::profiling_filter(batch, turns.view(), options, key, reasons);
  };
}
template <typename E>
auto device_call(device_evaluation<E> const& turns, profiling_filter_options const& options) {
  return
      [&turns, options](gpu::rollout_view const& batch, gpu::device_span<turn_statistics const>,
                        gpu::device_span<reason_flags> reasons, gpu::status_record* status, cuda::stream_ref stream) {
        gpu::rejection::profiling_filter(batch, turns.view(), options, key, reasons, status, stream);
      };
}

template <typename E>
void compare(std::uint64_t seed) {
  rule_case const one{seed};
  random_evaluation<E> const turns{seed, one.batch.turns()};
  device_evaluation<E> const device{turns.view()};
  for (auto const& base : {profiling_filter_options{}, profiling_filter_options{.threshold = 0.5, .softness = 0.0},
                           profiling_filter_options{.threshold = 0.0, .softness = 1.3, .keep_speedup = 5.0}})
    for (bool const all_turns : {false, true})
      for (auto const policy : {invalid_profile_policy::reject, invalid_profile_policy::keep}) {
        auto options = base;
        options.all_turns = all_turns;
        options.invalid_profile = policy;
        one.compare(host_call(turns, options), device_call(device, options));
      }
}

}  // namespace

TEST_SUITE("gpu/rejection/profiling_filter" * doctest::skip(!has_device())) {
  TEST_CASE("the host's draws and flags, all options") {
    for (std::uint64_t seed = 0; seed <= seeds(20); ++seed) {
      CAPTURE(seed);
      compare<float>(seed);
      compare<double>(seed);
    }
  }

  TEST_CASE("under `error` a profile without meaning is reported and rejected") {
    rule_case const one{7};
    random_evaluation<float> const turns{7, one.batch.turns()};
    device_evaluation<float> const device{turns.view()};
    std::int64_t first = 0;
    for (; true; ++first)
      if (turnwise::is_valid(one.reasons[first]) && turns.counts_as_correct(static_cast<std::size_t>(first)) &&
          !turnwise::reward::has_profile(turns.generated_us[first], turns.total_us[first]))
        break;
    one.compare(host_call(turns, {}), device_call(device, {.invalid_profile = invalid_profile_policy::error}),
                status_code::invalid_profile, first);
  }

  TEST_CASE("ids outside [0, 2^32) are reported; such a turn is rejected where it needs a draw") {
    rule_case one{8};
    random_evaluation<float> const turns{8, one.batch.turns()};
    device_evaluation<float> const evaluation{turns.view()};
    auto expected = one.reasons;
    turnwise::rejection::profiling_filter(one.batch.view(), turns.view(), {}, key, expected);
    std::size_t j = 5;
    while (one.batch.offsets[j + 1] - one.batch.offsets[j] < 3) ++j;
    auto const first = static_cast<std::size_t>(one.batch.offsets[j]);
    one.batch.trajectory_id[j] = std::int64_t{1} << 32;
    for (std::size_t s = first; s < static_cast<std::size_t>(one.batch.offsets[j + 1]); ++s)
      if (turnwise::is_valid(one.reasons[s]) && turns.counts_as_correct(s) &&
          turnwise::reward::has_profile(turns.generated_us[s], turns.total_us[s]))
        expected[s] |= turnwise::reason::profiling;
    device_rollout const device{one.batch.view()};
    auto const reasons = on_device(one.reasons);
    device_status const status;
    side_stream const stream;
    device_call(evaluation, {})(device.view(), {}, reasons.span(), status.get(), stream);
    stream.wait();
    CHECK(reasons.host() == expected);
    CHECK(status.host().code() == status_code::draw_id);
    CHECK(status.host().index() == static_cast<std::int64_t>(first));
  }

  TEST_CASE("wrong sizes, no turns, wrong offsets, bad options") {
    rule_case const one{6};
    random_evaluation<double> const turns{6, one.batch.turns()};
    device_evaluation<double> const device{turns.view()};
    one.check_sizes([&](gpu::rollout_view const& batch, gpu::device_span<turn_statistics const> statistics,
                        gpu::device_span<reason_flags> reasons, gpu::status_record* status, cuda::stream_ref stream) {
      auto evaluation = device.view();
      if (statistics.size() != one.batch.turns()) evaluation.speedup = evaluation.speedup.first(statistics.size());
      if (batch.turns == 0) evaluation = {};
      gpu::rejection::profiling_filter(batch, evaluation, {}, key, reasons, status, stream);
    });
    side_stream const stream;
    auto const call = [&](profiling_filter_options const& options) {
      gpu::rejection::profiling_filter(one.device.view(), device.view(), options, key, one.after.span(), nullptr,
                                       stream);
    };
    CHECK_THROWS_AS(call({.threshold = -1}), turnwise::precondition_error);
    CHECK_THROWS_AS(call({.softness = turnwise::test::infinity}), turnwise::precondition_error);
    CHECK_THROWS_AS(call({.keep_speedup = turnwise::test::nan_value}), turnwise::precondition_error);
  }

}  // TEST_SUITE

}  // namespace profiling_filter_test
