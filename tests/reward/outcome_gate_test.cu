#include "support/gpu_batches.cuh"

#include <turnwise/gpu/reward/outcome_gate.cuh>

#include <doctest/doctest.h>

namespace outcome_gate_test {

using namespace support;
using turnwise::reward::outcome_gate_options;
using turnwise::reward::shaping_form;

TEST_SUITE("gpu/reward/outcome_gate" * doctest::skip(!has_device())) {
  TEST_CASE_TEMPLATE("the host's bits, all options; over either input", T, float, double) {
    for (std::uint64_t seed = 1; seed <= seeds(20); ++seed) {
      auto const batch = random_batch<T>(seed);
      auto const reasons = seed % 5 == 0 ? std::vector<reason_flags>{} : batch.reasons();
      integers random{seed};
      std::vector<T> shaping;
      for (std::size_t s = 0; s < batch.turns(); ++s)
        shaping.push_back(random.below(20) == 0 ? std::numeric_limits<T>::quiet_NaN()
                                                : turnwise::test::uneven_number<T>(random));
      auto const device_reasons = on_device(reasons);
      for (auto const& options :
           {outcome_gate_options{}, outcome_gate_options::length_bonus(),
            outcome_gate_options{0.01, 0.7, -2, 3, shaping_form::factor}, outcome_gate_options{-1, -0.3, -0.5}}) {
        CAPTURE(seed);
        std::vector<T> expected(batch.turns());
        turnwise::reward::outcome_gate(batch.value, shaping, options, std::span<reason_flags const>{reasons},
                                       std::span{expected});
        auto const outcome = on_device(batch.value);
        auto const device_shaping = on_device(shaping);
        device_array<T> const reward{batch.turns()};
        device_status const status;
        on_stream_and_in_graph([&] { fill_bytes(reward, 0xa5); },
                               [&](cuda::stream_ref stream) {
                                 gpu::reward::outcome_gate(outcome.view(), device_shaping.view(), options,
                                                           device_reasons.view(), reward.span(), status.get(), stream);
                               },
                               [&] {
                                 CHECK(status.ok());
                                 CHECK(same_numbers(reward.host(), expected));
                               });
        side_stream const stream;
        gpu::reward::outcome_gate(outcome.view(), device_shaping.view(), options, device_reasons.view(),
                                  device_shaping.span(), nullptr, stream);
        stream.wait();
        CHECK(same_numbers(device_shaping.host(), expected));
      }
    }
  }

  TEST_CASE("an infinite outcome, or shaping term behind an open gate, is reported and acts as NaN") {
    double const infinite = turnwise::test::infinity, nan = turnwise::test::nan_value;
    auto const outcome = on_device(std::vector<double>{infinite, 0, 1, -infinite, 1});
    auto const shaping = on_device(std::vector<double>{1, infinite, infinite, 1, 2});
    auto const reasons = on_device(std::vector<reason_flags>{turnwise::reason::invalid, 0, 0, 0, 0});
    device_array<double> const reward{5};
    device_status const status;
    side_stream const stream;
    gpu::reward::outcome_gate(outcome.view(), shaping.view(), {}, reasons.view(), reward.span(), status.get(), stream);
    stream.wait();
    CHECK(same_numbers(reward.host(), {infinite, 0, nan, nan, 3}));
    CHECK(status.host().code() == gpu::status_code::reward);
    CHECK(status.host().index() == 2);
  }

  TEST_CASE("no turns; bad sizes and options throw with nothing written") {
    side_stream const stream;
    gpu::reward::outcome_gate<float>({}, {}, {}, {}, {}, nullptr, stream);
    device_array<double> const outcome{9}, shaping{9}, reward{9};
    device_array<reason_flags> const reasons{9};
    fill_bytes(reward, 0x42);
    auto const untouched = reward.host();
    auto const call = [&](std::size_t terms, std::size_t flags, std::size_t outputs,
                          outcome_gate_options const& options) {
      gpu::reward::outcome_gate(outcome.view(), shaping.view().first(terms), options, reasons.view().first(flags),
                                reward.span().first(outputs), nullptr, stream);
    };
    using turnwise::precondition_error;
    CHECK_THROWS_AS(call(8, 9, 9, {}), precondition_error);
    CHECK_THROWS_AS(call(9, 8, 9, {}), precondition_error);
    CHECK_THROWS_AS(call(9, 9, 8, {}), precondition_error);
    CHECK_THROWS_AS(call(9, 9, 9, {.low = 1, .high = 0}), precondition_error);
    CHECK_THROWS_AS(call(9, 9, 9, {.weight = 0, .low = turnwise::test::infinity}), precondition_error);
    stream.wait();
    CHECK(same_bits(reward.host(), untouched));
  }

}  // TEST_SUITE

}  // namespace outcome_gate_test
