#include "tests/conformance/config.h"

#include <algorithm>

namespace kvc::conformance {

// A case has a struct's fields under their own names; one that it lacks stays 0.
#define KVC_READ(object, field) object.field = json.get(#field, object.field)

namespace {

const float* keep(const Fields& json, const char* key, std::deque<std::vector<float>>& factors) {
  if (!json.has(key)) return nullptr;
  return factors.emplace_back(json.get<std::vector<float>>(key)).data();
}

}  // namespace

void read_rope(const Fields& json, kvc_rope& rope, std::deque<std::vector<float>>& factors) {
  rope = {};
  rope.struct_size = sizeof rope;
  KVC_READ(rope, mode);
  KVC_READ(rope, style);
  KVC_READ(rope, rotary_dim);
  KVC_READ(rope, theta);
  KVC_READ(rope, scale);
  KVC_READ(rope, scaling);
  KVC_READ(rope, section_layout);
  KVC_READ(rope, factor);
  KVC_READ(rope, low_freq_factor);
  KVC_READ(rope, high_freq_factor);
  KVC_READ(rope, beta_fast);
  KVC_READ(rope, beta_slow);
  KVC_READ(rope, attention_factor);
  KVC_READ(rope, original_context);
  rope.freq_factors = keep(json, "freq_factors", factors);
  rope.long_freq_factors = keep(json, "long_freq_factors", factors);
  rope.num_freq_factors = static_cast<int32_t>(json.get("freq_factors", Json::array()).size());
  const auto sections = json.get("sections", std::vector<int32_t>{});
  rope.num_sections = static_cast<int32_t>(sections.size());
  std::copy_n(sections.begin(), std::min<size_t>(sections.size(), 4), rope.sections);
}

void Config::read_layer(const Fields& json) {
  kvc_layer layer{};
  layer.struct_size = sizeof layer;
  KVC_READ(layer, kind);
  KVC_READ(layer, num_q_heads);
  KVC_READ(layer, num_kv_heads);
  KVC_READ(layer, k_dim);
  KVC_READ(layer, v_dim);
  KVC_READ(layer, window);
  KVC_READ(layer, chunk);
  KVC_READ(layer, source_layer);
  KVC_READ(layer, latent_rank);
  KVC_READ(layer, latent_rope_dim);
  KVC_READ(layer, quant);
  KVC_READ(layer, v_quant);
  KVC_READ(layer, keep_tokens);
  KVC_READ(layer, k_scale);
  KVC_READ(layer, v_scale);
  if (json.get("v_is_k", false)) layer.flags |= KVC_LAYER_V_IS_K;
  if (json.has("k_dtype")) layer.k_dtype = dtype_of(json.get<std::string>("k_dtype"));
  if (json.has("v_dtype")) layer.v_dtype = dtype_of(json.get<std::string>("v_dtype"));
  if (json.has("rope")) {
    kvc_rope& rope = ropes_.emplace_back();
    read_rope(json.object("rope"), rope, factors_);
    layer.rope = &rope;
  }
  if (json.has("states")) {
    std::vector<kvc_state_spec>& specs = states_.emplace_back();
    for (const Json& entry : json.at("states")) {
      const Fields state(entry);
      const auto& shape = shapes_.emplace_back(state.get<std::vector<int64_t>>("shape"));
      kvc_state_spec spec{};
      spec.struct_size = sizeof spec;
      spec.ndim = static_cast<int32_t>(shape.size());
      spec.shape = shape.data();
      spec.dtype = dtype_of(state.get<std::string>("dtype"));
      if (state.has("init")) spec.init = inits_.emplace_back(state.object("init")).host_view();
      specs.push_back(spec);
    }
    layer.states = specs.data();
    layer.num_states = static_cast<int32_t>(specs.size());
  }
  layers_.push_back(layer);
}

Config::Config(const Fields& json, kvc_cpu_isa isa) {
  for (const Json& layer : json.at("layers")) read_layer(Fields(layer));
  config_.struct_size = sizeof config_;
  config_.num_layers = static_cast<int32_t>(layers_.size());
  config_.layers = layers_.data();
  KVC_READ(config_, page_size);
  KVC_READ(config_, num_pages);
  KVC_READ(config_, byte_budget);
  KVC_READ(config_, layer_begin);
  KVC_READ(config_, layer_end);
  KVC_READ(config_, max_seqs);
  KVC_READ(config_, max_tokens_per_forward);
  KVC_READ(config_, max_seq_len);
  KVC_READ(config_, storage);
  KVC_READ(config_, pool_layout);
  KVC_READ(config_, max_cross_len);
  KVC_READ(config_, state_stride);
  KVC_READ(config_, num_state_slots);
  KVC_READ(config_, num_threads);
  KVC_READ(config_, event_capacity);
  if (json.get("pad_pages", false)) config_.flags |= KVC_CONFIG_PAD_PAGES;
  config_.cpu_isa = isa;
  config_.device = test::device();
  if (test::is_on_gpu() && config_.storage != KVC_STORAGE_NONE) config_.num_threads = 0;
  if (config_.storage == KVC_STORAGE_OWNED) {
    allocator_ = {sizeof allocator_, nullptr, test::poisoned_alloc, test::poisoned_free};
    config_.allocator = &allocator_;
  }
}

#undef KVC_READ

}  // namespace kvc::conformance
