#include "support/gpu_groups.cuh"

#include <turnwise/gpu/advantage/optimal_token_baseline.cuh>

namespace optimal_token_baseline_test {

using namespace support;
using gpu::status_code;
using turnwise::group_by;
using turnwise::advantage::baseline_members;
using turnwise::advantage::lone_position;
using turnwise::advantage::optimal_token_baseline_options;
namespace reason = turnwise::reason;

namespace {

/// Turns with returns and reasons, and their tokens: gaps between turns, masked tokens, turns without any; garbage
/// where nothing is read.
template <typename T, typename A>
struct weights_case {
  returns_case<A> turns;
  std::vector<std::int64_t> begin, end;
  std::vector<std::uint8_t> mask;
  std::vector<T> weight;

  explicit weights_case(std::uint64_t seed) : turns(seed) {
    integers random{seed ^ 0x70ce};
    std::int64_t const most = seed % 3 == 0 ? 3 : seed % 3 == 1 ? 70 : 300;
    std::int64_t at = 0;
    for (std::size_t s = 0; s < turns.reasons.size(); ++s) {
      at += random.below(4) == 0 ? random.below(40) : 0;
      begin.push_back(at);
      at += random.below(6) == 0 ? 0 : random.below(most);
      end.push_back(at);
    }
    for (std::int64_t n = 0; n < at + 5; ++n) {
      mask.push_back(random.below(5) != 0);
      weight.push_back(T(std::numeric_limits<T>::quiet_NaN()));
    }
    bool const none = random.below(8) == 0;
    for (std::size_t s = 0; s < begin.size(); ++s)
      if (turnwise::is_valid(turns.reasons[s]))
        for (auto n = static_cast<std::size_t>(begin[s]); n < static_cast<std::size_t>(end[s]); ++n)
          if (mask[n] != 0) weight[n] = none ? T{0} : static_cast<T>(static_cast<double>(random.below(2001)) * 1e-3);
  }
  [[nodiscard]] turnwise::rollout_view view() const {
    auto batch = turns.batch.view();
    batch.turn_begin = begin;
    batch.turn_end = end;
    return batch;
  }
};

/// The same in device memory; arrays of turns and tokens begin `shift` elements behind an aligned address.
template <typename T, typename A>
struct device_weights {
  device_groups groups;
  shifted_array<std::int64_t> begin, end;
  shifted_array<std::uint8_t> mask;
  shifted_array<T> weight, advantage;
  shifted_array<A> turn_return;
  shifted_array<reason_flags> reasons;

  device_weights(weights_case<T, A> const& one, group_by by, std::size_t shift = 0)
      : groups(one.turns.batch.view(), by),
        begin(one.begin, shift),
        end(one.end, shift),
        mask(one.mask, shift),
        weight(one.weight, shift),
        advantage(one.weight.size(), shift),
        turn_return(one.turns.turn_return, shift),
        reasons(one.turns.reasons, shift) {}
  [[nodiscard]] gpu::rollout_view batch() const {
    auto view = groups.batch();
    view.turn_begin = begin.view();
    view.turn_end = end.view();
    return view;
  }
  [[nodiscard]] std::size_t workspace_bytes() const {
    return gpu::advantage::optimal_token_baseline_workspace_bytes(begin.span().size(), weight.span().size());
  }
  void enqueue(optimal_token_baseline_options const& options, gpu::status_record* status, gpu::workspace scratch,
               cuda::stream_ref stream) const {
    gpu::advantage::optimal_token_baseline(batch(), groups.groups(), mask.view(), weight.view(), turn_return.view(),
                                           reasons.view(), options, advantage.span(), status, scratch, stream);
  }
};

template <typename T, typename A>
std::vector<T> on_host(weights_case<T, A> const& one, group_by by, optimal_token_baseline_options const& options) {
  std::vector<T> result(one.weight.size());
  turnwise::advantage::optimal_token_baseline(
      one.view(), turnwise::make_grouping(one.view(), by), std::span<std::uint8_t const>{one.mask}, one.weight,
      std::span<A const>{one.turns.turn_return}, std::span<reason_flags const>{one.turns.reasons}, options,
      std::span{result});
  return result;
}

/// Checks the bits, and returns the status.
template <typename T, typename A>
gpu::status_record compare(device_weights<T, A> const& device, optimal_token_baseline_options const& options,
                           std::vector<T> const& expected) {
  exact_workspace const memory{device.workspace_bytes()};
  device_status const status;
  on_stream_and_in_graph(
      [&] { device.advantage.fill(0xa5); },
      [&](cuda::stream_ref stream) { device.enqueue(options, status.get(), memory.whole(), stream); },
      [&] { CHECK(same_bits(device.advantage.host(), expected)); });
  return status.host();
}

template <typename T, typename A>
void compare_all(unsigned most) {
  for (std::uint64_t seed = 1; seed <= seeds(most); ++seed) {
    weights_case<T, A> const one{seed};
    for (group_by const by : every_kind) {
      device_weights<T, A> const device{one, by};
      for (auto const members : {baseline_members::valid, baseline_members::kept})
        for (auto const lone : {lone_position::zero, lone_position::keep}) {
          CAPTURE(seed);
          CAPTURE(static_cast<int>(by));
          CAPTURE(static_cast<int>(members));
          CAPTURE(static_cast<int>(lone));
          lone_position const other = lone == lone_position::zero ? lone_position::keep : lone_position::zero;
          optimal_token_baseline_options const options{.singleton = lone, .tail = other, .members = members};
          CHECK(compare(device, options, on_host(one, by, options)).code() == status_code::ok);
        }
    }
  }
}

}  // namespace

TEST_SUITE("gpu/advantage/optimal_token_baseline" * doctest::skip(!has_device())) {
  TEST_CASE("the host's bits, all groupings and options") {
    compare_all<float, double>(16);
    compare_all<double, double>(6);
    compare_all<float, float>(6);
  }

  TEST_CASE("subnormal weights, many of them 0: the host's bits") {
    for (std::uint64_t seed = 1; seed <= seeds(4); ++seed) {
      CAPTURE(seed);
      weights_case<double, double> one{seed};
      for (double& weight : one.weight) weight = weight < 1.0 ? 0.0 : std::ldexp(weight, -1073);  // NaN stays
      for (group_by const by : every_kind)
        CHECK(compare(device_weights<double, double>{one, by}, {}, on_host(one, by, {})).code() == status_code::ok);
    }
  }

  TEST_CASE("the same bits from arrays that are aligned to their elements alone") {
    for (std::size_t const shift : {1, 3})
      for (std::uint64_t seed = 1; seed <= seeds(3); ++seed) {
        CAPTURE(shift);
        CAPTURE(seed);
        weights_case<float, float> const one{seed};
        device_weights<float, float> const device{one, group_by::turn, shift};
        CHECK(compare(device, {}, on_host(one, group_by::turn, {})).code() == status_code::ok);
      }
  }

  TEST_CASE("long turns, all tokens on, all turns valid") {
    integers random{6};
    weights_case<double, double> one{2};
    one.mask.clear();
    std::ranges::fill(one.turns.reasons, 0);
    for (auto& value : one.turns.turn_return) value = turnwise::test::uneven_number(random);
    std::int64_t at = 0;
    for (std::size_t s = 0; s < one.begin.size(); ++s) {
      one.begin[s] = at;
      one.end[s] = at += s % 50 == 0 ? 20'000 + random.below(64) : random.below(70);
    }
    one.weight.resize(static_cast<std::size_t>(at));
    for (double& w : one.weight) w = static_cast<double>(random.below(2001)) * 1.3e-3;
    for (group_by const by : every_kind)
      CHECK(compare(device_weights<double, double>{one, by}, {}, on_host(one, by, {})).code() == status_code::ok);
  }

  TEST_CASE_TEMPLATE("a bad weight, return or range is reported and its turn acts as invalid", T, float, double) {
    weights_case<T, double> one{8};
    std::vector<std::size_t> member;  // with tokens on
    for (std::size_t s = 0; s < one.begin.size(); ++s)
      if (turnwise::is_valid(one.turns.reasons[s]) && one.begin[s] < one.end[s]) member.push_back(s);
    REQUIRE(member.size() > 40);
    auto judged = one;
    std::int64_t first_token = -1;
    T const bad[]{T(-0.5), std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity(), T(1e31)};
    for (std::size_t i = 5; i < member.size(); i += 9) {
      auto const n = static_cast<std::size_t>(one.end[member[i]]) - 1;
      one.mask[n] = judged.mask[n] = 1;
      one.weight[n] = bad[i % 4];
      judged.turns.reasons[member[i]] |= reason::invalid;
      if (first_token < 0) first_token = static_cast<std::int64_t>(n);
    }
    for (auto& w : judged.weight)
      if (!(w >= 0)) w = T{0};  // the host judges no weight of an invalid turn; of others these are masked
    {
      device_weights<T, double> const device{one, group_by::turn};
      auto const status = compare(device, {}, on_host(judged, group_by::turn, {}));
      CHECK(status.code() == status_code::token_value);
      CHECK(status.index() == first_token);
    }
    std::int64_t first_turn = -1;
    for (std::size_t i = 7; i < member.size(); i += 11) {
      one.turns.turn_return[member[i]] = i % 2 == 0 ? std::numeric_limits<double>::infinity() : 0x1p600;
      judged.turns.reasons[member[i]] |= reason::invalid;
      if (first_turn < 0) first_turn = static_cast<std::int64_t>(member[i]);
    }
    {
      device_weights<T, double> const device{one, group_by::group};
      auto const status = compare(device, {}, on_host(judged, group_by::group, {}));
      CHECK(status.code() == status_code::turn_return);  // the more serious of the two kinds
      CHECK(status.index() == first_turn);
    }
    auto const tokens = static_cast<std::int64_t>(one.weight.size());
    std::int64_t const range[][2]{{-3, 2}, {5, 4}, {0, tokens + 1}, {tokens + 7, tokens + 9}};
    std::int64_t first_range = -1;
    for (std::size_t i = 3; i < member.size(); i += 13) {
      one.begin[member[i]] = range[i % 4][0];
      one.end[member[i]] = range[i % 4][1];
      judged.turns.reasons[member[i]] |= reason::invalid;
      if (first_range < 0) first_range = static_cast<std::int64_t>(member[i]);
    }
    {
      device_weights<T, double> const device{one, group_by::batch};
      auto const status = compare(device, {}, on_host(judged, group_by::batch, {}));
      CHECK(status.code() == status_code::token_range);
      CHECK(status.index() == first_range);
    }
  }

  TEST_CASE("bad arguments throw with nothing written; no turns, no tokens; wrong groups give 0") {
    weights_case<float, double> const one{4};
    device_weights<float, double> const device{one, group_by::turn};
    exact_workspace const memory{device.workspace_bytes()};
    side_stream const stream;
    device.advantage.fill(0x33);
    auto const untouched = device.advantage.host();
    auto const shorter = [](auto span) { return span.first(span.size() - 1); };
    auto const refused = [&](auto change) {
      auto batch = device.batch();
      auto groups = device.groups.groups();
      auto mask = device.mask.view();
      auto weight = device.weight.view();
      auto turn_return = device.turn_return.view();
      auto reasons = device.reasons.view();
      auto advantage = device.advantage.span();
      auto scratch = memory.whole();
      change(batch, groups, mask, weight, turn_return, reasons, advantage, scratch);
      CHECK_THROWS_AS(gpu::advantage::optimal_token_baseline(batch, groups, mask, weight, turn_return, reasons, {},
                                                             advantage, nullptr, scratch, stream),
                      turnwise::precondition_error);
    };
    refused([&](auto& batch, auto&&...) { batch.turn_begin = shorter(batch.turn_begin); });
    refused([&](auto& batch, auto&&...) { batch.turn_end = shorter(batch.turn_end); });
    refused([&](auto&, auto& groups, auto&&...) { --groups.turns; });
    refused([&](auto&, auto&, auto& mask, auto&&...) { mask = shorter(mask); });
    refused([&](auto&, auto&, auto&, auto& weight, auto&&...) { weight = shorter(weight); });
    refused([&](auto&, auto&, auto&, auto&, auto& returns, auto&&...) { returns = shorter(returns); });
    refused([&](auto&, auto&, auto&, auto&, auto&, auto& reasons, auto&&...) { reasons = shorter(reasons); });
    refused([&](auto&, auto&, auto&, auto&, auto&, auto&, auto& advantage, auto&) { advantage = shorter(advantage); });
    refused([&](auto&, auto&, auto&, auto& weight, auto&, auto&, auto& advantage, auto&) { weight = advantage; });
    refused([&](auto&, auto&, auto&, auto&, auto&, auto&, auto&, auto& scratch) { scratch = memory.short_by_one(); });
    stream.wait();
    CHECK(same_bits(device.advantage.host(), untouched));

    device_groups const empty{turnwise::rollout_view{}, group_by::turn};
    exact_workspace const little{gpu::advantage::optimal_token_baseline_workspace_bytes(0, 3)};
    device_array<float> const weight{3}, advantage{3};
    fill_bytes(advantage, 0x33);
    for (std::size_t const tokens : {0u, 3u})
      gpu::advantage::optimal_token_baseline(empty.batch(), empty.groups(), {}, weight.view().first(tokens),
                                             gpu::device_span<double const>{}, {}, {}, advantage.span().first(tokens),
                                             nullptr, little.whole(), stream);
    stream.wait();
    CHECK(same_bits(advantage.host(), std::vector<float>(3)));

    // Wrong offsets: no turn is in a group.
    auto offsets = one.turns.batch.offsets;
    offsets[1] = static_cast<std::int64_t>(one.begin.size()) + 7;
    auto batch = one.turns.batch.view();
    batch.trajectory_offsets = offsets;
    device_groups const broken{batch, one.begin.size(), group_by::turn};
    gpu::advantage::optimal_token_baseline(device.batch(), broken.groups(), device.mask.view(), device.weight.view(),
                                           device.turn_return.view(), device.reasons.view(), {},
                                           device.advantage.span(), nullptr, memory.whole(), stream);
    stream.wait();
    CHECK(same_bits(device.advantage.host(), std::vector<float>(one.weight.size())));
  }

}  // TEST_SUITE

}  // namespace optimal_token_baseline_test
