// What a GGUF file holds, as JSON.
#pragma once

#include <nlohmann/json.hpp>

#include "tools/gguf/file.h"

namespace kvc::gguf {

// Null where the file does not say it. `with_tensors`: one entry per tensor too. Throws
// std::runtime_error for a value of another type.
nlohmann::ordered_json describe(const File& file, bool with_tensors);

}  // namespace kvc::gguf
