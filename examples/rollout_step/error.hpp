/// @file
/// How the tool reports that it cannot go on.
#pragma once

#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>

namespace rollout_step {

/// One line that names the file or option, and the first bad index where there is one.
class tool_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Throws tool_error with the parts joined.
template <typename... Parts>
[[noreturn]] void fail(Parts const&... parts) {
  std::ostringstream text;
  text.precision(9);
  (text << ... << parts);
  throw tool_error(text.str());
}

}  // namespace rollout_step
