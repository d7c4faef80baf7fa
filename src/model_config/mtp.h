// Layers of multi-token prediction (MTP): what a checkpoint keeps beside the model's own layers for
// drafting tokens.
#pragma once

#include <cstdint>
#include <string>

#include "src/model_config/decoder.h"
#include "src/model_config/fields.h"

namespace kvc::hf {

// Appends the first `count` MTP layers of a model that has been read as `model_type`. Throws
// UNSUPPORTED for a family without any, or whose layers are not known; OUT_OF_RANGE for more layers
// than the model has.
void add_mtp_layers(const std::string& model_type, const Fields& config, int64_t count,
                    Model& model);

}  // namespace kvc::hf
