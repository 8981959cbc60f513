#include "support/gpu_steps.cuh"

#include <turnwise/gpu/recipe/dr_kernel.cuh>
#include <turnwise/recipe/dr_kernel.hpp>

#include <doctest/doctest.h>

using namespace support;
using turnwise::recipe::dr_kernel_options;

namespace {

void compare(step_case const& one, dr_kernel_options const& options) {
  turnwise::draw_key const key{3, 7};
  std::size_t const turns = one.begin.size();
  std::size_t const tokens = one.old_logprob.size();
  host_outputs expected{turns, tokens};
  turnwise::recipe::dr_kernel(one.view(), one.inputs(), options, key, expected.spans());

  device_step const device{one};
  device_outputs const out{turns, tokens};
  device_status const status;
  exact_workspace const group_memory{gpu::grouping_workspace_bytes(turns, one.group.size(), turnwise::group_by::turn)};
  exact_workspace const plan_memory{gpu::token_plan_workspace_bytes(turns, tokens)};
  exact_workspace const memory{gpu::recipe::dr_kernel_workspace_bytes(turns, tokens)};
  on_stream_and_in_graph([&] { out.clear(); },
                         [&](cuda::stream_ref stream) {
                           auto const groups = gpu::make_grouping(device.view(), turnwise::group_by::turn, status.get(),
                                                                  group_memory.whole(), stream);
                           auto const plan =
                               gpu::make_token_plan(device.view(), tokens, status.get(), plan_memory.whole(), stream);
                           gpu::recipe::dr_kernel(device.view(), groups, plan, device.inputs(), options, key,
                                                  out.spans(), status.get(), memory.whole(), stream);
                         },
                         [&] {
                           CHECK_NOTHROW(gpu::check(status.host()));
                           CHECK(out.differences(expected) == "");
                         });
}

}  // namespace

TEST_SUITE("gpu/recipe/dr_kernel" * doctest::skip(!has_device())) {
  TEST_CASE("the host's bits on the recorded batches") {
    for (char const* name : {"kernel_rollouts_a", "kernel_rollouts_b", "stress"}) {
      CAPTURE(name);
      step_case const one{turnwise::test::load_batch(name)};
      compare(one, dr_kernel_options::paper());
      compare(one, dr_kernel_options::released());
    }
  }

  TEST_CASE("the host's bits on a hundred random ragged batches, every option") {
    for (unsigned seed = 0; seed < seeds(100); ++seed) {
      CAPTURE(seed);
      step_case const one{seed, seed % 3 == 0 ? 300 : 12, seed % 5 == 0 ? 3000.0 : 60.0};
      auto options = seed % 2 == 0 ? dr_kernel_options::paper() : dr_kernel_options::released();
      options.turn_return.gamma = seed % 4 == 0 ? 0.4 : 1.0;
      options.turn_return.unscored =
          seed % 7 < 4 ? turnwise::advantage::unscored_policy::exclude : turnwise::advantage::unscored_policy::zero;
      options.advantage.singleton = static_cast<turnwise::advantage::singleton_policy>(seed % 3);
      options.advantage.allow_kept_with_keep = true;
      if (seed % 5 >= 3) options.advantage.members = turnwise::advantage::baseline_members::kept;
      options.filters.usable_tokens.non_finite = seed % 6 < 3 ? turnwise::rejection::non_finite_policy::reject
                                                              : turnwise::rejection::non_finite_policy::neutral;
      if (seed % 8 == 1) options.filters.usable_tokens.non_finite_scope = turnwise::rejection::scope::trajectory;
      if (seed % 9 == 2) options.filters.ratio_band->level = turnwise::rejection::scope::turn;
      if (seed % 9 == 3) options.filters.ratio_band->kind = turnwise::rejection::ratio_kind::product;
      if (seed % 11 == 4) options.filters.token_veto.reset();
      if (seed % 11 == 5) options.filters.profiling_filter.reset();
      compare(one, options);
    }
  }

  TEST_CASE("no turns, no tokens") {
    step_case one{1, 3, 20};
    for (std::size_t s = 0; s < one.begin.size(); ++s) one.begin[s] = one.end[s] = 0;
    one.old_logprob.clear();
    one.rollout_logprob.clear();
    one.mask.clear();
    compare(one, dr_kernel_options::paper());
    step_case none{1, 3, 20};
    none = step_case{turnwise::test::recorded_batch{}};
    none.trajectory_offsets = {0};
    compare(none, dr_kernel_options::paper());
  }

  TEST_CASE("a workspace one byte short and outputs of a wrong size throw, and nothing is written") {
    step_case const one{4, 5, 50};
    std::size_t const turns = one.begin.size();
    std::size_t const tokens = one.old_logprob.size();
    device_step const device{one};
    device_outputs const out{turns, tokens};
    out.clear();
    side_stream const stream;
    exact_workspace const group_memory{
        gpu::grouping_workspace_bytes(turns, one.group.size(), turnwise::group_by::turn)};
    exact_workspace const plan_memory{gpu::token_plan_workspace_bytes(turns, tokens)};
    exact_workspace const memory{gpu::recipe::dr_kernel_workspace_bytes(turns, tokens)};
    auto const groups =
        gpu::make_grouping(device.view(), turnwise::group_by::turn, nullptr, group_memory.whole(), stream);
    auto const plan = gpu::make_token_plan(device.view(), tokens, nullptr, plan_memory.whole(), stream);
    auto const untouched = out.spans();
    auto const call = [&](gpu::recipe::step_outputs const& spans, gpu::workspace const& scratch,
                          dr_kernel_options const& options) {
      gpu::recipe::dr_kernel(device.view(), groups, plan, device.inputs(), options, {1, 2}, spans, nullptr, scratch,
                             stream);
    };
    using turnwise::precondition_error;
    auto const paper = dr_kernel_options::paper();
    CHECK_THROWS_AS(call({}, memory.short_by_one(), paper), precondition_error);
    auto wrong = untouched;
    wrong.advantage = wrong.advantage.first(turns - 1);
    CHECK_THROWS_AS(call(wrong, memory.whole(), paper), precondition_error);
    auto options = paper;
    options.filters.ratio_band->low = 2;
    CHECK_THROWS_AS(call(untouched, memory.whole(), options), precondition_error);
    options = paper;
    options.turn_return.gamma = 2;
    CHECK_THROWS_AS(call(untouched, memory.whole(), options), precondition_error);
    options = paper;
    options.advantage.members = turnwise::advantage::baseline_members::kept;
    CHECK_THROWS_AS(call(untouched, memory.whole(), options), precondition_error);
    stream.wait();
    CHECK(out.untouched());
  }

  TEST_CASE("bad content reaches the status, and the batch stays safe") {
    step_case one{6, 5, 50};
    one.trajectory_offsets[1] = 1 << 30;
    device_step const device{one};
    std::size_t const turns = one.begin.size();
    std::size_t const tokens = one.old_logprob.size();
    device_outputs const out{turns, tokens};
    device_status const status;
    side_stream const stream;
    exact_workspace const group_memory{
        gpu::grouping_workspace_bytes(turns, one.group.size(), turnwise::group_by::turn)};
    exact_workspace const plan_memory{gpu::token_plan_workspace_bytes(turns, tokens)};
    exact_workspace const memory{gpu::recipe::dr_kernel_workspace_bytes(turns, tokens)};
    auto const groups =
        gpu::make_grouping(device.view(), turnwise::group_by::turn, status.get(), group_memory.whole(), stream);
    auto const plan = gpu::make_token_plan(device.view(), tokens, status.get(), plan_memory.whole(), stream);
    gpu::recipe::dr_kernel(device.view(), groups, plan, device.inputs(), dr_kernel_options::paper(), {1, 2},
                           out.spans(), status.get(), memory.whole(), stream);
    stream.wait();
    CHECK(status.host().code() == gpu::status_code::trajectory_offsets);
    CHECK_THROWS_AS(gpu::check(status.host()), turnwise::precondition_error);
    host_outputs expected{turns, tokens};
    std::fill(expected.reasons.begin(), expected.reasons.end(), turnwise::reason::invalid);
    CHECK(out.differences(expected) == "");
  }

}  // TEST_SUITE
