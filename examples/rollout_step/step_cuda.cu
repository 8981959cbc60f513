#include "backend.hpp"
#include "error.hpp"

#include <turnwise/gpu/core/grouping.cuh>
#include <turnwise/gpu/core/token_plan.cuh>
#include <turnwise/gpu/importance/log_ratio_statistics.cuh>
#include <turnwise/gpu/recipe/dr_kernel.cuh>
#include <turnwise/gpu/recipe/kernel_zero.cuh>
#include <turnwise/gpu/recipe/kernel_zero_proposer.cuh>
#include <turnwise/gpu/recipe/kevin.cuh>

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>
#include <vector>

namespace rollout_step {
namespace {

namespace gpu = turnwise::gpu;
using turnwise::reason_flags;
using turnwise::importance::ratio_moments;
using turnwise::importance::turn_statistics;

class cuda_stream {
 public:
  cuda_stream() { gpu::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate"); }
  cuda_stream(cuda_stream const&) = delete;
  cuda_stream& operator=(cuda_stream const&) = delete;
  ~cuda_stream() { cudaStreamDestroy(stream_); }
  [[nodiscard]] cudaStream_t get() const { return stream_; }
  void wait() const { gpu::check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  cudaStream_t stream_ = nullptr;
};

class device_memory {
 public:
  explicit device_memory(std::size_t bytes) : bytes_(bytes) {
    if (bytes > 0) gpu::check(cudaMalloc(&data_, bytes), "cudaMalloc of " + std::to_string(bytes) + " bytes");
  }
  device_memory(device_memory const&) = delete;
  device_memory& operator=(device_memory const&) = delete;
  ~device_memory() { cudaFree(data_); }
  [[nodiscard]] gpu::workspace blocks() const { return gpu::workspace{{static_cast<std::byte*>(data_), bytes_}}; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

/// Scratch of the chosen recipe.
std::size_t recipe_workspace_bytes(step_options const& options, std::size_t turns, std::size_t tokens) {
  switch (options.recipe) {
    case recipe_name::dr_kernel:
      return gpu::recipe::dr_kernel_workspace_bytes(turns, tokens);
    case recipe_name::kernel_zero:
      return gpu::recipe::kernel_zero_workspace_bytes(turns, tokens);
    case recipe_name::kernel_zero_proposer:
      return gpu::recipe::kernel_zero_proposer_workspace_bytes(turns, tokens);
    default:
      return gpu::recipe::kevin_workspace_bytes(turns, tokens);
  }
}

/// A batch with log-probs of type L and all that a step over it needs, on the device.
template <turnwise::real L>
class device_step {
 public:
  /// Cuts `blocks` up, and copies the inputs there; a workspace that counts only adds up sizes.
  device_step(recipe_inputs const& inputs, std::span<L const> old_logprob, std::span<L const> rollout_logprob,
              step_options const& options, gpu::workspace& blocks, cudaStream_t stream)
      : stream_(stream), tokens_(old_logprob.size()) {
    auto const upload = [&]<typename T>(std::span<T const> from) -> gpu::device_span<T const> {
      auto const to = blocks.take<T>(from.size(), "inputs");
      if (!blocks.counts() && !from.empty())
        gpu::check(cudaMemcpyAsync(to.data(), from.data(), from.size_bytes(), cudaMemcpyHostToDevice, stream_),
                   "cudaMemcpyAsync to the device");
      return to;
    };
    auto const upload_batch = [&](turnwise::rollout_view const& batch) -> gpu::rollout_view {
      return {.turns = batch.turns(),
              .turn_begin = upload(batch.turn_begin),
              .turn_end = upload(batch.turn_end),
              .trajectory_offsets = upload(batch.trajectory_offsets),
              .group_id = upload(batch.group_id),
              .trajectory_id = upload(batch.trajectory_id),
              .turn_index = upload(batch.turn_index),
              .turn_valid = upload(batch.turn_valid)};
    };
    auto const upload_evaluation =
        [&](turnwise::reward::evaluation<double> const& evaluation) -> gpu::reward::evaluation<double> {
      return {.compiled = upload(evaluation.compiled),
              .correct = upload(evaluation.correct),
              .decoy = upload(evaluation.decoy),
              .rule_violation = upload(evaluation.rule_violation),
              .speedup = upload(evaluation.speedup),
              .generated_us = upload(evaluation.generated_us),
              .total_us = upload(evaluation.total_us)};
    };
    view_ = upload_batch(inputs.batch);
    inputs_ = {.tokens = {upload(old_logprob), upload(rollout_logprob), upload(inputs.token_mask)},
               .evaluation = upload_evaluation(inputs.evaluation),
               .given_reward = upload(inputs.given_reward)};
    auto const& proposals = inputs.proposals;
    proposals_.attempts.batch = upload_batch(proposals.attempts.batch);
    proposals_.attempts.evaluation = upload_evaluation(proposals.attempts.evaluation);
    proposals_.group = upload(proposals.group);
    proposals_.invalid_module = upload(proposals.invalid_module);
    take_outputs(options, blocks);
  }

  void enqueue(step_options const& options) const {
    ::cuda::stream_ref const stream{stream_};
    gpu::check(cudaMemsetAsync(status_.data(), 0, sizeof(gpu::status_record), stream_), "cudaMemsetAsync");
    auto const groups =
        gpu::make_grouping(view_, options.groups(), status_.data(), gpu::workspace{grouping_memory_}, stream);
    auto const plan = gpu::make_token_plan(view_, tokens_, status_.data(), gpu::workspace{plan_memory_}, stream);
    gpu::workspace const scratch{scratch_};
    switch (options.recipe) {
      case recipe_name::dr_kernel:
        gpu::recipe::dr_kernel(view_, groups, plan, inputs_, options.dr_kernel, options.key, out_, status_.data(),
                               scratch, stream);
        break;
      case recipe_name::kernel_zero:
        gpu::recipe::kernel_zero(view_, groups, plan, inputs_, options.kernel_zero, options.key, out_, status_.data(),
                                 scratch, stream);
        break;
      case recipe_name::kernel_zero_proposer: {
        auto proposals = proposals_;
        proposals.attempts.groups = gpu::make_grouping(proposals.attempts.batch, turnwise::group_by::group,
                                                       status_.data(), gpu::workspace{attempt_memory_}, stream);
        gpu::recipe::kernel_zero_proposer(view_, groups, plan, inputs_, proposals, options.kernel_zero_proposer,
                                          options.key, out_, status_.data(), scratch, stream);
        break;
      }
      case recipe_name::kevin:
        gpu::recipe::kevin(view_, groups, plan, inputs_, options.kevin, options.key, out_, status_.data(), scratch,
                           stream);
        break;
    }
    gpu::importance::log_ratio_statistics(plan, inputs_.tokens, out_.statistics, moments_, scratch, stream);
  }

  void download(turn_results& results, std::vector<ratio_moments>& moments, gpu::status_record& status) const {
    auto const copy = [&]<typename T>(gpu::device_span<T> from, std::span<T> to) {
      if (to.empty()) return;
      gpu::check(cudaMemcpyAsync(to.data(), from.data(), to.size_bytes(), cudaMemcpyDeviceToHost, stream_),
                 "cudaMemcpyAsync to the host");
    };
    copy(out_.reward, std::span{results.reward});
    copy(out_.turn_return, std::span{results.turn_return});
    copy(out_.advantage, std::span{results.advantage});
    copy(out_.reasons, std::span{results.reasons});
    copy(out_.statistics, std::span{results.statistics});
    copy(out_.token_advantage, std::span{results.token_advantage});
    copy(moments_, std::span{moments});
    copy(status_, std::span{&status, 1});
  }

 private:
  void take_outputs(step_options const& options, gpu::workspace& blocks) {
    std::size_t const turns = view_.turns;
    out_.reward = blocks.take<double>(turns, "reward");
    out_.turn_return = blocks.take<double>(turns, "turn_return");
    out_.advantage = blocks.take<double>(turns, "advantage");
    out_.reasons = blocks.take<reason_flags>(turns, "reasons");
    out_.statistics = blocks.take<turn_statistics>(turns, "statistics");
    out_.token_advantage = blocks.take<float>(tokens_, "token_advantage");
    moments_ = blocks.take<ratio_moments>(turns, "moments");
    status_ = blocks.take<gpu::status_record>(1, "status");
    grouping_memory_ = blocks.take<std::byte>(
        gpu::grouping_workspace_bytes(turns, view_.trajectories(), options.groups()), "grouping");
    auto const& attempts = proposals_.attempts.batch;
    attempt_memory_ = blocks.take<std::byte>(
        gpu::grouping_workspace_bytes(attempts.turns, attempts.trajectories(), turnwise::group_by::group),
        "grouping of the attempts");
    plan_memory_ = blocks.take<std::byte>(gpu::token_plan_workspace_bytes(turns, tokens_), "token plan");
    // One after the other on one stream, so that they may share it.
    scratch_ = blocks.take<std::byte>(std::max(recipe_workspace_bytes(options, turns, tokens_),
                                               gpu::importance::log_ratio_statistics_workspace_bytes(tokens_, true)),
                                      "scratch");
  }

  cudaStream_t stream_;
  std::size_t tokens_;
  gpu::rollout_view view_;
  gpu::recipe::step_inputs<L, L, double> inputs_;
  gpu::recipe::proposal_results<double> proposals_;  ///< without the grouping
  gpu::recipe::step_outputs out_;
  gpu::device_span<ratio_moments> moments_;
  gpu::device_span<gpu::status_record> status_;
  gpu::device_span<std::byte> grouping_memory_, attempt_memory_, plan_memory_, scratch_;
};

/// The metrics of the recipe, as the host's computes them.
turnwise::metrics::mismatch_record metrics_of(recipe_inputs const& inputs, step_options const& options,
                                              turn_results const& results, std::vector<ratio_moments> const& moments) {
  auto metrics_options = options.metrics();
  metrics_options.speedup_cap = options.speedup_cap();
  if (options.filters().ratio_band) metrics_options.band = *options.filters().ratio_band;
  auto const groups = turnwise::make_grouping(inputs.batch, options.groups());
  return turnwise::metrics::mismatch(inputs.batch, groups, results.statistics, moments, results.reasons,
                                     std::span<double const>{results.advantage}, inputs.evaluation, metrics_options);
}

template <turnwise::real L>
turn_results run(recipe_inputs const& inputs, std::span<L const> old_logprob, std::span<L const> rollout_logprob,
                 step_options const& options) {
  std::size_t const turns = inputs.batch.turns();
  turn_results results(turns, old_logprob.size());
  std::vector<ratio_moments> moments(turns);
  gpu::status_record status{};
  cuda_stream const stream;
  gpu::workspace count;
  device_step<L>{inputs, old_logprob, rollout_logprob, options, count, stream.get()};
  device_memory const memory{count.used()};

  auto const start = std::chrono::steady_clock::now();
  gpu::workspace blocks = memory.blocks();
  device_step<L> const step{inputs, old_logprob, rollout_logprob, options, blocks, stream.get()};
  step.enqueue(options);
  step.download(results, moments, status);
  stream.wait();
  results.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  gpu::check(status);
  results.metrics = metrics_of(inputs, options, results, moments);
  return results;
}

/// Log-probs as doubles, in `copy` unless they are. The step of a pair of which one is double is that of two doubles.
std::span<double const> widened(logprob_array const& values, std::vector<double>& copy) {
  if (auto const* const wide = std::get_if<std::vector<double>>(&values)) return *wide;
  auto const& narrow = std::get<std::vector<float>>(values);
  copy.assign(narrow.begin(), narrow.end());
  return copy;
}

}  // namespace

bool has_cuda_device() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

turn_results run_on_cuda(recipe_inputs const& inputs, step_options const& options) {
  int count = 0;
  cudaError_t const found = cudaGetDeviceCount(&count);
  if (found != cudaSuccess) fail("--backend cuda: ", cudaGetErrorName(found), ": ", cudaGetErrorString(found));
  if (count == 0) fail("--backend cuda: there is no CUDA device");
  auto const* const old_logprob = std::get_if<std::vector<float>>(&inputs.old_logprob);
  auto const* const rollout_logprob = std::get_if<std::vector<float>>(&inputs.rollout_logprob);
  if (old_logprob != nullptr && rollout_logprob != nullptr)
    return run<float>(inputs, *old_logprob, *rollout_logprob, options);
  std::vector<double> old_copy, rollout_copy;
  return run<double>(inputs, widened(inputs.old_logprob, old_copy), widened(inputs.rollout_logprob, rollout_copy),
                     options);
}

}  // namespace rollout_step
