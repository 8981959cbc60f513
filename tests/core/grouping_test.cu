#include "support/gpu_batches.cuh"

#include <turnwise/core/grouping.hpp>
#include <turnwise/gpu/core/grouping.cuh>

#include <doctest/doctest.h>

#include <type_traits>

namespace grouping_test {

using namespace support;
using gpu::status_code;
using turnwise::group_by;

// CU-08: what counts turns, groups and members holds more than 2^31 of them.
static_assert(std::is_same_v<decltype(gpu::grouping_counts::groups), std::int64_t>);
static_assert(std::is_same_v<decltype(gpu::grouping::members)::element_type, std::int64_t const>);
static_assert(sizeof(gpu::grouping::turns) == 8);
static_assert(gpu::ceil_div(3'000'000'000, 256) == 11'718'750);  // blocks for more than 2^31 elements

namespace {

constexpr group_by every_kind[]{group_by::group, group_by::turn, group_by::batch};

template <typename T>
std::vector<T> copied(gpu::device_span<T const> values) {
  std::vector<T> result(values.size());
  if (!result.empty())
    gpu::check(cudaMemcpy(result.data(), values.data(), result.size() * sizeof(T), cudaMemcpyDeviceToHost), "copy");
  return result;
}

/// What is in a grouping, group after group.
struct contents {
  std::vector<std::int64_t> offsets{0}, members, trajectories;
  std::vector<std::vector<std::int64_t>> pools;
};

contents contents_of(turnwise::grouping const& groups) {
  contents result;
  for (std::size_t g = 0; g < groups.groups(); ++g) {
    result.members.insert(result.members.end(), groups.members(g).begin(), groups.members(g).end());
    result.trajectories.insert(result.trajectories.end(), groups.trajectories(g).begin(), groups.trajectories(g).end());
    result.offsets.push_back(static_cast<std::int64_t>(result.members.size()));
    result.pools.emplace_back(groups.pool(g).begin(), groups.pool(g).end());
  }
  return result;
}

contents contents_of(gpu::grouping const& groups) {
  auto const counts = copied(gpu::device_span<gpu::grouping_counts const>{groups.counts, 1})[0];
  contents result;
  result.offsets = copied(groups.offsets.first(static_cast<std::size_t>(counts.groups) + 1));
  result.members = copied(groups.members.first(static_cast<std::size_t>(result.offsets.back())));
  auto const turn_trajectory = copied(groups.turn_trajectory);
  auto const prompt = copied(groups.prompt);
  auto const pool = copied(groups.trajectory_order);
  auto const pool_offsets = copied(groups.prompt_offsets.first(static_cast<std::size_t>(counts.prompts) + 1));
  for (auto const s : result.members) result.trajectories.push_back(turn_trajectory[s]);
  for (std::size_t g = 0; g + 1 < result.offsets.size(); ++g) {
    auto const of_group = prompt[result.trajectories[result.offsets[g]]];
    result.pools.emplace_back(pool.begin() + pool_offsets[of_group], pool.begin() + pool_offsets[of_group + 1]);
  }
  return result;
}

void compare(turnwise::rollout_view const& batch, group_by by) {
  contents const expected = contents_of(turnwise::make_grouping(batch, by));
  device_rollout const device_batch{batch};
  exact_workspace const memory{gpu::grouping_workspace_bytes(batch.turns(), batch.trajectories(), by)};
  device_status const status;
  gpu::grouping groups;
  on_stream_and_in_graph([&] { status.clear(); },
                         [&](cuda::stream_ref stream) {
                           groups = gpu::make_grouping(device_batch.view(), by, status.get(), memory.whole(), stream);
                         },
                         [&] {
                           CHECK(status.ok());
                           contents const got = contents_of(groups);
                           CHECK(got.offsets == expected.offsets);
                           CHECK(got.members == expected.members);
                           CHECK(got.trajectories == expected.trajectories);
                           CHECK(got.pools == expected.pools);
                         });
}

/// The status that a batch leaves, and that no turn is in two groups or out of bounds.
gpu::status_record status_of(turnwise::rollout_view const& batch, std::size_t turns, group_by by) {
  device_rollout const device_batch{batch, turns};
  exact_workspace const memory{gpu::grouping_workspace_bytes(turns, batch.group_id.size(), by)};
  device_status const status;
  side_stream const stream;
  auto const groups = gpu::make_grouping(device_batch.view(), by, status.get(), memory.whole(), stream);
  stream.wait();
  contents const got = contents_of(groups);
  std::vector<int> seen(turns);
  for (auto const s : got.members) ++seen.at(static_cast<std::size_t>(s));
  CHECK(std::ranges::max(seen) <= 1);
  return status.host();
}

}  // namespace

TEST_SUITE("gpu/core/grouping" * doctest::skip(!has_device())) {
  TEST_CASE("the host's members, groups and pools, for any order and ids") {
    for (std::uint64_t seed = 1; seed <= seeds(24); ++seed)
      for (group_by const by : every_kind) {
        CAPTURE(seed);
        CAPTURE(static_cast<int>(by));
        auto batch = random_batch<double>(seed);
        if (seed % 3 == 0) batch.turn_index.clear();
        if (seed % 7 == 0 && !batch.turn_index.empty())
          for (auto& index : batch.turn_index) index = (index - 5) * (std::int64_t{1} << 58);
        compare(batch.view(), by);
      }
  }

  TEST_CASE("no trajectories, and trajectories without turns") {
    std::vector<std::int64_t> const zeros{0, 0, 0};
    std::vector<std::int64_t> const one_turn{0, 0, 1, 1};
    std::vector<std::int64_t> const ids{3, -4, 5};
    std::span<std::int64_t const> const all{ids};
    for (group_by const by : every_kind) {
      compare({}, by);
      compare({.trajectory_offsets = std::span{zeros}.first(1)}, by);
      compare({.trajectory_offsets = zeros, .group_id = all.first(2), .trajectory_id = all.first(2)}, by);
      compare({.trajectory_offsets = one_turn, .group_id = all, .trajectory_id = all}, by);
    }
  }

  TEST_CASE("content errors reach the status, memory stays safe") {
    std::vector<std::int64_t> const group{7, 7, -7, -7};
    std::vector<std::int64_t> const id{1, 2, 1, 2};
    std::vector<std::int64_t> const twice{1, 2, 5, 5};
    std::vector<std::int64_t> const good{0, 2, 4, 4, 6};
    std::vector<std::int64_t> const index{0, 1, 4, 4, 9, 8};
    struct {
      std::vector<std::int64_t> offsets;
      std::int64_t first_bad;
    } const wrong[]{{{0, 4, 2, 4, 6}, 2}, {{0, 2, 4, 4, 5}, 4},   {{1, 2, 4, 4, 6}, 0},
                    {{0, 2, 4, 4, 9}, 4}, {{0, -8, 4, 99, 6}, 1}, {{0, 2, 99, 99, 99}, 2}};
    for (group_by const by : every_kind) {
      for (auto const& [offsets, first_bad] : wrong) {
        auto const status = status_of(
            {.trajectory_offsets = offsets, .group_id = group, .trajectory_id = twice, .turn_index = index}, 6, by);
        CHECK(status.code() == status_code::trajectory_offsets);
        CHECK(status.index() == first_bad);
      }
      auto const same_id = status_of({.trajectory_offsets = good, .group_id = group, .trajectory_id = twice}, 6, by);
      CHECK(same_id.code() == status_code::trajectory_id);
      CHECK(same_id.index() == 3);
      auto const same_index = status_of(
          {.trajectory_offsets = good, .group_id = group, .trajectory_id = twice, .turn_index = index}, 6, by);
      CHECK(same_index.code() == status_code::turn_index);
      CHECK(same_index.index() == 3);
      CHECK_THROWS_AS(gpu::check(same_index), turnwise::precondition_error);
      std::vector<std::int64_t> const no_trajectory{0};
      CHECK(status_of({.trajectory_offsets = no_trajectory}, 3, by).code() == status_code::trajectory_offsets);
    }
  }

  TEST_CASE("wrong sizes and a short workspace throw before anything is enqueued") {
    auto const batch = random_batch<double>(3);
    device_rollout const device_batch{batch.view()};
    side_stream const stream;
    for (group_by const by : every_kind) {
      auto const bytes = gpu::grouping_workspace_bytes(batch.turns(), batch.group_id.size(), by);
      exact_workspace const memory{bytes};
      auto const call = [&](gpu::rollout_view const& view, gpu::workspace scratch) {
        static_cast<void>(gpu::make_grouping(view, by, nullptr, scratch, stream));
      };
      CHECK_THROWS_AS(call(device_batch.view(), memory.short_by_one()), turnwise::precondition_error);
      auto view = device_batch.view();
      view.trajectory_id = view.trajectory_id.first(view.trajectory_id.size() - 1);
      CHECK_THROWS_AS(call(view, memory.whole()), turnwise::precondition_error);
      view = device_batch.view();
      view.trajectory_offsets = view.trajectory_offsets.subspan(1);
      CHECK_THROWS_AS(call(view, memory.whole()), turnwise::precondition_error);
      view = device_batch.view();
      ++view.turns;
      CHECK_THROWS_AS(call(view, gpu::workspace{}), turnwise::precondition_error);
    }
  }

}  // TEST_SUITE

}  // namespace grouping_test
