// Reads a Hugging Face config.json as the layers of a model.
#pragma once

#include <string_view>

#include "src/model_config/decoder.h"

namespace kvc {

// What the caller says beside the file.
struct HfRequest {
  const char* assume = nullptr;  // Family whose rules read an unknown model_type; null: none.
  int64_t mtp_layers = 0;        // Layers of multi-token prediction to append.
  int32_t cp_size = 0;           // For config.cp_size; 0: not given.
};

// Throws INVALID_ARGUMENT (not JSON: detail = byte; a field missing or of another type; an assumed
// family that is not known, or is not needed), OUT_OF_RANGE, UNSUPPORTED.
hf::Model read_hf_config(std::string_view json, const HfRequest& request = {});

}  // namespace kvc
