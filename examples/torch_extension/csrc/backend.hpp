/// @file
/// What Python calls: the same for the host and for CUDA. Tensors and options travel by the names that the C++ library
/// gives them; an optional tensor that is not given is not in the map.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>

namespace turnwise_torch {

using tensor_map = std::map<std::string, at::Tensor>;
using option_map = std::map<std::string, std::variant<bool, double, std::string>>;  // a nested one is "outer.inner"

/// Which turns are compared with each other.
class grouping {
 public:
  virtual ~grouping() = default;
  virtual tensor_map leave_one_out(tensor_map const& in, option_map const& given) const = 0;
  virtual tensor_map group_relative(tensor_map const& in, option_map const& given) const = 0;
};

/// A batch on one device, with what is built of it once.
class batch {
 public:
  virtual ~batch() = default;
  virtual std::shared_ptr<grouping> make_grouping(std::string const& by) const = 0;
  virtual tensor_map begin_reasons() const = 0;
  virtual tensor_map discounted_return(tensor_map const& in, option_map const& given) const = 0;
  virtual tensor_map log_ratio_statistics(tensor_map const& in) const = 0;
  virtual tensor_map usable_tokens(tensor_map const& in, option_map const& given) const = 0;
  virtual tensor_map ratio_band(tensor_map const& in, option_map const& given) const = 0;
  virtual tensor_map token_veto(tensor_map const& in, option_map const& given) const = 0;
  virtual tensor_map dr_kernel(tensor_map const& in, option_map const& given, bool token_outputs) const = 0;
  virtual tensor_map per_token(tensor_map const& in) const = 0;
  virtual tensor_map aggregate(tensor_map const& in, option_map const& given) const = 0;
  virtual tensor_map ppo_clip(tensor_map const& in, option_map const& given) const = 0;
};

class backend {
 public:
  virtual ~backend() = default;
  virtual std::shared_ptr<batch> make_batch(tensor_map const& in, std::int64_t tokens, bool in_token_order) const = 0;
  virtual tensor_map token_logprob(tensor_map const& in, double temperature, bool entropy) const = 0;
  virtual tensor_map token_logprob_backward(tensor_map const& in, double temperature) const = 0;
  virtual tensor_map policy_loss_from_logits(tensor_map const& in, double temperature,
                                             option_map const& given) const = 0;
  /// Throws if the status record tells of bad content; waits for the device.
  virtual void check_status(at::Tensor const& status) const = 0;
};

[[nodiscard]] backend const& host_backend();
[[nodiscard]] backend const& cuda_backend();  // only where CUDA sources are built

}  // namespace turnwise_torch
