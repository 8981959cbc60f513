/// @file
/// Spans over the tensors of other libraries, and tensors over spans, through DLPack; nothing is copied.
///
/// The caller provides <dlpack/dlpack.h>, version 0.6 or newer. The read-only flag exists from 1.0 on, in
/// DLManagedTensorVersioned; a header older than that has no such struct, and its tensors all count as writable.
/// Not part of turnwise.hpp.
#pragma once

#include <turnwise/core/concepts.hpp>
#include <turnwise/core/error.hpp>
#include <turnwise/logprob/token_logits.hpp>

#include <dlpack/dlpack.h>

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#if !defined(DLPACK_MAJOR_VERSION) && (!defined(DLPACK_VERSION) || DLPACK_VERSION < 60)
#error "turnwise needs DLPack 0.6 or newer"
#endif

namespace turnwise::interop {

/// Element types that tensors and spans share: integers, bool, float, double, and half and bfloat16 types.
template <typename T>
concept dlpack_element = std::integral<std::remove_const_t<T>> || real<std::remove_const_t<T>> ||
    (logprob_value<std::remove_const_t<T>> && sizeof(T) == 2 && std::is_trivially_copyable_v<T>);

/// Those of memory that may be written.
template <typename T>
concept writable_element = dlpack_element<T> && !std::is_const_v<T>;

/// A tensor in any of DLPack's structs, for the calls below; owns nothing, so the struct and the data must outlive the
/// spans.
class dlpack_source {
 public:
  /// Of a tensor.
  dlpack_source(DLTensor const& tensor) noexcept : tensor_(&tensor) {}
  /// Of a managed tensor; it is not released.
  dlpack_source(DLManagedTensor const& managed) noexcept : tensor_(&managed.dl_tensor) {}
#if defined(DLPACK_MAJOR_VERSION) && DLPACK_MAJOR_VERSION >= 1
  /// A tensor as it is exchanged, with its flags; throws precondition_error if the struct is of another major version,
  /// whose layout is unknown.
  dlpack_source(DLManagedTensorVersioned const& managed)
      : tensor_(&managed.dl_tensor), read_only_((managed.flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0) {
    expects(managed.version.major == DLPACK_MAJOR_VERSION, "dlpack: a tensor of DLPack ", managed.version.major, ".",
            managed.version.minor, ", expected major version ", DLPACK_MAJOR_VERSION);
  }
#endif
  /// The tensor.
  [[nodiscard]] DLTensor const& tensor() const noexcept { return *tensor_; }
  /// Whether the owner forbids writing.
  [[nodiscard]] bool read_only() const noexcept { return read_only_; }

 private:
  DLTensor const* tensor_;
  bool read_only_ = false;
};

/// Rows of logits in a tensor, as token_logits takes them.
template <typename Span>
struct dlpack_rows {
  Span values{};                   ///< from the first element of the first row to the last of the last
  logprob::logit_layout layout{};  ///< of values
};

namespace detail {

inline constexpr std::uint8_t bool_code = 6;  // kDLBool, which 0.6 does not name

/// The dtype of T. A 16-bit type shows what it is by the bits of its 1: bfloat16 3f80, half 3c00.
template <typename T>
[[nodiscard]] DLDataType dtype_of() {
  constexpr auto bits = static_cast<std::uint8_t>(8 * sizeof(T));
  if constexpr (std::same_as<T, bool>) return {bool_code, bits, 1};
  if constexpr (std::integral<T>)
    return {std::signed_integral<T> ? std::uint8_t{kDLInt} : std::uint8_t{kDLUInt}, bits, 1};
  if constexpr (!std::integral<T> && sizeof(T) == 2)
    if (static_cast<float>(std::bit_cast<T>(std::uint16_t{0x3f80})) == 1.0f) return {kDLBfloat, bits, 1};
  return {kDLFloat, bits, 1};
}

[[nodiscard]] inline std::string name_of(DLDataType type) {
  constexpr std::string_view names[]{"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
  std::string name = type.code < std::size(names) ? std::string(names[type.code])
                                                  : "type code " + std::to_string(type.code) + ", bits ";
  if (type.code != bool_code) name += std::to_string(type.bits);
  return type.lanes == 1 ? name : name + " x " + std::to_string(type.lanes) + " lanes";
}

/// Throws unless the elements are T, all sizes make sense, and writing is allowed where T is mutable.
template <typename T>
void check_tensor(dlpack_source const& source, std::string_view function, std::string_view argument) {
  DLTensor const& tensor = source.tensor();
  DLDataType const want = dtype_of<std::remove_const_t<T>>();
  // Bytes of a bool are 0 or 1, so masks may be either.
  bool const mask = tensor.dtype.code == bool_code && std::same_as<std::remove_const_t<T>, std::uint8_t>;
  if (tensor.dtype.lanes != 1 || tensor.dtype.bits != want.bits || !(tensor.dtype.code == want.code || mask))
    fail(function, ": ", argument, " has elements of type ", name_of(tensor.dtype), ", expected ", name_of(want));
  expects(std::is_const_v<T> || !source.read_only(), function, ": ", argument, " is read-only, but would be written");
  expects(tensor.ndim >= 0, function, ": ", argument, " has ", tensor.ndim, " dimensions");
  expects(tensor.ndim == 0 || tensor.shape != nullptr, function, ": ", argument, " has no shape");
  for (int d = 0; d < tensor.ndim; ++d)
    expects(tensor.shape[d] >= 0, function, ": ", argument, " has size ", tensor.shape[d], " in dimension ", d);
}

/// Address of the first of `count` elements; null for none.
template <typename T>
[[nodiscard]] T* address_of(DLTensor const& tensor, std::size_t count, std::string_view function,
                            std::string_view argument) {
  expects(count <= std::numeric_limits<std::size_t>::max() / 2 / sizeof(T), function, ": ", argument,
          " has more elements than memory can hold");
  if (count == 0) return nullptr;
  expects(tensor.data != nullptr, function, ": ", argument, " has ", count, " elements and no data");
  auto const data = reinterpret_cast<std::uintptr_t>(tensor.data);
  auto const address = data + static_cast<std::uintptr_t>(tensor.byte_offset);
  expects(address >= data && count * sizeof(T) <= std::numeric_limits<std::uintptr_t>::max() - address, function, ": ",
          argument, " reaches beyond the end of memory");
  expects(address % alignof(T) == 0, function, ": ", argument, " begins at an address that is no multiple of ",
          alignof(T));
  return reinterpret_cast<T*>(address);
}

/// Elements of a tensor without gaps, in row-major order; throws naming the innermost dimension that breaks it.
[[nodiscard]] inline std::size_t compact_size(DLTensor const& tensor, std::string_view function,
                                              std::string_view argument) {
  std::size_t count = 1;
  for (int d = 0; d < tensor.ndim; ++d)
    if (tensor.shape[d] == 0) return 0;
  for (int d = tensor.ndim - 1; d >= 0; --d) {
    expects(tensor.strides == nullptr || tensor.shape[d] == 1 || static_cast<std::size_t>(tensor.strides[d]) == count,
            function, ": ", argument, " is not contiguous: dimension ", d, " has stride ",
            tensor.strides == nullptr ? 0 : tensor.strides[d], ", expected ", count);
    count = logprob::detail::saturated(count, static_cast<std::size_t>(tensor.shape[d]), 0);
  }
  return count;
}

/// Elements from an entry of dimension d to the next: at least 1, so that no row stands for many.
[[nodiscard]] inline std::size_t stride_of(DLTensor const& tensor, int d, std::string_view function,
                                           std::string_view argument) {
  if (tensor.strides != nullptr) {
    expects(tensor.shape[d] <= 1 || tensor.strides[d] > 0, function, ": ", argument, " has stride ", tensor.strides[d],
            " in dimension ", d, ", expected at least 1");
    return tensor.shape[d] <= 1 ? 0 : static_cast<std::size_t>(tensor.strides[d]);
  }
  std::size_t stride = 1;
  for (int inner = d + 1; inner < tensor.ndim; ++inner)
    stride = logprob::detail::saturated(stride, static_cast<std::size_t>(tensor.shape[inner]), 0);
  return stride;
}

/// Layout of [rows, vocabulary] or [batch, rows, vocabulary]; `extent` gains the elements that it spans.
[[nodiscard]] inline logprob::logit_layout rows_layout(DLTensor const& tensor, std::size_t& extent,
                                                       std::string_view function, std::string_view argument) {
  expects(tensor.ndim == 2 || tensor.ndim == 3, function, ": ", argument, " has ", tensor.ndim,
          " dimensions, expected [rows, vocabulary] or [batch, rows, vocabulary]");
  int const row = tensor.ndim - 2;
  auto const size = [&](int d) { return static_cast<std::size_t>(tensor.shape[d]); };
  logprob::logit_layout layout;
  std::size_t const batches = tensor.ndim == 3 ? size(0) : 1;
  layout.rows = logprob::detail::saturated(batches, size(row), 0);
  layout.vocabulary = size(row + 1);
  extent = 0;
  if (layout.rows == 0 || layout.vocabulary == 0) return layout;
  std::size_t const column = stride_of(tensor, row + 1, function, argument);
  expects(column <= 1, function, ": ", argument, " has stride ", column, " in dimension ", row + 1, ", expected 1");
  std::size_t const row_stride = stride_of(tensor, row, function, argument);
  std::size_t const batch_stride = tensor.ndim == 3 ? stride_of(tensor, 0, function, argument) : 0;
  bool const one_row_each = batches > 1 && size(row) == 1;
  layout.row_stride = one_row_each ? batch_stride : row_stride;
  if (batches > 1 && size(row) > 1) {
    layout.batch_rows = size(row);
    layout.batch_stride = batch_stride;
  }
  extent = logprob::detail::saturated(size(row) - 1, row_stride, layout.vocabulary);
  extent = logprob::detail::saturated(batches - 1, batch_stride, extent);
  return layout;
}

template <typename Span>
[[nodiscard]] Span make_span(dlpack_source const& source, std::string_view function, std::string_view argument) {
  using T = typename Span::element_type;
  check_tensor<T>(source, function, argument);
  std::size_t const count = compact_size(source.tensor(), function, argument);
  return Span{address_of<T>(source.tensor(), count, function, argument), count};
}

template <typename Span>
[[nodiscard]] dlpack_rows<Span> make_rows(dlpack_source const& source, std::string_view function,
                                          std::string_view argument) {
  using T = typename Span::element_type;
  check_tensor<T>(source, function, argument);
  std::size_t extent = 0;
  auto const layout = rows_layout(source.tensor(), extent, function, argument);
  return {Span{address_of<T>(source.tensor(), extent, function, argument), extent}, layout};
}

[[nodiscard]] inline std::string name_of(DLDevice device) {
  if (device.device_type == kDLCPU) return "cpu";
  if (device.device_type == kDLCUDA) return "cuda:" + std::to_string(device.device_id);
  return "DLPack device type " + std::to_string(device.device_type);
}

/// A row-major tensor over `count` elements in the caller's memory. Null strides would do only before DLPack 1.2.
template <typename T>
[[nodiscard]] DLTensor tensor_over(T* data, std::size_t count, std::span<std::int64_t> shape,
                                   std::span<std::int64_t> strides, DLDevice device, std::string_view argument) {
  expects_size("to_dlpack", "strides", strides.size(), shape.size(), "dimension");
  std::size_t elements = 1;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    expects(shape[d] >= 0, "to_dlpack: ", argument, " has size ", shape[d], " in dimension ", d);
    elements = logprob::detail::saturated(elements, static_cast<std::size_t>(shape[d]), 0);
  }
  expects(elements == count, "to_dlpack: ", argument, " has ", count, " elements, its shape ", elements);
  std::int64_t stride = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= count == 0 ? 1 : shape[d];  // without elements any strides do, and a product of sizes may overflow
  }
  DLTensor tensor{};
  tensor.data = count == 0 ? nullptr : const_cast<std::remove_const_t<T>*>(data);
  tensor.device = device;
  tensor.ndim = static_cast<int>(shape.size());
  tensor.dtype = dtype_of<std::remove_const_t<T>>();
  tensor.shape = shape.data();
  tensor.strides = strides.data();
  return tensor;
}

#if defined(DLPACK_MAJOR_VERSION) && DLPACK_MAJOR_VERSION >= 1
[[nodiscard]] inline DLManagedTensorVersioned read_only_tensor(DLTensor const& tensor) {
  DLManagedTensorVersioned managed{};
  managed.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
  managed.flags = DLPACK_FLAG_BITMASK_READ_ONLY;
  managed.dl_tensor = tensor;
  return managed;
}
#endif

inline void check_host(DLTensor const& tensor, std::string_view function, std::string_view argument) {
  int const type = tensor.device.device_type;
  if (type != kDLCPU && type != kDLCUDAHost && type != kDLROCMHost)
    fail(function, ": ", argument, " is on ", name_of(tensor.device), ", expected host memory");
}

}  // namespace detail

/// The elements of a host tensor in row-major order, as one span: token arrays may be [N] or padded [rows, width].
///
/// @param[in] source    DLTensor, DLManagedTensor or (DLPack >= 1.0) DLManagedTensorVersioned; any number of
///                      dimensions, 0 included (one element).
/// @param[in] argument  what an error calls it.
/// @return    T const: to read; T: to write.
/// @throws precondition_error  another element type (a bool tensor is also a span of std::uint8_t), lanes, a device
///         that is not host memory, gaps or another order (the innermost bad dimension is named), a read-only tensor
///         for a mutable T, an address that is not aligned, no data.
/// @note  A tensor without elements gives an empty span, whatever its strides and data. Strides of dimensions of size 1
///        do not matter; null strides mean none have gaps.
/// @par Complexity  O(dimensions), no allocation, no copy.
/// @par Reference   DLPack, dmlc.github.io/dlpack.
/// @see turnwise::gpu::interop::dlpack_span
template <dlpack_element T>
[[nodiscard]] std::span<T> dlpack_span(dlpack_source const& source, std::string_view argument) {
  detail::check_host(source.tensor(), "dlpack_span", argument);
  return detail::make_span<std::span<T>>(source, "dlpack_span", argument);
}

/// Rows of logits in a host tensor [rows, vocabulary] or [batch, rows, vocabulary]; rows may be any distance apart.
///
/// @throws precondition_error  as dlpack_span, but for gaps: only the last dimension must have stride 1, and the others
///         a positive one (a broadcast row would be several rows in one place).
/// @see turnwise::logprob::token_logits
/// @see turnwise::gpu::interop::dlpack_logits
template <dlpack_element T>
[[nodiscard]] dlpack_rows<std::span<T>> dlpack_logits(dlpack_source const& source, std::string_view argument) {
  detail::check_host(source.tensor(), "dlpack_logits", argument);
  return detail::make_rows<std::span<T>>(source, "dlpack_logits", argument);
}

/// A row-major tensor over a span of host memory, for libraries that take DLPack. It owns nothing: span, shape and
/// strides must outlive it, and there is nothing to release.
///
/// @param[in]  shape     sizes whose product is that of the span; empty: one element without dimensions.
/// @param[out] strides   as many; filled.
/// @param[in]  argument  what an error calls the span.
/// @return    for T a DLTensor; for T const a DLManagedTensorVersioned that is read-only and has no deleter. A struct
///            older than DLPack 1.0 cannot say that it is read-only, so with such a header a span of T const is refused
///            when it is compiled.
/// @throws precondition_error  a shape of another number of elements or with a negative size, strides of another size.
/// @par Complexity  O(dimensions), no allocation, no copy.
/// @par Reference   DLPack, dmlc.github.io/dlpack.
/// @see turnwise::gpu::interop::to_dlpack
template <writable_element T>
[[nodiscard]] DLTensor to_dlpack(std::span<T> values, std::span<std::int64_t> shape, std::span<std::int64_t> strides,
                                 std::string_view argument) {
  return detail::tensor_over(values.data(), values.size(), shape, strides, {kDLCPU, 0}, argument);
}
#if defined(DLPACK_MAJOR_VERSION) && DLPACK_MAJOR_VERSION >= 1
/// The same for a span that is only read.
template <dlpack_element T>
[[nodiscard]] DLManagedTensorVersioned to_dlpack(std::span<T const> values, std::span<std::int64_t> shape,
                                                 std::span<std::int64_t> strides, std::string_view argument) {
  return detail::read_only_tensor(
      detail::tensor_over(values.data(), values.size(), shape, strides, {kDLCPU, 0}, argument));
}
#else
template <dlpack_element T>
DLTensor to_dlpack(std::span<T const>, std::span<std::int64_t>, std::span<std::int64_t>,
                   std::string_view) = delete;  // needs DLPack 1.0
#endif

}  // namespace turnwise::interop
