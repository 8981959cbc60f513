/// @file
/// The CUDA backend: PyTorch's current stream, PyTorch's allocator, no wait for the device.
#include "calls.hpp"
#include "options.hpp"

#include <turnwise/gpu/advantage/group_relative.cuh>
#include <turnwise/gpu/advantage/leave_one_out.cuh>
#include <turnwise/gpu/core/grouping.cuh>
#include <turnwise/gpu/core/reasons.cuh>
#include <turnwise/gpu/core/token_plan.cuh>
#include <turnwise/gpu/interop/dlpack.cuh>
#include <turnwise/gpu/logprob/policy_loss_from_logits.cuh>
#include <turnwise/gpu/logprob/token_logprob.cuh>
#include <turnwise/gpu/logprob/token_logprob_backward.cuh>
#include <turnwise/gpu/loss/aggregate.cuh>
#include <turnwise/gpu/loss/policy_loss.cuh>
#include <turnwise/gpu/recipe/dr_kernel.cuh>

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_bf16.h>

namespace turnwise_torch {

template <>
struct storage<__nv_bfloat16> : held_as<__nv_bfloat16, at::kBFloat16> {};

namespace {

namespace gpu = turnwise::gpu;
using gpu::device_span;
using turnwise::reason_flags;
using turnwise::importance::turn_statistics;
using turnwise::loss::loss_counts;
using turnwise::loss::loss_record;
using bfloat16 = __nv_bfloat16;

struct device_place {
  template <typename T>
  static device_span<T> view(DLTensor const& tensor, int device, std::string_view name) {
    return gpu::interop::dlpack_span<T>(tensor, device, name);
  }
  template <typename T>
  static turnwise::interop::dlpack_rows<device_span<T>> rows(DLTensor const& tensor, int device,
                                                             std::string_view name) {
    return gpu::interop::dlpack_logits<T>(tensor, device, name);
  }
};
using device_arguments = arguments<device_place>;

/// Makes a device the current one for a call, whose work goes to PyTorch's current stream there.
struct on_device {
  c10::cuda::CUDAGuard guard;
  cudaStream_t stream;

  explicit on_device(at::Device device)
      : guard(device), stream(c10::cuda::getCurrentCUDAStream(device.index()).stream()) {}
};

/// A workspace. When it is let go PyTorch may hand it out again, but only to work behind this on the same stream.
struct scratch {
  at::Tensor memory;

  scratch(std::size_t bytes, at::Device device)
      : memory(at::empty({static_cast<std::int64_t>(bytes)}, at::TensorOptions(at::kByte).device(device))) {}
  [[nodiscard]] gpu::workspace get() const {
    return gpu::workspace{{static_cast<std::byte*>(memory.data_ptr()), static_cast<std::size_t>(memory.numel())}};
  }
};

/// The status record of a call, or null.
[[nodiscard]] gpu::status_record* status_of(device_arguments const& args) {
  static_assert(sizeof(gpu::status_record) == sizeof(std::int64_t));
  device_span<std::int64_t> words;
  args.view("status", words);
  turnwise::expects(words.size() <= 1, "status has ", words.size(), " elements, expected 1");
  return reinterpret_cast<gpu::status_record*>(words.data());
}

class device_grouping final : public grouping {
 public:
  device_grouping(tensor_map const& held, gpu::rollout_view const& batch, turnwise::group_by by,
                  gpu::status_record* status, at::Device device)
      : device_(device),
        held_(held),
        memory_(gpu::grouping_workspace_bytes(batch.turns, batch.trajectories(), by), device),
        status_(status),
        groups_(gpu::make_grouping(batch, by, status, memory_.get(), on_device{device}.stream)) {}

  [[nodiscard]] gpu::grouping const& get() const { return groups_; }

  tensor_map leave_one_out(tensor_map const& in, option_map const& given) const override {
    auto const options = options_of("leave_one_out", given, fields::leave_one_out);
    return advantages("leave_one_out", in, [&](auto turn_return, auto reasons, auto advantage, auto stream) {
      gpu::advantage::leave_one_out(groups_, turn_return, reasons, options, advantage, status_, stream);
    });
  }
  tensor_map group_relative(tensor_map const& in, option_map const& given) const override {
    auto const options = options_of("group_relative", given, fields::group_relative);
    return advantages("group_relative", in, [&](auto turn_return, auto reasons, auto advantage, auto stream) {
      gpu::advantage::group_relative(groups_, turn_return, reasons, options, advantage, status_, stream);
    });
  }

 private:
  /// Runs method(turn_return, reasons, advantage, stream).
  template <typename Method>
  tensor_map advantages(std::string_view function, tensor_map const& in, Method method) const {
    on_device const place{device_};
    device_arguments const args{function, in, device_};
    device_span<double const> turn_return;
    device_span<reason_flags const> reasons;
    device_span<double> advantage;
    args.view("turn_return", turn_return);
    args.view("reasons", reasons);
    results made{device_};
    made.make("advantage", advantage, groups_.turns);
    method(turn_return, reasons, advantage, place.stream);
    return made.map();
  }

  at::Device device_;
  tensor_map held_;  // keeps alive the batch's tensors and the status
  scratch memory_;
  gpu::status_record* status_;
  gpu::grouping groups_;
};

class device_batch final : public batch {
 public:
  device_batch(tensor_map const& in, std::size_t tokens, bool in_token_order, at::Device device)
      : device_(device), held_(in), tokens_(tokens) {
    on_device const place{device};
    device_arguments const args{"Batch", held_, device};
    view_batch(args, view_);
    view_.turns = view_.turn_begin.size();
    status_ = status_of(args);
    gpu::check_sizes(view_, "Batch");
    by_turn_ = std::make_shared<device_grouping>(held_, view_, turnwise::group_by::turn, status_, device);
    auto const order = in_token_order ? gpu::turn_order::by_tokens : gpu::turn_order::unknown;
    plan_memory_ = scratch{gpu::token_plan_workspace_bytes(view_.turns, tokens, order), device};
    plan_ = gpu::make_token_plan(view_, tokens, status_, plan_memory_.get(), place.stream, order);
  }

  std::shared_ptr<grouping> make_grouping(std::string const& by) const override {
    on_device const place{device_};
    auto const wanted = group_by_of(by);
    if (wanted == turnwise::group_by::turn) return by_turn_;
    return std::make_shared<device_grouping>(held_, view_, wanted, status_, device_);
  }

  tensor_map begin_reasons() const override {
    on_device const place{device_};
    results made{device_};
    device_span<reason_flags> reasons;
    made.make("reasons", reasons, view_.turns);
    gpu::begin_reasons(view_, reasons, place.stream);
    return made.map();
  }

  tensor_map discounted_return(tensor_map const& in, option_map const& given) const override {
    auto const options = options_of("discounted_return", given, fields::discounted_return);
    return with_reasons("discounted_return", in, [&](auto const& args, auto reasons, results& made, auto stream) {
      device_span<double const> reward;
      device_span<double> turn_return;
      args.view("reward", reward);
      made.make("turn_return", turn_return, view_.turns);
      gpu::advantage::discounted_return(view_, reward, options, reasons, turn_return, status_, stream);
    });
  }

  tensor_map log_ratio_statistics(tensor_map const& in) const override {
    on_device const place{device_};
    device_arguments const args{"log_ratio_statistics", in, device_};
    results made{device_};
    args.dispatch<float, bfloat16>("old_logprob", [&]<typename T>() {
      gpu::token_logprobs<T, T> tokens;
      device_span<turn_statistics> statistics;
      view_tokens(args, tokens_, "log_ratio_statistics", tokens);
      made.make("statistics", statistics, view_.turns);
      scratch const memory{gpu::importance::log_ratio_statistics_workspace_bytes(tokens_), device_};
      gpu::importance::log_ratio_statistics(plan_, tokens, statistics, memory.get(), place.stream);
    });
    return made.map();
  }

  tensor_map usable_tokens(tensor_map const& in, option_map const& given) const override {
    auto const options = options_of("usable_tokens", given, fields::usable_tokens);
    return with_statistics("usable_tokens", in, [&](auto statistics, auto reasons, auto stream) {
      gpu::rejection::usable_tokens(view_, statistics, options, reasons, status_, stream);
    });
  }
  tensor_map ratio_band(tensor_map const& in, option_map const& given) const override {
    auto const options = options_of("ratio_band", given, fields::ratio_band);
    return with_statistics("ratio_band", in, [&](auto statistics, auto reasons, auto stream) {
      gpu::rejection::ratio_band(view_, statistics, options, reasons, stream);
    });
  }
  tensor_map token_veto(tensor_map const& in, option_map const& given) const override {
    auto const options = options_of("token_veto", given, fields::token_veto);
    return with_statistics("token_veto", in, [&](auto statistics, auto reasons, auto stream) {
      gpu::rejection::token_veto(view_, statistics, options, reasons, stream);
    });
  }

  tensor_map dr_kernel(tensor_map const& in, option_map const& given, bool token_outputs) const override {
    on_device const place{device_};
    device_arguments const args{"dr_kernel", in, device_};
    step_options const options{given};
    check_step(args, options.recipe);
    results made{device_};
    args.dispatch<float, bfloat16>("old_logprob", [&]<typename T>() {
      gpu::recipe::step_inputs<T, T, double> inputs;
      gpu::recipe::step_outputs outputs;
      view_step(args, view_.turns, tokens_, inputs);
      make_step(made, outputs, view_.turns, tokens_, token_outputs);
      scratch const memory{gpu::recipe::dr_kernel_workspace_bytes(view_.turns, tokens_), device_};
      gpu::recipe::dr_kernel(view_, by_turn_->get(), plan_, inputs, options.recipe, options.key, outputs, status_,
                             memory.get(), place.stream);
    });
    return made.map();
  }

  tensor_map per_token(tensor_map const& in) const override {
    on_device const place{device_};
    device_arguments const args{"per_token", in, device_};
    device_span<double const> values;
    device_span<reason_flags const> reasons;
    device_span<std::uint8_t const> mask;
    device_span<float> token_values;
    device_span<std::uint8_t> token_mask;
    args.view("values", values);
    args.view("reasons", reasons);
    args.view("mask", mask);
    results made{device_};
    made.make("token_values", token_values, tokens_);
    made.make("token_mask", token_mask, tokens_);
    gpu::advantage::per_token(plan_, mask, values, reasons, token_values, token_mask, place.stream);
    return made.map();
  }

  tensor_map aggregate(tensor_map const& in, option_map const& given) const override {
    on_device const place{device_};
    device_arguments const args{"aggregate", in, device_};
    auto const options = options_of("aggregate", given, fields::aggregate);
    device_span<reason_flags const> reasons;
    device_span<std::uint8_t const> mask;
    args.view("reasons", reasons);
    args.view("mask", mask);
    results made{device_};
    device_span<std::int64_t> tokens;
    device_span<loss_counts> total;
    device_span<double> turn_scale;
    made.make("tokens", tokens, view_.turns);
    made.make("total", total, 1);
    made.make("turn_scale", turn_scale, view_.turns);
    scratch const memory{gpu::loss::aggregate_workspace_bytes(view_.trajectories()), device_};
    gpu::loss::count_tokens(plan_, mask, tokens, place.stream);
    gpu::loss::count_for_loss(by_turn_->get(), tokens, reasons, options.unit, total, memory.get(), place.stream);
    gpu::loss::aggregate(by_turn_->get(), tokens, reasons, options, total, turn_scale, memory.get(), place.stream);
    return made.map();
  }

  tensor_map ppo_clip(tensor_map const& in, option_map const& given) const override {
    using policy = turnwise::loss::ppo_clip;
    on_device const place{device_};
    device_arguments const args{"ppo_clip", in, device_};
    ppo_options const options{"ppo_clip", given};
    device_span<double const> turn_scale;
    args.view("turn_scale", turn_scale);
    results made{device_};
    args.dispatch<float, bfloat16>("current_logprob", [&]<typename T>() {
      dispatch_advantage(args, [&]<typename Advantage>() {
        gpu::loss::loss_inputs<T, T, T, Advantage, float> inputs;
        gpu::loss::loss_outputs<T> outputs;
        device_span<loss_record> record;
        view_loss(args, tokens_, inputs);
        made.make("gradient", outputs.gradient, tokens_);
        made.make("record", record, at::IntArrayRef{});
        scratch const memory{gpu::loss::policy_loss_workspace_bytes<policy, float>(view_.turns, tokens_), device_};
        gpu::loss::policy_loss(plan_, inputs, options.policy, options.driver, turn_scale, outputs, record, status_,
                               memory.get(), place.stream);
      });
    });
    return made.map();
  }

 private:
  /// Runs body(args, reasons, made, stream) on a copy of the reasons, which it may add to.
  template <typename Body>
  tensor_map with_reasons(std::string_view function, tensor_map const& in, Body body) const {
    on_device const place{device_};
    results made{device_};
    tensor_map changed = in;
    device_arguments const args{function, changed, device_};
    changed["reasons"] = args.tensor("reasons").clone();
    device_span<reason_flags> reasons;
    args.view("reasons", reasons);
    body(args, reasons, made, place.stream);
    tensor_map out = made.map();
    out["reasons"] = changed["reasons"];
    return out;
  }
  template <typename Body>
  tensor_map with_statistics(std::string_view function, tensor_map const& in, Body body) const {
    return with_reasons(function, in, [&](auto const& args, auto reasons, results&, auto stream) {
      device_span<turn_statistics const> statistics;
      args.view("statistics", statistics);
      body(statistics, reasons, stream);
    });
  }

  at::Device device_;
  tensor_map held_;  // keeps alive what view_ views
  std::size_t tokens_;
  gpu::rollout_view view_;
  gpu::status_record* status_ = nullptr;
  std::shared_ptr<device_grouping> by_turn_;
  scratch plan_memory_{0, device_};
  gpu::token_plan plan_;
};

class device_functions final : public backend {
 public:
  std::shared_ptr<batch> make_batch(tensor_map const& in, std::int64_t tokens, bool in_token_order) const override {
    return std::make_shared<device_batch>(in, static_cast<std::size_t>(tokens), in_token_order,
                                          in.at("trajectory_offsets").device());
  }

  tensor_map token_logprob(tensor_map const& in, double temperature, bool entropy) const override {
    return with_logits(
        "token_logprob", in, [&]<typename T>(auto const& args, auto& logits, results& made, auto stream) {
          gpu::logprob::token_logprob_outputs outputs;
          make_logprob(made, outputs, logits.layout.rows, entropy);
          gpu::logprob::token_logprob(logits, {.temperature = temperature}, outputs, status_of(args), stream);
        });
  }

  tensor_map token_logprob_backward(tensor_map const& in, double temperature) const override {
    return with_logits("token_logprob_backward", in,
                       [&]<typename T>(auto const& args, auto& logits, results& made, auto stream) {
                         gpu::logprob::logprob_gradients from;
                         device_span<T> gradient;
                         view_gradients(args, from);
                         auto const layout = make_gradient(made, gradient, args.tensor("logits"), logits.layout);
                         gpu::logprob::token_logprob_backward(logits, from, temperature, 0, gradient, layout, stream);
                       });
  }

  tensor_map policy_loss_from_logits(tensor_map const& in, double temperature, option_map const& given) const override {
    ppo_options const options{"policy_loss_from_logits", given};
    return with_logits(
        "policy_loss_from_logits", in, [&]<typename T>(auto const& args, auto& logits, results& made, auto stream) {
          std::size_t const rows = logits.layout.rows;
          gpu::logprob::row_loss_inputs inputs;
          gpu::logprob::row_loss_outputs<T> outputs;
          device_span<loss_record> record;
          view_row_loss(args, inputs);
          outputs.layout = make_gradient(made, outputs.gradient, args.tensor("logits"), logits.layout);
          made.make("logprob", outputs.logprob, rows);
          made.make("record", record, at::IntArrayRef{});
          scratch const memory{gpu::logprob::policy_loss_from_logits_workspace_bytes(rows),
                               args.tensor("logits").device()};
          gpu::logprob::policy_loss_from_logits(logits, inputs, options.policy, options.driver, temperature, outputs,
                                                record, status_of(args), memory.get(), stream);
        });
  }

  void check_status(at::Tensor const& status) const override {
    gpu::check(gpu::status_record{static_cast<unsigned long long>(status.item<std::int64_t>())});
  }

 private:
  /// Runs body.operator()<T>(args, logits, made, stream) for logits of type T.
  template <typename Body>
  tensor_map with_logits(std::string_view function, tensor_map const& in, Body body) const {
    at::Device const device = in.at("logits").device();
    on_device const place{device};
    device_arguments const args{function, in, device};
    results made{device};
    args.dispatch<float, bfloat16>("logits", [&]<typename T>() {
      gpu::logprob::token_logits<T, std::int64_t> logits;
      view_logits(args, logits);
      body.template operator()<T>(args, logits, made, place.stream);
    });
    return made.map();
  }
};

}  // namespace

backend const& cuda_backend() {
  static device_functions const functions;
  return functions;
}

}  // namespace turnwise_torch
