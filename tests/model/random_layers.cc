#include "tests/model/random_layers.h"

#include <algorithm>

namespace kvc::test {
namespace {

Elem draw_storage(Random& random) { return random.pick_of({Elem::kF32, Elem::kF16, Elem::kBF16}); }

const char* kind_name(kvc_layer_kind kind) {
  static const char* const names[] = {"attention", "mla", "cross", "state", "shared", "none"};
  return names[kind];
}

}  // namespace

void RandomLayers::draw(Random& random, Family family, int page_size, bool tiny) {
  tiny_ = tiny;
  quant_random_ = random;
  mix_random_ = Random(static_cast<uint64_t>(Random(random).range(0, INT32_MAX)));
  keep_random_ = Random(static_cast<uint64_t>(Random(mix_random_).range(0, INT32_MAX)));
  keeps_ = keep_random_.chance(0.6);
  quantises_ = !is_on_gpu() && quant_random_.chance(0.35);
  on_read_ = random.chance(0.4);
  sections_ = random.chance(0.3);
  chunks_ = family != Family::kPlain && random.chance(0.25);
  for (int i = 0; i < 2; ++i)
    windows_.push_back(random.range(1, random.chance(0.5) ? 8 : 2 * page_size + 2));
  const bool several = family == Family::kPlain || family == Family::kMla;
  const auto kept = static_cast<int>(random.range(several ? 1 : 2, several ? 3 : tiny ? 6 : 4));
  begin_ = static_cast<int>(random.chance(0.2) ? random.range(1, 2) : 0);
  const auto after = static_cast<int>(random.chance(0.2) ? random.range(1, 2) : 0);
  for (int i = 0; i < begin_ + kept + after; ++i) {
    const bool in_slice = i >= begin_ && i < begin_ + kept;
    draw_layer(random, draw_kind(random, family, in_slice), family, in_slice);
  }
}

kvc_layer_kind RandomLayers::draw_kind(Random& random, Family family, bool in_slice) const {
  const bool has_source =
      in_slice && std::any_of(naive_.begin(), naive_.end(),
                              [](const NaiveLayer& layer) { return layer.has_tokens(); });
  const double dice = random.unit();
  switch (family) {
    case Family::kPlain: return KVC_LAYER_ATTENTION;
    case Family::kWindows:
      if (dice < 0.2 && has_source) return KVC_LAYER_SHARED;
      return dice > 0.92 ? KVC_LAYER_NONE : KVC_LAYER_ATTENTION;
    case Family::kMla:
      if (dice < 0.15 && has_source) return KVC_LAYER_SHARED;
      return dice < 0.8 ? KVC_LAYER_MLA : KVC_LAYER_ATTENTION;
    case Family::kCross: return dice < 0.5 ? KVC_LAYER_CROSS : KVC_LAYER_ATTENTION;
    case Family::kState: return dice < 0.5 ? KVC_LAYER_STATE : KVC_LAYER_ATTENTION;
    case Family::kHybrid: break;
  }
  if (dice < 0.2) return KVC_LAYER_STATE;
  if (dice < 0.4) return KVC_LAYER_MLA;
  if (dice < 0.55) return KVC_LAYER_CROSS;
  if (dice < 0.65 && has_source) return KVC_LAYER_SHARED;
  return dice < 0.7 ? KVC_LAYER_NONE : KVC_LAYER_ATTENTION;
}

void RandomLayers::draw_layer(Random& random, kvc_layer_kind kind, Family family, bool in_slice) {
  NaiveLayer naive;
  kvc_layer layer{};
  layer.struct_size = sizeof layer;
  layer.kind = naive.kind = kind;
  if (kind == KVC_LAYER_ATTENTION || kind == KVC_LAYER_CROSS)
    draw_attention(random, &naive, &layer);
  if (kind == KVC_LAYER_MLA) draw_mla(random, &naive, &layer);
  if (kind == KVC_LAYER_STATE) draw_states(random, &naive, &layer);
  if (kind == KVC_LAYER_SHARED) draw_shared(random, &naive, &layer);
  if (naive.has_tokens()) draw_window(random, family, &naive, &layer);
  if (naive.has_tokens() && naive.is_quantised()) draw_keep(&naive, &layer);
  // What a rotation makes of a clipped pair depends on the position.
  if (naive.rope.mode == KVC_ROPE_ON_APPEND && naive.k_shared != 0 && kind != KVC_LAYER_SHARED) {
    layer.k_scale = naive.k_shared = std::max(naive.k_shared, 0.011f);
    if (naive.v_in_k) naive.v_shared = naive.k_shared;
  }
  specs_.push_back(layer);
  if (in_slice) naive_.push_back(naive);
}

void RandomLayers::draw_attention(Random& random, NaiveLayer* naive, kvc_layer* layer) {
  naive->kv_heads = static_cast<int>(random.range(1, 3));
  naive->q_heads =
      naive->kv_heads * static_cast<int>(random.range(1, naive->kv_heads == 3 ? 2 : 3));
  naive->k_dim = tiny_ ? 2 : static_cast<int>(random.pick_of<int64_t>({16, 33, 80}));
  naive->v_dim = tiny_ || random.chance(0.6)
                     ? naive->k_dim
                     : static_cast<int>(random.pick_of<int64_t>({16, 33, 80}));
  naive->k_type = draw_storage(random);
  naive->v_type = random.chance(0.8) ? naive->k_type : draw_storage(random);
  if (naive->kind == KVC_LAYER_ATTENTION && random.chance(0.12)) {
    layer->flags = KVC_LAYER_V_IS_K;
    naive->v_in_k = true;
    naive->v_dim = naive->k_dim;
    naive->v_type = naive->k_type;
  }
  layer->num_q_heads = naive->q_heads;
  layer->num_kv_heads = naive->kv_heads;
  layer->k_dim = naive->k_dim;
  layer->v_dim = naive->v_dim;
  layer->k_dtype = dl_type(naive->k_type);
  layer->v_dtype = dl_type(naive->v_type);
  draw_quant(naive, layer);
  if (naive->kind == KVC_LAYER_ATTENTION && random.chance(0.65))
    layer->rope = draw_rope(random, naive->k_dim, false, &naive->rope, 0);
}

void RandomLayers::draw_mla(Random& random, NaiveLayer* naive, kvc_layer* layer) {
  const int rank = tiny_ ? 2 : static_cast<int>(random.pick_of<int64_t>({16, 24, 40}));
  const int rope_dim = random.chance(0.2) ? 0
                       : tiny_            ? 2
                                          : static_cast<int>(random.pick_of<int64_t>({8, 16}));
  naive->q_heads = static_cast<int>(random.range(1, 4));
  naive->kv_heads = 1;
  naive->k_dim = rank + rope_dim;
  naive->v_dim = rank;
  naive->v_in_k = naive->is_latent = true;
  naive->k_type = naive->v_type = draw_storage(random);
  layer->num_q_heads = naive->q_heads;
  layer->num_kv_heads = static_cast<int32_t>(random.range(0, 1));
  layer->latent_rank = rank;
  layer->latent_rope_dim = rope_dim;
  layer->k_dtype = dl_type(naive->k_type);
  if (random.chance(0.5)) layer->v_dtype = layer->k_dtype;
  draw_quant(naive, layer);
  if (!random.chance(0.15)) {
    naive->self_k_dim =
        rope_dim + (tiny_ ? 2 : static_cast<int>(random.pick_of<int64_t>({8, 16, 24})));
    naive->self_v_dim = tiny_ ? 2 : static_cast<int>(random.pick_of<int64_t>({8, 16, 24}));
    layer->k_dim = naive->self_k_dim;
    layer->v_dim = naive->self_v_dim;
  }
  if (rope_dim == 0 || !random.chance(0.8)) return;
  layer->rope = draw_rope(random, rope_dim, true, &naive->rope, rank);
  naive->self_rope = naive->rope;
  naive->self_rope.begin = naive->self_k_dim - rope_dim;
}

void RandomLayers::draw_quant(NaiveLayer* naive, kvc_layer* layer) {
  if (!quantises_ || quant_random_.chance(0.25)) return;
  const auto draw_code = [&] {
    return quant_random_.pick_of({Code::kInt8, Code::kInt8, Code::kE4M3, Code::kE4M3, Code::kE5M2});
  };
  const Elem k_elem = naive->k_type, v_elem = naive->v_type;
  naive->k_code = draw_code();
  naive->v_code = naive->v_in_k || quant_random_.chance(0.8) ? naive->k_code : draw_code();
  naive->k_type = naive->v_type = Elem::kF16;  // for what is said of types of 16 bits
  layer->quant = KVC_QUANT_PER_TOKEN_HEAD;
  layer->k_dtype = dl_type(naive->k_storage());
  layer->v_dtype = naive->is_latent ? DLDataType{} : dl_type(naive->v_storage());
  if (naive->v_in_k ? mix_random_.chance(0.5) : !quant_random_.chance(0.75)) {
    layer->quant = KVC_QUANT_PER_TENSOR;
    // Values lie in [-1, 1]: by the last scale a tenth of them does not fit.
    const auto draw_scale = [&](Code code) {
      const auto tight = static_cast<float>(0.9 / largest_code(code));
      return quant_random_.pick_of({1.0f / 64, 0.0123f, 0.011f, tight});
    };
    layer->k_scale = naive->k_shared = naive->v_shared = draw_scale(naive->k_code);
    if (!naive->v_in_k) layer->v_scale = naive->v_shared = draw_scale(naive->v_code);
  }
  if (!naive->v_in_k && mix_random_.chance(0.4)) draw_mix(k_elem, v_elem, naive, layer);
}

void RandomLayers::draw_keep(NaiveLayer* naive, kvc_layer* layer) {
  // Rows that turn are compared once they are stored, and of such a layer no dropped one can be.
  const bool turns = naive->rope.asked_mode == KVC_ROPE_ON_APPEND && layer->rope != nullptr;
  if (!keeps_ || keep_random_.chance(0.25) || (turns && (naive->window | naive->chunk) != 0))
    return;
  naive->keep = keep_random_.pick_of<int64_t>({1, 2, 4, 4, 5, 17, 64});
  layer->keep_tokens = static_cast<int32_t>(naive->keep);
  has_kept_ = true;
  turns_kept_ |= turns;
}

// K and V apart: one of them not quantised, or V of another kind.
void RandomLayers::draw_mix(Elem k_elem, Elem v_elem, NaiveLayer* naive, kvc_layer* layer) {
  const kvc_quant quant = layer->quant;
  switch (mix_random_.range(0, 3)) {
    case 0:
      layer->v_quant = KVC_QUANT_OFF;
      naive->v_code = Code::kNone;
      naive->v_type = v_elem;
      layer->v_dtype = dl_type(v_elem);
      layer->v_scale = naive->v_shared = 0;
      break;
    case 1:
      layer->quant = KVC_QUANT_NONE;
      layer->v_quant = quant;
      naive->k_code = Code::kNone;
      naive->k_type = k_elem;
      layer->k_dtype = dl_type(k_elem);
      layer->k_scale = naive->k_shared = 0;
      break;
    case 2:
      if (quant == KVC_QUANT_PER_TENSOR) {
        layer->v_quant = KVC_QUANT_PER_TOKEN_HEAD;
        layer->v_scale = naive->v_shared = 0;
      } else {
        layer->v_quant = KVC_QUANT_PER_TENSOR;
        layer->v_scale = naive->v_shared = 0.0123f;
      }
      break;
    default: layer->v_quant = quant;
  }
}

void RandomLayers::draw_shared(Random& random, NaiveLayer* naive, kvc_layer* layer) {
  std::vector<int> sources;
  for (size_t i = 0; i < naive_.size(); ++i) {
    if (naive_[i].has_tokens()) sources.push_back(static_cast<int>(i));
  }
  const int source = random.pick(sources);
  const NaiveLayer& from = naive_[static_cast<size_t>(source)];
  // Reads the same rows with the same rotation and windows, by query heads of its own
  *naive = from;
  naive->kind = KVC_LAYER_SHARED;
  naive->source = source;
  naive->q_heads = from.kv_heads * static_cast<int>(random.range(1, 3));
  layer->source_layer = begin_ + source;
  layer->num_q_heads = naive->q_heads;
  const kvc_layer& spec = specs_[static_cast<size_t>(begin_ + source)];
  if (from.kind == KVC_LAYER_ATTENTION && random.chance(0.5)) {
    layer->num_kv_heads = spec.num_kv_heads;
    layer->k_dim = spec.k_dim;
    layer->v_dim = spec.v_dim;
  }
}

void RandomLayers::draw_states(Random& random, NaiveLayer* naive, kvc_layer* layer) {
  state_specs_.push_back(std::make_unique<std::vector<kvc_state_spec>>());
  std::vector<kvc_state_spec>& specs = *state_specs_.back();
  const auto count = static_cast<int>(random.range(1, 3));
  for (int i = 0; i < count; ++i) {
    NaiveState state;
    if (i == 0 || random.chance(0.3)) {  // linear attention
      state.shape = {random.range(1, 3), tiny_ ? 1 : random.pick_of<int64_t>({4, 16, 9}),
                     tiny_ ? 1 : random.pick_of<int64_t>({4, 16, 7})};
    } else if (random.chance(0.7)) {  // convolution
      state.shape = {tiny_ ? 1 : random.range(1, 9), random.range(1, 4)};
    } else {
      state.shape = {random.range(1, 5)};
    }
    state.elem = random.chance(0.6) ? Elem::kF32 : draw_storage(random);
    state.init.assign(static_cast<size_t>(state.size()), 0);
    shapes_.push_back(std::make_unique<std::vector<int64_t>>(state.shape));
    kvc_state_spec spec{};
    spec.struct_size = sizeof spec;
    spec.ndim = static_cast<int32_t>(state.shape.size());
    spec.shape = shapes_.back()->data();
    spec.dtype = dl_type(state.elem);
    if (state.elem == Elem::kF32 && random.chance(0.5)) spec.dtype = {};
    if (random.chance(0.4)) {
      inits_.push_back(std::make_unique<HostTensor>(state.elem, state.shape));
      inits_.back()->fill_random(random);
      state.init.clear();
      inits_.back()->for_each([&](int64_t a, int64_t b, int64_t c, int64_t d) {
        state.init.push_back(inits_.back()->get(a, b, c, d));
      });
      spec.init = inits_.back()->on_host();
    }
    specs.push_back(spec);
    naive->states.push_back(std::move(state));
  }
  layer->states = specs.data();
  layer->num_states = count;
}

void RandomLayers::draw_window(Random& random, Family family, NaiveLayer* naive, kvc_layer* layer) {
  if (family == Family::kPlain || random.chance(0.45)) return;
  if (chunks_ && random.chance(0.5)) {
    layer->chunk = naive->chunk = windows_[0] + 1;
  } else {
    layer->window = naive->window = random.pick(windows_);
  }
}

const kvc_rope* RandomLayers::draw_rope(Random& random, int dim, bool whole, NaiveRope* naive,
                                        int begin) {
  ropes_.push_back(std::make_unique<kvc_rope>());
  kvc_rope& rope = *ropes_.back();
  rope.struct_size = sizeof rope;
  rope.mode = on_read_ && random.chance(0.6) ? KVC_ROPE_ON_READ : KVC_ROPE_ON_APPEND;
  rope.style = random.chance(0.5) ? KVC_ROPE_HALF : KVC_ROPE_INTERLEAVED;
  const int even = dim / 2 * 2;
  const bool all = whole || (even == dim && random.chance(0.5));
  rope.rotary_dim =
      all ? (random.chance(0.5) ? 0 : dim) : static_cast<int32_t>(2 * random.range(1, even / 2));
  rope.theta = random.chance(0.5) ? 0 : 500000;
  const int pairs = (all ? dim : rope.rotary_dim) / 2;
  draw_scaling(random, &rope, pairs);
  if (sections_ && rope.mode == KVC_ROPE_ON_APPEND && rope.scaling != KVC_ROPE_SCALING_LONGROPE &&
      random.chance(0.7))
    draw_sections(random, &rope, pairs);
  *naive = make_rope(rope, begin, dim);
  return &rope;
}

void RandomLayers::draw_scaling(Random& random, kvc_rope* rope, int pairs) {
  const double dice = random.unit();
  if (dice < 0.15) {
    rope->scaling = KVC_ROPE_SCALING_LLAMA3;
    rope->factor = random.pick_of({2.0, 8.0});
    rope->original_context = random.range(20, 400);
    if (random.chance(0.5)) rope->low_freq_factor = 1.5;
    if (random.chance(0.5)) rope->high_freq_factor = 5;
  } else if (dice < 0.3) {
    rope->scaling = KVC_ROPE_SCALING_YARN;
    rope->factor = random.pick_of({2.0, 4.0});
    rope->original_context = random.range(20, 400);
    if (random.chance(0.5)) rope->beta_fast = 16;
    if (random.chance(0.5)) rope->beta_slow = 2;
    if (random.chance(0.3)) rope->attention_factor = 1.25;
  } else if (dice < 0.45) {
    rope->scaling = KVC_ROPE_SCALING_LONGROPE;
    rope->original_context = random.range(4, 60);
    rope->num_freq_factors = pairs;
    rope->freq_factors = draw_factors(random, pairs);
    rope->long_freq_factors = draw_factors(random, pairs);
    if (random.chance(0.5)) rope->attention_factor = 1.25;
  } else {
    rope->scale = random.chance(0.7) ? 0 : 0.25;
    if (!random.chance(0.4)) return;
    rope->num_freq_factors = pairs;
    rope->freq_factors = draw_factors(random, pairs);
  }
}

void RandomLayers::draw_sections(Random& random, kvc_rope* rope, int pairs) {
  rope->num_sections = static_cast<int32_t>(random.range(1, std::min(4, pairs)));
  rope->section_layout = rope->num_sections == 1 || random.chance(0.5)
                             ? KVC_ROPE_SECTIONS_CONTIGUOUS
                             : KVC_ROPE_SECTIONS_INTERLEAVED;
  int left = pairs;
  for (int i = 0; i < rope->num_sections; ++i) {
    const int later = rope->num_sections - i - 1;  // each has a pair at least
    rope->sections[i] = later == 0 ? left : static_cast<int32_t>(random.range(1, left - later));
    left -= rope->sections[i];
  }
  if (rope->section_layout == KVC_ROPE_SECTIONS_CONTIGUOUS) return;
  // Interleaved, a later section has every n-th pair at most; the rest turns by the first row.
  for (int i = 1; i < rope->num_sections; ++i) {
    const int most = (pairs - i - 1) / rope->num_sections + 1;
    const int beyond = std::max(0, rope->sections[i] - most);
    rope->sections[i] -= beyond;
    rope->sections[0] += beyond;
  }
}

const float* RandomLayers::draw_factors(Random& random, int pairs) {
  factors_.push_back(std::make_unique<std::vector<float>>());
  for (int i = 0; i < pairs; ++i)
    factors_.back()->push_back(static_cast<float>(0.5 + 4 * random.unit()));
  return factors_.back()->data();
}

std::string RandomLayers::describe() const {
  std::string text;
  for (size_t i = 0; i < naive_.size(); ++i) {
    const NaiveLayer& layer = naive_[i];
    const kvc_layer& spec = specs_[static_cast<size_t>(begin_) + i];
    text += "\n  layer " + std::to_string(i) + ": " + kind_name(layer.kind) + " group " +
            std::to_string(layer.group);
    if (layer.window != 0) text += " window " + std::to_string(layer.window);
    if (layer.chunk != 0) text += " chunk " + std::to_string(layer.chunk);
    if (layer.source >= 0) text += " source " + std::to_string(layer.source);
    for (const NaiveState& state : layer.states) {
      text += std::string(" ") + name_of(state.elem) + "[";
      for (const int64_t extent : state.shape) text += std::to_string(extent) + ",";
      text.back() = ']';
    }
    if (!layer.has_pages() && layer.source < 0) continue;
    text += " " + std::to_string(layer.q_heads) + "/" + std::to_string(layer.kv_heads) + "x" +
            std::to_string(layer.k_dim) + ":" + std::to_string(layer.v_dim) + " " +
            name_of(layer.k_storage()) + "/" + name_of(layer.v_storage()) +
            (layer.v_in_k ? " V in K" : "") +
            (layer.keep > 0 ? " keep " + std::to_string(layer.keep) : "");
    if (spec.rope == nullptr) continue;
    text += " rope " + std::to_string(layer.rope.rotary_dim) +
            (layer.rope.interleaved ? "i" : "h") +
            (spec.rope->mode == KVC_ROPE_ON_READ ? " on read" : "") + " scaling " +
            std::to_string(spec.rope->scaling);
    if (spec.rope->original_context != 0)
      text += " context " + std::to_string(spec.rope->original_context);
    if (spec.rope->num_sections > 1) text += " sections " + std::to_string(spec.rope->num_sections);
  }
  return text;
}

}  // namespace kvc::test
