#include "support/gpu_batches.cuh"

#include <turnwise/gpu/advantage/discounted_return.cuh>

#include <doctest/doctest.h>

namespace discounted_return_test {

using namespace support;
using gpu::status_code;
using turnwise::advantage::discounted_return_options;
using turnwise::advantage::unscored_policy;

namespace {

template <typename T>
struct outputs {
  std::vector<T> turn_return;
  std::vector<reason_flags> reasons;
};

template <typename T>
outputs<T> on_host(ragged_batch<T> const& batch, std::vector<T> const& reward,
                   discounted_return_options const& options) {
  outputs<T> result{std::vector<T>(reward.size()), batch.reasons()};
  turnwise::advantage::discounted_return(batch.view(), std::span<T const>{reward}, options, result.reasons,
                                         std::span{result.turn_return});
  return result;
}

/// Checks the outputs, and returns the status.
template <typename T>
gpu::status_record compare(ragged_batch<T> const& batch, std::vector<T> const& reward,
                           discounted_return_options const& options, outputs<T> const& expected) {
  device_rollout const device{batch.view()};
  auto const device_reward = on_device(reward);
  device_array<T> const turn_return{reward.size()};
  auto const reasons = on_device(batch.reasons());
  device_status const status;
  on_stream_and_in_graph([&] { fill_bytes(turn_return, 0xa5); },
                         [&](cuda::stream_ref stream) {
                           // The replayed call finds its own results in `reasons`, which must change nothing.
                           gpu::advantage::discounted_return(device.view(), device_reward.view(), options,
                                                             reasons.span(), turn_return.span(), status.get(), stream);
                         },
                         [&] {
                           CHECK(same_bits(turn_return.host(), expected.turn_return));
                           CHECK(reasons.host() == expected.reasons);
                         });
  return status.host();
}

}  // namespace

TEST_SUITE("gpu/advantage/discounted_return" * doctest::skip(!has_device())) {
  TEST_CASE_TEMPLATE("the host's bits, all options", T, float, double) {
    for (std::uint64_t seed = 1; seed <= seeds(20); ++seed) {
      auto const batch = random_batch<T>(seed);
      for (double const gamma : {0.0, 0.4, 1.0})
        for (auto const unscored : {unscored_policy::exclude, unscored_policy::zero}) {
          CAPTURE(seed);
          CAPTURE(gamma);
          CAPTURE(static_cast<int>(unscored));
          discounted_return_options const options{gamma, unscored};
          auto const status = compare(batch, batch.value, options, on_host(batch, batch.value, options));
          CHECK(status.code() == status_code::ok);
        }
    }
  }

  TEST_CASE("trajectories of many turns") {
    integers random{5};
    std::vector<turn_values<double>> trajectories;
    for (std::int64_t const turns : {31, 0, 32, 33, 1, 64, 65, 20000, 2}) {
      turn_values<double> one{.id = static_cast<std::int64_t>(trajectories.size())};
      for (std::int64_t t = 0; t < turns; ++t) {
        one.turns.push_back(random.below(300) == 0 ? turnwise::test::nan_value : turnwise::test::uneven_number(random));
        one.valid.push_back(random.below(20) != 0);
      }
      trajectories.push_back(one);
    }
    ragged_batch<double> const batch{trajectories};
    for (auto const unscored : {unscored_policy::exclude, unscored_policy::zero}) {
      discounted_return_options const options{0.97, unscored};
      CHECK(compare(batch, batch.value, options, on_host(batch, batch.value, options)).code() == status_code::ok);
    }
  }

  TEST_CASE_TEMPLATE("returns over their rewards", T, float, double) {
    auto batch = random_batch<T>(4);
    for (T& value : batch.value) value = value == value ? value : T{1};
    auto const expected = on_host(batch, batch.value, {});
    device_rollout const device{batch.view()};
    auto const values = on_device(batch.value);
    auto const reasons = on_device(batch.reasons());
    side_stream const stream;
    gpu::advantage::discounted_return(device.view(), values.view(), {}, reasons.span(), values.span(), nullptr, stream);
    stream.wait();
    CHECK(same_bits(values.host(), expected.turn_return));
    CHECK(reasons.host() == expected.reasons);
  }

  TEST_CASE_TEMPLATE("an infinite reward is reported and acts as unscored", T, float, double) {
    auto const batch = random_batch<T>(2);
    for (auto const unscored : {unscored_policy::exclude, unscored_policy::zero}) {
      auto bad = batch.value;
      auto missing = batch.value;
      std::int64_t first = -1;
      auto const reasons = batch.reasons();
      for (std::size_t s = 3; s < bad.size(); s += 29) {
        bad[s] = s % 2 == 0 ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::max();
        if (reasons[s] == 0) missing[s] = std::numeric_limits<T>::quiet_NaN();
        if (reasons[s] == 0 && first < 0) first = static_cast<std::int64_t>(s);
      }
      discounted_return_options const options{1.0, unscored};
      auto const status = compare(batch, bad, options, on_host(batch, missing, options));
      CHECK(status.code() == status_code::reward);
      CHECK(status.index() == first);
    }
  }

  TEST_CASE("a missing reward under `error`, and a return beyond the limit") {
    ragged_batch<float> const missing{
        {{.id = 1, .turns = {1.0f, 2.0f}}, {.id = 2, .turns = {3.0f, std::numeric_limits<float>::quiet_NaN(), 4.0f}}}};
    auto const status = compare(missing, missing.value, {1.0, unscored_policy::error},
                                on_host(missing, missing.value, {1.0, unscored_policy::exclude}));
    CHECK(status.code() == status_code::unscored);
    CHECK(status.index() == 3);

    ragged_batch<float> const large{{{.id = 1, .turns = {0x1p99f, 0x1p99f, 0x1p99f}}}};
    outputs<float> const expected{{0x1.8p100f, 0x1p100f, 0x1p99f}, {0, 0, 0}};
    auto const beyond = compare(large, large.value, {}, expected);
    CHECK(beyond.code() == status_code::turn_return);
    CHECK(beyond.index() == 0);
  }

  TEST_CASE("no turns; bad sizes and options throw with nothing written; wrong offsets stay in bounds") {
    side_stream const stream;
    gpu::advantage::discounted_return<float>({}, {}, {}, {}, {}, nullptr, stream);
    auto const batch = random_batch<double>(2);
    device_rollout const device{batch.view()};
    auto const reward = on_device(batch.value);
    auto const reasons = on_device(batch.reasons());
    device_array<double> const out{batch.turns()};
    fill_bytes(out, 0x42);
    auto const untouched = out.host();
    auto const call = [&](gpu::device_span<double const> rewards, gpu::device_span<reason_flags> flags,
                          gpu::device_span<double> returns, double gamma) {
      gpu::advantage::discounted_return(device.view(), rewards, {.gamma = gamma}, flags, returns, nullptr, stream);
    };
    std::size_t const fewer = batch.turns() - 1;
    CHECK_THROWS_AS(call(reward.view().first(fewer), reasons.span(), out.span(), 1), turnwise::precondition_error);
    CHECK_THROWS_AS(call(reward.view(), reasons.span().first(fewer), out.span(), 1), turnwise::precondition_error);
    CHECK_THROWS_AS(call(reward.view(), reasons.span(), out.span().first(fewer), 1), turnwise::precondition_error);
    CHECK_THROWS_AS(call(reward.view(), reasons.span(), out.span(), 1.5), turnwise::precondition_error);
    CHECK_THROWS_AS(call(reward.view(), reasons.span(), out.span(), turnwise::test::nan_value),
                    turnwise::precondition_error);
    stream.wait();
    CHECK(same_bits(out.host(), untouched));
    CHECK(reasons.host() == batch.reasons());

    auto offsets = batch.offsets;
    for (std::size_t j = 0; j < offsets.size(); j += 3) offsets[j] = j % 2 == 0 ? -77 : 1'000'000'000'000;
    auto view = batch.view();
    view.trajectory_offsets = offsets;
    device_rollout const broken{view, batch.turns()};
    gpu::advantage::discounted_return(broken.view(), reward.view(), {}, reasons.span(), out.span(), nullptr, stream);
    stream.wait();
  }

}  // TEST_SUITE

}  // namespace discounted_return_test
