#include "support/gpu_builders.cuh"
#include "support/gpu_steps.cuh"

#include <turnwise/gpu/recipe/dr_kernel.cuh>
#include <turnwise/recipe/dr_kernel.hpp>

#include <doctest/doctest.h>

namespace dr_kernel_test {

using namespace support;
using turnwise::recipe::dr_kernel_options;

namespace {

turnwise::draw_key const key{3, 7};

/// A batch in device memory with all that a step needs beside it, its arrays `shift` elements past an aligned address.
struct prepared_step {
  std::size_t turns, tokens;
  device_step device;
  device_outputs out;
  device_status status;
  exact_workspace group_memory, plan_memory, memory;

  explicit prepared_step(step_case const& one, std::size_t shift = 0)
      : turns(one.begin.size()),
        tokens(one.old_logprob.size()),
        device(one, shift),
        out(turns, tokens, shift),
        group_memory(support::grouping_workspace_bytes(turns, one.group.size(), turnwise::group_by::turn)),
        plan_memory(support::token_plan_workspace_bytes(turns, tokens)),
        memory(gpu::recipe::dr_kernel_workspace_bytes(turns, tokens)) {}

  /// The step with its grouping and its token plan.
  void enqueue(dr_kernel_options const& options, gpu::recipe::step_outputs const& wanted, gpu::workspace const& scratch,
               cuda::stream_ref stream) const {
    auto const groups =
        support::make_grouping(device.view(), turnwise::group_by::turn, status.get(), group_memory.whole(), stream);
    auto const plan = support::make_token_plan(device.view(), tokens, status.get(), plan_memory.whole(), stream);
    gpu::recipe::dr_kernel(device.view(), groups, plan, device.inputs(), options, key, wanted, status.get(), scratch,
                           stream);
  }
  void enqueue(dr_kernel_options const& options, cuda::stream_ref stream) const {
    enqueue(options, out.spans(), memory.whole(), stream);
  }
};

host_outputs on_host(step_case const& one, dr_kernel_options const& options) {
  host_outputs result{one.begin.size(), one.old_logprob.size()};
  turnwise::recipe::dr_kernel(one.view(), one.inputs(), options, key, result.spans());
  return result;
}

void compare(step_case const& one, dr_kernel_options const& options, std::size_t shift = 0) {
  auto const expected = on_host(one, options);
  prepared_step const step{one, shift};
  on_stream_and_in_graph([&] { step.out.clear(); }, [&](cuda::stream_ref stream) { step.enqueue(options, stream); },
                         [&] {
                           CHECK_NOTHROW(gpu::check(step.status.host()));
                           CHECK(step.out.differences(expected) == "");
                         });
}

/// Random options out of all that the step has, and a batch.
struct random_step {
  step_case batch;
  dr_kernel_options options;

  explicit random_step(unsigned seed)
      : batch(seed, seed % 3 == 0 ? 300 : 12, seed % 5 == 0 ? 3000.0 : 60.0),
        options(seed % 2 == 0 ? dr_kernel_options::paper() : dr_kernel_options::released()) {
    options.turn_return.gamma = seed % 4 == 0 ? 0.4 : 1.0;
    options.turn_return.unscored =
        seed % 7 < 4 ? turnwise::advantage::unscored_policy::exclude : turnwise::advantage::unscored_policy::zero;
    options.advantage.singleton = static_cast<turnwise::advantage::singleton_policy>(seed % 3);
    options.advantage.allow_kept_with_keep = true;
    if (seed % 5 >= 3) options.advantage.members = turnwise::advantage::baseline_members::kept;
    options.filters.usable_tokens.non_finite =
        seed % 6 < 3 ? turnwise::rejection::non_finite_policy::reject : turnwise::rejection::non_finite_policy::neutral;
    if (seed % 8 == 1) options.filters.usable_tokens.non_finite_scope = turnwise::rejection::scope::trajectory;
    if (seed % 9 == 2) options.filters.ratio_band->level = turnwise::rejection::scope::turn;
    if (seed % 9 == 3) options.filters.ratio_band->kind = turnwise::rejection::ratio_kind::product;
    if (seed % 11 == 4) options.filters.token_veto.reset();
    if (seed % 11 == 5) options.filters.profiling_filter.reset();
  }
};

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
      random_step const one{seed};
      compare(one.batch, one.options);
    }
  }

  TEST_CASE("the same bits from arrays that are aligned to their elements alone") {
    for (std::size_t const shift : {1, 3}) {
      CAPTURE(shift);
      compare(step_case{turnwise::test::load_batch("stress")}, dr_kernel_options::paper(), shift);
      for (unsigned seed = 0; seed < seeds(15); ++seed) {
        CAPTURE(seed);
        random_step const one{seed};
        compare(one.batch, one.options, shift);
      }
    }
  }

  TEST_CASE("the same bits in run after run, with other work beside it") {
    random_step const one{15};
    auto const expected = on_host(one.batch, one.options);
    prepared_step const step{one.batch};
    prepared_step const beside{one.batch};
    side_stream const stream, other;
    for (unsigned run = 0; run < seeds(50); ++run) {
      CAPTURE(run);
      step.out.clear();
      step.enqueue(one.options, stream);
      beside.enqueue(one.options, other);
      stream.wait();
      CHECK(step.out.differences(expected) == "");
    }
    other.wait();
  }

  TEST_CASE("1, 2 and 8 shards: each its trajectories, then baselines on the returns of all, give the same bits") {
    for (unsigned seed = 1; seed < 1 + seeds(10); ++seed) {
      random_step one{seed};
      one.options.advantage.members = turnwise::advantage::baseline_members::valid;
      auto const whole = on_host(one.batch, one.options);
      for (std::size_t const shards : {1, 2, 8}) {
        CAPTURE(seed);
        CAPTURE(shards);
        step_case gathered = one.batch.picked({});
        std::vector<double> turn_return;
        std::vector<reason_flags> reasons;
        host_outputs expected{0, 0};
        for (std::size_t rank = 0; rank < shards; ++rank) {
          std::vector<std::size_t> mine;  // trajectories of one group land on different ranks
          for (std::size_t j = 0; j < one.batch.group.size(); ++j)
            if ((5 * j + j / 7) % shards == rank) mine.push_back(j);
          step_case const part = one.batch.picked(mine);
          prepared_step const step{part};
          side_stream const stream;
          step.enqueue(one.options, stream);
          stream.wait();
          auto const got = step.out.host();
          auto const picked = whole.picked(one.batch, mine);
          CHECK(same_numbers(got.reward, picked.reward));
          CHECK(same_bits(got.turn_return, picked.turn_return));
          CHECK(same_bits(got.reasons, picked.reasons));
          CHECK(same_bits(got.statistics, picked.statistics));
          gathered.append(part);
          auto const join = [](auto& to, auto const& from) { to.insert(to.end(), from.begin(), from.end()); };
          join(turn_return, got.turn_return);
          join(reasons, got.reasons);
          join(expected.advantage, picked.advantage);
        }
        prepared_step const all{gathered};
        side_stream const stream;
        auto const groups = support::make_grouping(all.device.view(), turnwise::group_by::turn, nullptr,
                                                   all.group_memory.whole(), stream);
        auto const device_returns = on_device(turn_return);
        auto const device_reasons = on_device(reasons);
        device_array<double> const advantage{turn_return.size()};
        gpu::advantage::leave_one_out(groups, device_returns.view(), device_reasons.view(), one.options.advantage,
                                      advantage.span(), nullptr, stream);
        stream.wait();
        CHECK(same_bits(advantage.host(), expected.advantage));
      }
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
    prepared_step const step{step_case{4, 5, 50}};
    step.out.clear();
    side_stream const stream;
    auto const untouched = step.out.spans();
    auto const throws = [&](gpu::recipe::step_outputs const& wanted, gpu::workspace const& scratch,
                            dr_kernel_options const& options) {
      CHECK_THROWS_AS(step.enqueue(options, wanted, scratch, stream), turnwise::precondition_error);
    };
    auto const paper = dr_kernel_options::paper();
    throws({}, step.memory.short_by_one(), paper);
    auto wrong = untouched;
    wrong.advantage = wrong.advantage.first(step.turns - 1);
    throws(wrong, step.memory.whole(), paper);
    auto options = paper;
    options.filters.ratio_band->low = 2;
    throws(untouched, step.memory.whole(), options);
    options = paper;
    options.turn_return.gamma = 2;
    throws(untouched, step.memory.whole(), options);
    options = paper;
    options.advantage.members = turnwise::advantage::baseline_members::kept;
    throws(untouched, step.memory.whole(), options);
    stream.wait();
    CHECK(step.out.untouched());
  }

  TEST_CASE("bad content reaches the status, and the batch stays safe") {
    step_case one{6, 5, 50};
    one.trajectory_offsets[1] = 1 << 30;
    prepared_step const step{one};
    side_stream const stream;
    step.enqueue(dr_kernel_options::paper(), stream);
    stream.wait();
    CHECK(step.status.host().code() == gpu::status_code::trajectory_offsets);
    CHECK_THROWS_AS(gpu::check(step.status.host()), turnwise::precondition_error);
    host_outputs expected{step.turns, step.tokens};
    std::fill(expected.reasons.begin(), expected.reasons.end(), turnwise::reason::invalid);
    CHECK(step.out.differences(expected) == "");
  }

}  // TEST_SUITE

}  // namespace dr_kernel_test
