#include <algorithm>
#include <string>

#include "src/base/error.h"
#include "src/model_config/decoder.h"
#include "src/model_config/families.h"
#include "src/model_config/rope.h"
#include "src/plan/spec.h"

namespace kvc::hf {

// Gated delta nets between attention layers (Qwen3-Next, Qwen 3.5) and short convolutions between
// them (LFM2).

namespace {

struct DeltaTraits {
  ClassDefaults defaults{};
  int64_t value_heads = 32;
};

// Attention where `types` says so; elsewhere layers of the kind `with_states`, with the state set
// `states`.
void add_layers(const Fields& config, const std::vector<LayerType>& types,
                const kvc_layer& attention, int32_t rope, LayerType with_states, int32_t states,
                Model& model) {
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] == LayerType::kFull)
      model.add(attention, rope);
    else if (types[i] == with_states)
      model.add_states(states);
    else
      refuse_layer_type(config, "layer_types", i);
  }
}

}  // namespace

int32_t add_gated_delta(const Fields& config, int64_t class_value_heads, Model& model) {
  const int64_t key_heads = config.class_integer("linear_num_key_heads", 16, 1, kMaxHeads);
  const int64_t value_heads =
      config.class_integer("linear_num_value_heads", class_value_heads, 1, kMaxHeads);
  const int64_t key_dim = config.class_integer("linear_key_head_dim", 128, 1, kMaxWidth);
  const int64_t value_dim = config.class_integer("linear_value_head_dim", 128, 1, kMaxWidth);
  const int64_t kernel = config.class_integer("linear_conv_kernel_dim", 4, 2, kMaxKernel);
  divide(config, "linear_num_value_heads", value_heads, "linear_num_key_heads", key_heads);
  // One convolution runs over q, k and v.
  const State conv = conv_state(model, 2 * key_heads * key_dim + value_heads * value_dim, kernel);
  return model.state_set({conv, recurrent_state(config, model, {value_heads, key_dim, value_dim})});
}

namespace {

void read_delta_hybrid(const Fields& config, const DeltaTraits& traits, Model& model) {
  const int64_t num_layers = read_num_layers(config, traits.defaults);
  const Heads heads = read_heads(config, traits.defaults);
  model.max_seq_len = read_max_len(config, traits.defaults);
  const int64_t every = config.integer_or("full_attention_interval", 4, 1, kMaxLayers);
  const auto types = read_layer_types(config, "layer_types", num_layers, [&](int64_t i) {
    return (i + 1) % every == 0 ? LayerType::kFull : LayerType::kLinear;
  });
  RopeRequest request;
  request.dim = heads.k_dim;
  request.partial = 0.25;
  request.layer_type = "full_attention";
  const int32_t rope = add_rope(config, request, model);
  const int32_t states = add_gated_delta(config, traits.value_heads, model);
  add_layers(config, types, attention_layer(model, heads), rope, LayerType::kLinear, states, model);
}

}  // namespace

void read_qwen3_next(const Fields& config, Model& model) {
  read_delta_hybrid(config, {{48, 16, 2, 2048, 256, 32768}, 32}, model);
}

void read_qwen3_5(const Fields& config, Model& model) {
  read_delta_hybrid(config, {{32, 16, 4, 4096, 256, 32768}, 32}, model);
}

void read_lfm2(const Fields& config, Model& model) {
  const int64_t num_layers = read_num_layers(config);
  const Heads heads = read_heads(config);
  model.max_seq_len = read_max_len(config);
  std::vector<bool> attends(static_cast<size_t>(num_layers), true);
  if (config.has("full_attn_idxs")) attends = read_layer_mask(config, "full_attn_idxs", num_layers);
  const auto types = read_layer_types(config, "layer_types", num_layers, [&](int64_t i) {
    return attends[i] ? LayerType::kFull : LayerType::kConv;
  });
  RopeRequest request;
  request.dim = heads.k_dim;
  request.theta = 1000000;
  request.layer_type = "full_attention";
  request.theta_name = config.first_of({"theta", "rope_theta"});
  const int32_t rope = add_rope(config, request, model);
  const int64_t kernel = config.integer_or("conv_L_cache", 3, 2, kMaxKernel);
  const int32_t states =
      model.state_set({conv_state(model, config.integer("hidden_size", 1, kMaxWidth), kernel)});
  add_layers(config, types, attention_layer(model, heads), rope, LayerType::kConv, states, model);
}

// Mamba and Mamba-2, alone and between attention layers: Jamba, Bamba, Granite 4, Falcon-H1, Zamba
// 2, Nemotron-H.

namespace {

constexpr int64_t kMaxExpand = 1024;

int64_t expanded(const Fields& config, const char* expand, int64_t fallback) {
  const double factor = config.number_or(expand, static_cast<double>(fallback));
  const double width = factor * static_cast<double>(config.integer("hidden_size", 1, kMaxWidth));
  if (!(factor > 0) || factor > static_cast<double>(kMaxExpand) || width < 1 ||
      width > static_cast<double>(kMaxWidth)) {
    fail(KVC_E_OUT_OF_RANGE, "%s = %g makes %g channels, expected 1 to %lld",
         config.path(expand).c_str(), factor, width, ll(kMaxWidth));
  }
  return static_cast<int64_t>(width);
}

// mamba_d_head is a number or "auto".
int64_t head_dim(const Fields& config, const char* name, int64_t channels, const char* heads_name,
                 int64_t heads) {
  if (config.has(name) && !config.is(name, Json::Type::kString))
    return config.integer(name, 1, kMaxWidth);
  if (channels % heads != 0) {
    fail_with(KVC_E_INVALID_ARGUMENT, heads,
              "%s = %lld does not divide the %lld channels of the state",
              config.path(heads_name).c_str(), ll(heads), ll(channels));
  }
  return channels / heads;
}

}  // namespace

int32_t add_mamba2_of(const Fields& config, Model& model, int64_t channels) {
  if (channels == 0) {
    channels = config.has("mamba_d_ssm") ? config.integer("mamba_d_ssm", 1, kMaxWidth)
                                         : expanded(config, "mamba_expand", 2);
  }
  Mamba2Shape shape;
  shape.heads = config.integer("mamba_n_heads", 1, kMaxHeads);
  shape.head_dim = head_dim(config, "mamba_d_head", channels, "mamba_n_heads", shape.heads);
  shape.state_size = config.integer("mamba_d_state", 1, kMaxWidth);
  shape.groups = config.integer_or("mamba_n_groups", 1, 1, kMaxHeads);
  shape.kernel = config.integer_or("mamba_d_conv", 4, 2, kMaxKernel);
  return add_mamba2(config, shape, model);
}

namespace {

int32_t full_rope(const Fields& config, int64_t dim, double partial, Model& model) {
  RopeRequest request;
  request.dim = dim;
  request.partial = partial;
  request.layer_type = "full_attention";
  return add_rope(config, request, model);
}

void add_mixed(const Fields& config, const char* name, const std::vector<LayerType>& types,
               const kvc_layer& attention, int32_t rope, int32_t states, Model& model) {
  for (size_t i = 0; i < types.size(); ++i) {
    switch (types[i]) {
      case LayerType::kFull: model.add(attention, rope); break;
      case LayerType::kLinear: model.add_states(states); break;
      case LayerType::kNone: model.add_none(); break;
      default: refuse_layer_type(config, name, i);
    }
  }
}

}  // namespace

// Also Falcon-Mamba.
void read_mamba(const Fields& config, Model& model) {
  const int64_t num_layers =
      config.integer(config.first_of({"num_hidden_layers", "n_layer"}), 1, kMaxLayers);
  const int64_t channels = config.has("intermediate_size")
                               ? config.integer("intermediate_size", 1, kMaxWidth)
                               : expanded(config, "expand", 2);
  const int64_t state_size = config.integer_or("state_size", 16, 1, kMaxWidth);
  const int64_t kernel = config.integer_or("conv_kernel", 4, 2, kMaxKernel);
  const int32_t states = add_mamba(config, {channels, state_size, kernel}, model);
  for (int64_t i = 0; i < num_layers; ++i) model.add_states(states);
}

void read_mamba2(const Fields& config, Model& model) {
  const int64_t num_layers = read_num_layers(config);
  Mamba2Shape shape;
  shape.heads = config.integer("num_heads", 1, kMaxHeads);
  shape.head_dim =
      head_dim(config, "head_dim", expanded(config, "expand", 2), "num_heads", shape.heads);
  shape.state_size = config.integer("state_size", 1, kMaxWidth);
  shape.groups = config.integer("n_groups", 1, kMaxHeads);
  shape.kernel = config.integer_or("conv_kernel", 4, 2, kMaxKernel);
  const int32_t states = add_mamba2(config, shape, model);
  for (int64_t i = 0; i < num_layers; ++i) model.add_states(states);
}

// Attention without a rotation; which layers have it follows from a period.
void read_jamba(const Fields& config, Model& model) {
  const int64_t num_layers = read_num_layers(config);
  const int64_t period = config.integer_or("attn_layer_period", 8, 1, kMaxLayers);
  const int64_t offset = config.integer_or("attn_layer_offset", 4, 0, kMaxLayers);
  const auto types = read_layer_types(config, "layers_block_type", num_layers, [&](int64_t i) {
    return i % period == offset ? LayerType::kFull : LayerType::kLinear;
  });
  model.max_seq_len = read_max_len(config);
  const MambaShape shape{expanded(config, "mamba_expand", 2),
                         config.integer_or("mamba_d_state", 16, 1, kMaxWidth),
                         config.integer_or("mamba_d_conv", 4, 2, kMaxKernel)};
  const int32_t states = add_mamba(config, shape, model);
  add_mixed(config, "layers_block_type", types, attention_layer(model, read_heads(config)), -1,
            states, model);
}

// Half of every head turns.
void read_bamba(const Fields& config, Model& model) {
  const int64_t num_layers = read_num_layers(config);
  std::vector<bool> attends(static_cast<size_t>(num_layers));
  if (config.has("attn_layer_indices"))
    attends = read_layer_mask(config, "attn_layer_indices", num_layers);
  const char* name = config.first_of({"layers_block_type", "layer_types"});
  const auto types = read_layer_types(config, name, num_layers, [&](int64_t i) {
    return attends[i] ? LayerType::kFull : LayerType::kLinear;
  });
  model.max_seq_len = read_max_len(config);
  const Heads heads = read_heads(config);
  const int32_t rope = full_rope(config, heads.k_dim, 0.5, model);
  const int32_t states = add_mamba2_of(config, model, expanded(config, "mamba_expand", 2));
  add_mixed(config, name, types, attention_layer(model, heads), rope, states, model);
}

void read_granite_hybrid(const Fields& config, Model& model) {
  const int64_t num_layers = read_num_layers(config);
  const char* name = config.first_of({"layer_types", "layers_block_type"});
  const auto types =
      read_layer_types(config, name, num_layers, [](int64_t) { return LayerType::kLinear; });
  model.max_seq_len = read_max_len(config);
  const Heads heads = read_heads(config);
  const bool rotates = config.text_or("position_embedding_type", "nope") == "rope";
  const int32_t rope = rotates ? full_rope(config, heads.k_dim, 1, model) : -1;
  const bool has_states = std::find(types.begin(), types.end(), LayerType::kLinear) != types.end();
  const int32_t states =
      has_states ? add_mamba2_of(config, model, expanded(config, "mamba_expand", 2)) : -1;
  add_mixed(config, name, types, attention_layer(model, heads), rope, states, model);
}

// Attention and Mamba-2 side by side in every layer: entry 2i is the attention of layer i, entry 2i
// + 1 its state.
void read_falcon_h1(const Fields& config, Model& model) {
  const int64_t num_layers = read_num_layers(config);
  model.max_seq_len = read_max_len(config);
  const Heads heads = read_heads(config);
  const int32_t rope = full_rope(config, heads.k_dim, 1, model);
  const int32_t states = add_mamba2_of(config, model);
  for (int64_t i = 0; i < num_layers; ++i) {
    model.add(attention_layer(model, heads), rope);
    model.add_states(states);
  }
}

// A hybrid layer is the shared transformer block, whose heads see twice the hidden size, then
// Mamba-2: two entries, in this order.
void read_zamba2(const Fields& config, Model& model) {
  const int64_t num_layers = read_num_layers(config);
  constexpr const char* kTypes = "layers_block_type";
  if (!config.has(kTypes)) (void)config.texts(kTypes);  // missing
  const auto types =
      read_layer_types(config, kTypes, num_layers, [](int64_t) { return LayerType::kLinear; });
  model.max_seq_len = read_max_len(config);
  Heads heads;
  heads.q = config.integer("num_attention_heads", 1, kMaxHeads);
  heads.kv = config.integer_or("num_key_value_heads", heads.q, 1, kMaxHeads);
  check_heads(config, "num_attention_heads", heads, "num_key_value_heads");
  const int64_t hidden = config.integer("hidden_size", 1, kMaxWidth);
  heads.k_dim = heads.v_dim =
      config.integer_or("attention_head_dim", 2 * hidden / heads.q, 1, kMaxHeadDim);
  if (heads.k_dim > kMaxHeadDim || heads.k_dim < 1) {
    fail_with(KVC_E_OUT_OF_RANGE, heads.k_dim,
              "2 * %s / num_attention_heads = %lld out of range: 1 to %d",
              config.path("hidden_size").c_str(), ll(heads.k_dim), kMaxHeadDim);
  }
  int32_t rope = -1;
  if (config.flag_or("use_mem_rope", false)) {
    if (config.flag_or("use_long_context", false))
      config.refuse("use_long_context", "its theta is not in the file");
    rope = full_rope(config, heads.k_dim, 1, model);
  }
  Mamba2Shape shape;
  shape.heads = config.integer("n_mamba_heads", 1, kMaxHeads);
  shape.head_dim = head_dim(config, "mamba_headdim", expanded(config, "mamba_expand", 2),
                            "n_mamba_heads", shape.heads);
  shape.state_size = config.integer("mamba_d_state", 1, kMaxWidth);
  shape.groups = config.integer_or("mamba_ngroups", 1, 1, kMaxHeads);
  shape.kernel = config.integer_or("mamba_d_conv", 4, 2, kMaxKernel);
  const int32_t states = add_mamba2(config, shape, model);
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] != LayerType::kLinear && types[i] != LayerType::kHybrid)
      refuse_layer_type(config, kTypes, i);
    if (types[i] == LayerType::kHybrid) model.add(attention_layer(model, heads), rope);
    model.add_states(states);
  }
}

// One block per layer, by letters: M Mamba-2, * attention without a rotation, - MLP, E experts.
void read_nemotron_h(const Fields& config, Model& model) {
  constexpr const char* kPattern = "hybrid_override_pattern";
  std::vector<LayerType> types;
  const char* name = config.first_of({kPattern, "layers_block_type", "layer_types"});
  if (config.has(kPattern)) {
    for (const char letter : config.text(kPattern)) {
      switch (letter) {
        case 'M': types.push_back(LayerType::kLinear); break;
        case '*': types.push_back(LayerType::kFull); break;
        case '-':
        case 'E': types.push_back(LayerType::kNone); break;
        default:
          fail_with(KVC_E_UNSUPPORTED, static_cast<int64_t>(types.size()),
                    "%s has the letter '%s': M, *, - and E are known",
                    config.path(kPattern).c_str(), shown(std::string(1, letter)).c_str());
      }
    }
  } else {
    const auto count = static_cast<int64_t>(config.texts(name).size());
    types = read_layer_types(config, name, count, [](int64_t) { return LayerType::kNone; });
  }
  const int64_t num_layers =
      config.integer_or("num_hidden_layers", static_cast<int64_t>(types.size()), 1, kMaxLayers);
  if (types.size() != static_cast<size_t>(num_layers)) {
    fail_with(KVC_E_INVALID_ARGUMENT, static_cast<int64_t>(types.size()),
              "%s has %zu entries, expected one per layer: %lld", config.path(name).c_str(),
              types.size(), ll(num_layers));
  }
  model.max_seq_len = read_max_len(config);
  Heads heads;
  heads.q = config.integer("num_attention_heads", 1, kMaxHeads);
  heads.kv = config.integer_or("num_key_value_heads", heads.q, 1, kMaxHeads);
  check_heads(config, "num_attention_heads", heads, "num_key_value_heads");
  heads.k_dim = heads.v_dim =
      config.integer_or(config.first_of({"head_dim", "attention_head_dim"}), 128, 1, kMaxHeadDim);
  Mamba2Shape shape;
  shape.heads = config.integer("mamba_num_heads", 1, kMaxHeads);
  shape.head_dim = config.integer("mamba_head_dim", 1, kMaxWidth);
  shape.state_size = config.integer("ssm_state_size", 1, kMaxWidth);
  shape.groups = config.integer(config.first_of({"n_groups", "mamba_n_groups"}), 1, kMaxHeads);
  shape.kernel =
      config.integer_or(config.first_of({"conv_kernel", "mamba_d_conv"}), 4, 2, kMaxKernel);
  const int32_t states = add_mamba2(config, shape, model);
  const int64_t window = config.has("sliding_window") ? read_window(config) : 0;
  add_mixed(config, name, types, attention_layer(model, heads, window), -1, states, model);
}

}  // namespace kvc::hf
