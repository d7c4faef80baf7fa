// Parts that all decoders share: heads, layer types, attention layers.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "src/model_config/fields.h"
#include "src/model_config/model.h"

namespace kvc::hf {

struct Heads {
  int64_t q = 0;
  int64_t kv = 0;
  int64_t k_dim = 0;
  int64_t v_dim = 0;
};

// Values of a class for fields that a nested configuration leaves out; 0: the field is required.
struct ClassDefaults {
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t hidden = 0;
  int64_t head_dim = 0;
  int64_t max_len = 0;
};

int64_t read_num_layers(const Fields& config, const ClassDefaults& defaults = {});
// max_position_embeddings, stretched by YaRN; 0 when the configuration has none.
int64_t read_max_len(const Fields& config, const ClassDefaults& defaults = {});
// num_attention_heads, num_key_value_heads (missing: as many), head_dim (missing: hidden_size /
// heads).
Heads read_heads(const Fields& config, const ClassDefaults& defaults = {});
// Throws INVALID_ARGUMENT unless kv heads divide query heads.
void check_heads(const Fields& config, const char* q_name, const Heads& heads, const char* kv_name);

kvc_layer attention_layer(const Model& model, const Heads& heads, int64_t window = 0,
                          int64_t chunk = 0);
kvc_layer cross_layer(const Model& model, const Heads& heads);
// A layer that keeps nothing and reads the K and V of `source`, with its own query heads.
kvc_layer shared_layer(const Heads& heads, int32_t source);

enum class LayerType { kFull, kSliding, kChunked, kLinear, kHybrid, kConv, kNone };

// The types of `name` ("layer_types") when the configuration has it, else fallback(i). Throws
// INVALID_ARGUMENT when the number of entries is not the number of layers, UNSUPPORTED for an
// unknown type.
std::vector<LayerType> read_layer_types(const Fields& config, const char* name, int64_t num_layers,
                                        const std::function<LayerType(int64_t)>& fallback);
// Throws UNSUPPORTED: the family does not have this type.
[[noreturn]] void refuse_layer_type(const Fields& config, const char* name, size_t layer);

// The layers that an array of indices names. Throws OUT_OF_RANGE.
std::vector<bool> read_layer_mask(const Fields& config, const char* name, int64_t num_layers);

// The keys of layers with and without a window, each read once, when such a layer exists.
struct LayerKeys {
  int64_t window = 0;
  int32_t rope = -1;
};
class KeysByType {
 public:
  explicit KeysByType(std::function<LayerKeys(bool slides)> read) : read_(std::move(read)) {}
  const LayerKeys& of(bool slides) {
    std::optional<LayerKeys>& keys = slides ? sliding_ : full_;
    if (!keys) keys = read_(slides);
    return *keys;
  }

 private:
  std::function<LayerKeys(bool slides)> read_;
  std::optional<LayerKeys> sliding_, full_;
};

// The window of sliding layers. Throws INVALID_ARGUMENT when a layer needs a window and the
// configuration has none.
int64_t read_window(const Fields& config, int64_t class_default = 0);

}  // namespace kvc::hf
