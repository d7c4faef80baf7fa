// Where the command finds its model, and what a state file calls it.
#pragma once

#include <string>

#include "tools/gguf/file.h"

namespace kvc::llm {

// The model that `make demo` fetches: in $KVCACHE_MODEL_DIR, else in the user's cache folder.
// Where it is not there, the first is empty, and the second throws std::runtime_error, which says
// how to get it.
std::string find_default_model();
std::string default_model();

// Name, size, and a digest of names, types and first bytes of all tensors.
std::string model_id(const gguf::File& file);

}  // namespace kvc::llm
