#include "support/gpu_batches.cuh"

#include <turnwise/gpu/reward/scaled_penalty.cuh>

#include <doctest/doctest.h>

namespace scaled_penalty_test {

using namespace support;
using turnwise::reward::penalty_kind;
using turnwise::reward::scaled_penalty_options;

TEST_SUITE("gpu/reward/scaled_penalty" * doctest::skip(!has_device())) {
  TEST_CASE_TEMPLATE("the host's bits, all kinds; in place", T, float, double) {
    for (std::uint64_t seed = 1; seed <= seeds(20); ++seed) {
      auto const batch = random_batch<T>(seed);
      auto const reasons = seed % 5 == 0 ? std::vector<reason_flags>{} : batch.reasons();
      integers random{seed};
      std::vector<std::uint8_t> marked;
      for (std::size_t s = 0; s < batch.turns(); ++s) marked.push_back(static_cast<std::uint8_t>(random.below(3)));
      auto const reward = on_device(batch.value);
      auto const device_marked = on_device(marked);
      auto const device_reasons = on_device(reasons);
      device_array<T> const out{batch.turns()};
      device_status const status;
      for (auto const& options :
           {scaled_penalty_options{}, scaled_penalty_options{penalty_kind::away, 0.3},
            scaled_penalty_options{penalty_kind::multiply, 0.3}, scaled_penalty_options{penalty_kind::replace, -1.7}}) {
        CAPTURE(seed);
        std::vector<T> expected(batch.turns());
        turnwise::reward::scaled_penalty(batch.value, marked, options, std::span<reason_flags const>{reasons},
                                         std::span{expected});
        on_stream_and_in_graph([&] { fill_bytes(out, 0xa5); },
                               [&](cuda::stream_ref stream) {
                                 gpu::reward::scaled_penalty(reward.view(), device_marked.view(), options,
                                                             device_reasons.view(), out.span(), status.get(), stream);
                               },
                               [&] {
                                 CHECK(status.ok());
                                 CHECK(same_numbers(out.host(), expected));
                               });
        auto const in_place = on_device(batch.value);
        side_stream const stream;
        gpu::reward::scaled_penalty(in_place.view(), device_marked.view(), options, device_reasons.view(),
                                    in_place.span(), nullptr, stream);
        stream.wait();
        CHECK(same_numbers(in_place.host(), expected));
      }
    }
  }

  TEST_CASE("an infinite reward is reported and acts as NaN, marked or not") {
    double const infinite = turnwise::test::infinity, nan = turnwise::test::nan_value;
    auto const reward = on_device(std::vector<double>{infinite, 1, -infinite, 0x1p501, -4});
    auto const marked = on_device(std::vector<std::uint8_t>{1, 1, 0, 1, 1});
    auto const reasons = on_device(std::vector<reason_flags>{turnwise::reason::invalid, 0, 0, 0, 0});
    device_array<double> const out{5};
    device_status const status;
    side_stream const stream;
    gpu::reward::scaled_penalty(reward.view(), marked.view(), {}, reasons.view(), out.span(), status.get(), stream);
    stream.wait();
    CHECK(same_numbers(out.host(), {infinite, 0.5, nan, nan, -6}));
    CHECK(status.host().code() == gpu::status_code::reward);
    CHECK(status.host().index() == 2);
  }

  TEST_CASE("no turns; bad sizes and options throw with nothing written") {
    side_stream const stream;
    gpu::reward::scaled_penalty<float>({}, {}, {}, {}, {}, nullptr, stream);
    device_array<double> const reward{9};
    device_array<std::uint8_t> const marked{9};
    device_array<reason_flags> const reasons{9};
    device_array<double> const out{9};
    fill_bytes(out, 0x42);
    auto const untouched = out.host();
    auto const call = [&](std::size_t marks, std::size_t flags, std::size_t outputs,
                          scaled_penalty_options const& options) {
      gpu::reward::scaled_penalty(reward.view(), marked.view().first(marks), options, reasons.view().first(flags),
                                  out.span().first(outputs), nullptr, stream);
    };
    using turnwise::precondition_error;
    CHECK_THROWS_AS(call(8, 9, 9, {}), precondition_error);
    CHECK_THROWS_AS(call(9, 8, 9, {}), precondition_error);
    CHECK_THROWS_AS(call(9, 9, 8, {}), precondition_error);
    CHECK_THROWS_AS(call(9, 9, 9, {penalty_kind::away, 1.5}), precondition_error);
    stream.wait();
    CHECK(same_bits(out.host(), untouched));
  }

}  // TEST_SUITE

}  // namespace scaled_penalty_test
