// A request that a command cannot meet.
#pragma once

#include <stdexcept>

namespace kvc {

// A file, an option or a line that cannot be used. what() is for the user, and nothing has changed.
struct Refusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace kvc
