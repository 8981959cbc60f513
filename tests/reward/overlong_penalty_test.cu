#include "support/gpu_batches.cuh"

#include <turnwise/gpu/reward/overlong_penalty.cuh>

#include <doctest/doctest.h>

namespace overlong_penalty_test {

using namespace support;
using turnwise::reward::length_scope;
using turnwise::reward::overlong_penalty_options;

namespace {

std::vector<std::int64_t> random_lengths(std::uint64_t seed, std::size_t turns) {
  integers random{seed};
  std::vector<std::int64_t> length;
  for (std::size_t s = 0; s < turns; ++s) length.push_back(random.below(6) == 0 ? 0 : random.below(1500));
  return length;
}

template <typename T>
gpu::status_record compare(ragged_batch<double> const& batch, std::vector<std::int64_t> const& length,
                           std::vector<std::int64_t> const& judged, overlong_penalty_options const& options) {
  std::vector<T> expected(batch.turns());
  turnwise::reward::overlong_penalty(batch.view(), std::span<std::int64_t const>{judged}, options, std::span{expected});
  device_rollout const device{batch.view()};
  auto const device_length = on_device(length);
  device_array<T> const penalty{batch.turns()};
  device_status const status;
  on_stream_and_in_graph([&] { fill_bytes(penalty, 0xa5); },
                         [&](cuda::stream_ref stream) {
                           gpu::reward::overlong_penalty(device.view(), device_length.view(), options, penalty.span(),
                                                         status.get(), stream);
                         },
                         [&] { CHECK(same_bits(penalty.host(), expected)); });
  return status.host();
}

}  // namespace

TEST_SUITE("gpu/reward/overlong_penalty" * doctest::skip(!has_device())) {
  TEST_CASE_TEMPLATE("the host's bits, all options", T, float, double) {
    for (std::uint64_t seed = 1; seed <= seeds(20); ++seed) {
      auto const batch = random_batch<double>(seed);
      auto const length = random_lengths(seed, batch.turns());
      for (auto const scope : {length_scope::turn, length_scope::trajectory})
        for (auto const& options : {overlong_penalty_options{1000, 400, 1.0, true, scope},
                                    overlong_penalty_options{1000, 300, 0.7, false, scope},
                                    overlong_penalty_options{900, 0, 2.0, true, scope}}) {
          CAPTURE(seed);
          CHECK(compare<T>(batch, length, length, options).code() == gpu::status_code::ok);
        }
    }
  }

  TEST_CASE("long trajectories, with and without a last turn that is on") {
    integers random{5};
    std::vector<turn_values<double>> trajectories;
    for (std::int64_t const turns : {31, 0, 32, 33, 1, 64, 65, 5000, 2}) {
      turn_values<double> one{.id = static_cast<std::int64_t>(trajectories.size())};
      one.turns.resize(static_cast<std::size_t>(turns));
      for (std::int64_t t = 0; t < turns; ++t) one.valid.push_back(turns != 65 && random.below(3) != 0);
      trajectories.push_back(one);
    }
    ragged_batch<double> const batch{trajectories};
    auto const length = random_lengths(9, batch.turns());
    compare<double>(batch, length, length, {60000, 50000, 1.0, false, length_scope::trajectory});
  }

  TEST_CASE("lengths from the token ranges; a bad one is reported and acts as 0") {
    auto const batch = random_batch<double>(2);
    auto length = random_lengths(2, batch.turns());
    auto judged = length;
    for (std::size_t s = 7; s < length.size(); s += 31) {
      length[s] = s % 2 == 0 ? -1 : std::int64_t{1} << 40;
      judged[s] = 0;
    }
    auto const status = compare<double>(batch, length, judged, {1000, 400, 1.0, true, length_scope::trajectory});
    CHECK(status.code() == gpu::status_code::token_range);
    CHECK(status.index() == 7);

    device_rollout const device{batch.view()};
    std::vector<std::int64_t> begin, end;
    for (std::size_t s = 0; s < judged.size(); ++s) {
      begin.push_back(static_cast<std::int64_t>(1000 * s));
      end.push_back(begin[s] + judged[s]);
    }
    auto const device_begin = on_device(begin);
    auto const device_end = on_device(end);
    auto view = device.view();
    view.turn_begin = device_begin.view();
    view.turn_end = device_end.view();
    std::vector<double> expected(batch.turns());
    turnwise::reward::overlong_penalty(batch.view(), std::span<std::int64_t const>{judged},
                                       {.max_length = 1000, .buffer = 400}, std::span{expected});
    device_array<double> const penalty{batch.turns()};
    side_stream const stream;
    gpu::reward::overlong_penalty(view, {}, {.max_length = 1000, .buffer = 400}, penalty.span(), nullptr, stream);
    stream.wait();
    CHECK(same_bits(penalty.host(), expected));
  }

  TEST_CASE("no turns; bad sizes and options throw with nothing written; wrong offsets stay in bounds") {
    side_stream const stream;
    gpu::reward::overlong_penalty<float>({}, {}, {.max_length = 1}, {}, nullptr, stream);
    auto const batch = random_batch<double>(2);
    device_rollout const device{batch.view()};
    auto const length = on_device(random_lengths(2, batch.turns()));
    device_array<double> const penalty{batch.turns()};
    fill_bytes(penalty, 0x42);
    auto const untouched = penalty.host();
    auto const call = [&](std::size_t lengths, std::size_t outputs, overlong_penalty_options const& options) {
      gpu::reward::overlong_penalty(device.view(), length.view().first(lengths), options, penalty.span().first(outputs),
                                    nullptr, stream);
    };
    std::size_t const turns = batch.turns();
    using turnwise::precondition_error;
    CHECK_THROWS_AS(call(turns - 1, turns, {.max_length = 9}), precondition_error);
    CHECK_THROWS_AS(call(0, turns, {.max_length = 9}), precondition_error);
    CHECK_THROWS_AS(call(turns, turns - 1, {.max_length = 9}), precondition_error);
    CHECK_THROWS_AS(call(turns, turns, {}), precondition_error);
    stream.wait();
    CHECK(same_bits(penalty.host(), untouched));

    auto offsets = batch.offsets;
    for (std::size_t j = 0; j < offsets.size(); j += 3) offsets[j] = j % 2 == 0 ? -77 : 1'000'000'000'000;
    auto view = batch.view();
    view.trajectory_offsets = offsets;
    device_rollout const broken{view, turns};
    gpu::reward::overlong_penalty(broken.view(), length.view(), {.max_length = 9, .scope = length_scope::trajectory},
                                  penalty.span(), nullptr, stream);
    stream.wait();
  }

}  // TEST_SUITE

}  // namespace overlong_penalty_test
