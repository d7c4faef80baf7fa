#include "tests/model/random_setup.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "tests/model/allocation_failures.h"

namespace kvc::test {

kvc_executor BackwardsExecutor::hooks() {
  kvc_executor hooks{};
  hooks.struct_size = sizeof hooks;
  hooks.user = this;
  hooks.concurrency = [](void* user) { return static_cast<BackwardsExecutor*>(user)->workers; };
  hooks.parallel_for = [](void* user, int64_t num_tasks, void (*fn)(void*, int64_t, int32_t), void* arg) {
    const int32_t workers = static_cast<BackwardsExecutor*>(user)->workers;
    for (int64_t task = num_tasks; task-- > 0;) fn(arg, task, static_cast<int32_t>(task % workers));
  };
  return hooks;
}

kvc_allocator PoisonAllocator::hooks() {
  kvc_allocator hooks{};
  hooks.struct_size = sizeof hooks;
  hooks.user = this;
  hooks.alloc = [](void* user, DLDevice, uint64_t bytes, uint64_t alignment) -> void* {
    if (should_fail()) return nullptr;
    void* memory = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    if (memory == nullptr) return nullptr;
    std::memset(memory, 0xFF, bytes);
    ++static_cast<PoisonAllocator*>(user)->live;
    return memory;
  };
  hooks.free = [](void* user, DLDevice, void* memory, uint64_t) {
    --static_cast<PoisonAllocator*>(user)->live;
    std::free(memory);
  };
  return hooks;
}

std::vector<kvc_cpu_isa> available_isas() {
  kvc_device_caps caps{};
  caps.struct_size = sizeof caps;
  std::vector<kvc_cpu_isa> result;
  if (kvc_device_query({kDLCPU, 0}, &caps, nullptr) != KVC_OK) return result;
  for (kvc_cpu_isa isa = KVC_CPU_ISA_REFERENCE; isa <= KVC_CPU_ISA_AVX512_BF16; ++isa) {
    if ((caps.isas >> isa & 1) != 0) result.push_back(isa);
  }
  return result;
}

RandomSetup::RandomSetup(Random& random, RunKind kind) {
  (void)kvc_config_init(&config_, sizeof config_);
  const std::vector<kvc_cpu_isa> isas = available_isas();
  best_isa_ = isas.empty() ? KVC_CPU_ISA_AUTO : isas.back();
  const bool data = kind == RunKind::kData || (kind == RunKind::kFailures && random.chance(0.6));
  config_.page_size = static_cast<int32_t>(random.pick_of<int64_t>({1, 3, 16, 48}));
  // Long sequences, cut into several splits by decode kernels, with little else to keep the oracle quick.
  const bool long_context = kind == RunKind::kData && random.chance(0.08);
  draw_layers(random, !data || long_context);

  limits_.page_size = config_.page_size;
  limits_.num_pages = data                 ? random.range(1, 1 + 400 / config_.page_size)
                      : random.chance(0.2) ? random.range(1, 200)
                                           : random.range(1, 40);
  limits_.num_pages = std::min<int64_t>(limits_.num_pages, data ? 60 : 200);
  if (long_context) limits_.num_pages = 1 + 3000 / config_.page_size;
  if (random.chance(0.3)) limits_.max_seq_len = random.range(1, limits_.num_pages * config_.page_size);
  if (random.chance(0.2)) limits_.max_seqs = random.range(1, 5);
  if (random.chance(0.2)) limits_.max_tokens = random.range(1, 3 * config_.page_size);
  config_.num_pages = limits_.num_pages;
  config_.max_seq_len = limits_.max_seq_len;
  config_.max_seqs = static_cast<int32_t>(limits_.max_seqs);
  config_.max_tokens_per_forward = limits_.max_tokens;
  config_.pool_layout = random.chance(0.5) ? KVC_POOL_LAYER_FIRST : KVC_POOL_PAGE_FIRST;
  config_.cpu_isa = isas.empty() || random.chance(0.2) ? KVC_CPU_ISA_AUTO : random.pick(isas);

  if (!data) {
    config_.storage = KVC_STORAGE_NONE;
  } else if (random.chance(0.4)) {
    config_.storage = KVC_STORAGE_BORROWED;
    borrow_pools(random);
  } else if (random.chance(0.75)) {
    allocator_hooks_ = allocator_.hooks();
    config_.allocator = &allocator_hooks_;
  }
  if (data && random.chance(0.4)) {
    executor_.workers = static_cast<int32_t>(random.range(1, 4));
    executor_hooks_ = executor_.hooks();
    config_.executor = &executor_hooks_;
  } else {
    config_.num_threads = data && random.chance(0.3) ? static_cast<int32_t>(random.range(2, 3)) : 1;
  }
}

RandomSetup::~RandomSetup() {
  destroy_cache();
  kvc_plan_destroy(plan_);
}

void RandomSetup::destroy_cache() {
  kvc_cache_destroy(cache_);
  cache_ = nullptr;
}

void RandomSetup::draw_layer(Random& random, NaiveLayer* naive, kvc_layer* layer, bool tiny) {
  naive->kv_heads = static_cast<int>(random.range(1, 3));
  naive->q_heads = naive->kv_heads * static_cast<int>(random.range(1, naive->kv_heads == 3 ? 2 : 3));
  naive->k_dim = tiny ? 2 : static_cast<int>(random.pick_of<int64_t>({16, 33, 80}));
  naive->v_dim =
      tiny || random.chance(0.6) ? naive->k_dim : static_cast<int>(random.pick_of<int64_t>({16, 33, 80}));
  naive->k_type = random.pick_of({Elem::kF32, Elem::kF16, Elem::kBF16});
  naive->v_type = random.chance(0.8) ? naive->k_type : random.pick_of({Elem::kF32, Elem::kF16, Elem::kBF16});
  layer->struct_size = sizeof *layer;
  layer->num_q_heads = naive->q_heads;
  layer->num_kv_heads = naive->kv_heads;
  layer->k_dim = naive->k_dim;
  layer->v_dim = naive->v_dim;
  layer->k_dtype = dl_type(naive->k_type);
  layer->v_dtype = dl_type(naive->v_type);
  if (!random.chance(0.6)) return;

  ropes_.push_back(std::make_unique<kvc_rope>());
  kvc_rope& rope = *ropes_.back();
  rope.struct_size = sizeof rope;
  rope.mode = KVC_ROPE_ON_APPEND;
  rope.style = random.chance(0.5) ? KVC_ROPE_HALF : KVC_ROPE_INTERLEAVED;
  const int even = naive->k_dim / 2 * 2;
  const bool whole = even == naive->k_dim && random.chance(0.5);
  rope.rotary_dim = whole ? 0 : static_cast<int32_t>(2 * random.range(1, even / 2));
  rope.theta = random.chance(0.5) ? 0 : 500000;
  rope.scale = random.chance(0.7) ? 0 : 0.25;
  naive->rope.interleaved = rope.style == KVC_ROPE_INTERLEAVED;
  naive->rope.rotary_dim = whole ? naive->k_dim : rope.rotary_dim;
  const int pairs = naive->rope.rotary_dim / 2;
  if (random.chance(0.4)) {
    factors_.push_back(std::make_unique<std::vector<float>>());
    for (int i = 0; i < pairs; ++i) factors_.back()->push_back(static_cast<float>(0.5 + 4 * random.unit()));
    rope.num_freq_factors = pairs;
    rope.freq_factors = factors_.back()->data();
  }
  for (int i = 0; i < pairs; ++i) {
    const double theta = rope.theta == 0 ? 10000.0 : rope.theta;
    const double scale = rope.scale == 0 ? 1.0 : rope.scale;
    const double factor = rope.freq_factors == nullptr ? 1.0 : static_cast<double>(rope.freq_factors[i]);
    naive->rope.inverse_frequency.push_back(scale * std::pow(theta, -2.0 * i / naive->rope.rotary_dim) /
                                            factor);
  }
  layer->rope = &rope;
}

void RandomSetup::draw_layers(Random& random, bool tiny) {
  const auto kept = static_cast<int32_t>(random.range(1, 3));
  const auto before = static_cast<int32_t>(random.chance(0.2) ? random.range(1, 2) : 0);
  const auto after = static_cast<int32_t>(random.chance(0.2) ? random.range(1, 2) : 0);
  for (int32_t i = 0; i < before + kept + after; ++i) {
    NaiveLayer naive;
    kvc_layer layer{};
    draw_layer(random, &naive, &layer, tiny);
    layers_.push_back(layer);
    if (i >= before && i < before + kept) naive_.push_back(naive);
  }
  config_.layers = layers_.data();
  config_.num_layers = static_cast<int32_t>(layers_.size());
  if (before + after > 0) {
    config_.layer_begin = before;
    config_.layer_end = before + kept;
  }
}

int64_t RandomSetup::page_bytes_of(size_t local) const {
  // Asked from a plan without pages, so that the alignment rules inside a page stay in one place.
  kvc_config config = config_;
  config.storage = KVC_STORAGE_NONE;
  config.num_pages = config.max_seq_len = 0;
  kvc_plan* plan = nullptr;
  if (kvc_plan_create(&config, &plan, nullptr) != KVC_OK) return 0;
  int64_t bytes = 0;
  if (config_.pool_layout == KVC_POOL_PAGE_FIRST) {
    kvc_plan_info info{};
    info.struct_size = sizeof info;
    (void)kvc_plan_info_get(plan, &info, nullptr);
    bytes = static_cast<int64_t>(info.page_bytes);
  } else {
    kvc_layer_info info{};
    info.struct_size = sizeof info;
    (void)kvc_plan_layer_get(plan, global_layer(local), &info, nullptr);
    bytes = static_cast<int64_t>(info.page_bytes);
  }
  kvc_plan_destroy(plan);
  return bytes;
}

void RandomSetup::borrow_pools(Random& random) {
  const size_t count = config_.pool_layout == KVC_POOL_PAGE_FIRST ? 1 : naive_.size();
  for (size_t i = 0; i < count; ++i) {
    pools_.push_back(std::make_unique<Pool>());
    Pool& pool = *pools_.back();
    pool.page_bytes = page_bytes_of(i);
    pool.stride = pool.page_bytes + (random.chance(0.5) ? 4 * random.range(1, 20) : 0);
    const int64_t offset = 4 * random.range(0, 5);
    pool.memory.assign(static_cast<size_t>(offset + pool.stride * limits_.num_pages), std::byte{0xFF});
    pool.shape[0] = limits_.num_pages;
    pool.shape[1] = pool.page_bytes;
    pool.strides[0] = pool.stride;
    pool.strides[1] = 1;
    pool.tensor = {.data = pool.memory.data(),
                   .device = {kDLCPU, 0},
                   .ndim = 2,
                   .dtype = {kDLUInt, 8, 1},
                   .shape = pool.shape,
                   .strides = pool.strides,
                   .byte_offset = static_cast<uint64_t>(offset)};
    pool_tensors_.push_back(&pool.tensor);
  }
  config_.pool_tensors = pool_tensors_.data();
  config_.num_pool_tensors = static_cast<int32_t>(count);
}

bool RandomSetup::pool_gaps_untouched() const {
  for (const std::unique_ptr<Pool>& pool : pools_) {
    const auto offset = static_cast<int64_t>(pool->tensor.byte_offset);
    const auto is_poison = [&](int64_t begin, int64_t end) {
      return std::all_of(pool->memory.begin() + begin, pool->memory.begin() + end,
                         [](std::byte b) { return b == std::byte{0xFF}; });
    };
    if (!is_poison(0, offset)) return false;
    for (int64_t page = 0; page < pool->shape[0]; ++page) {
      const int64_t begin = offset + page * pool->stride;
      if (!is_poison(begin + pool->page_bytes, begin + pool->stride)) return false;
    }
  }
  return true;
}

double RandomSetup::tolerance(const NaiveLayer& layer) const {
  return layer.k_type == Elem::kF32 && layer.v_type == Elem::kF32 ? 2e-6 : 1e-5;
}

bool RandomSetup::computes_in_bf16(const NaiveLayer& layer) const {
  const kvc_cpu_isa isa = config_.cpu_isa == KVC_CPU_ISA_AUTO ? best_isa_ : config_.cpu_isa;
  return isa == KVC_CPU_ISA_AVX512_BF16 && layer.k_type == Elem::kBF16 && layer.v_type == Elem::kBF16;
}

std::string RandomSetup::describe() const {
  std::string text =
      "pages " + std::to_string(limits_.num_pages) + " of " + std::to_string(limits_.page_size) +
      ", storage " + std::to_string(config_.storage) + (config_.allocator != nullptr ? " (allocator)" : "") +
      ", layout " + std::to_string(config_.pool_layout) + ", isa " + std::to_string(config_.cpu_isa) +
      ", threads " + std::to_string(config_.num_threads) +
      (config_.executor != nullptr ? " (executor)" : "") + ", limits " + std::to_string(limits_.max_seq_len) +
      "/" + std::to_string(limits_.max_seqs) + "/" + std::to_string(limits_.max_tokens);
  for (const NaiveLayer& layer : naive_) {
    text += "; layer " + std::to_string(layer.q_heads) + "/" + std::to_string(layer.kv_heads) + "x" +
            std::to_string(layer.k_dim) + ":" + std::to_string(layer.v_dim) + " " + name_of(layer.k_type) +
            "/" + name_of(layer.v_type) + " rope " + std::to_string(layer.rope.rotary_dim) +
            (layer.rope.interleaved ? "i" : "h");
  }
  return text;
}

}  // namespace kvc::test
