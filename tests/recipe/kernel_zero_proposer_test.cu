#include "support/gpu_builders.cuh"
#include "support/gpu_steps.cuh"

#include <turnwise/gpu/recipe/kernel_zero_proposer.cuh>
#include <turnwise/recipe/kernel_zero_proposer.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace kernel_zero_proposer_test {

using namespace support;
using turnwise::group_by;
using turnwise::advantage::baseline_members;
using turnwise::advantage::unscored_policy;
using turnwise::recipe::kernel_zero_proposer_options;

namespace {

constexpr turnwise::draw_key key{5, 11};

/// Proposals, and attempts at them: two batches, whose groups the ids of the proposals join.
struct problem_case {
  step_case proposals, attempts;
  std::vector<std::int64_t> group;
  std::vector<std::uint8_t> invalid_module;
  turnwise::grouping attempt_groups;

  explicit problem_case(unsigned seed)
      : proposals(seed, 12, 40),
        attempts(seed + 1000, 30, 5),
        attempt_groups(turnwise::make_grouping(attempts.view(), group_by::group)) {
    std::mt19937_64 random{seed};
    for (std::size_t s = 0; s < proposals.begin.size(); ++s) {
      group.push_back(random() % 9 == 0 ? static_cast<std::int64_t>(random())
                                        : attempts.group[random() % attempts.group.size()]);
      if (seed % 3 != 0) invalid_module.push_back(random() % 5 == 0);
    }
  }
  [[nodiscard]] turnwise::recipe::proposal_results<float> results() const {
    return {{attempts.view(), &attempt_groups, attempts.inputs().evaluation}, group, invalid_module};
  }
};

/// The same in device memory, `shift` elements behind aligned addresses, and what a step over it needs.
struct device_call {
  std::size_t turns, tokens;
  group_by by;
  device_step step, attempts;
  exact_workspace group_memory, attempt_memory, plan_memory, memory;
  shifted_array<std::int64_t> group;
  shifted_array<std::uint8_t> invalid_module;
  gpu::recipe::step_inputs<float, float, float> inputs;
  device_status status;

  device_call(problem_case const& one, group_by kind, std::size_t shift = 0)
      : turns(one.proposals.begin.size()),
        tokens(one.proposals.old_logprob.size()),
        by(kind),
        step(one.proposals, shift),
        attempts(one.attempts, shift),
        group_memory(support::grouping_workspace_bytes(turns, one.proposals.group.size(), by)),
        attempt_memory(
            support::grouping_workspace_bytes(one.attempts.begin.size(), one.attempts.group.size(), group_by::group)),
        plan_memory(support::token_plan_workspace_bytes(turns, tokens)),
        memory(gpu::recipe::kernel_zero_proposer_workspace_bytes(turns, tokens)),
        group(one.group, shift),
        invalid_module(one.invalid_module, shift),
        inputs(step.inputs()) {}

  void enqueue(gpu::recipe::step_outputs const& out, kernel_zero_proposer_options const& options,
               gpu::workspace scratch, cuda::stream_ref stream, std::size_t proposals) const {
    auto const groups = support::make_grouping(step.view(), by, status.get(), group_memory.whole(), stream);
    auto const attempt_groups =
        support::make_grouping(attempts.view(), group_by::group, status.get(), attempt_memory.whole(), stream);
    auto const plan = support::make_token_plan(step.view(), tokens, status.get(), plan_memory.whole(), stream);
    gpu::recipe::proposal_results<float> const results{{attempts.view(), attempt_groups, attempts.inputs().evaluation},
                                                       group.view().first(proposals),
                                                       invalid_module.view()};
    gpu::recipe::kernel_zero_proposer(step.view(), groups, plan, inputs, results, options, key, out, status.get(),
                                      scratch, stream);
  }
};

void compare(problem_case const& one, kernel_zero_proposer_options const& options,
             std::vector<double> const& given_reward = {}, std::size_t shift = 0) {
  std::size_t const turns = one.proposals.begin.size();
  std::size_t const tokens = one.proposals.old_logprob.size();
  host_outputs expected{turns, tokens};
  auto host_inputs = one.proposals.inputs();
  host_inputs.given_reward = given_reward;
  turnwise::recipe::kernel_zero_proposer(one.proposals.view(), host_inputs, one.results(), options, key,
                                         expected.spans());
  device_call device{one, options.groups, shift};
  shifted_array<double> const device_reward{given_reward, shift};
  device.inputs.given_reward = device_reward.view();
  device_outputs const out{turns, tokens, shift};
  on_stream_and_in_graph(
      [&] { out.clear(); },
      [&](cuda::stream_ref stream) { device.enqueue(out.spans(), options, device.memory.whole(), stream, turns); },
      [&] {
        CHECK_NOTHROW(gpu::check(device.status.host()));
        CHECK(out.differences(expected) == "");
      });
}

kernel_zero_proposer_options options_of(unsigned seed) {
  kernel_zero_proposer_options options{.groups = seed % 3 == 0 ? group_by::batch : group_by::group};
  options.reward.target = seed % 2 == 0 ? 0.5 : 0.3;
  if (seed % 4 == 1) options.reward.solved = turnwise::reward::solved_by::any_turn;
  options.unscored = seed % 6 < 3 ? unscored_policy::exclude : unscored_policy::zero;
  options.advantage.scale = seed % 5 != 1;
  if (seed % 3 == 1) options.advantage.members = baseline_members::kept;
  if (seed % 4 >= 2) {
    options.filters.ratio_band.emplace();
    options.filters.token_veto.emplace();
  }
  return options;
}

}  // namespace

TEST_SUITE("gpu/recipe/kernel_zero_proposer" * doctest::skip(!has_device())) {
  TEST_CASE("the host's bits on random batches, every option, with and without given rewards") {
    for (unsigned seed = 0; seed < seeds(24); ++seed) {
      CAPTURE(seed);
      problem_case one{seed};
      compare(one, options_of(seed));
      std::vector<double> given(one.proposals.begin.size(), 0.25);
      for (std::size_t s = 0; s < given.size(); s += 3) given[s] = s % 2 == 0 ? -1 : turnwise::test::nan_value;
      compare(one, options_of(seed), given);
    }
  }

  TEST_CASE("the same bits from arrays that are aligned to their elements alone") {
    for (std::size_t const shift : {1, 3})
      for (unsigned seed = 0; seed < seeds(6); ++seed) {
        CAPTURE(shift);
        CAPTURE(seed);
        problem_case const one{seed};
        compare(one, options_of(seed), {}, shift);
        compare(one, options_of(seed), std::vector<double>(one.proposals.begin.size(), 0.25), shift);
      }
  }

  TEST_CASE("without an evaluation of the proposals") {
    problem_case one{5};
    one.proposals.compiled = one.proposals.correct = one.proposals.decoy = {};
    one.proposals.speedup = one.proposals.generated_us = one.proposals.total_us = {};
    compare(one, {});
  }

  TEST_CASE("a workspace one byte short, wrong sizes and bad options throw, and nothing is written") {
    problem_case const one{4};
    device_call const device{one, group_by::group};
    device_outputs const out{device.turns, device.tokens};
    out.clear();
    side_stream const stream;
    using turnwise::precondition_error;
    auto const whole = device.memory.whole();
    CHECK_THROWS_AS(device.enqueue({}, {}, device.memory.short_by_one(), stream, device.turns), precondition_error);
    CHECK_THROWS_AS(device.enqueue(out.spans(), {}, whole, stream, device.turns - 1), precondition_error);
    CHECK_THROWS_AS(device.enqueue(out.spans(), {.reward = {.target = 2}}, whole, stream, device.turns),
                    precondition_error);
    CHECK_THROWS_AS(device.enqueue(out.spans(), {.advantage = {.ddof = 2}}, whole, stream, device.turns),
                    precondition_error);
    auto wrong = out.spans();
    wrong.reward = wrong.reward.first(device.turns - 1);
    CHECK_THROWS_AS(device.enqueue(wrong, {}, whole, stream, device.turns), precondition_error);
    stream.wait();
    CHECK(out.untouched());
  }

}  // TEST_SUITE

}  // namespace kernel_zero_proposer_test
