// Parts of make_spec(): refusals by name, layers, storage.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/plan/spec.h"

namespace kvc {

// Refuses fields with unsupported values by name, so that none is ignored. Throws UNSUPPORTED.
void refuse_unless(bool supported, const char* field, int64_t value, const char* expected);
// Throws OUT_OF_RANGE.
void check_range(const char* field, int64_t value, int64_t least, int64_t most);

// Makes layers [layer_begin, layer_end) of the model with their rotations, which go to spec.ropes,
// and the layer groups of the whole model. All layers are checked.
void read_layers(const std::vector<LayerInput>& layers, Spec& spec);
void read_storage(const kvc_config& config, Spec& spec);
void read_hooks(const kvc_config& config, Spec& spec);

}  // namespace kvc
