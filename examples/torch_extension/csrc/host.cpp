/// @file
/// The host backend.
#include "calls.hpp"
#include "options.hpp"

#include <turnwise/logprob/policy_loss_from_logits.hpp>

#include <ATen/Parallel.h>

#include <span>
#include <type_traits>
#include <utility>

namespace turnwise_torch {
namespace {

using c10::BFloat16;
using turnwise::reason_flags;
namespace importance = turnwise::importance;
namespace logprob = turnwise::logprob;
namespace loss = turnwise::loss;

struct host_place {
  template <typename T>
  static std::span<T> view(DLTensor const& tensor, int, std::string_view name) {
    return turnwise::interop::dlpack_span<T>(tensor, name);
  }
  template <typename T>
  static turnwise::interop::dlpack_rows<std::span<T>> rows(DLTensor const& tensor, int, std::string_view name) {
    return turnwise::interop::dlpack_logits<T>(tensor, name);
  }
};
using host_arguments = arguments<host_place>;

at::Device const host{at::kCPU};

class host_grouping final : public grouping {
 public:
  explicit host_grouping(turnwise::grouping groups) : groups_(std::move(groups)) {}

  tensor_map leave_one_out(tensor_map const& in, option_map const& given) const override {
    auto const options = options_of("leave_one_out", given, fields::leave_one_out);
    return advantages("leave_one_out", in, options,
                      [](auto const&... call) { turnwise::advantage::leave_one_out<double>(call...); });
  }
  tensor_map group_relative(tensor_map const& in, option_map const& given) const override {
    auto const options = options_of("group_relative", given, fields::group_relative);
    return advantages("group_relative", in, options,
                      [](auto const&... call) { turnwise::advantage::group_relative<double>(call...); });
  }

 private:
  template <typename Options, typename Method>
  tensor_map advantages(std::string_view function, tensor_map const& in, Options options, Method method) const {
    host_arguments const args{function, in, host};
    options.threads = at::get_num_threads();
    std::span<double const> turn_return;
    std::span<reason_flags const> reasons;
    args.view("turn_return", turn_return);
    args.view("reasons", reasons);
    results made{host};
    std::span<double> advantage;
    made.make("advantage", advantage, groups_.turns());
    method(groups_, turn_return, reasons, options, advantage);
    return made.map();
  }

  turnwise::grouping groups_;
};

class host_batch final : public batch {
 public:
  host_batch(tensor_map const& in, std::size_t tokens) : held_(in), tokens_(tokens) {
    view_batch(host_arguments{"Batch", held_, host}, view_);
    turnwise::check_rollout(view_, "Batch");
    turnwise::check_token_ranges(view_, tokens, "Batch");
    static_cast<void>(turnwise::make_grouping(view_, turnwise::group_by::turn));  // throws for an id that occurs twice
  }

  std::shared_ptr<grouping> make_grouping(std::string const& by) const override {
    return std::make_shared<host_grouping>(turnwise::make_grouping(view_, group_by_of(by)));
  }

  tensor_map begin_reasons() const override {
    results made{host};
    std::span<reason_flags> reasons;
    made.make("reasons", reasons, view_.turns());
    turnwise::begin_reasons(view_, reasons);
    return made.map();
  }

  tensor_map discounted_return(tensor_map const& in, option_map const& given) const override {
    auto const options = options_of("discounted_return", given, fields::discounted_return);
    return with_reasons("discounted_return", in, [&](auto const& args, auto reasons, results& made) {
      std::span<double const> reward;
      std::span<double> turn_return;
      args.view("reward", reward);
      made.make("turn_return", turn_return, view_.turns());
      turnwise::advantage::discounted_return(view_, reward, options, reasons, turn_return);
    });
  }

  tensor_map log_ratio_statistics(tensor_map const& in) const override {
    host_arguments const args{"log_ratio_statistics", in, host};
    results made{host};
    args.dispatch<float, BFloat16>("old_logprob", [&]<typename T>() {
      turnwise::token_logprobs<T, T> tokens;
      std::span<importance::turn_statistics> statistics;
      view_tokens(args, tokens_, "log_ratio_statistics", tokens);
      made.make("statistics", statistics, view_.turns());
      importance::log_ratio_statistics(view_, tokens, statistics, at::get_num_threads());
    });
    return made.map();
  }

  tensor_map usable_tokens(tensor_map const& in, option_map const& given) const override {
    auto const options = options_of("usable_tokens", given, fields::usable_tokens);
    return with_statistics("usable_tokens", in, [&](auto statistics, auto reasons) {
      turnwise::rejection::usable_tokens(view_, statistics, options, reasons);
    });
  }
  tensor_map ratio_band(tensor_map const& in, option_map const& given) const override {
    auto const options = options_of("ratio_band", given, fields::ratio_band);
    return with_statistics("ratio_band", in, [&](auto statistics, auto reasons) {
      turnwise::rejection::ratio_band(view_, statistics, options, reasons);
    });
  }
  tensor_map token_veto(tensor_map const& in, option_map const& given) const override {
    auto const options = options_of("token_veto", given, fields::token_veto);
    return with_statistics("token_veto", in, [&](auto statistics, auto reasons) {
      turnwise::rejection::token_veto(view_, statistics, options, reasons);
    });
  }

  tensor_map dr_kernel(tensor_map const& in, option_map const& given, bool token_outputs) const override {
    host_arguments const args{"dr_kernel", in, host};
    step_options options{given};
    options.recipe.threads = at::get_num_threads();
    check_step(args, options.recipe);
    results made{host};
    args.dispatch<float, BFloat16>("old_logprob", [&]<typename T>() {
      turnwise::recipe::step_inputs<T, T, double> inputs;
      turnwise::recipe::step_outputs outputs;
      view_step(args, view_.turns(), tokens_, inputs);
      make_step(made, outputs, view_.turns(), tokens_, token_outputs);
      turnwise::recipe::dr_kernel(view_, inputs, options.recipe, options.key, outputs);
    });
    return made.map();
  }

  tensor_map per_token(tensor_map const& in) const override {
    host_arguments const args{"per_token", in, host};
    std::span<double const> values;
    std::span<reason_flags const> reasons;
    std::span<std::uint8_t const> mask;
    args.view("values", values);
    args.view("reasons", reasons);
    args.view("mask", mask);
    results made{host};
    std::span<float> token_values;
    std::span<std::uint8_t> token_mask;
    made.make("token_values", token_values, tokens_);
    made.make("token_mask", token_mask, tokens_);
    turnwise::advantage::per_token(view_, mask, values, reasons, token_values, token_mask, at::get_num_threads());
    return made.map();
  }

  tensor_map aggregate(tensor_map const& in, option_map const& given) const override {
    host_arguments const args{"aggregate", in, host};
    auto const options = options_of("aggregate", given, fields::aggregate);
    std::span<reason_flags const> reasons;
    std::span<std::uint8_t const> mask;
    args.view("reasons", reasons);
    args.view("mask", mask);
    results made{host};
    std::span<std::int64_t> tokens;
    std::span<double> turn_scale;
    made.make("tokens", tokens, view_.turns());
    made.make("turn_scale", turn_scale, view_.turns());
    loss::count_tokens(view_, mask, tokens);
    loss::aggregate(view_, tokens, reasons, options, turn_scale);
    return made.map();
  }

  tensor_map ppo_clip(tensor_map const& in, option_map const& given) const override {
    host_arguments const args{"ppo_clip", in, host};
    ppo_options const options{"ppo_clip", given};
    std::span<double const> turn_scale;
    args.view("turn_scale", turn_scale);
    results made{host};
    args.dispatch<float, BFloat16, double>("current_logprob", [&]<typename T>() {
      dispatch_advantage(args, [&]<typename Advantage>() {
        loss::loss_inputs<T, T, T, Advantage, float> inputs;
        loss::loss_outputs<T> outputs;
        std::span<loss::loss_record> record;
        view_loss(args, tokens_, inputs);
        made.make("gradient", outputs.gradient, tokens_);
        made.make("record", record, at::IntArrayRef{});
        record[0] = loss::policy_loss(view_, inputs, options.policy, options.driver, turn_scale, outputs,
                                      at::get_num_threads());
      });
    });
    return made.map();
  }

 private:
  /// Runs body(args, reasons, made) on a copy of the reasons, which it may add to.
  template <typename Body>
  tensor_map with_reasons(std::string_view function, tensor_map const& in, Body body) const {
    results made{host};
    tensor_map changed = in;
    host_arguments const args{function, changed, host};
    changed["reasons"] = args.tensor("reasons").clone();
    std::span<reason_flags> reasons;
    args.view("reasons", reasons);
    body(args, reasons, made);
    tensor_map out = made.map();
    out["reasons"] = changed["reasons"];
    return out;
  }
  template <typename Body>
  tensor_map with_statistics(std::string_view function, tensor_map const& in, Body body) const {
    return with_reasons(function, in, [&](auto const& args, auto reasons, results&) {
      std::span<importance::turn_statistics const> statistics;
      args.view("statistics", statistics);
      body(statistics, reasons);
    });
  }

  tensor_map held_;  // keeps alive what view_ views
  std::size_t tokens_;
  turnwise::rollout_view view_;
};

/// Type of the results for logits of type T.
template <typename T>
using result_t = std::conditional_t<std::is_same_v<T, double>, double, float>;

class host_functions final : public backend {
 public:
  std::shared_ptr<batch> make_batch(tensor_map const& in, std::int64_t tokens, bool) const override {
    return std::make_shared<host_batch>(in, static_cast<std::size_t>(tokens));
  }

  tensor_map token_logprob(tensor_map const& in, double temperature, bool entropy) const override {
    host_arguments const args{"token_logprob", in, host};
    results made{host};
    args.dispatch<float, BFloat16, double>("logits", [&]<typename T>() {
      logprob::token_logits<T, std::int64_t> logits;
      logprob::token_logprob_outputs<result_t<T>> outputs;
      view_logits(args, logits);
      make_logprob(made, outputs, logits.layout.rows, entropy);
      logprob::token_logprob(logits, {.temperature = temperature}, outputs, at::get_num_threads());
    });
    return made.map();
  }

  tensor_map token_logprob_backward(tensor_map const& in, double temperature) const override {
    host_arguments const args{"token_logprob_backward", in, host};
    results made{host};
    args.dispatch<float, BFloat16, double>("logits", [&]<typename T>() {
      logprob::token_logits<T, std::int64_t> logits;
      logprob::logprob_gradients<result_t<T>> from;
      std::span<T> gradient;
      view_logits(args, logits);
      view_gradients(args, from);
      auto const layout = make_gradient(made, gradient, args.tensor("logits"), logits.layout);
      logprob::token_logprob_backward(logits, from, temperature, 0, gradient, layout, at::get_num_threads());
    });
    return made.map();
  }

  tensor_map policy_loss_from_logits(tensor_map const& in, double temperature, option_map const& given) const override {
    host_arguments const args{"policy_loss_from_logits", in, host};
    ppo_options const options{"policy_loss_from_logits", given};
    results made{host};
    args.dispatch<float, BFloat16, double>("logits", [&]<typename T>() {
      logprob::token_logits<T, std::int64_t> logits;
      logprob::row_loss_inputs<result_t<T>> inputs;
      logprob::row_loss_outputs<T, result_t<T>> outputs;
      std::span<loss::loss_record> record;
      view_logits(args, logits);
      view_row_loss(args, inputs);
      outputs.layout = make_gradient(made, outputs.gradient, args.tensor("logits"), logits.layout);
      made.make("logprob", outputs.logprob, logits.layout.rows);
      made.make("record", record, at::IntArrayRef{});
      record[0] = logprob::policy_loss_from_logits(logits, inputs, options.policy, options.driver, temperature, outputs,
                                                   at::get_num_threads());
    });
    return made.map();
  }

  void check_status(at::Tensor const&) const override {}  // bad content has thrown before
};

}  // namespace

backend const& host_backend() {
  static host_functions const functions;
  return functions;
}

}  // namespace turnwise_torch
