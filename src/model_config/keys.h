// Reads a configuration by its keys alone: layer_types, num_key_value_heads, head_dim,
// sliding_window, kv_lora_rank and the others that most families write alike.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "src/model_config/decoder.h"
#include "src/model_config/fields.h"

namespace kvc::hf {

// Heads, latents and window of one layer.
struct LayerShape {
  Heads heads;
  kvc_layer latent{};  // kind KVC_LAYER_MLA where layers keep latents.
  int64_t window = 0;  // Window of layers that slide; 0: the configuration has none.
  int64_t chunk = 0;   // Chunk of chunked layers; 0: likewise.

  bool is_latent() const { return latent.kind == KVC_LAYER_MLA; }
};

// What keys say about the layers of a model, before states are added to them.
struct KeyedLayers {
  std::vector<LayerType> types;
  std::vector<LayerShape> shapes;  // One per layer.
};

// Reads every layer's type and shape. Notes the keys that decide in model.keys. `fallback` gives
// the types where the configuration lists none; empty: keys of windows do. Throws INVALID_ARGUMENT,
// OUT_OF_RANGE, UNSUPPORTED.
KeyedLayers read_keyed_layers(const Fields& config, Model& model,
                              const std::function<LayerType(int64_t)>& fallback = {});

// The entry of a layer that attends, with its window or chunk. Throws INVALID_ARGUMENT where the
// layer slides and the configuration has no window.
kvc_layer attention_of(const Fields& config, const Model& model, const KeyedLayers& layers,
                       size_t index);

// The types of layers that a list of kinds, or a pattern of windows, gives; empty: the
// configuration has neither. `name` is set to the key.
std::vector<LayerType> read_listed_types(const Fields& config, int64_t num_layers, Model& model,
                                         const char*& name);

// The first key that read_by_keys needs of a family that is not known and that the configuration
// has not; null: none.
const char* missing_key(const Fields& config);

// A whole configuration without a rule of its own. Rotations are left to the model. Throws
// UNSUPPORTED for an encoder, and for a key that could change what is kept and that no rule knows.
void read_by_keys(const Fields& config, Model& model);

// Changes `shape` as the entries of per_layer_config say: {"05": {"head_dim": 512}}.
void apply_per_layer_config(const Fields& config, std::vector<LayerShape>& shapes);

}  // namespace kvc::hf
