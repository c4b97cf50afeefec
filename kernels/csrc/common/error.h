// What a call is refused with.
#pragma once

#include <stdexcept>
#include <string>

namespace quire {

// An argument's shape, type or content cannot be; the message names it.
struct ArgumentError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

[[noreturn]] inline void refuse(const std::string& message) { throw ArgumentError(message); }

}  // namespace quire
