// Decoders whose layers all keep K and V: Llama, Mistral, Qwen, Phi, GLM, Cohere, gpt-oss, OLMo,
// Granite, MiMo.
#include "src/base/error.h"
#include "src/model_config/families.h"
#include "src/model_config/rope.h"
#include "src/model_config/states.h"
#include "src/plan/spec.h"

namespace kvc::hf {
namespace {

std::vector<LayerType> window_types(const Fields& config, const DecoderTraits& traits,
                                    int64_t num_layers) {
  using Windows = DecoderTraits::Windows;
  const auto all = [&](LayerType type) {
    return std::vector<LayerType>(static_cast<size_t>(num_layers), type);
  };
  switch (traits.windows) {
    case Windows::kNone: return all(LayerType::kFull);
    case Windows::kAll: {
      constexpr const char* kName = "sliding_window";
      const bool by_class =
          traits.class_window != 0 && config.is_nested() && !config.is_null(kName);
      return all(config.has(kName) || by_class ? LayerType::kSliding : LayerType::kFull);
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
  const Heads heads = read_heads(config, traits.defaults);
  model.max_seq_len = read_max_len(config, traits.defaults);
  const std::vector<LayerType> types = window_types(config, traits, num_layers);
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
      refuse_layer_type(config, "layer_types", i);
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
  sliding.kv = config.integer_or("swa_num_key_value_heads", full.kv, 1, kMaxHeads);
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

}  // namespace kvc::hf
