/// @file
/// How the library reports bad arguments.
#pragma once

#include <turnwise/core/config.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <string_view>

namespace turnwise {

/// An argument breaks a precondition. The message names the function, the argument, both sizes or the first bad
/// index, and what was expected. It is thrown before anything is written.
class precondition_error : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

namespace detail {

inline void append(std::string& text, std::string_view part) { text += part; }
inline void append(std::string& text, std::integral auto number) { text += std::to_string(number); }
inline void append(std::string& text, std::floating_point auto number) {
  char digits[32];
  auto const value = static_cast<double>(number);
  bool const whole = value > -1e12 && value < 1e12 && value == static_cast<double>(static_cast<std::int64_t>(value));
  std::snprintf(digits, sizeof digits, whole ? "%.0f" : "%.9g", value);
  text += digits;
}

}  // namespace detail

/// Throws precondition_error with the parts (text and numbers) joined.
template <typename... Parts>
[[noreturn]] void fail(Parts const&... parts) {
  std::string text;
  (detail::append(text, parts), ...);
  throw precondition_error(text);
}

/// Throws precondition_error with the joined parts unless `condition` holds. The message is only built on failure.
template <typename... Parts>
constexpr void expects(bool condition, Parts const&... parts) {
  if (!condition) [[unlikely]]
    fail(parts...);
}

/// Throws unless an array has as many elements as `expected`, naming both sizes.
inline void expects_size(std::string_view function, std::string_view argument, std::size_t size, std::size_t expected,
                         std::string_view unit) {
  if (size != expected) [[unlikely]]
    fail(function, ": ", argument, " has ", size, " elements, expected ", expected, " (one a ", unit, ")");
}

}  // namespace turnwise
