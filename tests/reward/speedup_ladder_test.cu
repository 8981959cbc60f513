#include "support/gpu_evaluation.cuh"

#include <turnwise/gpu/reward/speedup_ladder.cuh>

#include <doctest/doctest.h>

namespace speedup_ladder_test {

using namespace support;
using turnwise::reward::speedup_ladder_options;

namespace {

template <typename E>
std::vector<E> random_baseline(std::uint64_t seed, std::size_t turns) {
  integers random{seed + 3};
  std::vector<E> speedup;
  for (std::size_t s = 0; s < turns; ++s)
    speedup.push_back(random.below(20) == 0 ? std::numeric_limits<E>::quiet_NaN()
                                            : static_cast<E>(random.below(40)) * E(0.0525));
  return speedup;
}

template <typename E, typename T>
void compare(std::uint64_t seed, speedup_ladder_options const& options, bool with_baseline) {
  auto const batch = random_batch<double>(seed);
  random_evaluation<E> turns{seed, batch.turns()};
  E const edges[]{E(1), E(1.2), E(1.5), E(2), E(3), E(1.01), E(1.05)};
  for (std::size_t s = 0; s < turns.speedup.size(); s += 3)
    if (turns.counts_as_correct(s)) turns.speedup[s] = edges[s % 7];
  auto const baseline = random_baseline<E>(seed, with_baseline ? batch.turns() : 0);
  auto const reasons = seed % 5 == 0 ? std::vector<reason_flags>{} : batch.reasons();
  std::vector<T> expected(batch.turns());
  turnwise::reward::speedup_ladder(turns.view(), std::span<E const>{baseline}, options,
                                   std::span<reason_flags const>{reasons}, std::span{expected});

  device_evaluation<E> const device{turns.view()};
  auto const device_baseline = on_device(baseline);
  auto const device_reasons = on_device(reasons);
  device_array<T> const reward{batch.turns()};
  device_status const status;
  on_stream_and_in_graph([&] { fill_bytes(reward, 0xa5); },
                         [&](cuda::stream_ref stream) {
                           gpu::reward::speedup_ladder(device.view(), device_baseline.view(), options,
                                                       device_reasons.view(), reward.span(), status.get(), stream);
                         },
                         [&] {
                           CHECK(status.ok());
                           CHECK(same_numbers(reward.host(), expected));
                         });
}

}  // namespace

TEST_SUITE("gpu/reward/speedup_ladder" * doctest::skip(!has_device())) {
  TEST_CASE("the host's bits, every preset and type") {
    for (std::uint64_t seed = 1; seed <= seeds(20); ++seed) {
      CAPTURE(seed);
      for (auto const& options : {speedup_ladder_options::like_kernel(), speedup_ladder_options::weighted()}) {
        compare<float, float>(seed, options, seed % 2 == 0);
        compare<double, double>(seed, options, seed % 2 == 1);
      }
      compare<float, double>(seed, speedup_ladder_options::cuda_agent(), true);
      compare<double, float>(seed, speedup_ladder_options::cuda_agent(), true);
    }
  }

  TEST_CASE("an infinite speedup that is asked for is reported and unscored") {
    std::vector<std::uint8_t> const correct{0, 1, 1, 1, 1};
    double const infinite = turnwise::test::infinity;
    std::vector<double> const speedup{infinite, 2, infinite, 2, infinite}, baseline{1, 1, 1, infinite, 1}, none(5);
    std::vector<reason_flags> const reasons{0, 0, 0, 0, turnwise::reason::invalid};
    device_evaluation<double> const device{{.correct = correct, .speedup = speedup}};
    auto const device_baseline = on_device(baseline);
    auto const device_reasons = on_device(reasons);
    device_array<double> const reward{5};
    device_status const status;
    side_stream const stream;
    auto evaluation = device.view();
    evaluation.compiled = evaluation.decoy = evaluation.rule_violation = {};
    evaluation.generated_us = evaluation.total_us = {};
    double const nan = turnwise::test::nan_value;
    auto const call = [&](speedup_ladder_options const& options) {
      status.clear();
      gpu::reward::speedup_ladder(evaluation, device_baseline.view(), options, device_reasons.view(), reward.span(),
                                  status.get(), stream);
      stream.wait();
      CHECK(status.host().code() == gpu::status_code::infinite_ingredient);
      CHECK(status.host().index() == 2);
      return reward.host();
    };
    CHECK(same_numbers(call(speedup_ladder_options::cuda_agent()), {-1, 2, nan, nan, 2}));
    CHECK(same_numbers(call(speedup_ladder_options::weighted()), {0, 1, nan, 1, 1}));
  }

  TEST_CASE("no turns; bad sizes and options throw with nothing written") {
    side_stream const stream;
    gpu::reward::speedup_ladder<float, float>({}, {}, speedup_ladder_options::weighted(), {}, {}, nullptr, stream);
    std::size_t const turns = 50;
    random_evaluation<double> const one{7, turns};
    device_evaluation<double> const device{one.view()};
    device_array<reason_flags> const reasons{turns};
    device_array<double> const baseline{turns};
    device_array<double> const reward{turns};
    fill_bytes(reward, 0x42);
    auto const untouched = reward.host();
    auto const call = [&](std::size_t flags, std::size_t baselines, speedup_ladder_options const& options) {
      gpu::reward::speedup_ladder(device.view(), baseline.view().first(baselines), options, reasons.view().first(flags),
                                  reward.span(), nullptr, stream);
    };
    using turnwise::precondition_error;
    CHECK_THROWS_AS(call(turns - 1, 0, speedup_ladder_options::weighted()), precondition_error);
    CHECK_THROWS_AS(call(turns, turns - 1, speedup_ladder_options::weighted()), precondition_error);
    CHECK_THROWS_AS(call(turns, 0, speedup_ladder_options::cuda_agent()), precondition_error);
    CHECK_THROWS_AS(call(turns, 0, {.rungs = {{{1, 1}, {2, 2}}}}), precondition_error);
    stream.wait();
    CHECK(same_bits(reward.host(), untouched));
  }

}  // TEST_SUITE

}  // namespace speedup_ladder_test
