#include "npy.hpp"

#include "error.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <filesystem>
#include <limits>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

using namespace rollout_step;
using namespace std::string_literals;

namespace {

/// A version 1.0 file with the header and the elements written down by hand.
std::string file_of(std::string const& header, std::string const& elements, std::string const& version = "\x01\x00"s) {
  std::string length{static_cast<char>(header.size() & 0xff), static_cast<char>(header.size() >> 8)};
  if (version[0] != '\x01') length += "\x00\x00"s;
  return "\x93NUMPY" + version + length + header + elements;
}

std::string header_of(std::string const& type, std::string const& shape = "(2,)",
                      std::string const& fortran_order = "False") {
  return "{'descr': '" + type + "', 'fortran_order': " + fortran_order + ", 'shape': " + shape + ", }          \n";
}

npy_array parse(std::string const& bytes) {
  std::istringstream file(bytes);
  return read_npy(file, "some.npy");
}

/// What the reader says, without the name of the file that every message starts with.
std::string error_of(std::string const& bytes) {
  try {
    static_cast<void>(parse(bytes));
  } catch (tool_error const& error) {
    std::string const message = error.what();
    REQUIRE(message.starts_with("some.npy: "));
    CHECK(message.find('\n') == std::string::npos);
    return message.substr(10);
  }
  return "accepted";
}

bool says(std::string const& bytes, std::string_view part) {
  std::string const message = error_of(bytes);
  INFO(message);
  bool const found = message.find(part) != std::string::npos;
  CHECK(found);
  return found;
}

template <typename T>
std::vector<T> values_of(std::string const& bytes) {
  return std::get<std::vector<T>>(parse(bytes).values);
}

template <typename T>
std::string written(std::vector<T> const& values) {
  std::ostringstream file;
  write_npy(file, std::span<T const>{values});
  return file.str();
}

std::string const one_and_minus_two_f32 = "\x00\x00\x80\x3f\x00\x00\x00\xc0"s;

}  // namespace

TEST_SUITE("tool/npy") {
  TEST_CASE("reads each element type") {
    CHECK(values_of<float>(file_of(header_of("<f4"), one_and_minus_two_f32)) == std::vector{1.f, -2.f});
    CHECK(values_of<double>(
              file_of(header_of("<f8"), "\x00\x00\x00\x00\x00\x00\xf0\x3f"s + "\x00\x00\x00\x00\x00\x00\x00\xc0"s)) ==
          std::vector{1.0, -2.0});
    CHECK(values_of<std::int32_t>(file_of(header_of("<i4"), "\x01\x02\x00\x00\xff\xff\xff\xff"s)) ==
          std::vector<std::int32_t>{513, -1});
    CHECK(values_of<std::int64_t>(
              file_of(header_of("<i8"), "\x01\x02\x00\x00\x00\x00\x00\x00\xfe\xff\xff\xff\xff\xff\xff\xff"s)) ==
          std::vector<std::int64_t>{513, -2});
    CHECK(values_of<std::uint8_t>(file_of(header_of("|u1"), "\x07\xff")) == std::vector<std::uint8_t>{7, 255});
    CHECK(values_of<std::uint8_t>(file_of(header_of("|b1"), "\x01\x00"s)) == std::vector<std::uint8_t>{1, 0});
    CHECK(parse(file_of(header_of("|b1"), "\x01\x00"s)).type == "|b1");
    CHECK(parse(file_of(header_of("|b1"), "\x01\x00"s)).size() == 2);
  }

  TEST_CASE("reads formats 1.0, 2.0 and 3.0, and no others") {
    CHECK(values_of<float>(file_of(header_of("<f4"), one_and_minus_two_f32, "\x02\x00"s)).size() == 2);
    CHECK(values_of<float>(file_of(header_of("<f4"), one_and_minus_two_f32, "\x03\x00"s)).size() == 2);
    CHECK(says(file_of(header_of("<f4"), one_and_minus_two_f32, "\x04\x00"s), "format 4.0"));
    CHECK(says(file_of(header_of("<f4"), one_and_minus_two_f32, "\x01\x01"), "format 1.1"));
    CHECK(says(file_of(header_of("<f4"), one_and_minus_two_f32, "\x00\x00"s), "format 0.0"));
  }

  TEST_CASE("reads arrays without elements") {
    CHECK(values_of<float>(file_of(header_of("<f4", "(0,)"), "")).empty());
    CHECK(says(file_of(header_of("<f4", "(0,)"), "x"), "1 bytes follow"));
  }

  TEST_CASE("takes the header's entries in any order, with either quotes, with or without a last comma") {
    CHECK(values_of<float>(file_of("{\"shape\":(2,),\"fortran_order\":False,\"descr\":\"<f4\"}",
                                   one_and_minus_two_f32)) == std::vector{1.f, -2.f});
  }

  TEST_CASE("rejects what is no .npy file") {
    CHECK(says("", "too short"));
    CHECK(says("\x93NUM", "too short"));
    CHECK(says("PK\x03\x04 and some more bytes", "wrong first bytes"));
    CHECK(says("\x93NUMPY\x01\x00"s, "truncated"));
    CHECK(says("\x93NUMPY\x01\x00\x76"s, "truncated"));
    CHECK(says("\x93NUMPY\x01\x00\x76\x00{'descr'"s, "truncated inside its header"));
    CHECK(says("\x93NUMPY\x02\x00\xff\xff\xff\xff{"s, "truncated inside its header"));
  }

  TEST_CASE("rejects a malformed header") {
    for (std::string const header : {"",
                                     "{}",
                                     "{",
                                     "garbage",
                                     "{'descr': '<f4', 'fortran_order': False}",
                                     "{'descr': '<f4', 'shape': (2,)}",
                                     "{'fortran_order': False, 'shape': (2,)}",
                                     "{'descr': <f4, 'fortran_order': False, 'shape': (2,)}",
                                     "{'descr': '<f4, 'fortran_order': False, 'shape': (2,)}",
                                     "{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}",
                                     "{'descr': '<f4', 'fortran_order': False, 'shape': 2}",
                                     "{'descr': '<f4', 'fortran_order': False, 'shape': (2)}",
                                     "{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}",
                                     "{'descr': '<f4', 'fortran_order': False, 'shape': (2L,)}",
                                     "{'descr': '<f4', 'fortran_order': False, 'shape': (2,}",
                                     "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
                                     "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,)}",
                                     "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'more': '1'}",
                                     "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} x",
                                     "{'descr': '<f4' 'fortran_order': False, 'shape': (2,)}",
                                     "{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (2,)}"}) {
      INFO(header);
      CHECK(says(file_of(header, one_and_minus_two_f32), "header is malformed"));
    }
  }

  TEST_CASE("rejects other types, byte orders, shapes and layouts") {
    CHECK(says(file_of(header_of(">f4"), one_and_minus_two_f32), "big-endian"));
    CHECK(says(file_of(header_of("<f2", "(4,)"), one_and_minus_two_f32), "'<f2'"));
    CHECK(says(file_of(header_of("<u4"), one_and_minus_two_f32), "'<u4'"));
    CHECK(says(file_of(header_of("|O"), one_and_minus_two_f32), "'|O'"));
    CHECK(says(file_of(header_of("<U1"), one_and_minus_two_f32), "'<U1'"));
    CHECK(says(file_of(header_of("<f4", "()"), one_and_minus_two_f32), "shape (), expected one dimension"));
    CHECK(says(file_of(header_of("<f4", "(1, 2)"), one_and_minus_two_f32), "shape (1, 2), expected one dimension"));
    CHECK(says(file_of(header_of("<f4", "(2, 1)", "True"), one_and_minus_two_f32), "shape (2, 1)"));
    CHECK(says(file_of(header_of("<f4", "(2,)", "True"), one_and_minus_two_f32), "Fortran order"));
  }

  TEST_CASE("rejects too few and too many bytes, before it takes memory for them") {
    CHECK(says(file_of(header_of("<f4"), one_and_minus_two_f32.substr(1)), "truncated, 7 bytes"));
    CHECK(says(file_of(header_of("<f4"), ""), "truncated, 0 bytes"));
    CHECK(says(file_of(header_of("<f4"), one_and_minus_two_f32 + "x"), "1 bytes follow the 2 elements"));
    CHECK(says(file_of(header_of("<f4", "(1000000000000000000,)"), one_and_minus_two_f32), "truncated"));
    CHECK(says(file_of(header_of("<f8", "(1844674407370955159,)"), one_and_minus_two_f32), "truncated"));
  }

  TEST_CASE("names paths that cannot be read") {
    CHECK_THROWS_WITH_AS(static_cast<void>(read_npy(std::filesystem::path{"/no/such/file.npy"})),
                         "/no/such/file.npy: no such file", tool_error);
    CHECK_THROWS_WITH_AS(static_cast<void>(read_npy(std::filesystem::path{"/"})), "/: not a regular file", tool_error);
  }

  TEST_CASE("writes the bytes that NumPy writes") {
    std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }";
    header.append(128 - 10 - 1 - header.size(), ' ');
    CHECK(written(std::vector{1.f, -2.f}) == file_of(header + '\n', one_and_minus_two_f32));
  }

  TEST_CASE("reads back what it writes") {
    std::vector<double> const doubles{0.1, -0.0, std::numeric_limits<double>::infinity(), 5e-324};
    CHECK(values_of<double>(written(doubles)) == doubles);
    std::vector<std::int64_t> const wide{0, -1, std::int64_t{1} << 62};
    CHECK(values_of<std::int64_t>(written(wide)) == wide);
    CHECK(values_of<std::int32_t>(written(std::vector<std::int32_t>{-7})) == std::vector<std::int32_t>{-7});
    CHECK(values_of<std::uint8_t>(written(std::vector<std::uint8_t>{})).empty());
    CHECK(written(std::vector<std::uint32_t>{1}).ends_with("\x01\x00\x00\x00"s));
    for (std::size_t const size : {0u, 1u, 9u, 100000u}) {
      std::string const bytes = written(std::vector<std::uint8_t>(size));
      CHECK((bytes.size() - size) % 64 == 0);
    }
  }
}
