/// @file
/// The Python module _C. Its callers are in turnwise_torch/__init__.py; errors of turnwise become ValueError.
#include "backend.hpp"

#include <turnwise/core/error.hpp>

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

namespace turnwise_torch {
namespace {

#ifdef TURNWISE_TORCH_CUDA
constexpr bool has_cuda = true;
#else
constexpr bool has_cuda = false;
backend const& cuda_backend() { return host_backend(); }  // is not called
#endif

backend const& backend_of(at::Device device) {
  if (device.is_cpu()) return host_backend();
  if (has_cuda && device.is_cuda()) return cuda_backend();
  turnwise::fail("tensors are on ", device.str(), ", turnwise_torch was built for cpu", has_cuda ? " and cuda" : "");
}

backend const& backend_of(tensor_map const& in, std::string const& name) { return backend_of(in.at(name).device()); }

}  // namespace

PYBIND11_MODULE(_C, module) {
  namespace py = pybind11;
  using no_gil = py::call_guard<py::gil_scoped_release>;

  py::class_<grouping, std::shared_ptr<grouping>>(module, "Grouping")
      .def("leave_one_out", &grouping::leave_one_out, no_gil())
      .def("group_relative", &grouping::group_relative, no_gil());
  py::class_<batch, std::shared_ptr<batch>>(module, "Batch")
      .def("make_grouping", &batch::make_grouping, no_gil())
      .def("begin_reasons", &batch::begin_reasons, no_gil())
      .def("discounted_return", &batch::discounted_return, no_gil())
      .def("log_ratio_statistics", &batch::log_ratio_statistics, no_gil())
      .def("usable_tokens", &batch::usable_tokens, no_gil())
      .def("ratio_band", &batch::ratio_band, no_gil())
      .def("token_veto", &batch::token_veto, no_gil())
      .def("dr_kernel", &batch::dr_kernel, no_gil())
      .def("per_token", &batch::per_token, no_gil())
      .def("aggregate", &batch::aggregate, no_gil())
      .def("ppo_clip", &batch::ppo_clip, no_gil());

  auto const def = [&](char const* name, auto function) { module.def(name, function, no_gil()); };
  def("make_batch", [](tensor_map const& in, std::int64_t tokens, bool in_token_order) {
    return backend_of(in, "trajectory_offsets").make_batch(in, tokens, in_token_order);
  });
  def("token_logprob", [](tensor_map const& in, double temperature, bool entropy) {
    return backend_of(in, "logits").token_logprob(in, temperature, entropy);
  });
  def("token_logprob_backward", [](tensor_map const& in, double temperature) {
    return backend_of(in, "logits").token_logprob_backward(in, temperature);
  });
  def("policy_loss_from_logits", [](tensor_map const& in, double temperature, option_map const& given) {
    return backend_of(in, "logits").policy_loss_from_logits(in, temperature, given);
  });
  def("check_status", [](at::Tensor const& status) {
    turnwise::expects(status.scalar_type() == at::kLong && status.numel() == 1,
                      "check: status is not the int64 tensor of new_status");
    backend_of(status.device()).check_status(status);
  });
}

}  // namespace turnwise_torch
