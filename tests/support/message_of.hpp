/// What a call complains of.
#pragma once

#include <turnwise/core/error.hpp>

#include <string>

namespace support {

/// The message of the precondition_error that call() throws.
template <typename Call>
std::string message_of(Call call) {
  try {
    static_cast<void>(call());
  } catch (turnwise::precondition_error const& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace support
