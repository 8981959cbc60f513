/// Runs a group-wise advantage on the host and on the device, over random batches.
#pragma once

#include "support/gpu_batches.cuh"
#include "support/gpu_builders.cuh"

#include <doctest/doctest.h>

#include <optional>
#include <span>
#include <tuple>
#include <vector>

namespace support {

inline constexpr turnwise::group_by every_kind[]{turnwise::group_by::group, turnwise::group_by::turn,
                                                 turnwise::group_by::batch};

/// A batch on the device with its grouping.
class device_groups {
 public:
  device_groups(turnwise::rollout_view const& batch, turnwise::group_by by) : device_groups(batch, batch.turns(), by) {}
  device_groups(turnwise::rollout_view const& batch, std::size_t turns, turnwise::group_by by)
      : batch_(batch, turns), memory_(support::grouping_workspace_bytes(turns, batch.group_id.size(), by)) {
    side_stream const stream;
    groups_ = support::make_grouping(batch_.view(), by, nullptr, memory_.whole(), stream);
    stream.wait();
  }
  [[nodiscard]] gpu::rollout_view batch() const { return batch_.view(); }
  [[nodiscard]] gpu::grouping const& groups() const { return groups_; }

 private:
  device_rollout batch_;
  exact_workspace memory_;
  gpu::grouping groups_;
};

/// Checks that a device call gives the host's bits: host(groups, returns, reasons, advantage),
/// device(groups, returns, reasons, advantage, status, stream).
template <typename T, typename Host, typename Device>
void same_advantages(turnwise::grouping const& host_groups, gpu::grouping const& groups, std::vector<T> const& returns,
                     std::vector<reason_flags> const& reasons, Host host, Device device) {
  std::vector<T> expected(returns.size());
  host(host_groups, std::span<T const>{returns}, std::span<reason_flags const>{reasons}, std::span{expected});

  auto const device_returns = on_device(returns);
  auto const device_reasons = on_device(reasons);
  device_array<T> const advantage{returns.size()};
  device_status const status;
  on_stream_and_in_graph([&] { fill_bytes(advantage, 0xa5); },
                         [&](cuda::stream_ref stream) {
                           device(groups, device_returns.view(), device_reasons.view(), advantage.span(), status.get(),
                                  stream);
                         },
                         [&] {
                           CHECK(status.ok());
                           CHECK(same_bits(advantage.host(), expected));
                         });
}

/// What every group-wise advantage must do with bad content and bad sizes; call(groups, returns, reasons, advantage,
/// status, stream), and the host's function as in same_advantages.
template <typename T, typename Host, typename Device>
void check_group_errors(Host host, Device call) {
  returns_case<T> one{8};
  turnwise::group_by const by = turnwise::group_by::turn;
  device_groups const device{one.batch.view(), by};
  std::size_t const turns = one.batch.turns();
  auto const reasons = on_device(one.reasons);
  device_array<T> const advantage{turns};
  side_stream const stream;
  device_status const status;

  // A bad return acts as that of an invalid turn.
  auto excluded = one.reasons;
  auto bad = one.turn_return;
  std::optional<std::int64_t> first;
  for (std::size_t s = 5; s < turns; s += 17) {
    bad[s] = s % 2 == 0 ? std::numeric_limits<T>::infinity() : std::numeric_limits<T>::max();
    excluded[s] |= turnwise::reason::invalid;
    if (!first && turnwise::is_valid(one.reasons[s])) first = static_cast<std::int64_t>(s);
  }
  std::vector<T> expected(turns);
  host(turnwise::make_grouping(one.batch.view(), by), std::span<T const>{bad}, std::span<reason_flags const>{excluded},
       std::span{expected});
  auto const bad_returns = on_device(bad);
  call(device.groups(), bad_returns.view(), reasons.view(), advantage.span(), status.get(), stream);
  stream.wait();
  CHECK(same_bits(advantage.host(), expected));
  REQUIRE(first);
  CHECK(status.host().code() == gpu::status_code::turn_return);
  CHECK(status.host().index() == *first);

  fill_bytes(advantage, 0x11);
  auto const untouched = advantage.host();
  auto const view = bad_returns.view();
  auto const shorter = [](auto span) { return span.first(span.size() - 1); };
  using turnwise::precondition_error;
  CHECK_THROWS_AS(call(device.groups(), shorter(view), reasons.view(), advantage.span(), nullptr, stream),
                  precondition_error);
  CHECK_THROWS_AS(call(device.groups(), view, shorter(reasons.view()), advantage.span(), nullptr, stream),
                  precondition_error);
  CHECK_THROWS_AS(call(device.groups(), view, reasons.view(), shorter(advantage.span()), nullptr, stream),
                  precondition_error);
  CHECK_THROWS_AS(call(device.groups(), advantage.view(), reasons.view(), advantage.span(), nullptr, stream),
                  precondition_error);
  stream.wait();
  CHECK(same_bits(advantage.host(), untouched));

  // Wrong offsets: no turn is in a group, every advantage is 0. No turns: nothing happens.
  std::vector<std::int64_t> offsets = one.batch.offsets;
  offsets[1] = static_cast<std::int64_t>(turns) + 7;
  auto batch = one.batch.view();
  batch.trajectory_offsets = offsets;
  device_groups const broken{batch, turns, by};
  call(broken.groups(), view, reasons.view(), advantage.span(), nullptr, stream);
  stream.wait();
  CHECK(same_bits(advantage.host(), std::vector<T>(turns)));
  device_groups const empty{turnwise::rollout_view{}, by};
  call(empty.groups(), {}, {}, {}, nullptr, stream);
  stream.wait();
}

}  // namespace support
