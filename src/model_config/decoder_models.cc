#include <algorithm>
#include <string>
#include <vector>

#include "src/base/error.h"
#include "src/model_config/decoder.h"
#include "src/model_config/families.h"
#include "src/model_config/keys.h"
#include "src/model_config/rope.h"
#include "src/plan/spec.h"

namespace kvc::hf {

// Decoders whose layers all keep K and V: Llama, Mistral, Qwen, Phi, GLM, Cohere, gpt-oss, OLMo,
// Granite, MiMo.

namespace {

std::vector<LayerType> window_types(const Fields& config, const DecoderTraits& traits,
                                    int64_t num_layers) {
  using Windows = DecoderTraits::Windows;
  const auto all = [&](LayerType type) {
    return std::vector<LayerType>(static_cast<size_t>(num_layers), type);
  };
  switch (traits.windows) {
    case Windows::kNone:
      return read_layer_types(config, "layer_types", num_layers,
                              [](int64_t) { return LayerType::kFull; });
    case Windows::kAll: {
      constexpr const char* kName = "sliding_window";
      const bool by_class =
          traits.class_window != 0 && config.is_nested() && !config.is_null(kName);
      return read_layer_types(config, "layer_types", num_layers, [&](int64_t) {
        return config.has(kName) || by_class ? LayerType::kSliding : LayerType::kFull;
      });
    }
    case Windows::kQwen: {
      if (!config.flag_or("use_sliding_window", false) || !config.has("sliding_window"))
        return all(LayerType::kFull);
      const int64_t first = config.integer_or("max_window_layers", 28, 0, kMaxLayers);
      return read_layer_types(config, "layer_types", num_layers, [&](int64_t i) {
        return i >= first ? LayerType::kSliding : LayerType::kFull;
      });
    }
    case Windows::kByType: {
      const int64_t every =
          config.integer_or("sliding_window_pattern", traits.full_every, 1, kMaxLayers);
      return read_layer_types(config, "layer_types", num_layers, [&](int64_t i) {
        return (i + 1) % every == 0 || !config.has("sliding_window") ? LayerType::kFull
                                                                     : LayerType::kSliding;
      });
    }
  }
  return {};
}

}  // namespace

void read_decoder(const Fields& config, const DecoderTraits& traits, Model& model) {
  const int64_t num_layers = read_num_layers(config, traits.defaults);
  ClassDefaults defaults = traits.defaults;
  if (traits.floors_head_dim && !config.has("head_dim")) {
    defaults.head_dim = std::min(config.integer("hidden_size", 1, kMaxWidth) /
                                     config.integer("num_attention_heads", 1, kMaxHeads),
                                 int64_t{kMaxHeadDim});
  }
  const Heads heads = read_heads(config, defaults);
  model.max_seq_len = read_max_len(config, traits.defaults);
  // Rules of another family know nothing of this one's windows, but its lists do.
  const char* list = "layer_types";
  std::vector<LayerType> types;
  if (model.is_assumed) types = read_listed_types(config, num_layers, model, list);
  if (types.empty()) types = window_types(config, traits, num_layers);
  KeysByType keys([&](bool slides) {
    LayerKeys out;
    if (slides) out.window = read_window(config, traits.class_window);
    if (!traits.rotates || (!slides && !traits.rotates_full)) return out;
    RopeRequest request;
    request.dim = heads.k_dim;
    request.style = traits.style;
    request.theta = traits.theta;
    request.partial = traits.partial;
    request.layer_type = slides ? "sliding_attention" : "full_attention";
    request.is_local = slides && !traits.scales_local;
    out.rope = add_rope(config, request, model);
    return out;
  });
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] != LayerType::kFull && types[i] != LayerType::kSliding)
      refuse_layer_type(config, list, i);
    const LayerKeys& own = keys.of(types[i] == LayerType::kSliding);
    model.add(attention_layer(model, heads, own.window), own.rope);
  }
}

// Llama 4: most layers see their chunk and rotate; the others see everything and do not.
void read_llama4(const Fields& config, Model& model) {
  const ClassDefaults defaults{48, 40, 8, 5120, 128, 131072};
  const int64_t num_layers = read_num_layers(config, defaults);
  const Heads heads = read_heads(config, defaults);
  model.max_seq_len = read_max_len(config, defaults);
  std::vector<bool> rotates;
  if (config.has("no_rope_layers")) rotates = config.flags("no_rope_layers");  // 1: it rotates
  if (rotates.empty()) {
    const int64_t every = config.integer_or("no_rope_layer_interval", 4, 1, kMaxLayers);
    for (int64_t i = 0; i < num_layers; ++i) rotates.push_back((i + 1) % every != 0);
  }
  if (rotates.size() < static_cast<size_t>(num_layers)) {
    fail_with(KVC_E_INVALID_ARGUMENT, static_cast<int64_t>(rotates.size()),
              "%s has %zu entries, expected one per layer: %lld",
              config.path("no_rope_layers").c_str(), rotates.size(), ll(num_layers));
  }
  constexpr const char* kChunk = "attention_chunk_size";
  const int64_t class_chunk = config.is_nested() && !config.is_null(kChunk) ? 8192 : 0;
  const int64_t chunk = config.integer_or(kChunk, class_chunk, 1, kMaxSequenceLength);
  const auto types = read_layer_types(config, "layer_types", num_layers, [&](int64_t i) {
    return rotates[i] && chunk != 0 ? LayerType::kChunked : LayerType::kFull;
  });
  RopeRequest request;
  request.dim = heads.k_dim;
  request.style = KVC_ROPE_INTERLEAVED;
  request.theta = 500000;
  const int32_t rope = add_rope(config, request, model);
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] != LayerType::kFull && types[i] != LayerType::kChunked)
      refuse_layer_type(config, "layer_types", i);
    const int64_t layer_chunk = types[i] == LayerType::kChunked ? chunk : 0;
    model.add(attention_layer(model, heads, 0, layer_chunk), rotates[i] ? rope : -1);
  }
}

// MiMo-V2: sliding layers with heads and theta of their own; V narrower than K.
void read_mimo(const Fields& config, Model& model) {
  const int64_t num_layers = read_num_layers(config);
  Heads full = read_heads(config);
  full.v_dim = config.integer_or("v_head_dim", full.k_dim, 1, kMaxHeadDim);
  Heads sliding;
  sliding.q = config.integer_or("swa_num_attention_heads", full.q, 1, kMaxHeads);
  // Without the key, sliding layers have twice the heads, as in transformers' class.
  constexpr const char* kSlidingHeads = "swa_num_key_value_heads";
  sliding.kv = config.has(kSlidingHeads) ? config.integer(kSlidingHeads, 1, kMaxHeads)
                                         : std::min(2 * full.kv, int64_t{kMaxHeads});
  sliding.k_dim = config.integer_or("swa_head_dim", full.k_dim, 1, kMaxHeadDim);
  sliding.v_dim = config.integer_or("swa_v_head_dim", full.v_dim, 1, kMaxHeadDim);
  check_heads(config, "swa_num_attention_heads", sliding, "swa_num_key_value_heads");
  model.max_seq_len = read_max_len(config);
  std::vector<bool> pattern;
  if (config.has("hybrid_layer_pattern")) pattern = config.flags("hybrid_layer_pattern");
  if (!pattern.empty() && pattern.size() != static_cast<size_t>(num_layers)) {
    fail_with(KVC_E_INVALID_ARGUMENT, static_cast<int64_t>(pattern.size()),
              "%s has %zu entries, expected one per layer: %lld",
              config.path("hybrid_layer_pattern").c_str(), pattern.size(), ll(num_layers));
  }
  const auto types = read_layer_types(config, "layer_types", num_layers, [&](int64_t i) {
    const bool slides =
        pattern.empty() ? i != 0 && (i + 1) % 6 != 0 : static_cast<bool>(pattern[i]);
    return slides ? LayerType::kSliding : LayerType::kFull;
  });
  KeysByType keys([&](bool slides) {
    RopeRequest request;
    request.dim = slides ? sliding.k_dim : full.k_dim;
    request.theta = slides ? 10000 : 5000000;
    request.partial = 0.334;
    request.layer_type = slides ? "sliding_attention" : "full_attention";
    request.is_local = slides;
    if (slides) request.theta_name = "swa_rope_theta";
    return LayerKeys{slides ? read_window(config) : 0, add_rope(config, request, model)};
  });
  for (size_t i = 0; i < types.size(); ++i) {
    const bool slides = types[i] == LayerType::kSliding;
    if (!slides && types[i] != LayerType::kFull) refuse_layer_type(config, "layer_types", i);
    model.add(attention_layer(model, slides ? sliding : full, keys.of(slides).window),
              keys.of(slides).rope);
  }
}

// Llama 3.2 Vision: some layers attend to the image's tokens and to nothing else.
void read_mllama(const Fields& config, Model& model) {
  const int64_t num_layers = read_num_layers(config);
  const Heads heads = read_heads(config);
  model.max_seq_len = read_max_len(config);
  const std::vector<bool> cross = read_layer_mask(config, "cross_attention_layers", num_layers);
  RopeRequest request;
  request.dim = heads.k_dim;
  request.theta = 500000;
  const int32_t rope = add_rope(config, request, model);
  for (int64_t i = 0; i < num_layers; ++i) {
    if (cross[i]) {
      model.add(cross_layer(model, heads));
    } else {
      model.add(attention_layer(model, heads), rope);
    }
  }
}

// The first of every few layers has no window. Rotations, a theta for each kind, are left to the
// model.
void read_modernbert_decoder(const Fields& config, Model& model) {
  const int64_t num_layers = read_num_layers(config);
  const Heads heads = read_heads(config);
  model.max_seq_len = read_max_len(config);
  const int64_t every = config.integer_or("global_attn_every_n_layers", 3, 1, kMaxLayers);
  const auto types = read_layer_types(config, "layer_types", num_layers, [&](int64_t i) {
    return i % every != 0 ? LayerType::kSliding : LayerType::kFull;
  });
  const int64_t window = config.has("sliding_window")
                             ? read_window(config)
                             : config.integer_or("local_attention", 128, 2, kMaxSequenceLength) / 2;
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] != LayerType::kFull && types[i] != LayerType::kSliding)
      refuse_layer_type(config, "layer_types", i);
    model.add(attention_layer(model, heads, types[i] == LayerType::kSliding ? window : 0));
  }
}

// GLM-4 as first published, under names of its own.
void read_chatglm(const Fields& config, Model& model) {
  const int64_t num_layers = config.integer("num_layers", 1, kMaxLayers);
  Heads heads;
  heads.q = config.integer("num_attention_heads", 1, kMaxHeads);
  heads.kv = config.flag_or("multi_query_attention", false)
                 ? config.integer("multi_query_group_num", 1, kMaxHeads)
                 : heads.q;
  check_heads(config, "num_attention_heads", heads, "multi_query_group_num");
  heads.k_dim = heads.v_dim = config.integer("kv_channels", 1, kMaxHeadDim);
  model.max_seq_len = config.integer("seq_length", 1, kMaxSequenceLength);
  RopeRequest request;
  request.dim = heads.k_dim;
  request.style = KVC_ROPE_INTERLEAVED;
  request.theta = 10000 * config.number_or("rope_ratio", 1);
  request.partial = 0.5;
  const int32_t rope = add_rope(config, request, model);
  for (int64_t i = 0; i < num_layers; ++i) model.add(attention_layer(model, heads), rope);
}

// Gemma 2, 3, 3n and 4: layers with a window between layers without; the last layers of 3n and 4
// read the K and V of earlier ones.

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

namespace {

// Heads of a layer whose type is `slides`, which per_layer_config gives alike to all of them.
Heads heads_by_layer(const Fields& config, const GemmaTraits& traits, const Heads& heads,
                     bool slides) {
  const int64_t num_layers = read_num_layers(config, traits.defaults);
  const auto types = gemma_types(config, traits, num_layers);
  std::vector<LayerShape> shapes(static_cast<size_t>(num_layers));
  for (LayerShape& shape : shapes) shape.heads = heads;
  apply_per_layer_config(config, shapes);
  const LayerShape* first = nullptr;
  for (size_t i = 0; i < types.size(); ++i) {
    if ((types[i] == LayerType::kSliding) != slides) continue;
    if (first == nullptr) first = &shapes[i];
    if (shapes[i].window != 0)
      config.refuse("per_layer_config", "windows of single layers are not read");
    if (shapes[i].heads.kv != first->heads.kv || shapes[i].heads.k_dim != first->heads.k_dim ||
        shapes[i].heads.q != first->heads.q) {
      fail_with(KVC_E_UNSUPPORTED, static_cast<int64_t>(i),
                "%s gives layer %zu other heads than the first layer of its type",
                config.path("per_layer_config").c_str(), i);
    }
  }
  return first == nullptr ? heads : first->heads;
}

}  // namespace

// Full layers have wider and fewer heads. V is the un-normed K projection in some sizes: projected
// once, but stored apart, for the stored K is normed and rotated.
void read_gemma4(const Fields& config, Model& model) {
  GemmaTraits traits;
  traits.defaults = {30, 8, 4, 2304, 256, 131072};
  traits.window = 512;
  Heads sliding = read_heads(config, traits.defaults);
  Heads full = sliding;
  if (config.has("per_layer_config")) {
    full = heads_by_layer(config, traits, sliding, false);
    sliding = heads_by_layer(config, traits, sliding, true);
  } else {
    full.k_dim = full.v_dim = config.integer_or("global_head_dim", 512, 1, kMaxHeadDim);
    if (config.flag_or("attention_k_eq_v", false))
      full.kv = config.integer_or("num_global_key_value_heads", sliding.kv, 1, kMaxHeads);
  }
  check_heads(config, "num_attention_heads", full, "num_global_key_value_heads");
  read_gemma(config, traits, sliding, full, model);
}

// Multi-head latent attention: DeepSeek V2 and V3, Kimi. Kimi-Linear mixes it with Kimi Delta
// Attention.

kvc_layer latent_layer(const Fields& config, const Model& model) {
  kvc_layer layer{};
  layer.kind = KVC_LAYER_MLA;
  layer.num_q_heads = static_cast<int32_t>(config.integer("num_attention_heads", 1, kMaxHeads));
  layer.latent_rank = static_cast<int32_t>(config.integer("kv_lora_rank", 1, kMaxLatentDim));
  layer.latent_rope_dim = static_cast<int32_t>(
      config.integer("qk_rope_head_dim", 0, kMaxLatentDim - layer.latent_rank));
  const auto nope = static_cast<int32_t>(
      config.integer("qk_nope_head_dim", 0, kMaxHeadDim - layer.latent_rope_dim));
  layer.k_dim = nope + layer.latent_rope_dim;
  layer.v_dim = static_cast<int32_t>(config.integer("v_head_dim", 1, kMaxHeadDim));
  layer.k_dtype = layer.v_dtype = model.dtype;
  if (layer.latent_rope_dim % 2 != 0) {
    fail_with(KVC_E_INVALID_ARGUMENT, layer.latent_rope_dim,
              "%s = %d is odd: a rotation turns pairs", config.path("qk_rope_head_dim").c_str(),
              layer.latent_rope_dim);
  }
  if (layer.k_dim == 0) {
    fail(KVC_E_INVALID_ARGUMENT, "%s = 0 with qk_rope_head_dim = 0: a head has no elements",
         config.path("qk_nope_head_dim").c_str());
  }
  return layer;
}

int32_t latent_rope(const Fields& config, const kvc_layer& layer, Model& model) {
  if (layer.latent_rope_dim == 0) return -1;
  RopeRequest request;
  request.dim = layer.latent_rope_dim;
  request.style = config.flag_or("rope_interleave", true) ? KVC_ROPE_INTERLEAVED : KVC_ROPE_HALF;
  return add_rope(config, request, model);
}

namespace {

// Keys of a sparse attention's indexer are kept per token beside the latent.
void refuse_indexer(const Fields& config) {
  for (const char* name : {"index_head_dim", "index_n_heads", "index_topk"}) {
    if (config.has(name))
      config.refuse(name, "indexer keys of DeepSeek sparse attention have no layer kind");
  }
}

// Layer numbers that count from one. Throws INVALID_ARGUMENT for a layer that is not there.
void mark(const Fields& list, const char* name, LayerType type, std::vector<LayerType>* types) {
  for (const int64_t number : list.integers(name, 1, static_cast<int64_t>(types->size())))
    (*types)[number - 1] = type;
}

}  // namespace

void read_deepseek(const Fields& config, Model& model) {
  refuse_indexer(config);
  const int64_t num_layers = read_num_layers(config);
  model.max_seq_len = read_max_len(config);
  const kvc_layer layer = latent_layer(config, model);
  const int32_t rope = latent_rope(config, layer, model);
  for (int64_t i = 0; i < num_layers; ++i) model.add(layer, rope);
}

int32_t add_kimi_delta(const Fields& config, Model& model) {
  constexpr const char* kNested = "linear_attn_config";
  const auto nested = config.object(kNested);
  const Fields& fields = nested ? *nested : config;
  const int64_t heads = fields.integer(nested ? "num_heads" : "linear_num_heads", 1, kMaxHeads);
  const int64_t dim = fields.integer(nested ? "head_dim" : "linear_head_dim", 1, kMaxHeadDim);
  const int64_t kernel = fields.integer_or(
      fields.first_of({"short_conv_kernel_size", "linear_conv_kernel_dim"}), 4, 2, kMaxKernel);
  // One short convolution each for q, k and v, then the delta rule's state.
  const State conv = conv_state(model, heads * dim, kernel);
  return model.state_set({conv, conv, conv, recurrent_state(config, model, {heads, dim, dim})});
}

namespace {

// linear_attn_config lists layers of both kinds; without it layer_types does.
std::vector<LayerType> kimi_types(const Fields& config, int64_t num_layers) {
  const auto linear = config.object("linear_attn_config");
  if (!linear) {
    if (!config.has("layer_types")) (void)config.texts("layer_types");  // Throws: it is missing.
    return read_layer_types(config, "layer_types", num_layers, {});
  }
  std::vector<LayerType> types(static_cast<size_t>(num_layers), LayerType::kNone);
  mark(*linear, "kda_layers", LayerType::kLinear, &types);
  mark(*linear, "full_attn_layers", LayerType::kFull, &types);
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] == LayerType::kNone) {
      fail_with(KVC_E_INVALID_ARGUMENT, static_cast<int64_t>(i + 1),
                "%s has layer %zu neither in kda_layers nor in full_attn_layers",
                config.path("linear_attn_config").c_str(), i + 1);
    }
  }
  return types;
}

}  // namespace

void read_kimi_linear(const Fields& config, Model& model) {
  refuse_indexer(config);
  const int64_t num_layers = read_num_layers(config);
  const char* max_len = config.first_of({"model_max_length", "max_position_embeddings"});
  model.max_seq_len = config.integer_or(max_len, 0, 1, kMaxSequenceLength);
  const kvc_layer layer = latent_layer(config, model);
  const int32_t rope =
      config.flag_or("mla_use_nope", false) ? -1 : latent_rope(config, layer, model);
  const std::vector<LayerType> types = kimi_types(config, num_layers);
  const bool has_states = std::find(types.begin(), types.end(), LayerType::kLinear) != types.end();
  const int32_t states = has_states ? add_kimi_delta(config, model) : -1;
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] != LayerType::kLinear && types[i] != LayerType::kFull)
      refuse_layer_type(config, "layer_types", i);
    if (types[i] == LayerType::kLinear)
      model.add_states(states);
    else
      model.add(layer, rope);
  }
}

// LongCat-Flash: a layer of the model attends twice, so it has two caches.
void read_longcat(const Fields& config, Model& model) {
  const int64_t num_layers =
      config.integer(config.first_of({"num_layers", "num_hidden_layers"}), 1, kMaxLayers);
  model.max_seq_len = read_max_len(config);
  const kvc_layer layer = latent_layer(config, model);
  const int32_t rope = latent_rope(config, layer, model);
  for (int64_t i = 0; i < 2 * num_layers; ++i) model.add(layer, rope);
}

}  // namespace kvc::hf
