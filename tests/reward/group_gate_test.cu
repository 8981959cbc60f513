#include "support/gpu_evaluation.cuh"
#include "support/gpu_groups.cuh"

#include <turnwise/gpu/reward/group_gate.cuh>

#include <doctest/doctest.h>

namespace group_gate_test {

using namespace support;
using turnwise::group_by;
using turnwise::reward::group_gate_options;

TEST_SUITE("gpu/reward/group_gate" * doctest::skip(!has_device())) {
  TEST_CASE_TEMPLATE("the host's bits, all groupings", T, float, double) {
    for (std::uint64_t seed = 1; seed <= seeds(20); ++seed)
      for (group_by const by : every_kind) {
        CAPTURE(seed);
        CAPTURE(static_cast<int>(by));
        auto const batch = random_batch<T>(seed);
        random_evaluation<T> const turns{seed, batch.turns()};
        auto const reasons = seed % 5 == 0 ? std::vector<reason_flags>{} : batch.reasons();
        auto const host_groups = turnwise::make_grouping(batch.view(), by);
        device_groups const device{batch.view(), by};
        device_evaluation<T> const evaluation{turns.view()};
        auto const device_reasons = on_device(reasons);
        device_array<T> const reward{batch.turns()};
        device_status const status;
        for (auto const& options :
             {group_gate_options{}, group_gate_options{0.6, 0.3, 1.5, 1}, group_gate_options{0, 0.7}}) {
          std::vector<T> expected(batch.turns());
          turnwise::reward::group_gate(host_groups, turns.view(), options, std::span<reason_flags const>{reasons},
                                       std::span{expected});
          on_stream_and_in_graph([&] { fill_bytes(reward, 0xa5); },
                                 [&](cuda::stream_ref stream) {
                                   gpu::reward::group_gate(device.groups(), evaluation.view(), options,
                                                           device_reasons.view(), reward.span(), status.get(), stream);
                                 },
                                 [&] {
                                   CHECK(status.ok());
                                   CHECK(same_numbers(reward.host(), expected));
                                 });
        }
      }
  }

  TEST_CASE("an infinite speedup is reported and acts as NaN") {
    auto const batch = random_batch<double>(2);
    random_evaluation<double> one{9, batch.turns()};
    auto const reasons = batch.reasons();
    auto missing = one;
    std::int64_t first = -1;
    for (std::size_t s = 2; s < batch.turns(); s += 13) {
      if (!one.counts_as_correct(s) || reasons[s] != 0) continue;
      one.speedup[s] = turnwise::test::infinity;
      missing.speedup[s] = turnwise::test::nan_value;
      if (first < 0) first = static_cast<std::int64_t>(s);
    }
    std::vector<double> expected(batch.turns());
    turnwise::reward::group_gate(turnwise::make_grouping(batch.view(), group_by::turn), missing.view(), {},
                                 std::span<reason_flags const>{reasons}, std::span{expected});
    device_groups const device{batch.view(), group_by::turn};
    device_evaluation<double> const evaluation{one.view()};
    auto const device_reasons = on_device(reasons);
    device_array<double> const reward{batch.turns()};
    device_status const status;
    side_stream const stream;
    gpu::reward::group_gate(device.groups(), evaluation.view(), {}, device_reasons.view(), reward.span(), status.get(),
                            stream);
    stream.wait();
    CHECK(same_numbers(reward.host(), expected));
    CHECK(status.host().code() == gpu::status_code::infinite_ingredient);
    CHECK(status.host().index() == first);
  }

  TEST_CASE("no turns; bad sizes and options throw with nothing written") {
    side_stream const stream;
    device_groups const empty{turnwise::rollout_view{}, group_by::group};
    gpu::reward::group_gate<float, float>(empty.groups(), {}, {}, {}, {}, nullptr, stream);
    auto const batch = random_batch<double>(3);
    random_evaluation<double> const one{3, batch.turns()};
    device_groups const device{batch.view(), group_by::group};
    device_evaluation<double> const evaluation{one.view()};
    auto const reasons = on_device(batch.reasons());
    device_array<double> const reward{batch.turns()};
    fill_bytes(reward, 0x42);
    auto const untouched = reward.host();
    std::size_t const fewer = batch.turns() - 1;
    auto const call = [&](gpu::reward::evaluation<double> const& turns, gpu::device_span<reason_flags const> flags,
                          gpu::device_span<double> out, group_gate_options const& options) {
      gpu::reward::group_gate(device.groups(), turns, options, flags, out, nullptr, stream);
    };
    auto turns = evaluation.view();
    using turnwise::precondition_error;
    CHECK_THROWS_AS(call(turns, reasons.view().first(fewer), reward.span(), {}), precondition_error);
    CHECK_THROWS_AS(call(turns, reasons.view(), reward.span().first(fewer), {}), precondition_error);
    CHECK_THROWS_AS(call(turns, reasons.view(), reward.span(), {.alpha = 1.1}), precondition_error);
    CHECK_THROWS_AS(call(turns, reasons.view(), reward.span(), {.beta = -1}), precondition_error);
    CHECK_THROWS_AS(call(turns, reasons.view(), reward.span(), {.min_spread = -1}), precondition_error);
    turns.speedup = turns.speedup.first(fewer);
    CHECK_THROWS_AS(call(turns, reasons.view(), reward.span(), {}), precondition_error);
    stream.wait();
    CHECK(same_bits(reward.host(), untouched));
  }

}  // TEST_SUITE

}  // namespace group_gate_test
