// Gemma 2, 3, 3n and 4: layers with a window between layers without; the last layers of 3n and 4
// read the K and V of earlier ones.
#include <string>

#include "src/base/error.h"
#include "src/model_config/families.h"
#include "src/model_config/rope.h"
#include "src/plan/spec.h"

namespace kvc::hf {
namespace {

struct GemmaTraits {
  ClassDefaults defaults{};
  int64_t window = 4096;
  int64_t full_every = 6;
  double theta = 1000000;      // Base of full layers.
  double local_theta = 10000;  // Base of sliding layers.
  int64_t shared_layers = 0;
};

// Embedding models of the family see in both directions and keep no cache.
void refuse_bidirectional(const Fields& config) {
  constexpr const char* kName = "use_bidirectional_attention";
  if (!config.has(kName)) return;
  const bool all = config.is(kName, Json::Type::kString) ? config.text(kName) == "all"
                                                         : config.flag_or(kName, false);
  if (all) config.refuse(kName, "attention in both directions keeps no cache");
}

LayerKeys gemma_keys(const Fields& config, const GemmaTraits& traits, bool slides, int64_t dim,
                     Model& model) {
  RopeRequest request;
  request.dim = dim;
  request.theta = slides ? traits.local_theta : traits.theta;
  request.layer_type = slides ? "sliding_attention" : "full_attention";
  request.is_local = slides && traits.local_theta != traits.theta;
  if (request.is_local) request.theta_name = "rope_local_base_freq";
  return {slides ? read_window(config, traits.window) : 0, add_rope(config, request, model)};
}

std::vector<LayerType> gemma_types(const Fields& config, const GemmaTraits& traits,
                                   int64_t num_layers) {
  const int64_t every =
      config.integer_or(config.first_of({"sliding_window_pattern", "_sliding_window_pattern"}),
                        traits.full_every, 1, kMaxLayers);
  auto types = read_layer_types(config, "layer_types", num_layers, [&](int64_t i) {
    return (i + 1) % every == 0 ? LayerType::kFull : LayerType::kSliding;
  });
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] != LayerType::kFull && types[i] != LayerType::kSliding)
      refuse_layer_type(config, "layer_types", i);
  }
  return types;
}

// Layers from `first_shared` on read what the last layer of their type before it keeps.
kvc_layer reader_of(const Fields& config, const Heads& heads, int64_t source, size_t layer) {
  if (source < 0) {
    fail_with(KVC_E_INVALID_ARGUMENT, static_cast<int64_t>(layer),
              "%s leaves layer %zu no earlier layer of its type to share with",
              config.path("num_kv_shared_layers").c_str(), layer);
  }
  return shared_layer(heads, static_cast<int32_t>(source));
}

void read_gemma(const Fields& config, const GemmaTraits& traits, const Heads& sliding,
                const Heads& full, Model& model) {
  refuse_bidirectional(config);
  const int64_t num_layers = read_num_layers(config, traits.defaults);
  model.max_seq_len = read_max_len(config, traits.defaults);
  const auto types = gemma_types(config, traits, num_layers);
  const int64_t shared =
      config.integer_or("num_kv_shared_layers", traits.shared_layers, 0, num_layers);
  const auto first_shared = static_cast<size_t>(num_layers - shared);
  KeysByType keys([&](bool slides) {
    return gemma_keys(config, traits, slides, slides ? sliding.k_dim : full.k_dim, model);
  });
  int64_t last_sliding = -1, last_full = -1;
  for (size_t i = 0; i < types.size(); ++i) {
    const bool slides = types[i] == LayerType::kSliding;
    const Heads& heads = slides ? sliding : full;
    int64_t& last = slides ? last_sliding : last_full;
    if (i >= first_shared) {
      model.add(reader_of(config, heads, last, i));
    } else {
      model.add(attention_layer(model, heads, keys.of(slides).window), keys.of(slides).rope);
      last = static_cast<int64_t>(i);
    }
  }
}

}  // namespace

void read_gemma2(const Fields& config, Model& model) {
  GemmaTraits traits;
  traits.defaults = {26, 8, 4, 2304, 256, 8192};
  traits.full_every = 2;
  traits.theta = traits.local_theta = 10000;
  const Heads heads = read_heads(config, traits.defaults);
  read_gemma(config, traits, heads, heads, model);
}

void read_gemma3(const Fields& config, Model& model) {
  GemmaTraits traits;
  traits.defaults = {26, 8, 4, 2304, 256, 131072};
  const Heads heads = read_heads(config, traits.defaults);
  read_gemma(config, traits, heads, heads, model);
}

void read_gemma3n(const Fields& config, Model& model) {
  GemmaTraits traits;
  traits.defaults = {35, 8, 2, 2048, 256, 32768};
  traits.window = 512;
  traits.full_every = 5;
  traits.shared_layers = 15;
  const Heads heads = read_heads(config, traits.defaults);
  read_gemma(config, traits, heads, heads, model);
}

// Full layers have wider and fewer heads. V is the un-normed K projection in some sizes: projected
// once, but stored apart, for the stored K is normed and rotated.
void read_gemma4(const Fields& config, Model& model) {
  if (config.has("per_layer_config"))
    config.refuse("per_layer_config", "global_head_dim and num_global_key_value_heads are read");
  GemmaTraits traits;
  traits.defaults = {30, 8, 4, 2304, 256, 131072};
  traits.window = 512;
  const Heads sliding = read_heads(config, traits.defaults);
  Heads full = sliding;
  full.k_dim = full.v_dim = config.integer_or("global_head_dim", 512, 1, kMaxHeadDim);
  if (config.flag_or("attention_k_eq_v", false))
    full.kv = config.integer_or("num_global_key_value_heads", sliding.kv, 1, kMaxHeads);
  check_heads(config, "num_attention_heads", full, "num_global_key_value_heads");
  read_gemma(config, traits, sliding, full, model);
}

}  // namespace kvc::hf
