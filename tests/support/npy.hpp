/// @file
/// Reads the .npy files of tests/data: little-endian, C order, exactly the element type that is asked for.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace turnwise::test {

static_assert(std::endian::native == std::endian::little);

template <typename T>
constexpr std::string_view npy_type() {
  if constexpr (std::same_as<T, float>) return "<f4";
  if constexpr (std::same_as<T, double>) return "<f8";
  if constexpr (std::same_as<T, std::int32_t>) return "<i4";
  if constexpr (std::same_as<T, std::int64_t>) return "<i8";
  if constexpr (std::same_as<T, std::uint8_t>) return "|u1";
}

/// The elements of a one-dimensional array. Throws std::runtime_error naming the file and what is wrong with it.
template <typename T>
std::vector<T> load_npy(std::filesystem::path const& path) {
  auto const require = [&](bool condition, std::string const& what) {
    if (!condition) throw std::runtime_error(path.string() + ": " + what);
  };
  std::ifstream file(path, std::ios::binary);
  require(file.good(), "cannot be opened");
  std::string const bytes{std::istreambuf_iterator<char>(file), {}};
  require(bytes.size() >= 10 && bytes.compare(0, 6, "\x93NUMPY") == 0, "is no .npy file");
  require(bytes[6] == 1 && bytes[7] == 0, "has a format version other than 1.0");
  std::size_t const header_size = static_cast<unsigned char>(bytes[8]) + 256u * static_cast<unsigned char>(bytes[9]);
  require(bytes.size() >= 10 + header_size, "ends inside its header");
  std::string const header = bytes.substr(10, header_size);

  auto const holds = [&](std::string const& part) { return header.find(part) != std::string::npos; };
  std::string const type{npy_type<T>()};
  require(holds("'descr': '" + type + "'"), "is not of type " + type);
  require(holds("'fortran_order': False"), "is not in C order");
  std::string const shape_key = "'shape': (";
  std::size_t const shape = header.find(shape_key);
  require(shape != std::string::npos, "has no shape");
  std::size_t const first = shape + shape_key.size();
  std::size_t const last = header.find_first_not_of("0123456789", first);
  require(last > first && header.compare(last, 2, ",)") == 0, "is not one-dimensional");
  std::size_t const count = std::stoull(header.substr(first, last - first));
  require(bytes.size() == 10 + header_size + count * sizeof(T), "has not the size of its shape");

  std::vector<T> values(count);
  if (count > 0) std::memcpy(values.data(), bytes.data() + 10 + header_size, count * sizeof(T));
  return values;
}

}  // namespace turnwise::test
