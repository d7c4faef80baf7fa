// The rotation of a layer as configurations write it: rope_theta beside rope_scaling, or
// rope_parameters, whole or per layer type.
#pragma once

#include <cstdint>

#include "src/model_config/fields.h"
#include "src/model_config/model.h"

namespace kvc::hf {

struct RopeRequest {
  int64_t dim = 0;  // of the rotated vector: head_dim, or MLA's rope dim
  kvc_rope_style style = KVC_ROPE_HALF;
  double theta = 10000;         // where the configuration has none
  double partial = 1;           // share of dim that turns, where the configuration has none
  const char* layer_type = "";  // key of rope_parameters: "full_attention"
  const char* theta_name = "rope_theta";
  const char* partial_name = "partial_rotary_factor";
  // A layer that sees few keys: scaling is for the others, and theta_name decides, unless
  // rope_parameters has an entry for the type.
  bool is_local = false;
};

// Index of the rotation in model.ropes; equal rotations share one. Throws INVALID_ARGUMENT,
// OUT_OF_RANGE, UNSUPPORTED.
int32_t add_rope(const Fields& config, const RopeRequest& request, Model& model);

// The longest context: max_position_embeddings, or what YaRN stretches the original one to where
// that is more.
int64_t longest_context(const Fields& config, int64_t max_position_embeddings);

}  // namespace kvc::hf
