#include "support/gpu_groups.cuh"
#include "support/gpu_rules.cuh"

#include <turnwise/gpu/rejection/down_sampling.cuh>

namespace down_sampling_test {

using namespace support;
using turnwise::rejection::down_sampling_options;
using turnwise::rejection::scope;

namespace {

constexpr turnwise::draw_key key{20261129u, 7u};

}  // namespace

TEST_SUITE("gpu/rejection/down_sampling" * doctest::skip(!has_device())) {
  TEST_CASE("the host's choice, all groupings, levels and targets") {
    for (std::uint64_t seed = 0; seed <= seeds(16); ++seed)
      for (auto const by : every_kind) {
        CAPTURE(seed);
        CAPTURE(static_cast<int>(by));
        rule_case const one{seed};
        auto const groups = turnwise::make_grouping(one.batch.view(), by);
        device_groups const device{one.batch.view(), by};
        exact_workspace const memory{gpu::rejection::down_sampling_workspace_bytes(one.reasons.size())};
        for (auto const level : {scope::turn, scope::trajectory})
          for (std::int64_t const target : {1, 2, 7, 32, 100, 1'000'000}) {
            down_sampling_options const options{target, level};
            one.compare(
                [&](auto const& batch, auto, auto reasons) {
                  turnwise::rejection::down_sampling(batch, groups, options, key, reasons);
                },
                [&](gpu::rollout_view const& batch, gpu::device_span<turn_statistics const>,
                    gpu::device_span<reason_flags> reasons, gpu::status_record* status, cuda::stream_ref stream) {
                  gpu::rejection::down_sampling(batch, device.groups(), options, key, reasons, status, memory.whole(),
                                                stream);
                });
          }
      }
  }

  TEST_CASE("equal words stay in canonical order") {
    // Of 2^18 trajectories of a group some have the same word.
    std::vector<turn_values<double>> all;
    for (std::int64_t id = 0; id < (1 << 18); ++id) all.push_back({.group = 5, .id = id, .turns = {0.0}});
    ragged_batch<double> const batch{all};
    auto const groups = turnwise::make_grouping(batch.view(), turnwise::group_by::group);
    device_groups const device{batch.view(), turnwise::group_by::group};
    exact_workspace const memory{gpu::rejection::down_sampling_workspace_bytes(batch.turns())};
    std::vector<std::pair<std::uint64_t, std::size_t>> words;
    for (std::size_t s = 0; s < batch.turns(); ++s)
      words.emplace_back(turnwise::rejection::detail::draw_word(key, 5, static_cast<std::int64_t>(s), 0, scope::turn),
                         s);
    std::ranges::sort(words);
    std::size_t twin = 1;
    while (words[twin].first != words[twin - 1].first) ++twin;
    for (std::size_t const target : {twin, twin + 1}) {  // only the first of the two stays, then both
      std::vector<reason_flags> expected(batch.turns());
      for (std::size_t i = target; i < words.size(); ++i) expected[words[i].second] = turnwise::reason::not_drawn;
      auto const reasons = on_device(std::vector<reason_flags>(batch.turns()));
      side_stream const stream;
      gpu::rejection::down_sampling(device.batch(), device.groups(),
                                    {.target = static_cast<std::int64_t>(target), .level = scope::turn}, key,
                                    reasons.span(), nullptr, memory.whole(), stream);
      stream.wait();
      CHECK(reasons.host() == expected);
    }
  }

  TEST_CASE("ids outside [0, 2^32) are reported; such a turn goes and takes no place") {
    rule_case one{8};
    std::size_t j = 5;
    while (one.batch.offsets[j + 1] - one.batch.offsets[j] < 3) ++j;
    auto const first = static_cast<std::size_t>(one.batch.offsets[j]);
    // Its turns stand at the end of their group for the device, and nowhere for the host.
    one.batch.trajectory_id[j] = std::int64_t{1} << 33;
    auto without = one.reasons;
    for (std::size_t s = first; s < static_cast<std::size_t>(one.batch.offsets[j + 1]); ++s)
      if (without[s] == 0) without[s] = turnwise::reason::not_drawn;
    auto expected = without;
    {
      auto with_id = one.batch;
      with_id.trajectory_id[j] = 4'000'000'000;
      turnwise::rejection::down_sampling(with_id.view(),
                                         turnwise::make_grouping(with_id.view(), turnwise::group_by::group),
                                         {.target = 3, .level = scope::turn}, key, expected);
    }
    device_groups const device{one.batch.view(), turnwise::group_by::group};
    exact_workspace const memory{gpu::rejection::down_sampling_workspace_bytes(one.reasons.size())};
    auto const reasons = on_device(one.reasons);
    device_status const status;
    side_stream const stream;
    gpu::rejection::down_sampling(device.batch(), device.groups(), {.target = 3, .level = scope::turn}, key,
                                  reasons.span(), status.get(), memory.whole(), stream);
    stream.wait();
    CHECK(reasons.host() == expected);
    CHECK(status.host().code() == gpu::status_code::draw_id);
    CHECK(status.host().index() == static_cast<std::int64_t>(first));
  }

  TEST_CASE("no turns, wrong offsets; bad sizes, options and short scratch throw and nothing is written") {
    side_stream const stream;
    device_groups const empty{turnwise::rollout_view{}, turnwise::group_by::group};
    gpu::rejection::down_sampling({}, empty.groups(), {}, key, {}, nullptr, exact_workspace{0}.whole(), stream);
    rule_case const one{6};
    auto const reasons = on_device(one.reasons);
    std::size_t const turns = one.reasons.size();
    exact_workspace const memory{gpu::rejection::down_sampling_workspace_bytes(turns)};
    auto offsets = one.batch.offsets;
    offsets[1] = static_cast<std::int64_t>(turns) + 7;
    auto view = one.batch.view();
    view.trajectory_offsets = offsets;
    device_groups const broken{view, turns, turnwise::group_by::group};
    gpu::rejection::down_sampling(broken.batch(), broken.groups(), {}, key, reasons.span(), nullptr, memory.whole(),
                                  stream);
    device_groups const device{one.batch.view(), turnwise::group_by::group};
    auto const throws = [&](gpu::grouping const& groups, std::size_t out, std::int64_t target,
                            gpu::workspace const& scratch) {
      CHECK_THROWS_AS(gpu::rejection::down_sampling(device.batch(), groups, {.target = target}, key,
                                                    reasons.span().first(out), nullptr, scratch, stream),
                      turnwise::precondition_error);
    };
    throws(empty.groups(), turns, 1, memory.whole());
    throws(device.groups(), turns - 1, 1, memory.whole());
    throws(device.groups(), turns, 0, memory.whole());
    throws(device.groups(), turns, 1, memory.short_by_one());
    stream.wait();
    CHECK(reasons.host() == one.reasons);
  }

}  // TEST_SUITE

}  // namespace down_sampling_test
