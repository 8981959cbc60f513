#include "support/gpu_evaluation.cuh"
#include "support/gpu_groups.cuh"
#include "support/gpu_rules.cuh"
#include "support/gpu_steps.cuh"

#include <turnwise/gpu/metrics/mismatch.cuh>
#include <turnwise/importance/log_ratio_statistics.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <utility>

namespace mismatch_test {

using namespace support;
using turnwise::group_by;
using turnwise::importance::ratio_moments;
using turnwise::metrics::kept_count;
using turnwise::metrics::mismatch_options;
using turnwise::metrics::mismatch_record;
using turnwise::recipe::dr_kernel_options;
using turnwise::rejection::ratio_kind;
using turnwise::rejection::scope;

namespace {

using record = mismatch_record;

constexpr std::pair<char const*, std::int64_t record::*> counts[]{{"turns", &record::turns},
                                                                  {"ratio_turns", &record::ratio_turns},
                                                                  {"ratio_tokens", &record::ratio_tokens},
                                                                  {"non_finite_tokens", &record::non_finite_tokens},
                                                                  {"saturated_tokens", &record::saturated_tokens},
                                                                  {"kept_tokens", &record::kept_tokens},
                                                                  {"negative_groups", &record::negative_groups},
                                                                  {"rejected_to_one", &record::rejected_to_one},
                                                                  {"meaningless", &record::meaningless_profiles},
                                                                  {"speedup_outliers", &record::speedup_outliers}};
constexpr std::pair<char const*, kept_count record::*> kept_counts[]{{"valid", &record::valid},
                                                                     {"correct", &record::correct},
                                                                     {"incorrect", &record::incorrect},
                                                                     {"fast", &record::fast}};
constexpr std::pair<char const*, double record::*> exact[]{{"kl", &record::kl},
                                                           {"k3", &record::k3},
                                                           {"old_log_ppl", &record::old_log_ppl},
                                                           {"rollout_log_ppl", &record::rollout_log_ppl},
                                                           {"log_ppl_difference", &record::log_ppl_difference},
                                                           {"chi2_token", &record::chi2_token},
                                                           {"effective_sample_size", &record::effective_sample_size},
                                                           {"low_turn_share", &record::low_turn_share},
                                                           {"high_turn_share", &record::high_turn_share},
                                                           {"low_token_share", &record::low_token_share},
                                                           {"high_token_share", &record::high_token_share},
                                                           {"kept_advantage_mean", &record::kept_advantage_mean}};
/// Through exp.
constexpr std::pair<char const*, double record::*> close[]{{"old_ppl", &record::old_ppl},
                                                           {"rollout_ppl", &record::rollout_ppl},
                                                           {"ratio_min", &record::ratio_min},
                                                           {"ratio_max", &record::ratio_max}};

bool same(kept_count const& a, kept_count const& b) { return a.turns == b.turns && a.kept == b.kept; }

/// Names of the fields that differ by more than they may.
std::string differences(record const& got, record const& expected) {
  std::string names;
  auto const note = [&](bool fine, char const* name) {
    if (!fine) names += std::string{" "} + name;
  };
  for (auto const& [name, field] : counts) note(got.*field == expected.*field, name);
  for (auto const& [name, field] : kept_counts) note(same(got.*field, expected.*field), name);
  for (auto const& [name, field] : exact) note(same_bits(std::vector{got.*field}, std::vector{expected.*field}), name);
  for (auto const& [name, field] : close) note(std::abs(got.*field / (expected.*field) - 1) <= 0x1p-51, name);
  note(std::abs(got.chi2_turn - expected.chi2_turn) <= 1e-13 * (expected.chi2_turn + 1), "chi2_turn");
  note(got.reasons == expected.reasons, "reasons");
  for (std::size_t q = 0; q < 4; ++q) {
    auto const& a = got.by_length[q];
    auto const& b = expected.by_length[q];
    note(a.shortest == b.shortest && a.longest == b.longest && same(a.count, b.count), "by_length");
  }
  note(got.low_keep == expected.low_keep, "low_keep");
  note(got.nothing_kept == expected.nothing_kept, "nothing_kept");
  note(got.profiler_suspect == expected.profiler_suspect, "profiler_suspect");
  return names;
}

/// What the metrics read of the turns, computed on the host, and the same on the device.
template <typename E, typename T>
struct metrics_case {
  turnwise::rollout_view batch;
  std::vector<turn_statistics> statistics;
  std::vector<ratio_moments> moments;
  std::vector<reason_flags> reasons;
  std::vector<T> advantage;
  turnwise::reward::evaluation<E> evaluation{};

  [[nodiscard]] record host(turnwise::grouping const& groups, mismatch_options const& options) const {
    return turnwise::metrics::mismatch(batch, groups, std::span{statistics}, std::span{moments}, std::span{reasons},
                                       std::span{advantage}, evaluation, options);
  }
  void compare(group_by by, mismatch_options const& options) const {
    CAPTURE(static_cast<int>(by));
    record const expected = host(turnwise::make_grouping(batch, by), options);
    device_groups const device{batch, by};
    auto const device_statistics = on_device(statistics);
    auto const device_moments = on_device(moments);
    auto const device_reasons = on_device(reasons);
    auto const device_advantage = on_device(advantage);
    device_evaluation<E> const quality{evaluation};
    device_array<record> const out{1};
    exact_workspace const memory{gpu::metrics::mismatch_workspace_bytes(batch.turns())};
    on_stream_and_in_graph([&] { fill_bytes(out, 0xa5); },
                           [&](cuda::stream_ref stream) {
                             gpu::metrics::mismatch(device.batch(), device.groups(), device_statistics.view(),
                                                    device_moments.view(), device_reasons.view(),
                                                    device_advantage.view(), quality.view(), options, out.span(),
                                                    memory.whole(), stream);
                           },
                           [&] { CHECK(differences(out.host()[0], expected) == ""); });
  }
  void compare_all(mismatch_options const& options) const {
    auto without = *this;
    without.evaluation = {};
    for (auto const by : every_kind) {
      compare(by, options);
      without.compare(by, options);
    }
  }
};

/// After the step of a recipe on the host.
metrics_case<float, double> after_step(step_case const& one, dr_kernel_options const& options) {
  std::size_t const turns = one.begin.size();
  host_outputs step{turns, one.old_logprob.size()};
  turnwise::recipe::dr_kernel(one.view(), one.inputs(), options, {3, 7}, step.spans());
  std::vector<ratio_moments> moments(turns);
  turnwise::importance::log_ratio_statistics(one.view(), one.inputs().tokens, std::span{step.statistics},
                                             std::span{moments});
  return {one.view(), step.statistics, moments, step.reasons, step.advantage, one.inputs().evaluation};
}

/// Bands of both kinds and levels, and limits that some turns pass.
mismatch_options options_of(unsigned seed) {
  mismatch_options options;
  options.band = {seed % 2 == 0 ? scope::trajectory : scope::turn,
                  seed % 3 == 0 ? ratio_kind::product : ratio_kind::geometric, seed % 5 == 0 ? 0.0 : 0.9998, 1.0002};
  options.low_keep_share = seed % 4 == 0 ? 0.9 : 0.1;
  options.fast_speedup = seed % 3 == 1 ? 2.5 : 1.0;
  if (seed % 2 == 1) options.speedup_cap = 3.0;
  return options;
}

/// Numbers of many sizes, with the reasons of a rule_case and some more.
template <typename E, typename T>
metrics_case<E, T> random_case(turnwise::rollout_view const& batch, std::vector<turn_statistics> const& statistics,
                               std::vector<reason_flags> reasons, std::uint64_t seed) {
  integers random{seed};
  std::vector<ratio_moments> moments;
  std::vector<T> advantage;
  for (reason_flags& flags : reasons) {
    auto const positive = [&] { return std::abs(turnwise::test::uneven_number(random)); };
    moments.push_back({positive(), positive(), turnwise::test::uneven_number(random)});
    advantage.push_back(turnwise::test::uneven_number<T>(random) - (seed % 2 == 0 ? T{100} : T{0}));
    if (turnwise::is_valid(flags) && random.below(3) == 0) flags |= turnwise::reason_flags{8} << random.below(8);
  }
  return {batch, statistics, moments, reasons, advantage, {}};
}

}  // namespace

TEST_SUITE("gpu/metrics/mismatch" * doctest::skip(!has_device())) {
  TEST_CASE("the host's record of the recorded batches") {
    for (char const* name : {"kernel_rollouts_a", "kernel_rollouts_b", "stress"}) {
      CAPTURE(name);
      step_case const one{turnwise::test::load_batch(name)};
      for (auto options : {dr_kernel_options::paper(), dr_kernel_options::released()}) {
        options.metrics.speedup_cap = options.reward.speedup_cap;
        after_step(one, options).compare_all(options.metrics);
        after_step(one, options).compare_all(options_of(1));
      }
    }
  }

  TEST_CASE("the host's record of random ragged batches after a step") {
    for (unsigned seed = 0; seed < seeds(30); ++seed) {
      CAPTURE(seed);
      step_case const one{seed, seed % 3 == 0 ? 300 : 12, seed % 5 == 0 ? 300.0 : 40.0};
      auto options = seed % 2 == 0 ? dr_kernel_options::paper() : dr_kernel_options::released();
      if (seed % 3 == 1) options.filters.usable_tokens.non_finite = turnwise::rejection::non_finite_policy::neutral;
      if (seed % 4 >= 2) options.filters.ratio_band->low = 0.5;  // keep most
      if (seed % 4 >= 2) options.filters.ratio_band->high = 2;
      after_step(one, options).compare_all(options_of(seed));
    }
  }

  TEST_CASE("sums of many magnitudes, long trajectories, optional arrays of the evaluation, float and double") {
    for (std::uint64_t seed = 0; seed <= seeds(20); ++seed) {
      CAPTURE(seed);
      rule_case const one{seed};
      auto narrow = random_case<double, float>(one.batch.view(), one.statistics, one.reasons, seed);
      random_evaluation<double> const given{seed, one.reasons.size()};
      narrow.evaluation = given.view();
      if (seed % 5 == 2) narrow.evaluation.total_us = narrow.evaluation.generated_us = {};
      narrow.compare_all(options_of(static_cast<unsigned>(seed)));
      auto wide = random_case<float, double>(one.batch.view(), one.statistics, one.reasons, seed);
      random_evaluation<float> const other{seed, one.reasons.size()};
      wide.evaluation = other.view();
      wide.compare_all(options_of(static_cast<unsigned>(seed) + 1));
    }
  }

  TEST_CASE("a million turns") {
    std::int64_t const trajectories = 250'003;
    std::vector<std::int64_t> offsets{0}, group, id;
    for (std::int64_t j = 0; j < trajectories; ++j) {
      offsets.push_back(offsets.back() + 2 + j % 5);
      group.push_back((j * 7919) % 30'011);
      id.push_back(trajectories - j);
    }
    auto const turns = static_cast<std::size_t>(offsets.back());
    turnwise::rollout_view const view{.trajectory_offsets = offsets, .group_id = group, .trajectory_id = id};
    auto const one = random_case<float, double>(view, random_statistics(5, turns), std::vector<reason_flags>(turns), 5);
    for (auto const by : every_kind) one.compare(by, options_of(1));
  }

  TEST_CASE("everything rejected, no valid turn, no token, no turn") {
    rule_case const one{6};
    auto given = random_case<float, double>(one.batch.view(), one.statistics, one.reasons, 6);
    for (reason_flags const all : {turnwise::reason::ratio_low, turnwise::reason::invalid, turnwise::reason::no_token,
                                   turnwise::reason_flags{0}}) {
      std::fill(given.reasons.begin(), given.reasons.end(), all);
      given.compare_all({});
    }
    std::fill(given.statistics.begin(), given.statistics.end(), turn_statistics{});
    std::fill(given.moments.begin(), given.moments.end(), ratio_moments{});
    given.compare_all({});
    std::vector<std::int64_t> const zero{0};
    metrics_case<float, double>{}.compare_all({});
    metrics_case<float, double> none{};
    none.batch.trajectory_offsets = zero;
    none.compare_all({});
  }

  TEST_CASE("wrong sizes, a workspace one byte short, a bad band throw; wrong offsets give an empty batch's record") {
    rule_case const one{6};
    std::size_t const turns = one.reasons.size();
    auto const given = random_case<float, double>(one.batch.view(), one.statistics, one.reasons, 6);
    device_groups const device{one.batch.view(), group_by::turn};
    auto const moments = on_device(given.moments);
    auto const advantage = on_device(given.advantage);
    device_array<record> const out{1};
    exact_workspace const memory{gpu::metrics::mismatch_workspace_bytes(turns)};
    side_stream const stream;
    auto groups = device.groups();
    auto statistics = one.device_statistics.view();
    auto each = moments.view();
    auto reasons = one.before.view();
    auto advantages = advantage.view();
    auto records = out.span();
    gpu::reward::evaluation<float> evaluation{};
    mismatch_options options;
    auto const call = [&](gpu::workspace const& scratch) {
      gpu::metrics::mismatch(device.batch(), groups, statistics, each, reasons, advantages, evaluation, options,
                             records, scratch, stream);
    };
    auto const throws_with = [&](auto& argument, auto wrong) {
      auto const right = std::exchange(argument, wrong);
      CHECK_THROWS_AS(call(memory.whole()), turnwise::precondition_error);
      argument = right;
    };
    fill_bytes(out, 0x33);
    CHECK_THROWS_AS(call(memory.short_by_one()), turnwise::precondition_error);
    throws_with(statistics, statistics.first(turns - 1));
    throws_with(each, each.first(turns - 1));
    throws_with(reasons, reasons.first(turns - 1));
    throws_with(advantages, advantages.first(turns - 1));
    throws_with(records, records.first(0));
    throws_with(groups.turns, turns - 1);
    device_array<std::uint8_t> const correct{turns};
    throws_with(evaluation.correct, correct.view());  // without speedups
    throws_with(options.band.low, 2.0);
    stream.wait();
    CHECK(out.host()[0].turns == 0x3333333333333333);

    auto offsets = one.batch.offsets;
    offsets[1] = static_cast<std::int64_t>(turns) + 7;
    auto view = one.batch.view();
    view.trajectory_offsets = offsets;
    device_groups const broken{view, turns, group_by::turn};
    gpu::metrics::mismatch(broken.batch(), broken.groups(), statistics, each, reasons, advantages, evaluation, options,
                           records, memory.whole(), stream);
    stream.wait();
    CHECK(differences(out.host()[0],
                      metrics_case<float, double>{}.host(turnwise::make_grouping({}, group_by::turn), {})) == "");
  }

}  // TEST_SUITE

}  // namespace mismatch_test
