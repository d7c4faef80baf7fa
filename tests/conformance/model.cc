#include "tests/conformance/model.h"

#include <cmath>

namespace kvc::conformance {
namespace {

const std::map<std::string, int32_t> kKinds{{"ATTENTION", KVC_LAYER_ATTENTION}, {"MLA", KVC_LAYER_MLA},
                                            {"CROSS", KVC_LAYER_CROSS},         {"STATE", KVC_LAYER_STATE},
                                            {"SHARED", KVC_LAYER_SHARED},       {"NONE", KVC_LAYER_NONE}};
const std::map<std::string, int32_t> kModes{
    {"NONE", KVC_ROPE_NONE}, {"ON_APPEND", KVC_ROPE_ON_APPEND}, {"ON_READ", KVC_ROPE_ON_READ}};
const std::map<std::string, int32_t> kStyles{{"HALF", KVC_ROPE_HALF}, {"INTERLEAVED", KVC_ROPE_INTERLEAVED}};
const std::map<std::string, int32_t> kScalings{{"NONE", KVC_ROPE_SCALING_NONE},
                                               {"LLAMA3", KVC_ROPE_SCALING_LLAMA3},
                                               {"YARN", KVC_ROPE_SCALING_YARN},
                                               {"LONGROPE", KVC_ROPE_SCALING_LONGROPE}};
const std::map<std::string, int32_t> kSectionLayouts{{"CONTIGUOUS", KVC_ROPE_SECTIONS_CONTIGUOUS},
                                                     {"INTERLEAVED", KVC_ROPE_SECTIONS_INTERLEAVED}};
const std::map<std::string, int32_t> kStorages{
    {"OWNED", KVC_STORAGE_OWNED}, {"BORROWED", KVC_STORAGE_BORROWED}, {"NONE", KVC_STORAGE_NONE}};
const std::map<std::string, int32_t> kPoolLayouts{{"LAYER_FIRST", KVC_POOL_LAYER_FIRST},
                                                  {"PAGE_FIRST", KVC_POOL_PAGE_FIRST}};

const float* keep(const Json& json, const char* key, std::deque<std::vector<float>>& factors) {
  if (!json.contains(key)) return nullptr;
  factors.push_back(json[key].get<std::vector<float>>());
  return factors.back().data();
}

}  // namespace

int32_t look_up(const std::string& name, const std::map<std::string, int32_t>& table) {
  const auto found = table.find(name);
  if (found == table.end()) throw std::runtime_error("'" + name + "' is none of the library's names");
  return found->second;
}

Rope read_rope(const Json& json, int32_t head_dim, int32_t offset, kvc_rope& rope,
               std::deque<std::vector<float>>& factors) {
  rope = {};
  rope.struct_size = sizeof rope;
  rope.mode = look_up(json.value("mode", "ON_APPEND"), kModes);
  rope.style = look_up(json.value("style", "HALF"), kStyles);
  rope.rotary_dim = json.value("rotary_dim", 0);
  rope.theta = json.value("theta", 0.0);
  rope.scale = json.value("scale", 0.0);
  rope.freq_factors = keep(json, "freq_factors", factors);
  rope.long_freq_factors = keep(json, "long_freq_factors", factors);
  rope.num_freq_factors = static_cast<int32_t>(json.value("freq_factors", Json::array()).size());
  rope.scaling = look_up(json.value("scaling", "NONE"), kScalings);
  rope.section_layout = look_up(json.value("section_layout", "CONTIGUOUS"), kSectionLayouts);
  rope.factor = json.value("factor", 0.0);
  rope.low_freq_factor = json.value("low_freq_factor", 0.0);
  rope.high_freq_factor = json.value("high_freq_factor", 0.0);
  rope.beta_fast = json.value("beta_fast", 0.0);
  rope.beta_slow = json.value("beta_slow", 0.0);
  rope.attention_factor = json.value("attention_factor", 0.0);
  rope.original_context = json.value("original_context", int64_t{0});

  Rope result;
  result.on = rope.mode != KVC_ROPE_NONE;
  result.interleaved = rope.style == KVC_ROPE_INTERLEAVED;
  result.offset = offset;
  result.rotary_dim = rope.rotary_dim == 0 ? head_dim : rope.rotary_dim;
  result.scale = rope.scale == 0 ? 1 : rope.scale;
  result.magnitude = json.value("magnitude", rope.attention_factor == 0 ? 1.0 : rope.attention_factor);
  result.sections = json.value("sections", std::vector<int32_t>{});
  result.sections_interleaved = rope.section_layout == KVC_ROPE_SECTIONS_INTERLEAVED;
  rope.num_sections = static_cast<int32_t>(result.sections.size());
  for (size_t i = 0; i < result.sections.size() && i < 4; ++i) rope.sections[i] = result.sections[i];

  const double theta = rope.theta == 0 ? 10000 : rope.theta;
  const auto frequencies = [&](const char* key) {
    const Vector divisors = json.value(key, Vector{});
    Vector out;
    for (int32_t i = 0; i < result.rotary_dim / 2; ++i) {
      const double plain = std::pow(theta, -2.0 * i / result.rotary_dim);
      // A plan with too few factors is to be refused.
      out.push_back(static_cast<size_t>(i) < divisors.size() ? plain / divisors[static_cast<size_t>(i)]
                                                             : plain);
    }
    return out;
  };
  result.frequencies =
      json.contains("frequencies") ? json["frequencies"].get<Vector>() : frequencies("freq_factors");
  if (json.contains("long_freq_factors")) result.long_frequencies = frequencies("long_freq_factors");
  return result;
}

void Model::read_states(const Json& json, kvc_layer& layer, LayerView& view) {
  specs_.emplace_back();
  for (const Json& state : json) {
    shapes_.push_back(state.at("shape").get<std::vector<int64_t>>());
    kvc_state_spec spec{};
    spec.struct_size = sizeof spec;
    spec.ndim = static_cast<int32_t>(shapes_.back().size());
    spec.dtype = dtype_of(state.value("dtype", "f32"));
    spec.shape = shapes_.back().data();
    const int64_t init = state.value("init", int64_t{-1});
    if (init >= 0) {
      HostTensor& tensor = inits_.emplace_back(shapes_.back(), spec.dtype);
      const auto number = static_cast<int64_t>(specs_.back().size());
      for (int64_t i = 0; i < tensor.size(); ++i)
        tensor.set(i, value(Kind::kState, static_cast<int32_t>(views_.size()), init, number, i));
      spec.init = tensor.host_view();
    }
    specs_.back().push_back(spec);
    view.states.push_back({shapes_.back(), init});
  }
  layer.states = specs_.back().data();
  layer.num_states = static_cast<int32_t>(specs_.back().size());
}

void Model::read_layer(const Json& json) {
  kvc_layer layer{};
  LayerView view;
  layer.struct_size = sizeof layer;
  layer.kind = look_up(json.value("kind", "ATTENTION"), kKinds);
  view.kind = layer.kind;
  const bool pages = layer.kind == KVC_LAYER_ATTENTION || layer.kind == KVC_LAYER_CROSS;
  const bool mla = layer.kind == KVC_LAYER_MLA;
  layer.num_kv_heads = json.value("heads", pages ? 1 : 0);
  layer.num_q_heads = json.value("q_heads", mla ? 1 : 0);
  layer.k_dim = json.value("k_dim", pages ? 4 : 0);
  layer.v_dim = json.value("v_dim", 0);
  layer.window = json.value("window", int64_t{0});
  layer.chunk = json.value("chunk", int64_t{0});
  layer.source_layer = json.value("source", 0);
  layer.latent_rank = json.value("latent_rank", 0);
  layer.latent_rope_dim = json.value("latent_rope_dim", 0);
  layer.flags = json.value("v_is_k", false) ? KVC_LAYER_V_IS_K : 0;
  if (pages || mla || json.contains("dtype")) layer.k_dtype = dtype_of(json.value("dtype", "f32"));
  if (json.contains("v_dtype")) layer.v_dtype = dtype_of(json["v_dtype"].get<std::string>());

  view.v_is_k = layer.flags != 0;
  view.kv_heads = mla ? 1 : layer.num_kv_heads;
  view.q_heads = layer.num_q_heads == 0 ? layer.num_kv_heads : layer.num_q_heads;
  view.k_dim = mla ? layer.latent_rank + layer.latent_rope_dim : layer.k_dim;
  view.v_dim = mla ? layer.latent_rank : layer.v_dim == 0 ? layer.k_dim : layer.v_dim;
  view.latent_rank = layer.latent_rank;
  if (json.contains("rope")) {
    kvc_rope& rope = ropes_.emplace_back();
    view.rope = read_rope(json["rope"], mla ? layer.latent_rope_dim : layer.k_dim,
                          mla ? layer.latent_rank : 0, rope, factors_);
    layer.rope = &rope;
  }
  if (layer.kind == KVC_LAYER_SHARED) {
    view.source = layer.source_layer;
    if (layer.source_layer >= 0 && static_cast<size_t>(layer.source_layer) < views_.size()) {
      const LayerView& source = views_[static_cast<size_t>(layer.source_layer)];
      view.kv_heads = source.kv_heads;
      view.q_heads = layer.num_q_heads == 0 ? source.kv_heads : layer.num_q_heads;
      view.k_dim = source.k_dim;
      view.v_dim = source.v_dim;
      view.v_is_k = source.v_is_k;
      view.latent_rank = source.latent_rank;
      view.rope = source.rope;
    }
  }
  if (json.contains("states")) read_states(json["states"], layer, view);
  layers_.push_back(layer);
  views_.push_back(view);
}

Model::Model(const Json& json, kvc_cpu_isa isa) {
  for (const Json& layer : json.at("layers")) read_layer(layer);
  config_.struct_size = sizeof config_;
  config_.page_size = json.value("page_size", 4);
  config_.num_pages = json.value("num_pages", json.contains("byte_budget") ? 0 : 64);
  config_.byte_budget = json.value("byte_budget", uint64_t{0});
  config_.num_layers = static_cast<int32_t>(layers_.size());
  config_.layers = layers_.data();
  config_.layer_begin = json.value("layer_begin", 0);
  config_.layer_end = json.value("layer_end", 0);
  config_.max_seqs = json.value("max_seqs", 0);
  config_.max_tokens_per_forward = json.value("max_tokens_per_forward", int64_t{0});
  config_.max_seq_len = json.value("max_seq_len", int64_t{0});
  config_.storage = look_up(json.value("storage", "OWNED"), kStorages);
  config_.pool_layout = look_up(json.value("pool_layout", "LAYER_FIRST"), kPoolLayouts);
  config_.max_cross_len = json.value("max_cross_len", int64_t{0});
  config_.state_stride = json.value("state_stride", int64_t{0});
  config_.num_state_slots = json.value("num_state_slots", int64_t{0});
  if (json.value("pad_pages", false)) config_.flags |= KVC_CONFIG_PAD_PAGES;
  config_.num_threads = json.value("num_threads", 2);
  config_.event_capacity = json.value("event_capacity", int64_t{0});
  config_.cpu_isa = isa;
  config_.device = test::device();
  if (test::is_on_gpu() && config_.storage != KVC_STORAGE_NONE) config_.num_threads = 0;  // the CPU's
  if (config_.storage == KVC_STORAGE_OWNED) {
    allocator_ = {sizeof allocator_, nullptr, test::poisoned_alloc, test::poisoned_free};
    config_.allocator = &allocator_;
  }
}

}  // namespace kvc::conformance
