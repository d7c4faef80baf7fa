// Storage of K and V that a quantised checkpoint asks for.
#pragma once

#include "src/model_config/decoder.h"
#include "src/model_config/fields.h"

namespace kvc::hf {

// Reads quantization_config.kv_cache_scheme (compressed-tensors, ModelOpt) and kv_cache_quant_algo
// (ModelOpt). Layers of attention and latents get that storage, with scales of 1: those of the
// checkpoint are tensors beside its weights. Throws UNSUPPORTED for a scheme that no storage type
// has, INVALID_ARGUMENT for a field of another type.
void apply_kv_scheme(const Fields& config, Model& model);

}  // namespace kvc::hf
