// Scales and counts of the device against the host's, bit for bit.
#include "support/gpu_batches.cuh"
#include "support/gpu_builders.cuh"

#include <turnwise/gpu/loss/aggregate.cuh>

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace aggregate_test {

using namespace support;
using turnwise::loss::aggregate_options;
using turnwise::loss::loss_counts;
using turnwise::loss::loss_denominator;
using turnwise::loss::loss_mean;
using turnwise::loss::loss_scope;
using turnwise::loss::loss_unit;
namespace host = turnwise::loss;

namespace {

/// Trajectories of 0 to 4 turns of a few prompts in any order, with masks and reasons.
struct counted_batch {
  std::vector<std::int64_t> begin, end, trajectory_offsets{0}, group, trajectory;
  std::vector<std::uint8_t> mask;
  std::vector<reason_flags> reasons;

  counted_batch(std::uint64_t seed, std::int64_t trajectories) {
    integers random{seed};
    std::int64_t next = 0;
    for (std::int64_t j = 0; j < trajectories; ++j) {
      group.push_back(random.below(1 + trajectories / 4) * 1000003 - 7);
      trajectory.push_back(j);
      for (std::int64_t t = random.below(5); t > 0; --t) {
        std::int64_t const size = random.below(5) == 0 ? 0 : random.below(700);
        begin.push_back(next);
        end.push_back(next + size);
        next += size;
        auto const fate = random.below(6);
        reasons.push_back(fate == 0   ? turnwise::reason::ratio_low
                          : fate == 1 ? turnwise::reason::unscored
                                      : reason_flags{0});
      }
      trajectory_offsets.push_back(static_cast<std::int64_t>(begin.size()));
    }
    for (std::int64_t i = 0; i < next; ++i) mask.push_back(random.below(4) != 0);
  }
  [[nodiscard]] turnwise::rollout_view view() const {
    return {begin, end, trajectory_offsets, group, trajectory, {}, {}};
  }
};

std::vector<aggregate_options> all_options() {
  std::vector<aggregate_options> result;
  for (auto const mean : {loss_mean::token_mean, loss_mean::token_sum, loss_mean::sequence_mean_token_mean,
                          loss_mean::sequence_mean_token_sum, loss_mean::sequence_mean_token_norm})
    for (auto const unit : {loss_unit::turn, loss_unit::trajectory})
      for (auto const scope : {loss_scope::batch, loss_scope::prompt})
        for (auto const denominator : {loss_denominator::kept, loss_denominator::valid, loss_denominator::nominal}) {
          if (mean == loss_mean::token_sum && denominator != loss_denominator::kept) continue;
          result.push_back({.mean = mean,
                            .unit = unit,
                            .scope = scope,
                            .denominator = denominator,
                            .nominal = denominator == loss_denominator::nominal ? 768.0 : 0.0,
                            .norm = mean == loss_mean::sequence_mean_token_norm ? 2048.0 : 0.0});
        }
  return result;
}

void compare(counted_batch const& batch, bool masked, aggregate_options const& options) {
  CAPTURE(masked);
  CAPTURE(static_cast<int>(options.mean));
  CAPTURE(static_cast<int>(options.unit));
  CAPTURE(static_cast<int>(options.scope));
  CAPTURE(static_cast<int>(options.denominator));
  std::size_t const turns = batch.begin.size();
  auto const view = batch.view();
  auto const mask = masked ? batch.mask : std::vector<std::uint8_t>{};
  std::vector<std::int64_t> tokens(turns);
  std::vector<double> scale(turns);
  host::count_tokens(view, mask, tokens);
  loss_counts const total = host::count_for_loss(view, tokens, batch.reasons, options.unit);
  host::aggregate(view, tokens, batch.reasons, options, scale);

  auto const begin = on_device(batch.begin), end = on_device(batch.end);
  auto const device_mask = on_device(mask);
  auto const reasons = on_device(batch.reasons);
  device_rollout const rollout{view, turns};
  auto device_view = rollout.view();
  device_view.turn_begin = begin.view();
  device_view.turn_end = end.view();
  device_array<std::int64_t> const device_tokens{turns};
  device_array<double> const device_scale{turns};
  device_array<loss_counts> const device_total{1};
  device_status const status;
  std::size_t const trajectories = batch.group.size();
  exact_workspace const plan_memory{support::token_plan_workspace_bytes(turns, batch.mask.size())};
  exact_workspace const group_memory{support::grouping_workspace_bytes(turns, trajectories, turnwise::group_by::group)};
  exact_workspace const memory{gpu::loss::aggregate_workspace_bytes(trajectories)};
  on_stream_and_in_graph(
      [&] {
        fill_bytes(device_tokens, 0x5a);
        fill_bytes(device_scale, 0x5a);
        fill_bytes(device_total, 0x5a);
      },
      [&](cuda::stream_ref stream) {
        auto const plan =
            support::make_token_plan(device_view, batch.mask.size(), status.get(), plan_memory.whole(), stream);
        auto const groups =
            support::make_grouping(device_view, turnwise::group_by::group, status.get(), group_memory.whole(), stream);
        gpu::loss::count_tokens(plan, device_mask.view(), device_tokens.span(), stream);
        gpu::loss::count_for_loss(groups, device_tokens.view(), reasons.view(), options.unit, device_total.span(),
                                  memory.whole(), stream);
        gpu::loss::aggregate(groups, device_tokens.view(), reasons.view(), options, device_total.view(),
                             device_scale.span(), memory.whole(), stream);
      },
      [&] {
        CHECK(status.ok());
        CHECK(device_tokens.host() == tokens);
        CHECK(device_total.host()[0] == total);
        CHECK(same_bits(device_scale.host(), scale));
      });
}

}  // namespace

TEST_SUITE("gpu/loss/aggregate" * doctest::skip(!has_device())) {
  TEST_CASE("the host's bits in every mode") {
    for (auto const& options : all_options()) {
      counted_batch const batch{static_cast<std::uint64_t>(options.mean) + 5, 60};
      compare(batch, false, options);
      compare(batch, true, options);
    }
    for (std::uint64_t seed = 0; seed < seeds(6); ++seed)
      compare(
          counted_batch{seed, 2000}, true,
          {.mean = loss_mean::sequence_mean_token_mean, .unit = loss_unit::trajectory, .scope = loss_scope::prompt});
  }

  TEST_CASE("no trajectories, everything rejected") {
    compare(counted_batch{1, 0}, false, {});
    counted_batch rejected{2, 20};
    for (reason_flags& reasons : rejected.reasons) reasons = turnwise::reason::token_veto;
    for (auto const& options : all_options()) compare(rejected, true, options);
  }

  TEST_CASE("bad sizes and options throw") {
    gpu::grouping groups;
    groups.turns = 2;
    groups.trajectories = 1;
    device_array<std::int64_t> const tokens{2};
    device_array<reason_flags> const reasons{2};
    device_array<loss_counts> const total{1};
    device_array<double> const scale{2};
    exact_workspace const memory{gpu::loss::aggregate_workspace_bytes(1)};
    CHECK(gpu::loss::count_for_loss_workspace_bytes(1) == gpu::loss::aggregate_workspace_bytes(1));
    side_stream const stream;
    using turnwise::precondition_error;
    auto const throws = [&](auto of_tokens, auto of_reasons, auto totals, auto scales, gpu::workspace scratch,
                            aggregate_options const& options = {}) {
      CHECK_THROWS_AS(gpu::loss::aggregate(groups, of_tokens, of_reasons, options, totals, scales, scratch, stream),
                      precondition_error);
    };
    throws(tokens.view().first(1), reasons.view(), total.view(), scale.span(), memory.whole());
    throws(tokens.view(), reasons.view().first(1), total.view(), scale.span(), memory.whole());
    throws(tokens.view(), reasons.view(), total.view().first(0), scale.span(), memory.whole());
    throws(tokens.view(), reasons.view(), total.view(), scale.span().first(1), memory.whole());
    throws(tokens.view(), reasons.view(), total.view(), scale.span(), memory.short_by_one());
    throws(tokens.view(), reasons.view(), total.view(), scale.span(), memory.whole(), {.nominal = 3});
    CHECK_THROWS_AS(gpu::loss::count_for_loss(groups, tokens.view().first(1), reasons.view(), loss_unit::turn,
                                              total.span(), memory.whole(), stream),
                    precondition_error);
    gpu::token_plan plan;
    plan.turns = 2;
    plan.tokens = 5;
    CHECK_THROWS_AS(gpu::loss::count_tokens(plan, {}, device_array<std::int64_t>{1}.span(), stream),
                    precondition_error);
  }

}  // TEST_SUITE

}  // namespace aggregate_test
