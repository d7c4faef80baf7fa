#include "src/model_config/decoder.h"

#include <string>
#include <utility>

#include "src/base/error.h"
#include "src/base/math.h"
#include "src/model_config/rope.h"
#include "src/plan/spec.h"

namespace kvc::hf {
namespace {

// The plan's limits of a state, checked here so that the message speaks of the configuration.
State checked(State state) {
  int64_t elements = 1;
  for (const int64_t extent : state.shape) {
    if (extent < 1 || extent > INT32_MAX || !multiply(elements, extent, &elements) ||
        elements > INT32_MAX) {
      fail_with(KVC_E_OUT_OF_RANGE, extent,
                "the configuration's recurrent state is too large: one extent is %lld", ll(extent));
    }
  }
  return state;
}

}  // namespace

State conv_state(const Model& model, int64_t channels, int64_t kernel) {
  return checked({model.dtype, {channels, kernel - 1}});
}

State recurrent_state(const Fields& config, const Model& model, std::vector<int64_t> shape) {
  const char* name = config.first_of({"mamba_ssm_dtype", "mamba_ssm_cache_dtype"});
  DLDataType dtype{kDLFloat, 32, 1};
  if (config.has(name)) dtype = config.text(name) == "auto" ? model.dtype : dtype_of(config, name);
  return checked({dtype, std::move(shape)});
}

int32_t add_mamba(const Fields& config, const MambaShape& shape, Model& model) {
  return model.state_set({conv_state(model, shape.channels, shape.kernel),
                          recurrent_state(config, model, {shape.channels, shape.state_size})});
}

int32_t add_mamba2(const Fields& config, const Mamba2Shape& shape, Model& model) {
  const int64_t channels = shape.heads * shape.head_dim + 2 * shape.groups * shape.state_size;
  return model.state_set(
      {conv_state(model, channels, shape.kernel),
       recurrent_state(config, model, {shape.heads, shape.state_size, shape.head_dim})});
}

namespace {

LayerType layer_type(const Fields& config, const char* name, const std::string& type,
                     size_t index) {
  if (type == "full_attention" || type == "attention") return LayerType::kFull;
  if (type == "sliding_attention") return LayerType::kSliding;
  if (type == "chunked_attention") return LayerType::kChunked;
  if (type == "linear_attention" || type == "mamba") return LayerType::kLinear;
  if (type == "hybrid") return LayerType::kHybrid;
  if (type == "hybrid_sliding") return LayerType::kHybridSliding;
  if (type == "conv" || type == "short_conv") return LayerType::kConv;
  if (type == "mlp" || type == "moe") return LayerType::kNone;
  const bool has_index = type == "indexed_attention" || type == "deepseek_sparse_attention" ||
                         type == "qwen_sparse_attention" || type == "minimax_m3_sparse";
  const bool compresses =
      type == "compressed_sparse_attention" || type == "heavily_compressed_attention";
  fail(KVC_E_UNSUPPORTED, "%s[%zu] = '%s' is not supported%s", config.path(name).c_str(), index,
       shown(type).c_str(),
       has_index    ? ": keys of a sparse attention's index have no layer kind"
       : compresses ? ": compressed tokens have no layer kind"
                    : "");
}

}  // namespace

int64_t read_num_layers(const Fields& config, const ClassDefaults& defaults) {
  return config.class_integer("num_hidden_layers", defaults.layers, 1, kMaxLayers);
}

int64_t read_max_len(const Fields& config, const ClassDefaults& defaults) {
  constexpr const char* kName = "max_position_embeddings";
  const bool has = config.has(kName) || (config.is_nested() && defaults.max_len != 0);
  if (!has) return 0;
  return longest_context(config,
                         config.class_integer(kName, defaults.max_len, 1, kMaxSequenceLength));
}

void check_heads(const Fields& config, const char* q_name, const Heads& heads,
                 const char* kv_name) {
  divide(config, q_name, heads.q, kv_name, heads.kv);
}

Heads read_heads(const Fields& config, const ClassDefaults& defaults) {
  Heads heads;
  heads.q = config.class_integer("num_attention_heads", defaults.heads, 1, kMaxHeads);
  const int64_t kv_fallback =
      config.is_nested() && defaults.kv_heads != 0 ? defaults.kv_heads : heads.q;
  heads.kv = config.integer_or("num_key_value_heads", kv_fallback, 1, kMaxHeads);
  check_heads(config, "num_attention_heads", heads, "num_key_value_heads");
  if (config.has("head_dim")) {
    heads.k_dim = config.integer("head_dim", 1, kMaxHeadDim);
  } else if (defaults.head_dim != 0) {
    heads.k_dim = defaults.head_dim;
  } else {
    const int64_t hidden = config.class_integer("hidden_size", defaults.hidden, 1, kMaxWidth);
    heads.k_dim = divide(config, "hidden_size", hidden, "num_attention_heads", heads.q);
    if (heads.k_dim > kMaxHeadDim) {
      fail_with(KVC_E_OUT_OF_RANGE, heads.k_dim,
                "%s / num_attention_heads = %lld out of range: 1 to %d",
                config.path("hidden_size").c_str(), ll(heads.k_dim), kMaxHeadDim);
    }
  }
  heads.v_dim = heads.k_dim;
  return heads;
}

kvc_layer attention_layer(const Model& model, const Heads& heads, int64_t window, int64_t chunk) {
  kvc_layer layer{};
  layer.kind = KVC_LAYER_ATTENTION;
  layer.num_q_heads = static_cast<int32_t>(heads.q);
  layer.num_kv_heads = static_cast<int32_t>(heads.kv);
  layer.k_dim = static_cast<int32_t>(heads.k_dim);
  layer.v_dim = static_cast<int32_t>(heads.v_dim);
  layer.k_dtype = layer.v_dtype = model.dtype;
  layer.window = window;
  layer.chunk = chunk;
  return layer;
}

kvc_layer cross_layer(const Model& model, const Heads& heads) {
  kvc_layer layer = attention_layer(model, heads);
  layer.kind = KVC_LAYER_CROSS;
  return layer;
}

kvc_layer shared_layer(const Heads& heads, int32_t source) {
  kvc_layer layer{};
  layer.kind = KVC_LAYER_SHARED;
  layer.num_q_heads = static_cast<int32_t>(heads.q);
  layer.source_layer = source;
  return layer;
}

std::vector<LayerType> read_layer_types(const Fields& config, const char* name, int64_t num_layers,
                                        const std::function<LayerType(int64_t)>& fallback) {
  std::vector<LayerType> types;
  if (!config.has(name)) {
    for (int64_t i = 0; i < num_layers; ++i) types.push_back(fallback(i));
    return types;
  }
  for (const std::string& text : config.texts(name))
    types.push_back(layer_type(config, name, text, types.size()));
  if (types.size() != static_cast<size_t>(num_layers)) {
    fail_with(KVC_E_INVALID_ARGUMENT, static_cast<int64_t>(types.size()),
              "%s has %zu entries, expected one per layer: %lld", config.path(name).c_str(),
              types.size(), ll(num_layers));
  }
  return types;
}

std::vector<bool> read_layer_mask(const Fields& config, const char* name, int64_t num_layers) {
  std::vector<bool> mask(static_cast<size_t>(num_layers));
  for (const int64_t layer : config.integers(name, 0, num_layers - 1)) mask[layer] = true;
  return mask;
}

void refuse_layer_type(const Fields& config, const char* name, size_t layer) {
  fail_with(KVC_E_UNSUPPORTED, static_cast<int64_t>(layer),
            "%s[%zu] is of a type that this model has no layers of", config.path(name).c_str(),
            layer);
}

int64_t read_window(const Fields& config, int64_t class_default) {
  const char* name = config.first_of({"sliding_window", "sliding_window_size"});
  return config.class_integer(name, class_default, 1, kMaxSequenceLength);
}

}  // namespace kvc::hf
