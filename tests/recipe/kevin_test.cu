#include "support/gpu_builders.cuh"
#include "support/gpu_steps.cuh"

#include <turnwise/gpu/recipe/kevin.cuh>
#include <turnwise/recipe/kevin.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

namespace kevin_test {

using namespace support;
using turnwise::group_by;
using turnwise::advantage::baseline_members;
using turnwise::advantage::return_kind;
using turnwise::advantage::unscored_policy;
using turnwise::recipe::kevin_options;

namespace {

constexpr turnwise::draw_key key{5, 11};

/// A batch in device memory, `shift` elements behind aligned addresses, and what a step over it needs.
struct device_call {
  std::size_t turns, tokens;
  device_step step;
  exact_workspace group_memory, plan_memory, memory;
  gpu::recipe::step_inputs<float, float, float> inputs;
  device_status status;

  explicit device_call(step_case const& one, std::size_t shift = 0)
      : turns(one.begin.size()),
        tokens(one.old_logprob.size()),
        step(one, shift),
        group_memory(support::grouping_workspace_bytes(turns, one.group.size(), group_by::group)),
        plan_memory(support::token_plan_workspace_bytes(turns, tokens)),
        memory(gpu::recipe::kevin_workspace_bytes(turns, tokens)),
        inputs(step.inputs()) {}

  void enqueue(gpu::recipe::step_outputs const& out, kevin_options const& options, gpu::workspace scratch,
               cuda::stream_ref stream) const {
    auto const groups =
        support::make_grouping(step.view(), group_by::group, status.get(), group_memory.whole(), stream);
    auto const plan = support::make_token_plan(step.view(), tokens, status.get(), plan_memory.whole(), stream);
    gpu::recipe::kevin(step.view(), groups, plan, inputs, options, key, out, status.get(), scratch, stream);
  }
};

void compare(step_case const& one, kevin_options const& options, std::vector<double> const& given_reward = {},
             std::size_t shift = 0) {
  std::size_t const turns = one.begin.size();
  std::size_t const tokens = one.old_logprob.size();
  host_outputs expected{turns, tokens};
  auto host_inputs = one.inputs();
  host_inputs.given_reward = given_reward;
  turnwise::recipe::kevin(one.view(), host_inputs, options, key, expected.spans());

  device_call device{one, shift};
  shifted_array<double> const device_reward{given_reward, shift};
  device.inputs.given_reward = device_reward.view();
  device_outputs const out{turns, tokens, shift};
  on_stream_and_in_graph(
      [&] { out.clear(); },
      [&](cuda::stream_ref stream) { device.enqueue(out.spans(), options, device.memory.whole(), stream); },
      [&] {
        CHECK_NOTHROW(gpu::check(device.status.host()));
        CHECK(out.differences(expected) == "");
      });
}

kevin_options with_filters() {
  kevin_options options;
  options.filters.ratio_band.emplace();
  options.filters.token_veto.emplace();
  options.filters.profiling_filter.emplace();
  return options;
}

kevin_options options_of(unsigned seed) {
  constexpr return_kind kinds[]{return_kind::discounted_sum, return_kind::max, return_kind::last, return_kind::current,
                                return_kind::best_so_far};
  auto options = seed % 4 < 2 ? kevin_options{} : with_filters();
  options.turn_return.kind = kinds[seed % 5];
  options.turn_return.gamma = seed % 7 == 1 || seed % 5 >= 3 ? 1.0 : seed % 7 == 0 ? 0.0 : 0.4;
  options.turn_return.unscored = seed % 6 < 3 ? unscored_policy::exclude : unscored_policy::zero;
  if (seed % 3 == 0) options.reward = {0.5, 0.7, 2.0, 0.5, -0.3};
  options.advantage.scale = seed % 5 != 1;
  options.advantage.ddof = seed % 9 < 5 ? 1 : 0;
  if (seed % 3 == 1) options.advantage.members = baseline_members::kept;
  if (seed % 8 == 3) options.filters.usable_tokens.non_finite = turnwise::rejection::non_finite_policy::neutral;
  if (seed % 11 == 6) options.filters.ratio_band.reset();
  if (seed % 11 == 7) options.filters.profiling_filter.reset();
  return options;
}

}  // namespace

TEST_SUITE("gpu/recipe/kevin" * doctest::skip(!has_device())) {
  TEST_CASE("the host's bits on the recorded batches") {
    for (char const* name : {"kernel_rollouts_a", "kernel_rollouts_b", "stress"}) {
      CAPTURE(name);
      step_case const one{turnwise::test::load_batch(name)};
      compare(one, {});
      compare(one, with_filters());
    }
  }

  TEST_CASE("the host's bits on forty random ragged batches, every option") {
    for (unsigned seed = 0; seed < seeds(40); ++seed) {
      CAPTURE(seed);
      step_case const one{seed, seed % 3 == 0 ? 300 : 12, seed % 5 == 0 ? 3000.0 : 60.0};
      compare(one, options_of(seed));
    }
  }

  TEST_CASE("the same bits from arrays that are aligned to their elements alone") {
    for (std::size_t const shift : {1, 3}) {
      CAPTURE(shift);
      compare(step_case{turnwise::test::load_batch("stress")}, with_filters(), {}, shift);
      for (unsigned seed = 0; seed < seeds(6); ++seed) {
        CAPTURE(seed);
        step_case const one{seed, 12, 60};
        compare(one, options_of(seed), {}, shift);
        compare(one, options_of(seed), std::vector<double>(one.begin.size(), 0.5), shift);
      }
    }
  }

  TEST_CASE("given rewards, negative, zeros of both signs and missing ones, with and without an evaluation") {
    double const kinds[]{0.0, -0.0, -1.5, 1.0, 0.25, std::numeric_limits<double>::quiet_NaN()};
    for (unsigned seed = 0; seed < seeds(12); ++seed) {
      CAPTURE(seed);
      step_case one{seed, 20, 40};
      std::mt19937_64 random{seed};
      std::vector<double> given;
      for (std::size_t s = 0; s < one.begin.size(); ++s) given.push_back(kinds[random() % 6]);
      auto options = options_of(seed);
      compare(one, options, given);
      one.compiled = one.correct = one.decoy = {};
      one.speedup = one.generated_us = one.total_us = {};
      options.filters.profiling_filter.reset();
      compare(one, options, given);
    }
  }

  TEST_CASE("an evaluation without profiles; infinite times, which the score does not read") {
    step_case one{3, 20, 40};
    for (float& time : one.total_us) time = std::numeric_limits<float>::infinity();
    compare(one, {});
    compare(one, with_filters());
    one.generated_us = one.total_us = {};
    compare(one, {});
  }

  TEST_CASE("no turns, no tokens") {
    step_case one{1, 3, 20};
    for (std::size_t s = 0; s < one.begin.size(); ++s) one.begin[s] = one.end[s] = 0;
    one.old_logprob.clear();
    one.rollout_logprob.clear();
    one.mask.clear();
    compare(one, with_filters());
    step_case none{turnwise::test::recorded_batch{}};
    none.trajectory_offsets = {0};
    compare(none, with_filters());
  }

  TEST_CASE("a workspace one byte short, wrong sizes and bad options throw, and nothing is written") {
    step_case const one{4, 5, 50};
    std::size_t const turns = one.begin.size();
    device_call device{one};
    device_outputs const out{turns, one.old_logprob.size()};
    out.clear();
    side_stream const stream;
    auto const whole = device.memory.whole();
    auto const throws = [&](gpu::recipe::step_outputs const& spans, gpu::workspace const& scratch,
                            kevin_options const& options) {
      CHECK_THROWS_AS(device.enqueue(spans, options, scratch, stream), turnwise::precondition_error);
    };
    throws({}, device.memory.short_by_one(), {});
    auto wrong = out.spans();
    wrong.advantage = wrong.advantage.first(turns - 1);
    throws(wrong, whole, {});
    throws(out.spans(), whole, {.reward = {.correct_weight = turnwise::test::infinity}});
    throws(out.spans(), whole, {.turn_return = {.gamma = 2}});
    throws(out.spans(), whole, {.advantage = {.ddof = 2}});
    auto options = with_filters();
    options.filters.ratio_band->low = 2;
    throws(out.spans(), whole, options);
    auto const inputs = device.inputs;
    device.inputs.evaluation.speedup = inputs.evaluation.speedup.first(turns - 1);
    throws(out.spans(), whole, {});
    device.inputs = inputs;
    device.inputs.evaluation.generated_us = device.inputs.evaluation.total_us = {};
    throws(out.spans(), whole, with_filters());
    stream.wait();
    CHECK(out.untouched());
  }

  TEST_CASE("bad content reaches the status, and the batch stays safe") {
    step_case one{6, 5, 50};
    one.trajectory_offsets[1] = 1 << 30;
    std::size_t const turns = one.begin.size();
    std::size_t const tokens = one.old_logprob.size();
    device_call const device{one};
    device_outputs const out{turns, tokens};
    side_stream const stream;
    device.enqueue(out.spans(), {}, device.memory.whole(), stream);
    stream.wait();
    CHECK(device.status.host().code() == gpu::status_code::trajectory_offsets);
    host_outputs expected{turns, tokens};
    std::fill(expected.reasons.begin(), expected.reasons.end(), turnwise::reason::invalid);
    CHECK(out.differences(expected) == "");
  }

}  // TEST_SUITE

}  // namespace kevin_test
