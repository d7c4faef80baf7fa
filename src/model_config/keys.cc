#include "src/model_config/keys.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <numeric>
#include <string>
#include <string_view>

#include "src/base/error.h"
#include "src/model_config/families.h"
#include "src/plan/spec.h"

namespace kvc::hf {
namespace {

// Keys whose feature has no layer kind. They are refused whatever else the configuration says.
struct Unserved {
  const char* name;  // A key, or the beginning of one where it ends in '*'.
  const char* reason;
};

constexpr Unserved kUnserved[] = {
    {"index_*", "keys of a sparse attention's index have no layer kind"},
    {"indexer_*", "keys of a sparse attention's index have no layer kind"},
    {"use_cla", "layers that read the K and V of the layer before them are not read"},
    {"compress_*", "compressed tokens have no layer kind"},
};

// Parts of names that speak of what is kept. A key with one of them is refused by its name unless a
// rule reads it or kHarmless has it.
constexpr std::string_view kTelling[] = {
    "window",     "sliding",         "chunk",          "kv",        "key_value",   "cache",
    "layer_type", "block_type",      "layers_block",   "pattern",   "hybrid",      "lora_rank",
    "head_dim",   "head_size",       "index",          "compress",  "latent",      "mamba",
    "ssm",        "d_state",         "state_size",     "conv",      "linear",      "recurrent",
    "lru",        "retention",       "shar",           "cross",     "memory",      "mem_len",
    "local",      "global",          "attn_layer",     "attn_type", "attn_config", "sparse",
    "per_layer",  "attention_layer", "attention_type", "delta",     "kda",         "cca",
    "swa",        "multi_query",     "states",         "v_dim",     "k_dim",       "key_dim",
    "value_dim",  "num_kv",          "num_mem",        "dim_head",  "loop",
};

// Keys that the rules below read.
constexpr std::string_view kRead[] = {
    "layer_types",
    "layers_block_type",
    "attn_type_list",
    "num_key_value_heads",
    "num_kv_heads",
    "num_attention_heads_per_layer",
    "multi_query",
    "head_dim",
    "kv_channels",
    "attention_head_dim",
    "dim_head",
    "v_head_dim",
    "sliding_window",
    "sliding_window_size",
    "use_sliding_window",
    "sliding_window_pattern",
    "_sliding_window_pattern",
    "max_window_layers",
    "global_attn_every_n_layers",
    "attention_chunk_size",
    "swa_num_attention_heads",
    "swa_num_key_value_heads",
    "swa_head_dim",
    "swa_v_head_dim",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "num_kv_shared_layers",
    "kv_source_layers",
    "per_layer_config",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
    "linear_num_heads",
    "linear_head_dim",
    "linear_attn_config",
    "short_conv_kernel_size",
    "conv_L_cache",
    "mamba_n_heads",
    "mamba_d_head",
    "mamba_d_state",
    "mamba_d_conv",
    "mamba_expand",
    "mamba_n_groups",
    "mamba_d_ssm",
    "mamba_ssm_dtype",
    "mamba_ssm_cache_dtype",
    "add_cross_attention",
    "d_kv",
    "mtp_layer_types",  // Read where MTP layers are asked for.
    "mtp_sliding_windows",
};

// Keys that speak of caches and change nothing in one.
constexpr std::string_view kHarmless[] = {
    "use_cache",
    "cache_implementation",
    "chunk_size_feed_forward",
    "q_lora_rank",          // Queries are not kept.
    "qk_head_dim",          // The sum of its two parts.
    "keep_window_size",     // Doge masks by value and keeps every token.
    "decoder_sparse_step",  // Which MLPs have experts.
    "index_of_padding",
    "mamba_chunk_size",  // How a scan is cut.
    "mamba_proj_bias",
    "mamba_conv_bias",
    "mamba_rms_norm",
    "mamba_norm_before_gate",
    "mamba_hidden_act",
    "use_mamba_kernels",
    "use_conv_bias",
    "conv_bias",
    "kda_lower_bound",
    "kda_safe_gate",
    "linear_allow_neg_eigval",
    "linear_a_log_max",
    "linear_a_log_min",
    "linear_dt_init_floor",
    "linear_dt_max",
    "linear_dt_min",
    "share_encoder_decoder_embeddings",
    "cross_attention_hidden_size",
    "attention_type",  // BigBird: which blocks a query reads of all that are kept.
    "share_embeddings",
    "mtp_hidden_states_first",
    "quantization_config",
    "compression_ratio",  // ERNIE: of positions.
    "cla_share_factor",   // Hunyuan: use_cla switches it on.
    "use_cache_quantization",
    "use_cache_kernel",
};

// Parts of names that speak of experts, MLPs, vocabularies, biases and rotations.
constexpr std::string_view kElsewhere[] = {
    "expert",  "moe",   "mlp",  "vocab",  "bias",  "qkv",   "rope",        "shared_inter",
    "dropout", "token", "_act", "vision", "audio", "image", "prefix_dense"};

bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

template <typename List>
bool has_part(std::string_view name, const List& parts) {
  return std::any_of(std::begin(parts), std::end(parts), [&](std::string_view part) {
    return name.find(part) != std::string_view::npos;
  });
}

template <typename List>
bool is_one_of(std::string_view name, const List& names) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// A value that switches its feature off.
bool is_off(const Json& value) {
  switch (value.type) {
    case Json::Type::kNull: return true;
    case Json::Type::kBoolean: return !value.boolean;
    case Json::Type::kInteger:
    case Json::Type::kReal: return value.real == 0;
    case Json::Type::kString: return value.text.empty();
    case Json::Type::kArray: return value.items.empty();
    case Json::Type::kObject: return value.members.empty();
  }
  return false;
}

void refuse_unserved(const Fields& config, const std::string& name) {
  for (const Unserved& row : kUnserved) {
    std::string_view start(row.name);
    const bool is_start = start.back() == '*';
    if (is_start) start.remove_suffix(1);
    if (is_start ? starts_with(name, start) : name == start)
      config.refuse(name.c_str(), row.reason);
  }
}

void check_keys(const Fields& config) {
  for (const Member& member : config.members()) {
    const std::string& name = member.key;
    if (is_off(member.value) || is_one_of(name, kRead) || is_one_of(name, kHarmless)) continue;
    refuse_unserved(config, name);
    if (has_part(name, kTelling) && !has_part(name, kElsewhere)) {
      fail(KVC_E_UNSUPPORTED,
           "%s could change what a layer keeps, and no rule for an unknown model_type reads it",
           config.path(shown(name).c_str()).c_str());
    }
  }
}

// Layers, heads and width have several names.
const char* layers_name(const Fields& config) {
  return config.first_of(
      {"num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"});
}

const char* heads_name(const Fields& config) {
  return config.first_of({"num_attention_heads", "n_head", "n_heads", "num_heads",
                          "attention_heads", "decoder_attention_heads"});
}

const char* width_name(const Fields& config) {
  return config.first_of({"hidden_size", "n_embd", "d_model", "n_embed", "emb_dim"});
}

const char* head_dim_name(const Fields& config) {
  return config.first_of({"head_dim", "kv_channels", "attention_head_dim", "dim_head"});
}

void note(const Fields& config, const char* name, Model& model) {
  if (!config.has(name) || is_one_of(name, model.keys)) return;
  model.keys.emplace_back(name);
}

// hidden_size / heads, rounded down as in transformers.
int64_t width_of_head(const Fields& config, int64_t q_heads) {
  const char* name = width_name(config);
  const int64_t width = config.integer(name, 1, kMaxWidth) / q_heads;
  if (width < 1 || width > kMaxHeadDim) {
    fail_with(KVC_E_OUT_OF_RANGE, width, "%s / %s = %lld out of range: 1 to %d",
              config.path(name).c_str(), heads_name(config), ll(width), kMaxHeadDim);
  }
  return width;
}

Heads keyed_heads(const Fields& config, Model& model) {
  Heads heads;
  const char* q_name = heads_name(config);
  heads.q = config.integer(q_name, 1, kMaxHeads);
  note(config, q_name, model);
  const char* kv_name = config.first_of({"num_key_value_heads", "num_kv_heads"});
  const int64_t fallback = config.flag_or("multi_query", false) ? 1 : heads.q;
  heads.kv = config.integer_or(kv_name, fallback, 1, kMaxHeads);
  note(config, kv_name, model);
  check_heads(config, q_name, heads, kv_name);
  const char* dim_name = head_dim_name(config);
  heads.k_dim = config.has(dim_name) ? config.integer(dim_name, 1, kMaxHeadDim)
                                     : width_of_head(config, heads.q);
  note(config, config.has(dim_name) ? dim_name : width_name(config), model);
  heads.v_dim = config.integer_or("v_head_dim", heads.k_dim, 1, kMaxHeadDim);
  note(config, "v_head_dim", model);
  return heads;
}

// Layers that slide may have heads of their own.
Heads sliding_heads(const Fields& config, const Heads& full, Model& model) {
  Heads heads = full;
  heads.q = config.integer_or("swa_num_attention_heads", full.q, 1, kMaxHeads);
  heads.kv = config.integer_or("swa_num_key_value_heads", full.kv, 1, kMaxHeads);
  heads.k_dim = config.integer_or("swa_head_dim", full.k_dim, 1, kMaxHeadDim);
  heads.v_dim = config.integer_or(
      "swa_v_head_dim", config.has("v_head_dim") ? full.v_dim : heads.k_dim, 1, kMaxHeadDim);
  check_heads(config, "swa_num_attention_heads", heads, "swa_num_key_value_heads");
  for (const char* name : {"swa_num_key_value_heads", "swa_head_dim", "swa_v_head_dim"})
    note(config, name, model);
  return heads;
}

int64_t keyed_window(const Fields& config, Model& model) {
  const char* name = config.first_of({"sliding_window", "sliding_window_size"});
  if (!config.has(name) || !config.flag_or("use_sliding_window", true)) return 0;
  note(config, name, model);
  return config.integer(name, 1, kMaxSequenceLength);
}

// "LLLG" repeated: L slides, G has no window.
LayerType lettered(const Fields& config, const char* name, const std::string& pattern, int64_t i) {
  const char letter = pattern[static_cast<size_t>(i) % pattern.size()];
  if (letter == 'L') return LayerType::kSliding;
  if (letter == 'G') return LayerType::kFull;
  fail_with(KVC_E_UNSUPPORTED, i, "%s has the letter '%s': L and G are known",
            config.path(name).c_str(), shown(std::string(1, letter)).c_str());
}

const char* pattern_name(const Fields& config) {
  return config.first_of(
      {"sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers"});
}

std::vector<LayerType> types_without_list(const Fields& config, int64_t num_layers,
                                          const LayerShape& shape, Model& model) {
  std::vector<LayerType> types(static_cast<size_t>(num_layers), LayerType::kFull);
  if (shape.window == 0) {
    if (shape.chunk != 0) std::fill(types.begin(), types.end(), LayerType::kChunked);
    return types;
  }
  const char* pattern = pattern_name(config);
  note(config, pattern, model);
  if (config.is(pattern, Json::Type::kString)) {
    const std::string letters = config.text(pattern);
    for (int64_t i = 0; i < num_layers && !letters.empty(); ++i)
      types[i] = lettered(config, pattern, letters, i);
    return types;
  }
  const int64_t every = config.integer_or(pattern, 0, 0, kMaxLayers);
  // Layers before max_window_layers have no window where a switch says that windows are used.
  const bool has_first = config.has("use_sliding_window") && config.has("max_window_layers");
  const int64_t first = has_first ? config.integer("max_window_layers", 0, kMaxLayers) : int64_t{0};
  if (has_first) note(config, "max_window_layers", model);
  for (int64_t i = first; i < num_layers; ++i) {
    if (every == 0 || (i + 1) % every != 0) types[i] = LayerType::kSliding;
  }
  return types;
}

constexpr const char* kNumbers = "attn_type_list";

// MiniMax: 1 attends, 0 has a recurrent state.
std::vector<LayerType> types_by_number(const Fields& config, int64_t num_layers) {
  std::vector<LayerType> types;
  for (const bool attends : config.flags(kNumbers))
    types.push_back(attends ? LayerType::kFull : LayerType::kLinear);
  if (types.size() != static_cast<size_t>(num_layers)) {
    fail_with(KVC_E_INVALID_ARGUMENT, static_cast<int64_t>(types.size()),
              "%s has %zu entries, expected one per layer: %lld", config.path(kNumbers).c_str(),
              types.size(), ll(num_layers));
  }
  return types;
}

const char* kinds_name(const Fields& config) {
  return config.first_of({"layer_types", "layers_block_type", kNumbers});
}

std::vector<LayerType> types_of_list(const Fields& config, const char* name, int64_t num_layers) {
  return name == std::string_view(kNumbers) ? types_by_number(config, num_layers)
                                            : read_layer_types(config, name, num_layers, {});
}

// The fields that one entry of per_layer_config may have.
void apply_entry(const Fields& entry, LayerShape& shape) {
  for (const Member& member : entry.members()) {
    const std::string& name = member.key;
    const char* text = name.c_str();
    if (name == "head_dim") {
      shape.heads.k_dim = shape.heads.v_dim = entry.integer(text, 1, kMaxHeadDim);
    } else if (name == "num_key_value_heads") {
      shape.heads.kv = entry.integer(text, 1, kMaxHeads);
    } else if (name == "num_attention_heads") {
      shape.heads.q = entry.integer(text, 1, kMaxHeads);
      shape.latent.num_q_heads = static_cast<int32_t>(shape.heads.q);
    } else if (name == "v_head_dim" && !shape.is_latent()) {
      shape.heads.v_dim = entry.integer(text, 1, kMaxHeadDim);
    } else if (name == "sliding_window") {
      shape.window = entry.has(text) ? entry.integer(text, 1, kMaxSequenceLength) : 0;
    } else if (name == "attention_chunk_size") {
      shape.chunk = entry.has(text) ? entry.integer(text, 1, kMaxSequenceLength) : 0;
    } else if (has_part(name, kTelling) && !has_part(name, kElsewhere) && !is_off(member.value)) {
      entry.refuse(shown(name).c_str(), "no rule reads it for one layer");
    }
  }
  if (!shape.is_latent())
    check_heads(entry, "num_attention_heads", shape.heads, "num_key_value_heads");
}

}  // namespace

void apply_per_layer_config(const Fields& config, std::vector<LayerShape>& shapes) {
  constexpr const char* kName = "per_layer_config";
  const auto layers = config.object(kName);
  if (!layers) return;
  for (const Member& member : layers->members()) {
    size_t index = 0;
    const char* end = member.key.data() + member.key.size();
    const auto [rest, status] = std::from_chars(member.key.data(), end, index);
    if (status != std::errc() || rest != end || index >= shapes.size()) {
      fail(KVC_E_INVALID_ARGUMENT, "%s has the key '%s', expected a layer below %zu",
           config.path(kName).c_str(), shown(member.key).c_str(), shapes.size());
    }
    if (member.value.type == Json::Type::kNull) continue;
    apply_entry(Fields(member.value, config.path(kName) + "." + shown(member.key) + "."),
                shapes[index]);
  }
}

std::vector<LayerType> read_listed_types(const Fields& config, int64_t num_layers, Model& model,
                                         const char*& name) {
  name = kinds_name(config);
  if (config.has(name)) return types_of_list(config, name, num_layers);
  name = pattern_name(config);
  if (!config.has(name)) return {};
  LayerShape shape;
  shape.window = keyed_window(config, model);
  return types_without_list(config, num_layers, shape, model);
}

KeyedLayers read_keyed_layers(const Fields& config, Model& model,
                              const std::function<LayerType(int64_t)>& fallback) {
  const int64_t num_layers = config.integer(layers_name(config), 1, kMaxLayers);
  LayerShape full;
  if (config.has("kv_lora_rank")) {
    full.latent = latent_layer(config, model);
    full.heads.q = full.latent.num_q_heads;
    note(config, "kv_lora_rank", model);
    note(config, "qk_rope_head_dim", model);
  } else {
    full.heads = keyed_heads(config, model);
  }
  full.window = keyed_window(config, model);
  full.chunk = config.integer_or("attention_chunk_size", 0, 1, kMaxSequenceLength);
  note(config, "attention_chunk_size", model);
  LayerShape sliding = full;
  if (!full.is_latent()) sliding.heads = sliding_heads(config, full.heads, model);
  KeyedLayers out;
  const char* name = kinds_name(config);
  if (config.has(name)) {
    out.types = types_of_list(config, name, num_layers);
    model.keys.insert(model.keys.begin(), name);
  } else if (fallback) {
    for (int64_t i = 0; i < num_layers; ++i) out.types.push_back(fallback(i));
  } else {
    out.types = types_without_list(config, num_layers, full, model);
  }
  out.shapes.reserve(out.types.size());
  for (LayerType& type : out.types) {
    if (type == LayerType::kSliding && !config.flag_or("use_sliding_window", true))
      type = LayerType::kFull;
    const bool slides = type == LayerType::kSliding || type == LayerType::kHybridSliding;
    out.shapes.push_back(slides ? sliding : full);
  }
  constexpr const char* kPerLayer = "num_attention_heads_per_layer";
  if (config.has(kPerLayer)) {
    const std::vector<int64_t> heads = config.integers(kPerLayer, 1, kMaxHeads);
    if (heads.size() != out.shapes.size()) {
      fail_with(KVC_E_INVALID_ARGUMENT, static_cast<int64_t>(heads.size()),
                "%s has %zu entries, expected one per layer: %zu", config.path(kPerLayer).c_str(),
                heads.size(), out.shapes.size());
    }
    for (size_t i = 0; i < heads.size(); ++i) {
      out.shapes[i].heads.q = heads[i];
      check_heads(config, kPerLayer, out.shapes[i].heads, "num_key_value_heads");
    }
  }
  apply_per_layer_config(config, out.shapes);
  note(config, "per_layer_config", model);
  return out;
}

kvc_layer attention_of(const Fields& config, const Model& model, const KeyedLayers& layers,
                       size_t index) {
  const LayerShape& shape = layers.shapes[index];
  const LayerType type = layers.types[index];
  const bool slides = type == LayerType::kSliding || type == LayerType::kHybridSliding;
  kvc_layer layer = shape.is_latent() ? shape.latent : attention_layer(model, shape.heads);
  if (slides) {
    if (shape.window == 0) (void)read_window(config);  // Throws: it is missing.
    layer.window = shape.window;
  }
  if (type == LayerType::kChunked) {
    constexpr const char* kName = "attention_chunk_size";
    layer.chunk = shape.chunk != 0 ? shape.chunk : config.integer(kName, 1, kMaxSequenceLength);
  }
  return layer;
}

namespace {

void refuse_encoder(const Fields& config) {
  constexpr const char* kDecodes = "is_decoder";
  if (config.has(kDecodes) && !config.flag_or(kDecodes, true) &&
      !config.flag_or("is_encoder_decoder", false))
    config.refuse(kDecodes, "it is false: an encoder keeps no cache");
  constexpr const char* kClasses = "architectures";
  if (!config.is(kClasses, Json::Type::kArray)) return;
  constexpr std::string_view kEncoders[] = {
      "ForMaskedLM",    "ForSequenceClassification", "ForTokenClassification",
      "ForPreTraining", "ForQuestionAnswering",      "EncoderModel"};
  for (const std::string& name : config.texts(kClasses)) {
    if (has_part(name, kEncoders)) {
      fail(KVC_E_UNSUPPORTED, "%s has '%s', which is not a model that generates: it keeps no cache",
           config.path(kClasses).c_str(), shown(name).c_str());
    }
  }
}

int64_t keyed_length(const Fields& config) {
  const char* name = config.first_of({"max_position_embeddings", "model_max_length",
                                      "max_sequence_length", "n_positions", "max_seq_len"});
  return config.integer_or(name, 0, 1, kMaxSequenceLength);
}

// The states of linear_attention layers: which ones, the keys say. -1: the model has no such layer.
int32_t linear_states(const Fields& config, const std::vector<LayerType>& types, Model& model) {
  const auto is_linear = [](LayerType type) {
    return type == LayerType::kLinear || type == LayerType::kHybrid ||
           type == LayerType::kHybridSliding;
  };
  const auto first = std::find_if(types.begin(), types.end(), is_linear);
  if (first == types.end()) return -1;
  if (config.has("linear_num_value_heads")) {
    note(config, "linear_num_value_heads", model);
    return add_gated_delta(config, 0, model);
  }
  if (config.has("linear_num_heads") || config.has("linear_attn_config")) {
    note(config, config.first_of({"linear_num_heads", "linear_attn_config"}), model);
    return add_kimi_delta(config, model);
  }
  if (config.has("mamba_n_heads")) {
    note(config, "mamba_n_heads", model);
    return add_mamba2_of(config, model);
  }
  fail_with(
      KVC_E_UNSUPPORTED, first - types.begin(),
      "%s[%zu] has a recurrent state, and no key says of which shape: linear_num_value_heads, "
      "linear_num_heads and mamba_n_heads are known",
      config.path(config.first_of({"layer_types", "layers_block_type", "attn_type_list"})).c_str(),
      static_cast<size_t>(first - types.begin()));
}

int32_t conv_states(const Fields& config, const std::vector<LayerType>& types, Model& model) {
  if (std::find(types.begin(), types.end(), LayerType::kConv) == types.end()) return -1;
  const int64_t kernel = config.integer("conv_L_cache", 2, kMaxKernel);
  note(config, "conv_L_cache", model);
  return model.state_set({conv_state(model, config.integer("hidden_size", 1, kMaxWidth), kernel)});
}

// The decoder of an encoder-decoder keeps K and V of its own tokens and of the encoder's.
void read_keyed_pairs(const Fields& config, Model& model) {
  if (config.has("d_kv")) return read_t5(config, model);
  Heads heads;
  const char* q_name = config.first_of({"decoder_attention_heads", "num_decoder_attention_heads"});
  heads.q = heads.kv = config.integer(q_name, 1, kMaxHeads);
  const char* width = config.first_of({"d_model", "hidden_size"});
  heads.k_dim = heads.v_dim =
      divide(config, width, config.integer(width, 1, kMaxWidth), q_name, heads.q);
  if (heads.k_dim > kMaxHeadDim) config.refuse(width, "heads are wider than 512 elements");
  const char* layers = config.first_of({"decoder_layers", "num_decoder_layers"});
  const int64_t num_layers = config.integer(layers, 1, kMaxLayers);
  const char* length = config.first_of({"max_target_positions", "max_position_embeddings"});
  model.max_seq_len = config.integer_or(length, 0, 1, kMaxSequenceLength);
  model.max_cross_len =
      config.integer_or(config.first_of({"max_source_positions", "max_position_embeddings"}), 0, 1,
                        kMaxSequenceLength);
  for (const char* name : {"is_encoder_decoder", layers, q_name, width}) note(config, name, model);
  for (int64_t i = 0; i < num_layers; ++i) {
    model.add(attention_layer(model, heads));
    model.add(cross_layer(model, heads));
  }
}

constexpr const char* kNumShared = "num_kv_shared_layers";
constexpr const char* kSources = "kv_source_layers";

bool attends(LayerType type) {
  return type != LayerType::kLinear && type != LayerType::kConv && type != LayerType::kNone;
}

// The last `num_shared` layers read the last layer of their type before these.
void share_by_type(const Fields& config, const std::vector<LayerType>& types, size_t num_shared,
                   std::vector<size_t>& sources) {
  constexpr size_t kUnseen = SIZE_MAX;
  std::array<size_t, kNumLayerTypes> last;
  last.fill(kUnseen);
  const size_t first_shared = types.size() - num_shared;
  for (size_t i = 0; i < first_shared; ++i) last[static_cast<size_t>(types[i])] = i;
  for (size_t i = first_shared; i < types.size(); ++i) {
    if (!attends(types[i])) continue;
    sources[i] = last[static_cast<size_t>(types[i])];
    if (sources[i] == kUnseen) {
      fail_with(KVC_E_INVALID_ARGUMENT, static_cast<int64_t>(i),
                "%s leaves layer %zu no earlier layer of its type to share with",
                config.path(kNumShared).c_str(), i);
    }
  }
}

bool keep_alike(const kvc_layer& a, const kvc_layer& b) {
  return a.num_kv_heads == b.num_kv_heads && a.k_dim == b.k_dim && a.v_dim == b.v_dim &&
         a.latent_rank == b.latent_rank && a.latent_rope_dim == b.latent_rope_dim &&
         a.window == b.window && a.chunk == b.chunk;
}

// A list names a source for each layer. Sources read no other layer.
void share_by_list(const Fields& config, const Model& model, const KeyedLayers& layers,
                   std::vector<size_t>& sources) {
  const size_t count = layers.types.size();
  const std::vector<int64_t> listed = config.integers(kSources, 0, static_cast<int64_t>(count) - 1);
  if (listed.empty()) return;
  if (listed.size() != count) {
    fail_with(KVC_E_INVALID_ARGUMENT, static_cast<int64_t>(listed.size()),
              "%s has %zu entries, expected one per layer: %zu", config.path(kSources).c_str(),
              listed.size(), count);
  }
  for (size_t i = 0; i < count; ++i) {
    const auto source = static_cast<size_t>(listed[i]);
    if (source == i) continue;
    if (source > i || sources[source] != source) {
      fail_with(KVC_E_INVALID_ARGUMENT, listed[i],
                "%s[%zu] = %zu, expected the layer itself or an earlier one that reads no other",
                config.path(kSources).c_str(), i, source);
    }
    if (!attends(layers.types[i]) || layers.types[i] != layers.types[source] ||
        !keep_alike(attention_of(config, model, layers, i),
                    attention_of(config, model, layers, source))) {
      fail_with(KVC_E_UNSUPPORTED, listed[i],
                "%s[%zu] = %zu is not supported: the layers differ in what they keep",
                config.path(kSources).c_str(), i, source);
    }
    sources[i] = source;
  }
}

// The layer whose K and V, or latents, each layer reads: most often its own.
std::vector<size_t> read_sources(const Fields& config, const KeyedLayers& layers, Model& model) {
  std::vector<size_t> sources(layers.types.size());
  std::iota(sources.begin(), sources.end(), size_t{0});
  const int64_t num_shared =
      config.integer_or(kNumShared, 0, 0, static_cast<int64_t>(sources.size()));
  note(config, kNumShared, model);
  if (config.has(kSources)) {
    if (num_shared != 0) config.refuse(kSources, "num_kv_shared_layers says what layers share");
    share_by_list(config, model, layers, sources);
    note(config, kSources, model);
  } else if (num_shared != 0) {
    share_by_type(config, layers.types, static_cast<size_t>(num_shared), sources);
  }
  return sources;
}

}  // namespace

const char* missing_key(const Fields& config) {
  if (config.flag_or("is_encoder_decoder", false)) {
    if (config.has("d_kv")) return nullptr;
    const char* heads = config.first_of({"decoder_attention_heads", "num_decoder_attention_heads"});
    return config.has(heads) ? nullptr : heads;
  }
  for (const char* name : {layers_name(config), heads_name(config)}) {
    if (!config.has(name)) return name;
  }
  if (config.has("kv_lora_rank")) return nullptr;
  if (!config.has(head_dim_name(config)) && !config.has(width_name(config)))
    return width_name(config);
  // A nested configuration leaves out what its class knows, and this class is not known.
  constexpr const char* kHeads = "num_key_value_heads";
  const bool says_heads = config.has(kHeads) || config.is_null(kHeads);
  return config.is_nested() && !says_heads ? kHeads : nullptr;
}

void read_by_keys(const Fields& config, Model& model) {
  check_keys(config);
  refuse_encoder(config);
  if (config.flag_or("is_encoder_decoder", false)) return read_keyed_pairs(config, model);
  const KeyedLayers layers = read_keyed_layers(config, model);
  model.max_seq_len = keyed_length(config);
  const int32_t linear = linear_states(config, layers.types, model);
  const int32_t conv = conv_states(config, layers.types, model);
  const bool crosses = config.flag_or("add_cross_attention", false);
  if (crosses && layers.shapes[0].is_latent())
    config.refuse("add_cross_attention", "it is read for layers that keep K and V, not latents");
  const std::vector<size_t> sources = read_sources(config, layers, model);
  if (config.integer_or(kNumShared, 0, 0, kMaxLayers) != 0 && (linear >= 0 || conv >= 0 || crosses))
    config.refuse(kNumShared, "it is read for models of attention layers only");
  std::vector<int32_t> entries;  // Entry of each layer's attention.
  model.layers.reserve(layers.types.size());
  for (size_t i = 0; i < layers.types.size(); ++i) {
    entries.push_back(static_cast<int32_t>(model.layers.size()));
    const LayerShape& shape = layers.shapes[i];
    const auto add_attention = [&] {
      model.add(sources[i] == i ? attention_of(config, model, layers, i)
                                : shared_layer(shape.heads, entries[sources[i]]));
    };
    switch (layers.types[i]) {
      case LayerType::kLinear: model.add_states(linear); break;
      case LayerType::kConv: model.add_states(conv); break;
      case LayerType::kNone: model.add_none(); break;
      case LayerType::kHybrid:
      case LayerType::kHybridSliding:
        add_attention();
        model.add_states(linear);
        break;
      default:
        add_attention();
        if (crosses) model.add(cross_layer(model, shape.heads));
    }
  }
}

}  // namespace kvc::hf
