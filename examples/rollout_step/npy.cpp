#include "npy.hpp"

#include "error.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <fstream>
#include <istream>
#include <limits>
#include <optional>
#include <ostream>
#include <utility>

namespace rollout_step {
namespace {

static_assert(std::endian::native == std::endian::little, "elements are copied as they stand in the file");

constexpr std::string_view magic = "\x93NUMPY";
constexpr std::size_t alignment = 64;

struct npy_header {
  std::optional<std::string> type;
  std::optional<bool> fortran_order;
  std::optional<std::vector<std::uint64_t>> shape;
};

/// The header is a Python dictionary of three entries; nothing else is understood.
class header_parser {
 public:
  header_parser(std::string_view text, std::string_view name) : rest_(text), name_(name) {}

  npy_header parse() {
    npy_header header;
    expect('{');
    while (!accept('}')) {
      std::string const key = quoted();
      expect(':');
      if (key == "descr" && !header.type)
        header.type = quoted();
      else if (key == "fortran_order" && !header.fortran_order)
        header.fortran_order = boolean();
      else if (key == "shape" && !header.shape)
        header.shape = tuple();
      else
        bad();
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (!rest_.empty() || !header.type || !header.fortran_order || !header.shape) bad();
    return header;
  }

 private:
  [[noreturn]] void bad() const { fail(name_, ": the .npy header is malformed"); }

  void skip_space() {
    auto const first = rest_.find_first_not_of(" \n");
    rest_.remove_prefix(std::min(first, rest_.size()));
  }
  bool accept(char symbol) {
    skip_space();
    if (!rest_.starts_with(symbol)) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void expect(char symbol) {
    if (!accept(symbol)) bad();
  }
  std::string quoted() {
    skip_space();
    if (rest_.empty() || (rest_[0] != '\'' && rest_[0] != '"')) bad();
    auto const end = rest_.find(rest_[0], 1);
    if (end == std::string_view::npos) bad();
    std::string text{rest_.substr(1, end - 1)};
    rest_.remove_prefix(end + 1);
    return text;
  }
  bool boolean() {
    skip_space();
    for (auto const& [word, value] : {std::pair{std::string_view{"True"}, true}, {std::string_view{"False"}, false}})
      if (rest_.starts_with(word)) {
        rest_.remove_prefix(word.size());
        return value;
      }
    bad();
  }
  std::uint64_t integer() {
    skip_space();
    std::uint64_t value = 0;
    std::size_t digits = 0;
    for (; digits < rest_.size() && rest_[digits] >= '0' && rest_[digits] <= '9'; ++digits) {
      if (value > std::numeric_limits<std::uint64_t>::max() / 10 - 1) bad();
      value = 10 * value + static_cast<std::uint64_t>(rest_[digits] - '0');
    }
    if (digits == 0) bad();
    rest_.remove_prefix(digits);
    return value;
  }
  std::vector<std::uint64_t> tuple() {
    std::vector<std::uint64_t> values;
    expect('(');
    while (!accept(')')) {
      values.push_back(integer());
      if (accept(',')) continue;
      if (values.size() == 1) bad();  // (5) is a number in brackets, not a tuple
      expect(')');
      break;
    }
    return values;
  }

  std::string_view rest_;
  std::string_view name_;
};

void read_bytes(std::istream& file, char* bytes, std::uint64_t count, std::string_view name) {
  if (!file.read(bytes, static_cast<std::streamsize>(count))) fail(name, ": the .npy file is truncated or unreadable");
}

/// Bytes from here to the end of the file, so that a header cannot ask for memory that the file does not fill.
std::uint64_t bytes_left(std::istream& file, std::string_view name) {
  auto const here = file.tellg();
  file.seekg(0, std::ios::end);
  auto const end = file.tellg();
  file.seekg(here);
  if (!file || end < here) fail(name, ": cannot be read");
  return static_cast<std::uint64_t>(end - here);
}

npy_header read_header(std::istream& file, std::string_view name) {
  std::array<char, 8> start{};
  if (bytes_left(file, name) < start.size()) fail(name, ": not a .npy file (too short)");
  read_bytes(file, start.data(), start.size(), name);
  if (std::string_view{start.data(), magic.size()} != magic) fail(name, ": not a .npy file (wrong first bytes)");
  int const major = static_cast<unsigned char>(start[6]);
  int const minor = static_cast<unsigned char>(start[7]);
  if (major < 1 || major > 3 || minor != 0)
    fail(name, ": .npy format ", major, ".", minor, ", expected 1.0, 2.0 or 3.0");

  std::array<unsigned char, 4> length_bytes{};
  std::size_t const length_size = major == 1 ? 2 : 4;
  read_bytes(file, reinterpret_cast<char*>(length_bytes.data()), length_size, name);
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < length_size; ++i) length |= std::uint64_t{length_bytes[i]} << (8 * i);
  if (length > bytes_left(file, name)) fail(name, ": the .npy file is truncated inside its header");
  std::string text(length, '\0');
  read_bytes(file, text.data(), length, name);
  return header_parser{text, name}.parse();
}

template <typename T>
std::vector<T> read_elements(std::istream& file, std::uint64_t count, std::string_view name) {
  std::uint64_t const bytes = bytes_left(file, name);
  if (bytes / sizeof(T) < count)
    fail(name, ": truncated, ", bytes, " bytes of data where the header announces ", count, " elements of ", sizeof(T));
  if (bytes != count * sizeof(T))
    fail(name, ": ", bytes - count * sizeof(T), " bytes follow the ", count, " elements that the header announces");
  std::vector<T> values(count);
  if (count > 0) read_bytes(file, reinterpret_cast<char*>(values.data()), bytes, name);
  return values;
}

std::string shape_text(std::vector<std::uint64_t> const& shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + (shape.size() == 1 ? ",)" : ")");
}

template <typename T>
void write(std::ostream& file, std::string_view type, std::span<T const> values) {
  std::string header =
      "{'descr': '" + std::string{type} + "', 'fortran_order': False, 'shape': " + shape_text({values.size()}) + ", }";
  std::size_t const unpadded = magic.size() + 4 + header.size() + 1;
  header.append((alignment - unpadded % alignment) % alignment, ' ');
  header += '\n';
  file << magic << '\1' << '\0' << static_cast<char>(header.size() & 0xff) << static_cast<char>(header.size() >> 8)
       << header;
  file.write(reinterpret_cast<char const*>(values.data()), static_cast<std::streamsize>(values.size_bytes()));
}

}  // namespace

npy_array read_npy(std::istream& file, std::string_view name) {
  npy_header const header = read_header(file, name);
  std::string const& type = *header.type;
  if (type.starts_with('>')) fail(name, ": big-endian elements ('", type, "'), expected little endian");
  if (header.shape->size() != 1) fail(name, ": shape ", shape_text(*header.shape), ", expected one dimension");
  if (*header.fortran_order) fail(name, ": Fortran order, expected C order");
  std::uint64_t const count = header.shape->front();
  if (type == "<f4") return {type, read_elements<float>(file, count, name)};
  if (type == "<f8") return {type, read_elements<double>(file, count, name)};
  if (type == "<i4") return {type, read_elements<std::int32_t>(file, count, name)};
  if (type == "<i8") return {type, read_elements<std::int64_t>(file, count, name)};
  if (type == "|u1" || type == "|b1") return {type, read_elements<std::uint8_t>(file, count, name)};
  fail(name, ": elements of type '", type, "', expected one of f32, f64, i32, i64, u8, bool");
}

npy_array read_npy(std::filesystem::path const& path) {
  std::error_code error;
  auto const status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) fail(path.string(), ": no such file");
  if (error) fail(path.string(), ": ", error.message());
  if (!std::filesystem::is_regular_file(status)) fail(path.string(), ": not a regular file");
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(path.string(), ": cannot be opened");
  return read_npy(file, path.string());
}

void write_npy(std::ostream& file, std::span<double const> values) { write(file, "<f8", values); }
void write_npy(std::ostream& file, std::span<float const> values) { write(file, "<f4", values); }
void write_npy(std::ostream& file, std::span<std::int64_t const> values) { write(file, "<i8", values); }
void write_npy(std::ostream& file, std::span<std::int32_t const> values) { write(file, "<i4", values); }
void write_npy(std::ostream& file, std::span<std::uint32_t const> values) { write(file, "<u4", values); }
void write_npy(std::ostream& file, std::span<std::uint8_t const> values) { write(file, "|u1", values); }

}  // namespace rollout_step
