/// @file
/// Device spans over the tensors of other libraries, and tensors over spans, through DLPack; nothing is copied.
#pragma once

#include <turnwise/gpu/core/device_span.cuh>
#include <turnwise/interop/dlpack.hpp>

#include <cstdint>
#include <span>
#include <string_view>

namespace turnwise::gpu::interop {

using turnwise::interop::dlpack_element;
using turnwise::interop::dlpack_rows;
using turnwise::interop::dlpack_source;
using turnwise::interop::writable_element;

namespace detail {

inline void check_device(DLTensor const& tensor, int device, std::string_view function, std::string_view argument) {
  int const type = tensor.device.device_type;
  if (type == kDLCUDAManaged || (type == kDLCUDA && tensor.device.device_id == device)) return;
  fail(function, ": ", argument, " is on ", turnwise::interop::detail::name_of(tensor.device),
       ", expected cuda:", device);
}

}  // namespace detail

/// The elements of a CUDA tensor in row-major order: turnwise::interop::dlpack_span on the device.
///
/// @param[in] device  where the stream of the calls is; managed memory may be any.
/// @throws precondition_error  as turnwise::interop::dlpack_span; memory of another device.
/// @note  Nothing is enqueued and no data is looked at. The stream must wait for the producer's: DLPack passes it when
///        a tensor is exchanged.
template <dlpack_element T>
[[nodiscard]] device_span<T> dlpack_span(dlpack_source const& source, int device, std::string_view argument) {
  detail::check_device(source.tensor(), device, "dlpack_span", argument);
  return turnwise::interop::detail::make_span<device_span<T>>(source, "dlpack_span", argument);
}

/// Rows of logits in a CUDA tensor: turnwise::interop::dlpack_logits on the device.
/// @see turnwise::gpu::logprob::token_logits
template <dlpack_element T>
[[nodiscard]] dlpack_rows<device_span<T>> dlpack_logits(dlpack_source const& source, int device,
                                                        std::string_view argument) {
  detail::check_device(source.tensor(), device, "dlpack_logits", argument);
  return turnwise::interop::detail::make_rows<device_span<T>>(source, "dlpack_logits", argument);
}

/// A row-major tensor over a span of CUDA memory: turnwise::interop::to_dlpack on the device.
///
/// @param[in] device  where the memory is.
/// @note  The consumer's stream must wait for the calls that write the span.
template <writable_element T>
[[nodiscard]] DLTensor to_dlpack(device_span<T> values, std::span<std::int64_t> shape, std::span<std::int64_t> strides,
                                 int device, std::string_view argument) {
  return turnwise::interop::detail::tensor_over(values.data(), values.size(), shape, strides, {kDLCUDA, device},
                                                argument);
}
#if defined(DLPACK_MAJOR_VERSION) && DLPACK_MAJOR_VERSION >= 1
/// The same for a span that is only read.
template <dlpack_element T>
[[nodiscard]] DLManagedTensorVersioned to_dlpack(device_span<T const> values, std::span<std::int64_t> shape,
                                                 std::span<std::int64_t> strides, int device,
                                                 std::string_view argument) {
  return turnwise::interop::detail::read_only_tensor(turnwise::interop::detail::tensor_over(
      values.data(), values.size(), shape, strides, {kDLCUDA, device}, argument));
}
#else
template <dlpack_element T>
DLTensor to_dlpack(device_span<T const>, std::span<std::int64_t>, std::span<std::int64_t>, int,
                   std::string_view) = delete;  // needs DLPack 1.0
#endif

}  // namespace turnwise::gpu::interop
