/// @file
/// From PyTorch's tensors to spans, with every check, and back.
///
/// A `Place` says where the spans are: its span<T>, and how turnwise takes one from a DLPack tensor.
#pragma once

#include "backend.hpp"

#include <turnwise/importance/turn_statistics.hpp>
#include <turnwise/interop/dlpack.hpp>
#include <turnwise/logprob/detail/softmax.hpp>
#include <turnwise/loss/aggregate.hpp>
#include <turnwise/loss/record.hpp>

#include <ATen/DLConvertor.h>
#include <ATen/ops/empty.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace turnwise_torch {

/// How a tensor holds a T: `words` numbers, each a Word of dtype Type.
template <typename Word, at::ScalarType Type, std::int64_t Words = 1>
struct held_as {
  using word = Word;
  static constexpr at::ScalarType type = Type;
  static constexpr std::int64_t words = Words;
};
template <typename T>
struct storage;
template <>
struct storage<float> : held_as<float, at::kFloat> {};
template <>
struct storage<double> : held_as<double, at::kDouble> {};
template <>
struct storage<c10::BFloat16> : held_as<c10::BFloat16, at::kBFloat16> {};
template <>
struct storage<std::int64_t> : held_as<std::int64_t, at::kLong> {};
template <>
struct storage<std::uint8_t> : held_as<std::uint8_t, at::kByte> {};
template <>
struct storage<std::byte> : held_as<std::byte, at::kByte> {};
template <>
struct storage<turnwise::reason_flags> : held_as<std::int32_t, at::kInt> {};  // older PyTorch has no uint32
template <>
struct storage<turnwise::importance::turn_statistics> : held_as<std::int64_t, at::kLong, 6> {};
template <>
struct storage<turnwise::loss::loss_counts> : held_as<std::int64_t, at::kLong, 6> {};
template <>
struct storage<turnwise::loss::loss_record> : held_as<std::int64_t, at::kLong, 15> {};
template <typename T>
struct storage<turnwise::logprob::log_normalizer<T>> : held_as<T, storage<T>::type, 2> {};

[[nodiscard]] inline std::string dtype_name(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    case at::kBFloat16:
      return "bfloat16";
    case at::kHalf:
      return "float16";
    default:
      return c10::toString(type);
  }
}

/// The method that gives a tensor of this dtype; flags are bytes.
[[nodiscard]] inline std::string_view cast_method(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return "float";
    case at::kDouble:
      return "double";
    case at::kBFloat16:
      return "bfloat16";
    case at::kLong:
      return "long";
    case at::kInt:
      return "int";
    default:
      return "bool";
  }
}

/// The tensors of one call, by name.
template <typename Place>
class arguments {
 public:
  arguments(std::string_view function, tensor_map const& given, at::Device device)
      : function_(function), given_(given), device_(device) {}

  [[nodiscard]] bool has(std::string const& name) const { return given_.count(name) > 0; }
  [[nodiscard]] at::Tensor const& tensor(std::string const& name) const {
    auto const found = given_.find(name);
    turnwise::expects(found != given_.end(), function_, ": ", name, " is missing");
    return found->second;
  }

  /// Sets `to` to the elements of the tensor of that name; leaves it empty where there is none.
  template <typename Span>
  void view(std::string const& name, Span& to) const {
    if (!has(name)) return;
    using T = typename Span::element_type;
    using held = storage<std::remove_const_t<T>>;
    using word = std::conditional_t<std::is_const_v<T>, typename held::word const, typename held::word>;
    static_assert(sizeof(T) == held::words * sizeof(word));
    auto const words = taken(name, held::type, [&](DLTensor const& from) {
      return Place::template view<word>(from, device_.index(), name);
    });
    turnwise::expects(words.size() % held::words == 0, function_, ": ", name, " has ", words.size(),
                      " numbers, expected a multiple of ", held::words);
    to = Span{reinterpret_cast<T*>(words.data()), words.size() / held::words};
  }
  /// The same for rows of logits [..., vocabulary], which may lie apart.
  template <typename Span>
  void view_rows(std::string const& name, Span& to, turnwise::logprob::logit_layout& layout) const {
    using T = typename Span::element_type;
    auto const rows = taken(name, storage<std::remove_const_t<T>>::type,
                            [&](DLTensor const& from) { return Place::template rows<T>(from, device_.index(), name); });
    to = rows.values;
    layout = rows.layout;
  }

  /// Calls body.operator()<T>() with the one of the types that the tensor holds.
  template <typename... Types, typename Body>
  void dispatch(std::string const& name, Body body) const {
    at::ScalarType const type = tensor(name).scalar_type();
    bool const known = ((type == storage<Types>::type && (body.template operator()<Types>(), true)) || ...);
    if (known) return;
    std::string expected;
    ((expected += (expected.empty() ? "" : " or ") + dtype_name(storage<Types>::type)), ...);
    at::ScalarType const all[]{storage<Types>::type...};
    turnwise::fail(function_, ": ", name, " has dtype ", dtype_name(type), ", expected ", expected, ": pass ", name,
                   ".", cast_method(all[0]), "()");
  }

 private:
  /// take(tensor); its errors name the function that was called, not its own, and say how to mend the tensor.
  template <typename Take>
  [[nodiscard]] auto taken(std::string const& name, at::ScalarType type, Take take) const {
    DLTensor const from = described(name);
    try {
      return take(from);
    } catch (turnwise::precondition_error const& error) {
      std::string_view const what = error.what();
      turnwise::fail(function_, what.substr(what.find(':')), remedy(name, type));
    }
  }
  [[nodiscard]] std::string remedy(std::string const& name, at::ScalarType type) const {
    at::Tensor const& from = tensor(name);
    std::string const call = ": pass " + name + ".";
    if (from.device().type() != device_.type() || (from.is_cuda() && from.device() != device_))
      return call + "to(\"" + device_.str() + "\")";
    bool const flags = type == at::kByte;
    if (from.scalar_type() != type && !(flags && from.scalar_type() == at::kBool))
      return (flags ? " or bool" : "") + call + std::string(cast_method(type)) + "()";
    return from.is_contiguous() ? "" : call + "contiguous()";
  }
  /// The tensor as DLPack describes it; views its sizes and strides.
  [[nodiscard]] DLTensor described(std::string const& name) const {
    at::Tensor const& from = tensor(name);
    turnwise::expects(from.is_cpu() || from.is_cuda(), function_, ": ", name, " is on ", from.device().str(),
                      ", expected cpu or cuda");
    DLTensor to{};
    to.data = from.data_ptr();
    to.device = {from.is_cuda() ? kDLCUDA : kDLCPU, from.is_cuda() ? from.get_device() : 0};
    to.ndim = static_cast<int>(from.dim());
    // Flags are read as bytes; older PyTorch has no DLPack type for bool.
    to.dtype = from.scalar_type() == at::kBool ? DLDataType{kDLUInt, 8, 1} : at::getDLDataType(from);
    to.shape = const_cast<std::int64_t*>(from.sizes().data());
    to.strides = const_cast<std::int64_t*>(from.strides().data());
    return to;
  }

  std::string_view function_;
  tensor_map const& given_;
  at::Device device_;
};

/// The tensors that a call makes, by name.
class results {
 public:
  explicit results(at::Device device) : device_(device) {}

  /// A new tensor of these sizes for the elements of `to`.
  template <typename Span>
  void make(std::string const& name, Span& to, at::IntArrayRef sizes) {
    using T = typename Span::element_type;
    using held = storage<T>;
    std::vector<std::int64_t> shape = sizes.vec();
    if (held::words > 1) shape.push_back(held::words);
    at::Tensor const made = at::empty(shape, at::TensorOptions(held::type).device(device_));
    to = Span{static_cast<T*>(made.data_ptr()), static_cast<std::size_t>(made.numel() / held::words)};
    map_[name] = made;
  }
  template <typename Span>
  void make(std::string const& name, Span& to, std::size_t size) {
    auto const count = static_cast<std::int64_t>(size);
    make(name, to, at::IntArrayRef{count});
  }
  [[nodiscard]] tensor_map const& map() const { return map_; }

 private:
  at::Device device_;
  tensor_map map_;
};

}  // namespace turnwise_torch
