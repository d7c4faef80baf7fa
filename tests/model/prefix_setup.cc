#include "tests/model/prefix_setup.h"

#include <stdexcept>

namespace kvc::test {

kvc_layer PrefixSetup::token_layer(Random& random, bool mla, int64_t window, int64_t chunk) {
  kvc_layer layer{};
  layer.struct_size = sizeof layer;
  layer.k_dtype = {kDLFloat, 32, 1};
  layer.window = window;
  layer.chunk = chunk;
  if (mla) {
    layer.kind = KVC_LAYER_MLA;
    layer.num_q_heads = 2;
    layer.latent_rank = 4;
    layer.latent_rope_dim = 2;
  } else {
    // Other rows are other bytes: other tokens per page
    layer.num_kv_heads = random.chance(0.7) ? 1 : 2;
    layer.k_dim = random.chance(0.8) ? 2 : 4;
  }
  return layer;
}

void PrefixSetup::draw_layers(Random& random) {
  const int64_t page = config_.page_size;
  const auto window = [&] { return random.range(1, 4 * page); };
  const auto plain = [&](bool mla = false) { layers_.push_back(token_layer(random, mla, 0, 0)); };
  const auto windowed = [&](bool mla = false) {
    layers_.push_back(token_layer(random, mla, window(), 0));
  };
  const auto chunked = [&] {
    layers_.push_back(token_layer(random, false, 0, random.range(1, 5 * page)));
  };
  const auto state = [&] {
    kvc_state_spec spec{};
    spec.struct_size = sizeof spec;
    spec.ndim = 1;
    spec.shape = state_shape_;
    spec.dtype = {kDLFloat, 32, 1};
    states_.push_back(spec);
    kvc_layer layer{};
    layer.struct_size = sizeof layer;
    layer.kind = KVC_LAYER_STATE;
    layer.states = &states_.back();
    layer.num_states = 1;
    layers_.push_back(layer);
    has_states_ = true;
  };
  const auto shared = [&] {
    kvc_layer layer{};
    layer.struct_size = sizeof layer;
    layer.kind = KVC_LAYER_SHARED;
    layer.source_layer = 0;
    layers_.push_back(layer);
  };
  switch (random.range(0, 11)) {
    case 0:
    case 1:
    case 2: plain(); break;
    case 3: plain(), plain(), shared(); break;
    case 4: plain(), windowed(); break;
    case 5: windowed(), plain(), windowed(); break;
    case 6: plain(), chunked(); break;
    case 7: windowed(); break;
    case 8: state(), plain(); break;
    case 9: plain(true); break;
    case 10: plain(true), windowed(true), plain(); break;
    default: plain(), state(), windowed(); break;
  }
}

kvc_status PrefixSetup::ask() {
  kvc_plan_destroy(plan_);
  plan_ = nullptr;
  kvc_error error{};
  const kvc_status status = kvc_plan_create(&config_, &plan_, &error);
  if (status == KVC_E_NEVER_FITS) return status;
  if (status != KVC_OK) throw std::runtime_error(std::string("kvc_plan_create: ") + error.message);
  info_.struct_size = sizeof info_;
  (void)kvc_plan_info_get(plan_, &info_, nullptr);
  groups_.clear();
  sees_all_ = !has_states_;
  for (int32_t g = 0; g < info_.num_groups; ++g) {
    kvc_group_info group{};
    group.struct_size = sizeof group;
    (void)kvc_plan_group_get(plan_, g, &group, nullptr);
    groups_.push_back({group.window, group.chunk, group.page_size, group.keep_tokens});
    sees_all_ = sees_all_ && groups_.back().sees_all();
  }
  layer_groups_.clear();
  for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
    kvc_layer_info one{};
    one.struct_size = sizeof one;
    (void)kvc_plan_layer_get(plan_, layer, &one, nullptr);
    layer_groups_.push_back(one.group);
  }
  return status;
}

PrefixSetup::PrefixSetup(Random& random, PrefixRunKind kind) {
  (void)kvc_config_init(&config_, sizeof config_);
  config_.page_size = static_cast<int32_t>(random.pick_of<int64_t>({1, 2, 3, 4, 4, 8}));
  draw_layers(random);
  config_.layers = layers_.data();
  config_.num_layers = static_cast<int32_t>(layers_.size());
  config_.num_threads = 1;
  config_.flags = random.chance(0.2) ? KVC_CONFIG_PAD_PAGES : 0;
  config_.pool_layout = random.chance(0.5) ? KVC_POOL_LAYER_FIRST : KVC_POOL_PAGE_FIRST;
  config_.num_pages = random.range(6, random.chance(0.3) ? 20 : 70);
  config_.event_capacity = random.pick_of<int64_t>({0, 1, 4, 30, 1000, 100000});
  if (has_states_) {
    config_.state_stride =
        random.pick_of<int64_t>({0, 0, config_.page_size, 2 * config_.page_size, -1});
    if (random.chance(0.3)) config_.num_state_slots = random.range(3, 30);
  }
  config_.storage = KVC_STORAGE_NONE;
  const auto own_storage = [&] {
    config_.storage = KVC_STORAGE_OWNED;
    hooks_ = allocator_.hooks();
    config_.allocator = &hooks_;
  };
  if (kind == PrefixRunKind::kData || (kind == PrefixRunKind::kFailures && random.chance(0.3)))
    own_storage();
  if (random.chance(0.2)) config_.max_seq_len = random.range(1, 5 * config_.page_size);
  while (ask() == KVC_E_NEVER_FITS && config_.num_pages < 4000) config_.num_pages *= 2;
  if (random.chance(0.2)) {
    config_.host_byte_budget = info_.page_bytes * static_cast<uint64_t>(random.range(1, 40));
    // Where a page has been on the host, its rows alone tell what it holds.
    if (!has_data()) own_storage();
    (void)ask();
  }
  if (!has_data()) draw_kept(random);
}

// Rows of the runs with storage are numbers that no type of 8 bits holds.
void PrefixSetup::draw_kept(Random random) {
  if (!random.chance(0.4)) return;
  for (kvc_layer& layer : layers_) {
    if (layer.kind != KVC_LAYER_ATTENTION && layer.kind != KVC_LAYER_MLA) continue;
    if (random.chance(0.3)) continue;
    layer.k_dtype = {kDLInt, 8, 1};
    layer.quant = KVC_QUANT_PER_TENSOR;
    layer.keep_tokens = static_cast<int32_t>(random.range(1, random.chance(0.7) ? 5 : 30));
  }
  while (ask() == KVC_E_NEVER_FITS && config_.num_pages < 4000) config_.num_pages *= 2;
}

PrefixSetup::~PrefixSetup() {
  destroy_cache();
  kvc_plan_destroy(plan_);
}

void PrefixSetup::create() {
  kvc_error error{};
  if (kvc_cache_create(plan_, &cache_, &error) != KVC_OK)
    throw std::runtime_error(std::string("kvc_cache_create: ") + error.message);
}

void PrefixSetup::destroy_cache() {
  kvc_cache_destroy(cache_);
  cache_ = nullptr;
}

std::string PrefixSetup::describe() const {
  std::string text =
      "page size " + std::to_string(config_.page_size) + ", " + std::to_string(config_.num_pages) +
      " pages, block " + std::to_string(block()) + (has_data() ? ", with storage" : "") +
      (has_host() ? ", " + std::to_string(info_.num_host_pages) + " host pages" : "") + ", " +
      std::to_string(config_.event_capacity) + " events; layers:";
  for (const kvc_layer& layer : layers_) {
    text += layer.kind == KVC_LAYER_MLA      ? " mla"
            : layer.kind == KVC_LAYER_STATE  ? " state"
            : layer.kind == KVC_LAYER_SHARED ? " shared"
                                             : " attention";
    if (layer.window != 0) text += "/window " + std::to_string(layer.window);
    if (layer.chunk != 0) text += "/chunk " + std::to_string(layer.chunk);
    if (layer.keep_tokens != 0) text += "/keep " + std::to_string(layer.keep_tokens);
  }
  text += "; tokens per page:";
  for (const Group& group : groups_) text += " " + std::to_string(group.page_size);
  if (has_states_)
    text += "; states every " + std::to_string(config_.state_stride) + ", slots " +
            std::to_string(config_.num_state_slots);
  return text;
}

}  // namespace kvc::test
