#include "support/gpu_evaluation.cuh"

#include <turnwise/gpu/reward/kevin_score.cuh>

#include <doctest/doctest.h>

namespace kevin_score_test {

using namespace support;
using turnwise::reward::kevin_score_options;

namespace {

template <typename E, typename T>
void compare(std::uint64_t seed, kevin_score_options const& options) {
  auto const batch = random_batch<double>(seed);
  random_evaluation<E> const turns{seed, batch.turns()};
  auto const reasons = seed % 5 == 0 ? std::vector<reason_flags>{} : batch.reasons();
  std::vector<T> expected(batch.turns());
  turnwise::reward::kevin_score(turns.view(), options, reasons, std::span{expected});

  device_evaluation<E> const device{turns.view()};
  auto evaluation = device.view();
  if (seed % 3 == 0) evaluation.generated_us = evaluation.total_us = {};  // not read
  auto const device_reasons = on_device(reasons);
  device_array<T> const reward{batch.turns()};
  device_status const status;
  on_stream_and_in_graph([&] { fill_bytes(reward, 0xa5); },
                         [&](cuda::stream_ref stream) {
                           gpu::reward::kevin_score(evaluation, options, device_reasons.view(), reward.span(),
                                                    status.get(), stream);
                         },
                         [&] {
                           CHECK(status.ok());
                           CHECK(same_numbers(reward.host(), expected));
                         });
}

}  // namespace

TEST_SUITE("gpu/reward/kevin_score" * doctest::skip(!has_device())) {
  TEST_CASE("the host's bits, all types") {
    for (std::uint64_t seed = 1; seed <= seeds(20); ++seed)
      for (auto const& options : {kevin_score_options{}, kevin_score_options{0.31, 1.1, 2.5, 1.0, -0.1}}) {
        CAPTURE(seed);
        compare<float, float>(seed, options);
        compare<float, double>(seed, options);
        compare<double, float>(seed, options);
        compare<double, double>(seed, options);
      }
  }

  TEST_CASE("an infinite speedup of a correct turn is reported and unscored; an infinite time is not read") {
    std::size_t const turns = 100;
    random_evaluation<float> one{3, turns};
    std::vector<reason_flags> reasons(turns);
    std::vector<double> expected(turns);
    turnwise::reward::kevin_score(one.view(), {}, reasons, std::span{expected});
    std::int64_t first = -1;
    bool flagged = false;
    for (std::size_t s = 10; s < turns; ++s) {
      one.total_us[s] = std::numeric_limits<float>::infinity();
      if (!one.counts_as_correct(s) || s % 2 != 0) continue;
      one.speedup[s] = std::numeric_limits<float>::infinity();
      if (!flagged) reasons[s] = turnwise::reason::invalid;  // not judged
      flagged = true;
      if (reasons[s] == 0 && first < 0) first = static_cast<std::int64_t>(s);
      expected[s] = reasons[s] == 0 ? turnwise::test::nan_value : turnwise::test::infinity;
    }
    device_evaluation<float> const device{one.view()};
    auto const device_reasons = on_device(reasons);
    device_array<double> const reward{turns};
    device_status const status;
    side_stream const stream;
    gpu::reward::kevin_score(device.view(), {}, device_reasons.view(), reward.span(), status.get(), stream);
    stream.wait();
    CHECK(same_numbers(reward.host(), expected));
    CHECK(status.host().code() == gpu::status_code::infinite_ingredient);
    CHECK(status.host().index() == first);
  }

  TEST_CASE("a score beyond the magnitude limit of its type is reported and unscored") {
    std::vector<std::uint8_t> const correct{1, 1, 0, 1, 1};
    std::vector<float> const speedup{2, 0x1p41f, 0x1p41f, 0x1p41f, 3}, times(5, 1);
    std::vector<reason_flags> const reasons{turnwise::reason::invalid, 0, 0, turnwise::reason::invalid, 0};
    kevin_score_options const options{.correct_weight = 0, .speedup_weight = 0x1p60};
    device_evaluation<float> const device{
        {.correct = correct, .speedup = speedup, .generated_us = times, .total_us = times}};
    auto const device_reasons = on_device(reasons);
    device_array<float> const reward{5};
    device_status const status;
    side_stream const stream;
    gpu::reward::kevin_score(device.view(), options, device_reasons.view(), reward.span(), status.get(), stream);
    stream.wait();
    auto const nan = std::numeric_limits<float>::quiet_NaN();
    CHECK(same_numbers(reward.host(), {0x1p61f, nan, 0, 0x1p101f, 0x3p60f}));
    CHECK(status.host().code() == gpu::status_code::reward);
    CHECK(status.host().index() == 1);
    CHECK_THROWS_AS(gpu::reward::kevin_score(device.view(), kevin_score_options{.correct_weight = 0x1p101},
                                             device_reasons.view(), reward.span(), nullptr, stream),
                    turnwise::precondition_error);
  }

  TEST_CASE("no turns; bad sizes and options throw with nothing written") {
    side_stream const stream;
    gpu::reward::kevin_score<float, float>({}, {}, {}, {}, nullptr, stream);
    std::size_t const turns = 50;
    random_evaluation<double> const one{7, turns};
    device_evaluation<double> const device{one.view()};
    device_array<reason_flags> const reasons{turns};
    fill_bytes(reasons, 0);
    device_array<double> const reward{turns};
    fill_bytes(reward, 0x42);
    auto const untouched = reward.host();
    auto const call = [&](gpu::reward::evaluation<double> const& evaluation, std::size_t flags,
                          kevin_score_options const& options) {
      gpu::reward::kevin_score(evaluation, options, reasons.view().first(flags), reward.span(), nullptr, stream);
    };
    auto shorter = device.view();
    shorter.speedup = shorter.speedup.first(turns - 1);
    using turnwise::precondition_error;
    CHECK_THROWS_AS(call(shorter, turns, {}), precondition_error);
    CHECK_THROWS_AS(call(device.view(), turns - 1, {}), precondition_error);
    CHECK_THROWS_AS(call(device.view(), turns, {.speedup_weight = turnwise::test::infinity}), precondition_error);
    CHECK_THROWS_AS(call(device.view(), turns, {.speedup_cap = 1, .speedup_floor = 2}), precondition_error);
    stream.wait();
    CHECK(same_bits(reward.host(), untouched));
  }

}  // TEST_SUITE

}  // namespace kevin_score_test
