// Specs of small models for tests of the layers below the C interface.
#pragma once

#include <utility>
#include <vector>

#include "src/plan/layout.h"
#include "src/plan/spec.h"

namespace kvc {

inline LayerSpec attention_layer(int32_t q_heads, int32_t kv_heads, int32_t k_dim, int32_t v_dim,
                                 kernels::DType k_dtype = kernels::DType::kF32,
                                 kernels::DType v_dtype = kernels::DType::kF32) {
  LayerSpec layer;
  layer.num_q_heads = q_heads;
  layer.num_kv_heads = kv_heads;
  layer.k_dim = k_dim;
  layer.v_dim = v_dim;
  layer.k_dtype = k_dtype;
  layer.v_dtype = v_dtype;
  return layer;
}

inline LayerSpec window_layer(int32_t q_heads, int32_t kv_heads, int32_t dim, int64_t window) {
  LayerSpec layer = attention_layer(q_heads, kv_heads, dim, dim);
  layer.window = window;
  return layer;
}

inline LayerSpec state_layer(std::vector<int64_t> shape) {
  LayerSpec layer;
  layer.kind = KVC_LAYER_STATE;
  StateSpec state;
  state.num_elements = 1;
  for (const int64_t extent : shape) state.num_elements *= extent;
  state.shape = std::move(shape);
  layer.states.push_back(std::move(state));
  return layer;
}

// With groups and regions made and every layer its own source, as make_spec leaves it.
inline Spec spec_of(std::vector<LayerSpec> layers, int32_t page_size,
                    const GroupingOptions& options = {}) {
  Spec spec;
  spec.base_page_size = page_size;
  spec.num_layers = spec.layer_end = static_cast<int32_t>(layers.size());
  spec.layers = std::move(layers);
  for (size_t i = 0; i < spec.layers.size(); ++i) spec.layers[i].source = static_cast<int32_t>(i);
  GroupingOptions grouping = options;
  grouping.base_page_size = page_size;
  spec.groups = make_groups(spec.layers, grouping);
  assign_regions(spec);
  return spec;
}

}  // namespace kvc
