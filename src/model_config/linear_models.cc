// Gated delta nets between attention layers (Qwen3-Next, Qwen 3.5) and short convolutions between
// them (LFM2).
#include "src/model_config/families.h"
#include "src/model_config/rope.h"
#include "src/model_config/states.h"
#include "src/plan/spec.h"

namespace kvc::hf {
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
  const int64_t key_heads = config.class_integer("linear_num_key_heads", 16, 1, kMaxHeads);
  const int64_t value_heads =
      config.class_integer("linear_num_value_heads", traits.value_heads, 1, kMaxHeads);
  const int64_t key_dim = config.class_integer("linear_key_head_dim", 128, 1, kMaxWidth);
  const int64_t value_dim = config.class_integer("linear_value_head_dim", 128, 1, kMaxWidth);
  const int64_t kernel = config.class_integer("linear_conv_kernel_dim", 4, 2, kMaxKernel);
  divide(config, "linear_num_value_heads", value_heads, "linear_num_key_heads", key_heads);
  // One convolution runs over q, k and v.
  const State conv = conv_state(model, 2 * key_heads * key_dim + value_heads * value_dim, kernel);
  const int32_t states =
      model.state_set({conv, recurrent_state(config, model, {value_heads, key_dim, value_dim})});
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

}  // namespace kvc::hf
