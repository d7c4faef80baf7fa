// What a state file holds, as JSON.
#pragma once

#include <string>

#include "src/files/byte_source.h"

namespace kvc {

// Reads and checks the whole file. Throws Error.
std::string describe_state_file(ByteSource& source);

}  // namespace kvc
