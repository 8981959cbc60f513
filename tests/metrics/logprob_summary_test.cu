#include "support/gpu_groups.cuh"
#include "support/gpu_rules.cuh"

#include <turnwise/gpu/metrics/logprob_summary.cuh>

#include <doctest/doctest.h>

#include <cmath>
#include <optional>
#include <vector>

namespace logprob_summary_test {

using namespace support;
using turnwise::importance::ratio_moments;
using turnwise::metrics::logprob_record;
using turnwise::metrics::logprob_source;

namespace {

std::vector<ratio_moments> random_moments(std::uint64_t seed, std::vector<turn_statistics> const& statistics) {
  integers random{seed ^ 0x10e5};
  std::vector<ratio_moments> result(statistics.size());
  for (std::size_t s = 0; s < result.size(); ++s) {
    if (statistics[s].count == 0) continue;
    // Means from 0 to about 5 nats, and a few that are beyond what perplexities show.
    double const mean = random.below(50) == 0 ? 100.0 : static_cast<double>(random.below(1 << 20)) * 5e-6;
    result[s].rollout_logprob = -mean * static_cast<double>(statistics[s].count);
  }
  return result;
}

void check_record(logprob_record const& got, logprob_record const& expected) {
  CHECK(got.turns == expected.turns);
  CHECK(got.tokens == expected.tokens);
  CHECK(same_bits(std::vector{got.token_mean, got.turn_mean, got.turn_min, got.turn_max},
                  std::vector{expected.token_mean, expected.turn_mean, expected.turn_min, expected.turn_max}));
  CHECK(std::abs(got.token_ppl / expected.token_ppl - 1) <= 0x1p-51);
  CHECK(std::abs(got.turn_ppl / expected.turn_ppl - 1) <= 0x1p-51);
  CHECK(std::abs(got.mean_turn_ppl / expected.mean_turn_ppl - 1) <= 1e-13);
}

/// A batch with records, on both sides.
struct logprob_case {
  rule_case rules;
  std::vector<ratio_moments> moments;
  device_array<ratio_moments> device_moments;
  device_groups device;
  device_array<double> turn_mean;
  device_array<logprob_record> out{1};
  exact_workspace scratch;

  explicit logprob_case(std::uint64_t seed, turnwise::group_by by = turnwise::group_by::turn)
      : rules(seed),
        moments(random_moments(seed, rules.statistics)),
        device_moments(std::span<ratio_moments const>{moments}),
        device(rules.batch.view(), by),
        turn_mean(rules.batch.turns()),
        scratch(gpu::metrics::logprob_summary_workspace_bytes(rules.batch.turns())) {}

  void compare(turnwise::group_by by, logprob_source source, bool with_reasons, bool with_means) const {
    std::vector<reason_flags> const reasons = with_reasons ? rules.reasons : std::vector<reason_flags>{};
    std::vector<double> expected(with_means ? moments.size() : 0);
    auto const record = turnwise::metrics::logprob_summary(turnwise::make_grouping(rules.batch.view(), by),
                                                           rules.statistics, moments, reasons, {source}, expected);
    on_stream_and_in_graph(
        [&] {
          fill_bytes(turn_mean, 0xa5);
          fill_bytes(out, 0xa5);
        },
        [&](cuda::stream_ref stream) {
          gpu::metrics::logprob_summary(device.groups(), rules.device_statistics.view(), device_moments.view(),
                                        with_reasons ? rules.before.view() : gpu::device_span<reason_flags const>{},
                                        {source}, with_means ? turn_mean.span() : gpu::device_span<double>{},
                                        out.span(), scratch.whole(), stream);
        },
        [&] {
          if (with_means) CHECK(same_bits(turn_mean.host(), expected));
          check_record(out.host()[0], record);
        });
  }
};

}  // namespace

TEST_SUITE("gpu/metrics/logprob_summary" * doctest::skip(!has_device())) {
  TEST_CASE("the host's record, all options") {
    for (std::uint64_t seed = 0; seed <= seeds(20); ++seed)
      for (auto const by : every_kind) {
        CAPTURE(seed);
        logprob_case const one{seed, by};
        one.compare(by, logprob_source::rollout, true, true);
        one.compare(by, logprob_source::old, true, false);
        one.compare(by, logprob_source::rollout, false, true);
      }
  }

  TEST_CASE("no turns; nothing counts; wrong trajectory offsets: an empty record") {
    side_stream const stream;
    device_array<logprob_record> const out{1};
    fill_bytes(out, 0x42);
    gpu::metrics::logprob_summary({}, {}, {}, {}, {}, {}, out.span(), gpu::workspace{gpu::device_span<std::byte>{}},
                                  stream);
    stream.wait();
    check_record(out.host()[0], {});

    logprob_case const one{4};
    std::size_t const turns = one.moments.size();
    auto const rejected = on_device(std::vector<reason_flags>(turns, turnwise::reason::no_token));
    gpu::metrics::logprob_summary(one.device.groups(), one.rules.device_statistics.view(), one.device_moments.view(),
                                  rejected.view(), {}, one.turn_mean.span(), one.out.span(), one.scratch.whole(),
                                  stream);
    stream.wait();
    check_record(one.out.host()[0], {});
    CHECK(one.turn_mean.host() == std::vector<double>(turns, 0.0));

    auto offsets = one.rules.batch.offsets;
    offsets[1] = -5;
    auto view = one.rules.batch.view();
    view.trajectory_offsets = offsets;
    device_groups const broken{view, turns, turnwise::group_by::turn};
    fill_bytes(one.turn_mean, 0x42);
    gpu::metrics::logprob_summary(broken.groups(), one.rules.device_statistics.view(), one.device_moments.view(), {},
                                  {}, one.turn_mean.span(), one.out.span(), one.scratch.whole(), stream);
    stream.wait();
    check_record(one.out.host()[0], {});
    CHECK(one.turn_mean.host() == std::vector<double>(turns, 0.0));
  }

  TEST_CASE("bad sizes throw with nothing written") {
    logprob_case const one{6};
    side_stream const stream;
    std::size_t const turns = one.moments.size();
    fill_bytes(one.turn_mean, 0x42);
    fill_bytes(one.out, 0x42);
    auto const untouched = one.turn_mean.host();
    auto const call = [&](std::size_t statistics, std::size_t moments, std::size_t reasons, std::size_t means,
                          std::size_t out, gpu::workspace scratch) {
      gpu::metrics::logprob_summary(one.device.groups(), one.rules.device_statistics.view().first(statistics),
                                    one.device_moments.view().first(moments), one.rules.before.view().first(reasons),
                                    {}, one.turn_mean.span().first(means), one.out.span().first(out), scratch, stream);
    };
    auto const whole = one.scratch.whole();
    CHECK_THROWS_AS(call(turns - 1, turns, turns, turns, 1, whole), turnwise::precondition_error);
    CHECK_THROWS_AS(call(turns, turns - 1, turns, turns, 1, whole), turnwise::precondition_error);
    CHECK_THROWS_AS(call(turns, turns, turns - 1, turns, 1, whole), turnwise::precondition_error);
    CHECK_THROWS_AS(call(turns, turns, turns, turns - 1, 1, whole), turnwise::precondition_error);
    CHECK_THROWS_AS(call(turns, turns, turns, turns, 0, whole), turnwise::precondition_error);
    CHECK_THROWS_AS(call(turns, turns, turns, turns, 1, one.scratch.short_by_one()), turnwise::precondition_error);
    stream.wait();
    CHECK(same_bits(one.turn_mean.host(), untouched));
  }

}  // TEST_SUITE

}  // namespace logprob_summary_test
