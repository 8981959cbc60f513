/// Runs rules on the host and on the device over random batches: rules that add reasons to turns, given statistics of
/// the turns, and rules on single tokens.
#pragma once

#include "support/gpu_batches.cuh"
#include "support/gpu_builders.cuh"

#include <turnwise/gpu/core/status.cuh>
#include <turnwise/importance/turn_statistics.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace support {

using turnwise::importance::turn_statistics;

/// Statistics as a pass over tokens could leave them: without tokens, with bad ones, near the edges of bands.
inline std::vector<turn_statistics> random_statistics(std::uint64_t seed, std::size_t turns) {
  integers random{seed ^ 0x57a7};
  std::vector<turn_statistics> result(turns);
  for (auto& one : result) {
    if (random.below(12) == 0) one.non_finite = 1 + random.below(3);
    if (random.below(10) == 0) continue;
    one.count = 1 + random.below(5000);
    // Around means of +-2e-3 nats, about where a band ends for some.
    std::int64_t const most = one.count * (std::int64_t{1} << (10 + random.below(8)));
    one.sum = random.below(2 * most + 1) - most;
    one.min = -static_cast<double>(random.below(12000)) * 1e-3;
    one.max = static_cast<double>(random.below(3000)) * 1e-3;
  }
  return result;
}

/// A batch for rules: random, or (seed 0) with trajectories of thousands of turns.
inline ragged_batch<double> rule_batch(std::uint64_t seed) {
  if (seed != 0) return random_batch<double>(seed);
  std::vector<turn_values<double>> trajectories;
  for (std::int64_t const turns : {31, 0, 32, 33, 1, 64, 5000, 2}) {
    turn_values<double> one{.group = 3, .id = static_cast<std::int64_t>(trajectories.size())};
    one.turns.resize(static_cast<std::size_t>(turns));
    trajectories.push_back(one);
  }
  return ragged_batch<double>{trajectories};
}

/// A batch whose validity is settled, and its copy on the device.
struct rule_case {
  ragged_batch<double> batch;
  std::vector<turn_statistics> statistics;
  std::vector<reason_flags> reasons;
  device_rollout device;
  device_array<turn_statistics> device_statistics;
  device_array<reason_flags> before, after;

  explicit rule_case(std::uint64_t seed) : rule_case(seed, random_statistics(seed, rule_batch(seed).turns())) {}
  rule_case(std::uint64_t seed, std::vector<turn_statistics> given)
      : batch(rule_batch(seed)),
        statistics(std::move(given)),
        reasons(settled(seed, batch)),
        device(batch.view()),
        device_statistics(std::span<turn_statistics const>{statistics}),
        before(std::span<reason_flags const>{reasons}),
        after(reasons.size()) {}

  /// host(batch, statistics, reasons) throws or adds reasons; device(batch, statistics, reasons, status, stream) must
  /// add the same and leave `code`.
  template <typename Host, typename Device>
  void compare(Host host, Device call, gpu::status_code code = gpu::status_code::ok, std::int64_t index = 0) const {
    auto expected = reasons;
    host(batch.view(), std::span<turn_statistics const>{statistics}, std::span{expected});
    device_status const status;
    on_stream_and_in_graph(
        [&] { status.clear(); },
        [&](cuda::stream_ref stream) {
          if (!reasons.empty())
            gpu::check(cudaMemcpyAsync(after.span().data(), before.view().data(), reasons.size() * sizeof(reason_flags),
                                       cudaMemcpyDeviceToDevice, stream.get()),
                       "copy");
          call(device.view(), device_statistics.view(), after.span(), status.get(), stream);
        },
        [&] {
          CHECK(after.host() == expected);
          CHECK(status.host().code() == code);
          if (code != gpu::status_code::ok) CHECK(status.host().index() == index);
        });
  }

  /// Arguments of wrong sizes throw and nothing is written; no turns at all are fine; wrong offsets stay in bounds.
  template <typename Device>
  void check_sizes(Device call) const {
    side_stream const stream;
    std::size_t const fewer = reasons.size() - 1;
    fill_bytes(after, 0x33);
    auto const untouched = after.host();
    auto shorter = device.view();
    shorter.group_id = shorter.group_id.subspan(1);
    using turnwise::precondition_error;
    CHECK_THROWS_AS(call(shorter, device_statistics.view(), after.span(), nullptr, stream), precondition_error);
    CHECK_THROWS_AS(call(device.view(), device_statistics.view(), after.span().first(fewer), nullptr, stream),
                    precondition_error);
    CHECK_THROWS_AS(call(device.view(), device_statistics.view().first(fewer), after.span(), nullptr, stream),
                    precondition_error);
    stream.wait();
    CHECK(same_bits(after.host(), untouched));
    call({}, {}, {}, nullptr, stream);

    auto offsets = batch.offsets;
    for (std::size_t j = 0; j < offsets.size(); j += 3) offsets[j] = j % 2 == 0 ? -77 : 1'000'000'000'000;
    auto view = batch.view();
    view.trajectory_offsets = offsets;
    device_rollout const broken{view, batch.turns()};
    call(broken.view(), device_statistics.view(), after.span(), nullptr, stream);
    stream.wait();
  }

 private:
  static std::vector<reason_flags> settled(std::uint64_t seed, ragged_batch<double> const& batch) {
    integers random{seed + 99};
    auto flags = batch.reasons();
    for (reason_flags& one : flags) {
      if (one != 0) continue;
      std::int64_t const kind = random.below(20);
      if (kind < 2) one = kind == 0 ? turnwise::reason::unscored : turnwise::reason::unscored_future;
      if (kind == 2) one = turnwise::reason::stale;
    }
    return flags;
  }
};

/// Random log-probs; every `odd`-th is NaN, infinite, huge or a zero of either sign (0: none).
template <typename T>
std::vector<T> random_logprobs(unsigned seed, std::size_t count, unsigned odd = 50) {
  std::mt19937 generator{seed};
  std::normal_distribution<float> around{-1.0f, 0.5f};
  constexpr float infinity = std::numeric_limits<float>::infinity();
  float const strange[]{
      std::numeric_limits<float>::quiet_NaN(), infinity, -infinity, 3e4f, -3e4f, 20.0f, -65.0f, 0.0f, -0.0f};
  std::vector<T> result;
  for (std::size_t i = 0; i < count; ++i) {
    float value = around(generator);
    if (odd != 0 && generator() % odd == 0) value = strange[generator() % std::size(strange)];
    result.push_back(static_cast<T>(value));
  }
  return result;
}

/// Turns with tokens, gaps between some of them, in shuffled memory order if wanted; one trajectory. On the host and on
/// the device, with its plan.
struct token_case {
  std::vector<std::int64_t> begin, end, offsets, id{0};
  std::vector<std::uint8_t> mask;
  std::vector<reason_flags> reasons;  ///< a third of the turns is rejected
  device_array<std::int64_t> device_begin, device_end;
  device_array<std::byte> plan_memory;
  gpu::token_plan plan;

  token_case(unsigned seed, std::size_t turns, double mean_length, bool shuffled)
      : token_case(random_ranges(seed, turns, mean_length, shuffled), seed) {}

  [[nodiscard]] std::size_t turns() const { return begin.size(); }
  [[nodiscard]] std::size_t tokens() const { return mask.size(); }
  [[nodiscard]] turnwise::rollout_view view() const { return {begin, end, offsets, id, id}; }

 private:
  struct ranges {
    std::vector<std::int64_t> begin, end;
    std::size_t tokens = 0;
  };
  token_case(ranges given, unsigned seed)
      : begin(std::move(given.begin)),
        end(std::move(given.end)),
        offsets{0, static_cast<std::int64_t>(begin.size())},
        device_begin(std::span<std::int64_t const>{begin}),
        device_end(std::span<std::int64_t const>{end}),
        plan_memory(support::token_plan_workspace_bytes(begin.size(), given.tokens)) {
    integers random{seed};
    for (std::size_t i = 0; i < given.tokens; ++i) mask.push_back(random.below(5) != 0);
    for (std::size_t s = 0; s < begin.size(); ++s)
      reasons.push_back(random.below(3) == 0 ? turnwise::reason::stale : 0);
    gpu::rollout_view batch;
    batch.turns = begin.size();
    batch.turn_begin = device_begin.view();
    batch.turn_end = device_end.view();
    side_stream const stream;
    plan = support::make_token_plan(batch, given.tokens, nullptr, workspace_of(plan_memory), stream);
    stream.wait();
  }
  static ranges random_ranges(unsigned seed, std::size_t turns, double mean_length, bool shuffled) {
    std::mt19937 generator{seed};
    std::lognormal_distribution<double> length{std::log(mean_length), 1.0};
    ranges result;
    for (std::size_t s = 0; s < turns; ++s) {
      result.begin.push_back(static_cast<std::int64_t>(result.tokens));
      if (generator() % 7 != 0) result.tokens += static_cast<std::size_t>(std::min(1e5, length(generator)));
      result.end.push_back(static_cast<std::int64_t>(result.tokens));
      if (generator() % 3 == 0) result.tokens += generator() % 50;
    }
    for (std::size_t s = shuffled ? turns : 0; s-- > 1;) {
      std::size_t const other = generator() % (s + 1);
      std::swap(result.begin[s], result.begin[other]);
      std::swap(result.end[s], result.end[other]);
    }
    return result;
  }
};

/// Runs a rule on single tokens on the host and on the device: host(keep) and device(keep, stream) start from `before`;
/// on the device `keep` lies `shift` elements behind an aligned address.
template <typename Host, typename Device>
void same_token_mask(std::vector<std::uint8_t> const& before, Host host, Device device, std::size_t shift = 0) {
  auto expected = before;
  host(std::span{expected});
  auto const start = on_device(before);
  shifted_array<std::uint8_t> const keep{before.size(), shift};
  on_stream_and_in_graph([&] { keep.fill(0xa5); },
                         [&](cuda::stream_ref stream) {
                           if (!before.empty())
                             gpu::check(cudaMemcpyAsync(keep.span().data(), start.view().data(), before.size(),
                                                        cudaMemcpyDeviceToDevice, stream.get()),
                                        "copy");
                           device(keep.span(), stream);
                         },
                         [&] { CHECK(keep.host() == expected); });
}

}  // namespace support
