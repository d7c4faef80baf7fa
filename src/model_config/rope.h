// The RoPE of a layer as configurations write it: rope_theta beside rope_scaling, or
// rope_parameters, whole or per layer type.
#pragma once

#include <cstdint>

#include "src/model_config/decoder.h"
#include "src/model_config/fields.h"

namespace kvc::hf {

struct RopeRequest {
  int64_t dim = 0;  // Rotated elements: head_dim, or MLA's rope dim.
  kvc_rope_style style = KVC_ROPE_HALF;
  double theta = 10000;         // Default of the configuration.
  double partial = 1;           // Rotated share of dim; default of the configuration.
  const char* layer_type = "";  // Key of rope_parameters: "full_attention".
  const char* theta_name = "rope_theta";
  const char* partial_name = "partial_rotary_factor";
  // A layer with a short visible range. It ignores scaling and uses theta_name, unless
  // rope_parameters has an entry for its type.
  bool is_local = false;
};

// Index into model.ropes; equal rotations share an entry. -1, with a warning: the model has to
// rotate, because the rotation depends on the length of a sequence ("dynamic"). Throws
// INVALID_ARGUMENT, OUT_OF_RANGE, UNSUPPORTED.
int32_t add_rope(const Fields& config, const RopeRequest& request, Model& model);

// The longest context: max_position_embeddings, stretched by the factor of dynamic NTK, or the
// original one stretched by YaRN when that is more.
int64_t longest_context(const Fields& config, int64_t max_position_embeddings);

}  // namespace kvc::hf
