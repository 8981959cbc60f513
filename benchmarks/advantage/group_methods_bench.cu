// Every group-wise advantage over 2^20 turns in groups of 16 on the device: turns a second, and `of_read`, the time of
// a plain read of as many bytes as a method must move (returns, reasons, members, their trajectories, advantages) over
// our time. Inputs are in L2 where they fit, as after the launch that wrote them.
//
// `grouping` builds the groups from random 64-bit ids; `grouping_and_leave_one_out` is the whole, replayed as a graph.
#include "../gpu_common.cuh"

#include <turnwise/gpu/advantage/gpg.cuh>
#include <turnwise/gpu/advantage/group_relative.cuh>
#include <turnwise/gpu/advantage/leave_one_out.cuh>
#include <turnwise/gpu/advantage/max_rl.cuh>
#include <turnwise/gpu/advantage/median_mad.cuh>
#include <turnwise/gpu/advantage/opo.cuh>
#include <turnwise/gpu/advantage/pass_at_k.cuh>
#include <turnwise/gpu/advantage/remax.cuh>
#include <turnwise/gpu/core/grouping.cuh>

#include <benchmark/benchmark.h>

#include <numeric>
#include <string>

namespace {

using namespace bench;
using turnwise::reason_flags;

template <typename V>
device_array<V> upload(std::vector<V> const& values) {
  return device_array<V>{std::span<V const>{values}};
}

/// Single-turn trajectories in random order, 16 of each random group id.
struct inputs {
  static constexpr std::size_t turns = std::size_t{1} << 20;
  static constexpr std::size_t bytes_of_turn = 2 * sizeof(double) + sizeof(reason_flags) + 2 * sizeof(std::int64_t);

  cudaStream_t stream = new_stream();
  device_array<std::int64_t> offsets, trajectory;
  device_array<std::int64_t> group = upload(random_groups());
  device_array<double> turn_return = upload(random_numbers(100)), weight = upload(random_numbers(4000));
  device_array<reason_flags> reasons = upload(std::vector<reason_flags>(turns));
  device_array<double> advantage{turns};
  device_array<std::byte> group_memory{gpu::grouping_workspace_bytes(turns, turns, turnwise::group_by::group)};
  device_array<std::byte> scratch{gpu::advantage::pass_at_k_workspace_bytes(turns)};
  gpu::grouping groups;

  inputs() : offsets(upload(ascending(turns + 1))), trajectory(upload(ascending(turns))), groups(make_groups()) {
    gpu::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  }
  [[nodiscard]] gpu::grouping make_groups() const {
    gpu::rollout_view const view{.turns = turns,
                                 .trajectory_offsets = offsets.view(),
                                 .group_id = group.view(),
                                 .trajectory_id = trajectory.view()};
    return gpu::make_grouping(view, turnwise::group_by::group, nullptr, workspace_of(group_memory), stream);
  }

 private:
  static cudaStream_t new_stream() {
    cudaStream_t stream;
    gpu::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    return stream;
  }
  static std::vector<std::int64_t> ascending(std::size_t count) {
    std::vector<std::int64_t> values(count);
    std::iota(values.begin(), values.end(), std::int64_t{0});
    return values;
  }
  static std::vector<std::int64_t> random_groups() {
    std::mt19937_64 random{1};
    std::vector<std::int64_t> values(turns);
    for (std::size_t s = 0; s < turns; ++s)
      values[s] = s % 16 == 0 ? static_cast<std::int64_t>(random()) : values[s - 1];
    std::shuffle(values.begin(), values.end(), random);
    return values;
  }
  static std::vector<double> random_numbers(unsigned most) {
    std::mt19937 random{2};
    std::vector<double> values(turns);
    for (double& value : values) value = random() % most;
    return values;
  }
};

inputs const& batch() {
  static inputs const all;
  return all;
}

/// Reports the median time of run(), which enqueues on the batch's stream.
template <typename Run>
void report_time(benchmark::State& state, Run run) {
  inputs const& in = batch();
  // As many bytes in two arrays, on the stream of the call.
  std::size_t const bytes = inputs::turns * inputs::bytes_of_turn;
  static device_array<std::byte> const a{bytes / 2}, b{bytes / 2};
  for (auto _ : state) {
    double const time = median_seconds(in.stream, 15, [&](int) { run(in); });
    double const read = read_seconds(a.span().data(), b.span().data(), bytes / 2, in.stream);
    state.SetIterationTime(time);
    state.counters["Mturns/s"] = static_cast<double>(inputs::turns) * 1e-6 / time;
    state.counters["of_read"] = read / time;
    state.counters["us"] = time * 1e6;
  }
}

template <typename Run>
void add(std::string const& name, Run run) {
  benchmark::RegisterBenchmark(name.c_str(), [run](benchmark::State& state) { report_time(state, run); })
      ->UseManualTime()
      ->Iterations(1)
      ->Unit(benchmark::kMicrosecond);
}

/// The grouping and then leave_one_out, captured once.
void grouping_and_leave_one_out(benchmark::State& state) {
  inputs const& in = batch();
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  gpu::check(cudaStreamBeginCapture(in.stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  gpu::advantage::leave_one_out(in.make_groups(), in.turn_return.view(), in.reasons.view(), {}, in.advantage.span(),
                                nullptr, in.stream);
  gpu::check(cudaStreamEndCapture(in.stream, &graph), "cudaStreamEndCapture");
  gpu::check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  report_time(state, [&](inputs const&) { gpu::check(cudaGraphLaunch(executable, in.stream), "cudaGraphLaunch"); });
  gpu::check(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
  gpu::check(cudaGraphDestroy(graph), "cudaGraphDestroy");
}
BENCHMARK(grouping_and_leave_one_out)->UseManualTime()->Iterations(1)->Unit(benchmark::kMicrosecond);

bool const registered = [] {
  using namespace gpu::advantage;
  // call(groups, turn_return, reasons, advantage)
  auto const method = [](std::string const& name, auto call) {
    add(name, [call](inputs const& in) {
      call(in, in.groups, in.turn_return.view(), in.reasons.view(), in.advantage.span());
    });
  };
  add("grouping", [](inputs const& in) { static_cast<void>(in.make_groups()); });
  for (bool const scale : {false, true})
    method(scale ? "leave_one_out/scale" : "leave_one_out",
           [scale](auto& in, auto& groups, auto returns, auto reasons, auto out) {
             leave_one_out(groups, returns, reasons, {.scale = scale}, out, nullptr, in.stream);
           });
  method("group_relative", [](auto& in, auto& groups, auto returns, auto reasons, auto out) {
    group_relative(groups, returns, reasons, {}, out, nullptr, in.stream);
  });
  method("opo", [](auto& in, auto& groups, auto returns, auto reasons, auto out) {
    opo(groups, returns, in.weight.view(), reasons, {}, out, nullptr, in.stream);
  });
  method("max_rl", [](auto& in, auto& groups, auto returns, auto reasons, auto out) {
    max_rl(groups, returns, reasons, {}, out, nullptr, in.stream);
  });
  method("median_mad", [](auto& in, auto& groups, auto returns, auto reasons, auto out) {
    median_mad(groups, returns, reasons, {}, out, nullptr, in.stream);
  });
  for (std::int64_t const k : {0, 4})
    method("pass_at_k/" + std::to_string(k), [k](auto& in, auto& groups, auto returns, auto reasons, auto out) {
      pass_at_k(groups, returns, reasons, {.k = k}, out, nullptr, workspace_of(in.scratch), in.stream);
    });
  method("gpg", [](auto& in, auto& groups, auto returns, auto reasons, auto out) {
    gpg(groups, returns, reasons, {}, out, nullptr, workspace_of(in.scratch), in.stream);
  });
  method("remax", [](auto& in, auto&, auto returns, auto reasons, auto out) {
    remax(returns, in.weight.view(), reasons, out, nullptr, in.stream);
  });
  return true;
}();

}  // namespace

BENCHMARK_MAIN();
