// Reads a Hugging Face config.json as the layers of a model.
#pragma once

#include <string_view>

#include "src/model_config/decoder.h"

namespace kvc {

// Throws INVALID_ARGUMENT (not JSON: detail = byte; a field missing or of another type),
// OUT_OF_RANGE, UNSUPPORTED.
hf::Model read_hf_config(std::string_view json);

}  // namespace kvc
