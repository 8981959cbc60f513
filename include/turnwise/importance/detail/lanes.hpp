/// @file
/// The vector types of GCC and Clang, as wide as the target's registers.
#pragma once

#include <turnwise/core/concepts.hpp>
#include <turnwise/importance/log_ratio.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

namespace turnwise::importance::detail {
inline namespace TURNWISE_VECTOR_NAMESPACE {

inline constexpr std::size_t vector_bytes = TURNWISE_VECTOR_BYTES;

template <typename Element, std::size_t Size>
struct vector_of {
  typedef Element type __attribute__((vector_size(sizeof(Element) * Size)));
};

/// `Size` elements; by default a register of them.
template <typename Element, std::size_t Size = vector_bytes / sizeof(Element)>
using vec = typename vector_of<Element, Size>::type;

template <typename Vector>
using element_of = std::remove_cvref_t<decltype(Vector{}[0])>;

template <typename Vector>
inline constexpr std::size_t size_of = sizeof(Vector) / sizeof(element_of<Vector>);

/// The signed integer of the size of T: its bits, or all ones for true.
template <typename T>
using word = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;

/// `Size` numbers from memory as T.
template <typename T, std::size_t Size, typename Value>
[[gnu::always_inline]] inline vec<T, Size> load(Value const* from) {
  if constexpr (std::same_as<T, Value>) {
    vec<T, Size> result;
    std::memcpy(&result, from, sizeof result);
    return result;
  } else {
    T numbers[Size];
    for (std::size_t l = 0; l < Size; ++l) numbers[l] = static_cast<T>(from[l]);
    return load<T, Size>(numbers);
  }
}

/// Whether load_first is one instruction for a register of Value as T.
template <typename T, typename Value>
inline constexpr bool loads_first = vector_bytes == 64 && std::same_as<T, float>&& std::same_as<Value, float>;

/// The first `count` of them; zeros after those, which are not read.
template <typename T, std::size_t Size, typename Value>
[[gnu::always_inline]] inline vec<T, Size> load_first(Value const* from, std::size_t count) {
#if TURNWISE_VECTOR_BYTES == 64
  if constexpr (loads_first<T, Value>) {
    auto const wanted = static_cast<std::uint16_t>((1U << std::min(count, Size)) - 1);
    vec<float> const wide = __builtin_ia32_loadups512_mask(from, vec<float>{}, wanted);
    if constexpr (Size == 16)
      return wide;
    else
      return __builtin_shufflevector(wide, wide, 0, 1, 2, 3, 4, 5, 6, 7);
  }
#endif
  T first[Size]{};
  for (std::size_t l = 0; l < std::min(count, Size); ++l) first[l] = static_cast<T>(from[l]);
  return load<T, Size>(first);
}

/// All ones in the lanes from `first` on.
template <typename Word, std::size_t Size>
[[gnu::always_inline]] inline vec<Word, Size> lanes_from(std::size_t first) {
  static constexpr auto window = [] {
    struct {
      Word word[2 * Size]{};
    } result;
    for (std::size_t l = Size; l < 2 * Size; ++l) result.word[l] = -1;
    return result;
  }();
  return load<Word, Size>(window.word + (Size - first));
}

/// All ones in the lanes whose mask byte is not 0.
template <typename Word, std::size_t Size>
[[gnu::always_inline]] inline vec<Word, Size> lanes_on(vec<std::uint8_t, Size> mask) {
  return __builtin_convertvector(mask, vec<Word, Size>) != 0;
}

/// The lanes of `value` that are `on`; 0 in the others.
template <typename Vector, typename Words>
[[gnu::always_inline]] inline Vector keep(Vector const& value, Words const& on) {
  Words const bits = reinterpret_cast<Words>(value) & on;
  return reinterpret_cast<Vector>(bits);
}

/// A register of doubles.
[[gnu::always_inline]] inline vec<double> widen(vec<float, size_of<vec<double>>> value) {
#if TURNWISE_VECTOR_BYTES == 64 && !defined(__clang__)
  return __builtin_ia32_cvtps2pd512_mask(value, vec<double>{}, -1, 4);  // GCC 12 converts in two halves
#else
  return __builtin_convertvector(value, vec<double>);
#endif
}
[[gnu::always_inline]] inline vec<double> widen(vec<double> value) { return value; }

/// excess_of for a register.
template <bool Small>
[[gnu::always_inline]] inline ratio_excess<vec<double>> excess_of_lanes(vec<double> const& d) {
#ifdef __CUDACC__  // no vectors in functions for the device
  ratio_excess<vec<double>> result{};
  for (std::size_t l = 0; l < size_of<vec<double>>; ++l) {
    auto const [k3, excess] = excess_of<Small>(double{d[l]});
    result.k3[l] = k3;
    result.excess[l] = excess;
  }
  return result;
#else
  return excess_of<Small>(d);
#endif
}

/// The lanes joined as a binary tree: lane l with lane l + size / 2, and so on.
template <typename Vector, typename Join>
[[gnu::always_inline]] inline element_of<Vector> fold(Vector const& v, Join join) {
  if constexpr (sizeof v > 16) {
    vec<element_of<Vector>, size_of<Vector> / 2> halves[2];
    std::memcpy(halves, &v, sizeof v);
    return fold(join(halves[0], halves[1]), join);
  } else if constexpr (size_of<Vector> == 4) {
    Vector const pairs = join(v, Vector(__builtin_shufflevector(v, v, 2, 3, 0, 1)));
    return join(pairs, Vector(__builtin_shufflevector(pairs, pairs, 1, 0, 3, 2)))[0];
  } else {
    return join(v, Vector(__builtin_shufflevector(v, v, 1, 0)))[0];
  }
}

}  // namespace TURNWISE_VECTOR_NAMESPACE

template <>
struct bits_of<vec<double>> {
  using type = vec<std::uint64_t>;
  static type get(vec<double> value) noexcept { return reinterpret_cast<type>(value); }
  static vec<double> put(type bits) noexcept { return reinterpret_cast<vec<double>>(bits); }
};

}  // namespace turnwise::importance::detail
