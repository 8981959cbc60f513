#include "support/gpu_evaluation.cuh"

#include <turnwise/gpu/reward/kernel_reward.cuh>

#include <doctest/doctest.h>

namespace kernel_reward_test {

using namespace support;
using turnwise::reward::kernel_reward_options;

namespace {

template <typename E, typename T>
void compare(std::uint64_t seed, kernel_reward_options const& options) {
  auto const batch = random_batch<double>(seed);
  random_evaluation<E> const turns{seed, batch.turns()};
  auto const reasons = seed % 5 == 0 ? std::vector<reason_flags>{} : batch.reasons();
  std::vector<T> expected(batch.turns());
  turnwise::reward::kernel_reward(turns.view(), options, reasons, std::span{expected});

  device_evaluation<E> const device{turns.view()};
  auto const device_reasons = on_device(reasons);
  device_array<T> const reward{batch.turns()};
  device_status const status;
  on_stream_and_in_graph([&] { fill_bytes(reward, 0xa5); },
                         [&](cuda::stream_ref stream) {
                           gpu::reward::kernel_reward(device.view(), options, device_reasons.view(), reward.span(),
                                                      status.get(), stream);
                         },
                         [&] {
                           CHECK(status.ok());
                           CHECK(same_numbers(reward.host(), expected));
                         });
}

}  // namespace

TEST_SUITE("gpu/reward/kernel_reward" * doctest::skip(!has_device())) {
  TEST_CASE("the host's bits, all types") {
    kernel_reward_options const released{
        .correct_weight = 0.5, .speedup_weight = 0.5, .profiling_weight = 0.5, .speedup_cap = 3.0};
    kernel_reward_options const penalties{.correct_weight = 0.3,
                                          .speedup_weight = 1.1,
                                          .profiling_weight = 0.7,
                                          .speedup_cap = 2.5,
                                          .speedup_floor = 1.0,
                                          .compile_failure_penalty = -1.0,
                                          .rule_violation_penalty = -0.9,
                                          .decoy_penalty = -0.8,
                                          .incorrect_penalty = -0.1};
    for (std::uint64_t seed = 1; seed <= seeds(20); ++seed)
      for (auto const& options : {kernel_reward_options{}, released, penalties}) {
        CAPTURE(seed);
        compare<float, float>(seed, options);
        compare<float, double>(seed, options);
        compare<double, float>(seed, options);
        compare<double, double>(seed, options);
      }
  }

  TEST_CASE("an infinite ingredient of a correct turn is reported and unscored") {
    std::size_t const turns = 100;
    random_evaluation<float> one{3, turns};
    std::vector<reason_flags> reasons(turns);
    std::vector<double> expected(turns);
    constexpr float infinite = std::numeric_limits<float>::infinity();
    turnwise::reward::kernel_reward(one.view(), {}, reasons, std::span{expected});
    std::int64_t first = -1;
    for (std::size_t s = 10, kind = 0; s < turns; ++s) {
      if (!one.counts_as_correct(s)) continue;
      (kind % 3 == 0 ? one.speedup : kind % 3 == 1 ? one.generated_us : one.total_us)[s] = infinite;
      if (kind++ == 0) reasons[s] = turnwise::reason::invalid;  // not judged
      if (reasons[s] == 0 && first < 0) first = static_cast<std::int64_t>(s);
      expected[s] = reasons[s] == 0 ? turnwise::test::nan_value : infinite;
    }
    device_evaluation<float> const device{one.view()};
    auto const device_reasons = on_device(reasons);
    device_array<double> const reward{turns};
    device_status const status;
    side_stream const stream;
    gpu::reward::kernel_reward(device.view(), {}, device_reasons.view(), reward.span(), status.get(), stream);
    stream.wait();
    CHECK(same_numbers(reward.host(), expected));
    CHECK(status.host().code() == gpu::status_code::infinite_ingredient);
    CHECK(status.host().index() == first);
  }

  TEST_CASE("a reward beyond the magnitude limit of its type is reported and unscored") {
    std::vector<std::uint8_t> const correct{1, 1, 0, 1, 1};
    std::vector<float> const speedup{2, 0x1p41f, 0x1p41f, 0x1p41f, 3}, times(5, 1);
    std::vector<reason_flags> const reasons{turnwise::reason::invalid, 0, 0, turnwise::reason::invalid, 0};
    turnwise::reward::kernel_reward_options const options{
        .correct_weight = 0, .speedup_weight = 0x1p60, .profiling_weight = 0};
    device_evaluation<float> const device{
        {.correct = correct, .speedup = speedup, .generated_us = times, .total_us = times}};
    auto const device_reasons = on_device(reasons);
    device_array<float> const reward{5};
    device_status const status;
    side_stream const stream;
    gpu::reward::kernel_reward(device.view(), options, device_reasons.view(), reward.span(), status.get(), stream);
    stream.wait();
    auto const nan = std::numeric_limits<float>::quiet_NaN();
    CHECK(same_numbers(reward.host(), {0x1p61f, nan, 0, 0x1p101f, 0x3p60f}));
    CHECK(status.host().code() == gpu::status_code::reward);
    CHECK(status.host().index() == 1);
    CHECK_THROWS_AS(
        gpu::reward::kernel_reward(device.view(), turnwise::reward::kernel_reward_options{.correct_weight = 0x1p101},
                                   device_reasons.view(), reward.span(), nullptr, stream),
        turnwise::precondition_error);
  }

  TEST_CASE("no turns; bad sizes and options throw with nothing written") {
    side_stream const stream;
    gpu::reward::kernel_reward<float, float>({}, {}, {}, {}, nullptr, stream);
    std::size_t const turns = 50;
    random_evaluation<double> const one{7, turns};
    device_evaluation<double> const device{one.view()};
    device_array<reason_flags> const reasons{turns};
    fill_bytes(reasons, 0);
    device_array<double> const reward{turns};
    fill_bytes(reward, 0x42);
    auto const untouched = reward.host();
    auto const call = [&](gpu::reward::evaluation<double> const& evaluation, std::size_t flags,
                          kernel_reward_options const& options) {
      gpu::reward::kernel_reward(evaluation, options, reasons.view().first(flags), reward.span(), nullptr, stream);
    };
    auto const shorter = [&](auto gpu::reward::evaluation<double>::*array) {
      auto evaluation = device.view();
      evaluation.*array = (evaluation.*array).first(turns - 1);
      CHECK_THROWS_AS(call(evaluation, turns, {}), turnwise::precondition_error);
    };
    using evaluation = gpu::reward::evaluation<double>;
    shorter(&evaluation::compiled);
    shorter(&evaluation::correct);
    shorter(&evaluation::decoy);
    shorter(&evaluation::rule_violation);
    shorter(&evaluation::speedup);
    shorter(&evaluation::generated_us);
    shorter(&evaluation::total_us);
    CHECK_THROWS_AS(call(device.view(), turns - 1, {}), turnwise::precondition_error);
    CHECK_THROWS_AS(call(device.view(), turns, {.speedup_weight = turnwise::test::infinity}),
                    turnwise::precondition_error);
    CHECK_THROWS_AS(call(device.view(), turns, {.speedup_cap = 1, .speedup_floor = 2}), turnwise::precondition_error);
    stream.wait();
    CHECK(same_bits(reward.host(), untouched));
  }

}  // TEST_SUITE

}  // namespace kernel_reward_test
