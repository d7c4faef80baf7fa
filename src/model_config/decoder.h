// Parts that all decoders share: heads, layer types, attention layers.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvcache.h"
#include "src/model_config/fields.h"

namespace kvc::hf {

// The layers of a configuration, before they are laid out in the caller's array.
struct State {
  DLDataType dtype{};
  std::vector<int64_t> shape;

  bool operator==(const State& other) const {
    return dtype.code == other.dtype.code && dtype.bits == other.dtype.bits && shape == other.shape;
  }
};

// The pointers of `rope` are NULL; the factors are in the vectors.
struct Rope {
  kvc_rope rope{};
  std::vector<float> factors, long_factors;
};

// The pointers of `layer` are NULL; `rope` and `states` index Model::ropes and Model::states (-1:
// none).
struct Layer {
  kvc_layer layer{};
  int32_t rope = -1;
  int32_t states = -1;
};

// One entry per cache of a layer. A layer of the model with two caches has two entries in a row: K
// and V beside a recurrent state, or beside the encoder's K and V. Layer ids of the library count
// entries.
struct Model {
  std::vector<Layer> layers;
  std::vector<Rope> ropes;
  std::vector<std::vector<State>> states;  // Sets that layers share.
  DLDataType dtype{kDLBfloat, 16, 1};      // Type of K, V and convolution states.
  int64_t max_seq_len = 0;                 // 0: the model has no limit.
  int64_t max_cross_len = 0;               // 0: unknown.
  bool is_assumed = false;                 // Rules of a family that the caller names read it.
  // Keys that decided, where no rule of the family's own did; empty: one did.
  std::vector<std::string> keys;
  std::string warning;  // For the caller's log; empty: none.

  void add(const kvc_layer& layer, int32_t rope = -1) { layers.push_back({layer, rope, -1}); }
  void add_none() {
    kvc_layer layer{};
    layer.kind = KVC_LAYER_NONE;
    layers.push_back({layer, -1, -1});
  }
  void add_states(int32_t set) {
    kvc_layer layer{};
    layer.kind = KVC_LAYER_STATE;
    layer.num_states = static_cast<int32_t>(states[set].size());
    layers.push_back({layer, -1, set});
  }
  int32_t state_set(std::vector<State> set) {
    states.push_back(std::move(set));
    return static_cast<int32_t>(states.size() - 1);
  }
};

// Shapes of recurrent states, as kvc_state_conv and kvc_attn_linear take them.

// A convolution of `kernel` taps keeps its last inputs: [channels, kernel - 1], in the dtype of the
// model.
State conv_state(const Model& model, int64_t channels, int64_t kernel);
// The sum of a recurrence, in the dtype that the configuration names, else float32.
State recurrent_state(const Fields& config, const Model& model, std::vector<int64_t> shape);

// Mamba (Gu and Dao, arXiv:2312.00752): [channels, state_size]. Returns the index of the set in
// model.states.
struct MambaShape {
  int64_t channels = 0;
  int64_t state_size = 0;
  int64_t kernel = 0;
};
int32_t add_mamba(const Fields& config, const MambaShape& shape, Model& model);

// Mamba-2 (arXiv:2405.21060): the convolution runs over x, B and C; the state is [heads,
// state_size, head_dim].
struct Mamba2Shape {
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t state_size = 0;
  int64_t groups = 0;
  int64_t kernel = 0;
};
int32_t add_mamba2(const Fields& config, const Mamba2Shape& shape, Model& model);

// Bounds that keep the product of any two of them in int64.
constexpr int64_t kMaxWidth = 1 << 24;
constexpr int64_t kMaxKernel = 4096;

// Mamba-2 by the keys that Bamba, Granite and Falcon-H1 share: mamba_n_heads, mamba_d_head,
// mamba_d_state, mamba_n_groups, mamba_d_conv. `channels` 0: mamba_d_ssm, or mamba_expand times
// hidden_size.
int32_t add_mamba2_of(const Fields& config, Model& model, int64_t channels = 0);

// Gated delta nets by linear_num_key_heads, linear_num_value_heads, linear_key_head_dim,
// linear_value_head_dim and linear_conv_kernel_dim. `value_heads`: the class's number of them.
int32_t add_gated_delta(const Fields& config, int64_t value_heads, Model& model);

// Kimi Delta Attention by linear_attn_config, or by linear_num_heads and linear_head_dim.
int32_t add_kimi_delta(const Fields& config, Model& model);

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
// A layer of latents, by kv_lora_rank, qk_rope_head_dim, qk_nope_head_dim and v_head_dim.
kvc_layer latent_layer(const Fields& config, const Model& model);
int32_t latent_rope(const Fields& config, const kvc_layer& layer, Model& model);
// A layer that keeps nothing and reads the K and V of `source`, with its own query heads.
kvc_layer shared_layer(const Heads& heads, int32_t source);

// kHybrid: attention and a recurrent state in one layer.
enum class LayerType { kFull, kSliding, kChunked, kLinear, kHybrid, kHybridSliding, kConv, kNone };
constexpr size_t kNumLayerTypes = static_cast<size_t>(LayerType::kNone) + 1;

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
