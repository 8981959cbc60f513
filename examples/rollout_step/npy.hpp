/// @file
/// One-dimensional NumPy arrays in files: a strict reader and a writer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace rollout_step {

/// Element types by NumPy's names for them. Flags are bytes, whether stored as u8 or as bool.
using npy_values = std::variant<std::vector<float>, std::vector<double>, std::vector<std::int32_t>,
                                std::vector<std::int64_t>, std::vector<std::uint8_t>>;

struct npy_array {
  std::string type;  ///< as in the file: <f4, <f8, <i4, <i8, |u1 or |b1
  npy_values values;

  [[nodiscard]] std::size_t size() const {
    return std::visit([](auto const& values_of_type) { return values_of_type.size(); }, values);
  }
};

/// Reads a file of format 1.0, 2.0 or 3.0: little endian, C order, one dimension, nothing after the last element.
///
/// @param name  what an error calls the file.
/// @throws tool_error  anything else; sizes are checked against the file before memory is taken.
[[nodiscard]] npy_array read_npy(std::istream& file, std::string_view name);
[[nodiscard]] npy_array read_npy(std::filesystem::path const& path);

/// Writes format 1.0, byte for byte as NumPy does. Whether it worked is in the stream's state.
void write_npy(std::ostream& file, std::span<double const> values);
void write_npy(std::ostream& file, std::span<float const> values);
void write_npy(std::ostream& file, std::span<std::int64_t const> values);
void write_npy(std::ostream& file, std::span<std::int32_t const> values);
void write_npy(std::ostream& file, std::span<std::uint32_t const> values);
void write_npy(std::ostream& file, std::span<std::uint8_t const> values);

}  // namespace rollout_step
