// Families that attend by the usual keys and whose recurrent states no key describes. Rotations are
// left to the model.
#include <algorithm>
#include <string>

#include "src/base/error.h"
#include "src/model_config/families.h"
#include "src/model_config/keys.h"
#include "src/plan/spec.h"

namespace kvc::hf {
namespace {

bool is_hybrid(LayerType type) {
  return type == LayerType::kHybrid || type == LayerType::kHybridSliding;
}

// The state set of each shape of layers; those that are alike share one.
int32_t shared_set(std::vector<State> set, Model& model) {
  for (size_t i = 0; i < model.states.size(); ++i) {
    if (model.states[i] == set) return static_cast<int32_t>(i);
  }
  return model.state_set(std::move(set));
}

// Attention and a state in every hybrid layer, attention alone in the others.
template <typename States>
void add_hybrids(const Fields& config, const KeyedLayers& layers, const States& states,
                 Model& model) {
  model.keys.clear();  // Not read by keys alone.
  model.max_seq_len = read_max_len(config);
  for (size_t i = 0; i < layers.types.size(); ++i) {
    const bool attends = layers.types[i] == LayerType::kFull ||
                         layers.types[i] == LayerType::kSliding || is_hybrid(layers.types[i]);
    if (!attends) refuse_layer_type(config, "layer_types", i);
    model.add(attention_of(config, model, layers, i));
    if (is_hybrid(layers.types[i]))
      model.add_states(shared_set(states(layers.shapes[i].heads), model));
  }
}

}  // namespace

// Short convolutions over K, over V, over attention's output and over that of the MLP.
void read_inkling(const Fields& config, Model& model) {
  const int64_t kernel = config.integer("conv_kernel_size", 2, kMaxKernel);
  const int64_t width = config.integer("hidden_size", 1, kMaxWidth);
  const auto states = [&](const Heads& heads) {
    const State output = conv_state(model, width, kernel);
    return std::vector<State>{conv_state(model, heads.kv * heads.k_dim, kernel),
                              conv_state(model, heads.kv * heads.v_dim, kernel), output, output};
  };
  // Published files list the layers that slide, or nothing.
  constexpr const char* kLocal = "local_layer_ids";
  std::vector<bool> slides;
  if (config.has(kLocal)) slides = read_layer_mask(config, kLocal, read_num_layers(config));
  const auto type_of = [&](int64_t i) {
    const bool is_local = slides.empty() ? (i + 1) % 6 != 0 : slides[static_cast<size_t>(i)];
    return is_local ? LayerType::kHybridSliding : LayerType::kHybrid;
  };
  add_hybrids(config, read_keyed_layers(config, model, type_of), states, model);
}

// Compressed convolutional attention (arXiv:2510.04476): two convolutions over Q and K, one behind
// the other, beside the half of V with a token's delay.
void read_zaya(const Fields& config, Model& model) {
  const int64_t taps = config.integer_or("cca_time0", 2, 1, kMaxKernel) +
                       config.integer_or("cca_time1", 2, 1, kMaxKernel) - 1;
  if (taps < 2) config.refuse("cca_time0", "convolutions of one tap keep nothing");
  const auto states = [&](const Heads& heads) {
    if (heads.kv * heads.k_dim % 2 != 0) config.refuse("head_dim", "half of V is a token late");
    return std::vector<State>{conv_state(model, (heads.q + heads.kv) * heads.k_dim, taps),
                              State{model.dtype, {heads.kv * heads.k_dim / 2}}};
  };
  const auto hybrid = [](int64_t) { return LayerType::kHybrid; };
  add_hybrids(config, read_keyed_layers(config, model, hybrid), states, model);
}

// Lightning attention keeps the sum of k v^T of each query head.
void read_minimax(const Fields& config, Model& model) {
  const KeyedLayers layers = read_keyed_layers(config, model);
  model.keys.clear();
  model.max_seq_len = read_max_len(config);
  const Heads& heads = layers.shapes[0].heads;
  const int32_t states =
      model.state_set({recurrent_state(config, model, {heads.q, heads.k_dim, heads.k_dim})});
  for (size_t i = 0; i < layers.types.size(); ++i) {
    if (layers.types[i] == LayerType::kLinear)
      model.add_states(states);
    else if (layers.types[i] == LayerType::kFull || layers.types[i] == LayerType::kSliding)
      model.add(attention_of(config, model, layers, i));
    else
      refuse_layer_type(config, "layer_types", i);
  }
}

// Griffin (arXiv:2402.19427): a convolution and a gated linear recurrence of lru_width elements.
void read_recurrent_gemma(const Fields& config, Model& model) {
  const int64_t num_layers = read_num_layers(config);
  constexpr const char* kTypes = "block_types";
  std::vector<std::string> types = {"recurrent", "recurrent", "attention"};
  if (config.has(kTypes)) types = config.texts(kTypes);
  if (types.empty()) config.refuse(kTypes, "it is empty");
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] != "recurrent" && types[i] != "attention") {
      fail_with(KVC_E_UNSUPPORTED, static_cast<int64_t>(i), "%s[%zu] = '%s' is not supported",
                config.path(kTypes).c_str(), i, shown(types[i]).c_str());
    }
  }
  const Heads heads = read_heads(config);
  const int64_t window = config.integer_or("attention_window_size", 2048, 1, kMaxSequenceLength);
  const int64_t width =
      config.integer_or(config.first_of({"lru_width", "hidden_size"}), 0, 1, kMaxWidth);
  const int64_t kernel = config.integer_or("conv1d_width", 4, 2, kMaxKernel);
  if (width == 0) (void)config.integer("hidden_size", 1, kMaxWidth);  // Throws: it is missing.
  const int32_t states =
      model.state_set({conv_state(model, width, kernel), recurrent_state(config, model, {width})});
  model.max_seq_len = read_max_len(config);
  for (int64_t i = 0; i < num_layers; ++i) {
    if (types[static_cast<size_t>(i) % types.size()] == "recurrent")
      model.add_states(states);
    else
      model.add(attention_layer(model, heads, window));
  }
}

// Mamba in heads, and the shared block before it in hybrid layers: two entries, in this order.
void read_zamba(const Fields& config, Model& model) {
  const int64_t num_layers = read_num_layers(config);
  constexpr const char* kTypes = "layers_block_type";
  if (!config.has(kTypes)) (void)config.texts(kTypes);  // Throws: it is missing.
  const auto types = read_layer_types(config, kTypes, num_layers, {});
  model.max_seq_len = read_max_len(config);
  Heads heads;
  heads.q = config.integer("num_attention_heads", 1, kMaxHeads);
  heads.kv = config.integer_or("num_key_value_heads", heads.q, 1, kMaxHeads);
  check_heads(config, "num_attention_heads", heads, "num_key_value_heads");
  const int64_t hidden = config.integer("hidden_size", 1, kMaxWidth);
  heads.k_dim = heads.v_dim =
      config.has("attention_head_dim")
          ? config.integer("attention_head_dim", 1, kMaxHeadDim)
          : divide(config, "hidden_size", 2 * hidden, "num_attention_heads", heads.q);
  if (heads.k_dim > kMaxHeadDim) config.refuse("hidden_size", "heads are wider than 512 elements");
  const int64_t mamba_heads = config.integer_or("n_mamba_heads", 2, 1, kMaxHeads);
  const int64_t channels = config.integer_or("mamba_expand", 2, 1, 1024) * hidden;
  if (channels > kMaxWidth) config.refuse("mamba_expand", "its states are too wide");
  const int64_t kernel = config.integer_or("mamba_d_conv", 4, 2, kMaxKernel);
  const int64_t state_size = config.integer_or("mamba_d_state", 16, 1, kMaxWidth);
  const int64_t head_dim = divide(config, "mamba_expand", channels, "n_mamba_heads", mamba_heads);
  const int32_t states =
      model.state_set({conv_state(model, channels, kernel),
                       recurrent_state(config, model, {mamba_heads, head_dim, state_size})});
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] != LayerType::kLinear && types[i] != LayerType::kHybrid)
      refuse_layer_type(config, kTypes, i);
    if (types[i] == LayerType::kHybrid) model.add(attention_layer(model, heads));
    model.add_states(states);
  }
}

}  // namespace kvc::hf
