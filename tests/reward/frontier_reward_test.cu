#include "support/gpu_evaluation.cuh"
#include "support/gpu_groups.cuh"

#include <turnwise/gpu/reward/frontier_reward.cuh>

#include <doctest/doctest.h>

namespace frontier_reward_test {

using namespace support;
using turnwise::group_by;
using turnwise::reward::frontier_reward_options;
using turnwise::reward::solved_by;

TEST_SUITE("gpu/reward/frontier_reward" * doctest::skip(!has_device())) {
  TEST_CASE_TEMPLATE("the host's bits, all options", T, float, double) {
    for (std::uint64_t seed = 1; seed <= seeds(20); ++seed) {
      CAPTURE(seed);
      auto const batch = random_batch<double>(seed);
      random_evaluation<float> const turns{seed, batch.turns()};
      integers random{seed};
      std::vector<std::int64_t> proposals;
      std::vector<std::uint8_t> invalid;
      for (std::size_t p = 0; p < 300; ++p) {
        auto const j = static_cast<std::size_t>(random.below(static_cast<std::int64_t>(batch.group_id.size())));
        proposals.push_back(random.below(10) == 0 ? 12345 + static_cast<std::int64_t>(p) : batch.group_id[j]);
        if (seed % 3 != 0) invalid.push_back(random.below(6) == 0);
      }
      auto const host_groups = turnwise::make_grouping(batch.view(), group_by::group);
      turnwise::reward::attempts<float> const of{batch.view(), &host_groups, turns.view()};
      device_groups const device{batch.view(), group_by::group};
      device_evaluation<float> const evaluation{turns.view()};
      auto device_turns = evaluation.view();
      device_turns.speedup = device_turns.generated_us = device_turns.total_us = {};  // not read
      auto const device_proposals = on_device(proposals);
      auto const device_invalid = on_device(invalid);
      device_array<T> const reward{proposals.size()};
      for (auto const& options : {frontier_reward_options{}, frontier_reward_options{0.3, -2, solved_by::any_turn}}) {
        std::vector<T> expected(proposals.size());
        turnwise::reward::frontier_reward(of, proposals, invalid, options, std::span{expected});
        on_stream_and_in_graph([&] { fill_bytes(reward, 0xa5); },
                               [&](cuda::stream_ref stream) {
                                 gpu::reward::frontier_reward(
                                     gpu::reward::attempts<float>{device.batch(), device.groups(), device_turns},
                                     device_proposals.view(), device_invalid.view(), options, reward.span(), stream);
                               },
                               [&] { CHECK(same_numbers(reward.host(), expected)); });
      }
    }
  }

  TEST_CASE("no proposals, no attempts; wrong offsets of the attempts leave every valid proposal unscored") {
    side_stream const stream;
    gpu::reward::frontier_reward<float, float>({}, {}, {}, {}, {}, stream);
    device_groups const empty{turnwise::rollout_view{}, group_by::group};
    auto const proposals = on_device(std::vector<std::int64_t>{3, 4});
    auto const invalid = on_device(std::vector<std::uint8_t>{0, 1});
    device_array<double> const reward{2};
    std::vector<double> const expected{turnwise::test::nan_value, -1};
    gpu::reward::frontier_reward(gpu::reward::attempts<float>{empty.batch(), empty.groups(), {}}, proposals.view(),
                                 invalid.view(), {}, reward.span(), stream);
    stream.wait();
    CHECK(same_numbers(reward.host(), expected));

    ragged_batch<double> const batch{{{.group = 3, .id = 1, .turns = {1, 1}}, {.group = 4, .id = 1, .turns = {1}}}};
    std::vector<std::int64_t> const offsets{0, 9, 3};
    auto view = batch.view();
    view.trajectory_offsets = offsets;
    device_groups const broken{view, 3, group_by::group};
    device_array<std::uint8_t> const correct{3};
    fill_bytes(correct, 1);
    gpu::reward::frontier_reward(
        gpu::reward::attempts<float>{broken.batch(), broken.groups(), {.correct = correct.view()}}, proposals.view(),
        invalid.view(), {}, reward.span(), stream);
    stream.wait();
    CHECK(same_numbers(reward.host(), expected));
  }

  TEST_CASE("a grouping that is not by group leaves what it mixes up unscored") {
    ragged_batch<double> const batch{{{.group = 3, .id = 1, .turns = {1, 1}}, {.group = 4, .id = 1, .turns = {1}}}};
    auto const proposals = on_device(std::vector<std::int64_t>{3, 4});
    device_array<std::uint8_t> const correct{3};
    fill_bytes(correct, 1);
    device_array<double> const reward{2};
    side_stream const stream;
    auto const rewards = [&](group_by by) {
      device_groups const device{batch.view(), by};
      gpu::reward::frontier_reward(
          gpu::reward::attempts<float>{device.batch(), device.groups(), {.correct = correct.view()}}, proposals.view(),
          {}, {}, reward.span(), stream);
      stream.wait();
      return reward.host();
    };
    double const nan = turnwise::test::nan_value;
    CHECK(same_numbers(rewards(group_by::group), {0, 0}));
    CHECK(same_numbers(rewards(group_by::turn), {nan, 0}));
    CHECK(same_numbers(rewards(group_by::batch), {nan, nan}));
  }

  TEST_CASE("bad sizes and options throw with nothing written") {
    auto const batch = random_batch<double>(3);
    device_groups const device{batch.view(), group_by::group};
    device_array<std::uint8_t> const correct{batch.turns()};
    fill_bytes(correct, 1);
    auto const proposals = on_device(std::vector<std::int64_t>(5, batch.group_id[0]));
    device_array<std::uint8_t> const invalid{5};
    device_array<double> const reward{5};
    fill_bytes(reward, 0x42);
    auto const untouched = reward.host();
    side_stream const stream;
    auto const call = [&](std::size_t ids, std::size_t flags, std::size_t turns, gpu::grouping const& groups,
                          frontier_reward_options const& options) {
      gpu::reward::frontier_reward(
          gpu::reward::attempts<double>{device.batch(), groups, {.correct = correct.view().first(turns)}},
          proposals.view().first(ids), invalid.view().first(flags), options, reward.span(), stream);
    };
    std::size_t const turns = batch.turns();
    using turnwise::precondition_error;
    CHECK_THROWS_AS(call(4, 5, turns, device.groups(), {}), precondition_error);
    CHECK_THROWS_AS(call(5, 4, turns, device.groups(), {}), precondition_error);
    CHECK_THROWS_AS(call(5, 5, turns - 1, device.groups(), {}), precondition_error);
    CHECK_THROWS_AS(call(5, 5, turns, gpu::grouping{}, {}), precondition_error);
    CHECK_THROWS_AS(call(5, 5, turns, device.groups(), {.target = 2}), precondition_error);
    stream.wait();
    CHECK(same_bits(reward.host(), untouched));
  }

}  // TEST_SUITE

}  // namespace frontier_reward_test
