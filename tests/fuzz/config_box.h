// A kvc_config and everything it points at, as an input of the fuzzer describes it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <vector>

#include "kvcache.h"
#include "tests/fuzz/sized_struct.h"

namespace kvc::fuzz {

constexpr uint64_t kMaxPoolBytes = 1 << 20;

// Callbacks of the host. alloc refuses, and concurrency lies, when the input says so.
struct Host {
  bool refuse;
  int32_t concurrency;
  uint64_t allocated = 0;
};
inline void* host_alloc(void* user, DLDevice, uint64_t bytes, uint64_t alignment) {
  Host* host = static_cast<Host*>(user);
  if (host->refuse || bytes > 2 * kMaxPoolBytes || alignment == 0) return nullptr;
  host->allocated += bytes;
  const uint64_t whole = (bytes + alignment - 1) / alignment * alignment;
  return std::aligned_alloc(static_cast<size_t>(alignment), static_cast<size_t>(whole));
}
inline void host_free(void* user, DLDevice, void* memory, uint64_t bytes) {
  static_cast<Host*>(user)->allocated -= bytes;
  std::free(memory);
}
inline int32_t host_concurrency(void* user) { return static_cast<Host*>(user)->concurrency; }
inline void host_parallel_for(void*, int64_t num_tasks, void (*run)(void*, int64_t, int32_t),
                              void* arg) {
  for (int64_t task = 0; task < num_tasks; ++task) run(arg, task, 0);
}

// A configuration and everything it points at. Starts as a sensible small model and is mutated from
// there.
class ConfigBox {
 public:
  explicit ConfigBox(Input& input) : host_{.refuse = input.one_in(8), .concurrency = 1} {
    kvc_config config{};
    config.num_layers = static_cast<int32_t>(1 + input.choose(3));
    config.page_size = input.one_in(3) ? 0 : static_cast<int32_t>(1 + input.choose(20));
    config.num_pages = static_cast<int64_t>(1 + input.choose(32));
    config.num_threads = 1;
    config.storage = static_cast<kvc_storage>(input.choose(4) % 3);
    config.pool_layout = static_cast<kvc_pool_layout>(input.choose(2));
    make_layers(input, config);
    if (input.one_in(3)) make_host(input, config);
    if (input.one_in(3)) config.flags = KVC_CONFIG_PAD_PAGES;
    if (input.one_in(4)) config.forwards_in_flight = static_cast<int32_t>(input.choose(70));
    if (input.one_in(4)) config.host_byte_budget = input.take(2) * (1 + input.choose(16));
    if (input.one_in(4)) config.event_capacity = static_cast<int64_t>(input.take(2));
    if (config.storage != KVC_STORAGE_BORROWED && input.one_in(4))
      config.byte_budget = input.take(3), config.num_pages = input.one_in(8) ? config.num_pages : 0;
    if (input.one_in(8)) config.num_state_slots = static_cast<int64_t>(input.choose(40));
    if (config.storage == KVC_STORAGE_BORROWED || input.one_in(8)) make_pool(input, config);
    if (input.one_in(16)) config.ext = &ext_;
    const int32_t num_layers = config.num_layers;
    const int32_t num_pool_tensors = config.num_pool_tensors;
    for (size_t mutations = input.choose(4); mutations > 0; --mutations) {
      mutate(input, &config, sizeof(config),
             {offsetof(kvc_config, ext), offsetof(kvc_config, layers),
              offsetof(kvc_config, pool_tensors), offsetof(kvc_config, allocator),
              offsetof(kvc_config, executor)});
    }
    // Counts that exceed their arrays are beyond what a library can check.
    config.num_layers = std::min(config.num_layers, num_layers);
    config.num_pool_tensors = std::min(config.num_pool_tensors, num_pool_tensors);
    runs_here_ = config.num_threads == 1;
    config.struct_size = choose_struct_size(input, sizeof(config));
    box_ = std::make_unique<ExactMemory>(owned_bytes(config.struct_size));
    box_->put(0, &config, sizeof(config));
    if (box_->bytes() > sizeof(config) && input.one_in(3)) box_->data()[box_->bytes() - 1] = 1;
  }

  const kvc_config* get() { return reinterpret_cast<const kvc_config*>(box_->data()); }
  bool runs_here() const { return runs_here_; }  // makes no threads of its own
  // The pool tensors' memory is as large as they say
  bool honest_pool() const { return honest_pool_; }
  uint64_t allocated() const { return host_.allocated; }

 private:
  void make_layers(Input& input, kvc_config& config) {
    const size_t stride = choose_struct_size(input, sizeof(kvc_layer));
    const size_t count = static_cast<size_t>(config.num_layers);
    layers_ = std::make_unique<ExactMemory>(std::max(owned_bytes(stride), stride * count));
    for (size_t i = 0; i < count && (i == 0 || stride >= sizeof(size_t)); ++i) {
      kvc_layer layer{};
      layer.num_kv_heads = static_cast<int32_t>(1 + input.choose(3));
      layer.num_q_heads = layer.num_kv_heads * static_cast<int32_t>(input.choose(4));
      layer.k_dim = static_cast<int32_t>(8 * (1 + input.choose(4)));
      layer.v_dim = input.one_in(3) ? 16 : 0;
      if (input.one_in(3)) layer.rope = make_rope(input, layer.k_dim);
      if (input.one_in(3)) make_kind(input, layer, static_cast<int32_t>(i));
      if (input.one_in(4)) make_quantised(input, layer);
      const int32_t num_states = layer.num_states;
      if (input.one_in(2))
        mutate(input, &layer, sizeof(layer),
               {offsetof(kvc_layer, rope), offsetof(kvc_layer, states)});
      layer.num_states = std::min(layer.num_states, num_states);
      layer.struct_size = i == 0 || !input.one_in(8) ? stride : input.take(8);
      layers_->put(i * stride, &layer, std::min(owned_bytes(stride), sizeof(layer)));
    }
    config.layers = reinterpret_cast<const kvc_layer*>(layers_->data());
  }

  // Another kind than plain attention, or a window: mostly what a plan accepts.
  void make_kind(Input& input, kvc_layer& layer, int32_t index) {
    layer.kind = static_cast<kvc_layer_kind>(input.choose(6));
    if (input.one_in(2)) layer.window = static_cast<int64_t>(1 + input.choose(40));
    if (input.one_in(4)) layer.chunk = static_cast<int64_t>(1 + input.choose(40));
    if (input.one_in(8)) layer.flags = KVC_LAYER_V_IS_K;
    switch (layer.kind) {
      case KVC_LAYER_MLA:
        layer.latent_rank = static_cast<int32_t>(8 * (1 + input.choose(4)));
        layer.latent_rope_dim = static_cast<int32_t>(2 * input.choose(5));
        layer.num_kv_heads = static_cast<int32_t>(input.choose(2));
        break;
      case KVC_LAYER_SHARED:
        layer.source_layer = static_cast<int32_t>(input.choose(static_cast<uint64_t>(index) + 1));
        layer.num_kv_heads = layer.num_q_heads = layer.k_dim = layer.v_dim = 0;
        break;
      case KVC_LAYER_STATE: make_states(input, layer); [[fallthrough]];
      case KVC_LAYER_NONE:
        layer.num_kv_heads = layer.num_q_heads = layer.k_dim = layer.v_dim = 0;
        break;
      default: break;
    }
  }

  // Mostly a type that the kind of quantisation stores, and dims that fit it.
  void make_quantised(Input& input, kvc_layer& layer) {
    static constexpr std::array<DLDataType, 6> kTypes = {{{kDLFloat8_e4m3fn, 8, 1},
                                                          {kDLInt, 8, 1},
                                                          {kDLFloat8_e5m2, 8, 1},
                                                          {kDLInt, 4, 1},
                                                          {kDLFloat4_e2m1fn, 4, 1},
                                                          {kDLInt, 16, 1}}};
    layer.quant = static_cast<kvc_quant>(1 + input.choose(3));
    if (layer.quant == KVC_QUANT_BLOCK16 && layer.k_dim > 0)
      layer.k_dim = 16 * (1 + layer.k_dim / 16);
    layer.k_dtype =
        kTypes[layer.quant == KVC_QUANT_BLOCK16 && !input.one_in(8) ? 4 : input.choose(6)];
    if (input.one_in(4)) layer.v_dtype = kTypes[input.choose(6)];
    if (input.one_in(4)) layer.v_quant = static_cast<kvc_quant>(input.choose(6));
    if (input.one_in(4)) layer.keep_tokens = static_cast<int32_t>(input.choose(40)) - 1;
  }

  void make_states(Input& input, kvc_layer& layer) {
    static constexpr std::array<int64_t, 3> kShape = {2, 3, 4};
    kvc_state_spec state{};
    state.ndim = static_cast<int32_t>(input.choose(4));
    state.shape = input.one_in(16) ? nullptr : kShape.data();
    const size_t stride = choose_struct_size(input, sizeof(state));
    layer.num_states = static_cast<int32_t>(1 + input.choose(2));
    parts_.emplace_back(
        std::max(owned_bytes(stride), stride * static_cast<size_t>(layer.num_states)));
    state.struct_size = stride;
    for (int32_t i = 0; i < layer.num_states && (i == 0 || stride >= sizeof(size_t)); ++i)
      parts_.back().put(static_cast<size_t>(i) * stride, &state,
                        std::min(owned_bytes(stride), sizeof(state)));
    layer.states = reinterpret_cast<const kvc_state_spec*>(parts_.back().data());
  }

  const float* make_factors(Input& input, int32_t count) {
    if (count <= 0) return nullptr;
    factors_.emplace_back(static_cast<size_t>(count) * sizeof(float));
    for (int32_t i = 0; i < count; ++i) {
      const float factor = input.one_in(16) ? -1.0f : 1.5f;
      factors_.back().put(static_cast<size_t>(i) * sizeof(float), &factor, sizeof(factor));
    }
    return reinterpret_cast<const float*>(factors_.back().data());
  }

  const kvc_rope* make_rope(Input& input, int32_t k_dim) {
    kvc_rope rope{};
    rope.mode = KVC_ROPE_ON_APPEND;
    rope.num_freq_factors = input.one_in(3) ? k_dim / 2 : 0;
    rope.scaling = static_cast<kvc_rope_scaling>(input.choose(4));
    if (rope.scaling != KVC_ROPE_SCALING_NONE) rope.factor = 4, rope.original_context = 4096;
    if (input.one_in(2)) {
      mutate(input, &rope, sizeof(rope),
             {offsetof(kvc_rope, freq_factors), offsetof(kvc_rope, long_freq_factors)});
    }
    rope.num_freq_factors = std::min(rope.num_freq_factors, 300);
    rope.freq_factors = make_factors(input, rope.num_freq_factors);
    if (rope.scaling == KVC_ROPE_SCALING_LONGROPE || input.one_in(16))
      rope.long_freq_factors = make_factors(input, rope.num_freq_factors);
    rope.struct_size = choose_struct_size(input, sizeof(rope));
    parts_.emplace_back(owned_bytes(rope.struct_size));
    parts_.back().put(0, &rope, sizeof(rope));
    return reinterpret_cast<const kvc_rope*>(parts_.back().data());
  }

  void make_host(Input& input, kvc_config& config) {
    kvc_allocator allocator{};
    allocator.struct_size = choose_struct_size(input, sizeof(allocator));
    allocator.user = &host_;
    allocator.alloc = input.one_in(8) ? nullptr : host_alloc;
    allocator.free = input.one_in(8) ? nullptr : host_free;
    parts_.emplace_back(owned_bytes(allocator.struct_size));
    parts_.back().put(0, &allocator, sizeof(allocator));
    config.allocator = reinterpret_cast<const kvc_allocator*>(parts_.back().data());

    kvc_executor executor{};
    host_.concurrency = input.one_in(8) ? -3 : 1;
    executor.struct_size = choose_struct_size(input, sizeof(executor));
    executor.user = &host_;
    executor.concurrency = input.one_in(8) ? nullptr : host_concurrency;
    executor.parallel_for = input.one_in(8) ? nullptr : host_parallel_for;
    parts_.emplace_back(owned_bytes(executor.struct_size));
    parts_.back().put(0, &executor, sizeof(executor));
    config.executor = reinterpret_cast<const kvc_executor*>(parts_.back().data());
  }

  // Bytes of each region of a page.
  static std::vector<uint64_t> regions_of(const kvc_plan* plan, const kvc_config& config) {
    std::vector<uint64_t> bytes;
    for (int32_t layer = 0; layer < config.num_layers; ++layer) {
      kvc_layer_info info{};
      info.struct_size = sizeof(info);
      KVC_FUZZ_CHECK(kvc_plan_layer_get(plan, layer, &info, nullptr) == KVC_OK);
      if (info.region < 0) continue;
      bytes.resize(std::max(bytes.size(), static_cast<size_t>(info.region) + 1));
      bytes[static_cast<size_t>(info.region)] = info.region_bytes;
    }
    return bytes;
  }

  // Tensors that are right for unmutated layers in most cases, in a pool of generous size.
  void make_pool(Input& input, kvc_config& config) {
    constexpr int64_t kElements = int64_t{1} << 17;
    pool_.resize(static_cast<size_t>(kElements) * 3);
    config.num_pages = input.one_in(3) ? config.num_pages : 0;
    config.num_pool_tensors = config.pool_layout == KVC_POOL_PAGE_FIRST ? 1 : config.num_layers;
    kvc_plan* sized = nullptr;
    kvc_config owned = config;
    owned.struct_size = sizeof(owned);
    owned.storage = KVC_STORAGE_NONE;
    owned.num_pages = 1;
    owned.num_pool_tensors = 0;
    const bool known = kvc_plan_create(&owned, &sized, nullptr) == KVC_OK;
    const std::vector<uint64_t> region_bytes =
        known ? regions_of(sized, config) : std::vector<uint64_t>();
    if (known && config.num_pool_tensors != 1 && region_bytes.size() <= 3)
      config.num_pool_tensors = static_cast<int32_t>(region_bytes.size());
    for (int32_t i = 0; i < config.num_pool_tensors; ++i) {
      uint64_t page_bytes = 64;
      if (known && config.num_pool_tensors == 1) {
        kvc_plan_info info{};
        info.struct_size = sizeof(info);
        KVC_FUZZ_CHECK(kvc_plan_info_get(sized, &info, nullptr) == KVC_OK);
        page_bytes = info.page_bytes;
      } else if (static_cast<size_t>(i) < region_bytes.size()) {
        page_bytes = region_bytes[static_cast<size_t>(i)];
      }
      const int64_t elements = static_cast<int64_t>(std::min<uint64_t>(page_bytes, kElements));
      shapes_[static_cast<size_t>(i)] = {kElements / std::max<int64_t>(elements, 1), elements, 1,
                                         1};
      DLTensor& tensor = tensors_[static_cast<size_t>(i)];
      tensor.data = pool_.data() + kElements * i;
      tensor.device = {kDLCPU, 0};
      tensor.ndim = 2;
      tensor.dtype = {kDLUInt, 8, 1};
      tensor.shape = shapes_[static_cast<size_t>(i)].data();
      if (input.one_in(6)) {
        mutate(input, &tensor, sizeof(tensor),
               {offsetof(DLTensor, data), offsetof(DLTensor, shape), offsetof(DLTensor, strides)});
        tensor.ndim = std::min(tensor.ndim, 4);
        tensor.byte_offset = std::min<uint64_t>(tensor.byte_offset, 64);
        honest_pool_ = false;
      }
      pointers_[static_cast<size_t>(i)] = &tensor;
    }
    kvc_plan_destroy(sized);
    config.pool_tensors = pointers_.data();
  }

  Host host_;
  kvc_ext ext_{1, nullptr};
  bool runs_here_ = false;
  bool honest_pool_ = true;
  std::unique_ptr<ExactMemory> box_, layers_;
  std::vector<ExactMemory> parts_, factors_;
  std::vector<unsigned char> pool_;
  std::array<DLTensor, 3> tensors_{};
  std::array<std::array<int64_t, 4>, 3> shapes_{};
  std::array<const DLTensor*, 3> pointers_{};
};

}  // namespace kvc::fuzz
