#include "support/gpu_batches.cuh"

#include <turnwise/gpu/reward/difference_shaping.cuh>

#include <doctest/doctest.h>

namespace difference_shaping_test {

using namespace support;
using turnwise::reward::difference_shaping_options;

namespace {

/// Checks the output, apart from the reward and over it, and returns the status.
template <typename T>
gpu::status_record compare(ragged_batch<T> const& batch, std::vector<T> const& reward, std::vector<T> const& acts_as,
                           difference_shaping_options const& options) {
  std::vector<T> expected(batch.turns());
  turnwise::reward::difference_shaping(batch.view(), acts_as, options, batch.reasons(), std::span{expected});
  device_rollout const device{batch.view()};
  auto const device_reward = on_device(reward);
  auto const reasons = on_device(batch.reasons());
  device_array<T> const shaped{batch.turns()};
  device_status const status;
  on_stream_and_in_graph([&] { fill_bytes(shaped, 0xa5); },
                         [&](cuda::stream_ref stream) {
                           gpu::reward::difference_shaping(device.view(), device_reward.view(), options, reasons.view(),
                                                           shaped.span(), status.get(), stream);
                         },
                         [&] { CHECK(same_numbers(shaped.host(), expected)); });
  side_stream const stream;
  gpu::reward::difference_shaping(device.view(), device_reward.view(), options, reasons.view(), device_reward.span(),
                                  nullptr, stream);
  stream.wait();
  CHECK(same_numbers(device_reward.host(), expected));
  return status.host();
}

}  // namespace

TEST_SUITE("gpu/reward/difference_shaping" * doctest::skip(!has_device())) {
  TEST_CASE_TEMPLATE("the host's bits", T, float, double) {
    for (std::uint64_t seed = 1; seed <= seeds(20); ++seed) {
      auto const batch = random_batch<T>(seed);
      CAPTURE(seed);
      for (double const initial : {0.0, 0.37})
        CHECK(compare(batch, batch.value, batch.value, {initial}).code() == gpu::status_code::ok);
    }
  }

  TEST_CASE("trajectories of many turns, whole tiles of them missing") {
    integers random{5};
    std::vector<turn_values<double>> trajectories;
    for (std::int64_t const turns : {31, 0, 32, 33, 1, 64, 65, 5000, 2}) {
      turn_values<double> one{.id = static_cast<std::int64_t>(trajectories.size())};
      for (std::int64_t t = 0; t < turns; ++t) {
        bool const missing = t / 32 % 3 == 1 || random.below(3) == 0;
        one.turns.push_back(missing ? turnwise::test::nan_value : turnwise::test::uneven_number(random));
        one.valid.push_back(random.below(4) != 0);
      }
      trajectories.push_back(one);
    }
    ragged_batch<double> const batch{trajectories};
    CHECK(compare(batch, batch.value, batch.value, {1.5}).code() == gpu::status_code::ok);
  }

  TEST_CASE_TEMPLATE("an infinite reward is reported and acts as missing", T, float, double) {
    auto const batch = random_batch<T>(2);
    auto bad = batch.value;
    auto missing = batch.value;
    std::int64_t first = -1;
    auto const reasons = batch.reasons();
    for (std::size_t s = 3; s < bad.size(); s += 29) {
      bad[s] = s % 2 == 0 ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::max();
      missing[s] = reasons[s] == 0 ? std::numeric_limits<T>::quiet_NaN() : bad[s];
      if (reasons[s] == 0 && first < 0) first = static_cast<std::int64_t>(s);
    }
    auto const status = compare(batch, bad, missing, {});
    CHECK(status.code() == gpu::status_code::reward);
    CHECK(status.index() == first);
  }

  TEST_CASE("no turns; bad sizes and options throw with nothing written; wrong offsets stay in bounds") {
    side_stream const stream;
    gpu::reward::difference_shaping<float>({}, {}, {}, {}, {}, nullptr, stream);
    auto const batch = random_batch<double>(2);
    device_rollout const device{batch.view()};
    auto const reward = on_device(batch.value);
    auto const reasons = on_device(batch.reasons());
    device_array<double> const shaped{batch.turns()};
    fill_bytes(shaped, 0x42);
    auto const untouched = shaped.host();
    auto const call = [&](std::size_t rewards, std::size_t flags, std::size_t outputs, double initial) {
      gpu::reward::difference_shaping(device.view(), reward.view().first(rewards), {initial},
                                      reasons.view().first(flags), shaped.span().first(outputs), nullptr, stream);
    };
    std::size_t const turns = batch.turns();
    using turnwise::precondition_error;
    CHECK_THROWS_AS(call(turns - 1, turns, turns, 0), precondition_error);
    CHECK_THROWS_AS(call(turns, turns - 1, turns, 0), precondition_error);
    CHECK_THROWS_AS(call(turns, turns, turns - 1, 0), precondition_error);
    CHECK_THROWS_AS(call(turns, turns, turns, turnwise::test::nan_value), precondition_error);
    stream.wait();
    CHECK(same_bits(shaped.host(), untouched));

    auto offsets = batch.offsets;
    for (std::size_t j = 0; j < offsets.size(); j += 3) offsets[j] = j % 2 == 0 ? -77 : 1'000'000'000'000;
    auto view = batch.view();
    view.trajectory_offsets = offsets;
    device_rollout const broken{view, turns};
    gpu::reward::difference_shaping(broken.view(), reward.view(), {}, reasons.view(), shaped.span(), nullptr, stream);
    stream.wait();
  }

}  // TEST_SUITE

}  // namespace difference_shaping_test
