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
  hooks.parallel_for = [](void* user, int64_t num_tasks, void (*fn)(void*, int64_t, int32_t),
                          void* arg) {
    const int32_t threads = static_cast<BackwardsExecutor*>(user)->workers;
    for (int64_t task = num_tasks; task-- > 0;) fn(arg, task, static_cast<int32_t>(task % threads));
  };
  return hooks;
}

kvc_allocator PoisonAllocator::hooks() {
  kvc_allocator hooks{};
  hooks.struct_size = sizeof hooks;
  hooks.user = this;
  hooks.alloc = [](void* user, DLDevice where, uint64_t bytes, uint64_t alignment) -> void* {
    if (should_fail()) return nullptr;
    void* memory = poisoned_alloc(nullptr, where, bytes, alignment);
    if (memory == nullptr) return nullptr;
    ++static_cast<PoisonAllocator*>(user)->live;
    return memory;
  };
  hooks.free = [](void* user, DLDevice where, void* memory, uint64_t bytes) {
    --static_cast<PoisonAllocator*>(user)->live;
    poisoned_free(nullptr, where, memory, bytes);
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
  config_.device = device();
  const std::vector<kvc_cpu_isa> isas = available_isas();
  best_isa_ = isas.empty() ? KVC_CPU_ISA_AUTO : isas.back();
  const bool data = kind == RunKind::kData || (kind == RunKind::kFailures && random.chance(0.6));
  config_.page_size = static_cast<int32_t>(random.pick_of<int64_t>({1, 3, 16, 48}));
  if (random.chance(0.2)) config_.flags |= KVC_CONFIG_PAD_PAGES;
  // Long sequences, cut into several splits by decode kernels, with little else to keep the oracle
  // quick.
  const bool long_context = kind == RunKind::kData && random.chance(0.08);
  const Family family =
      random.pick_of({Family::kPlain, Family::kPlain, Family::kWindows, Family::kWindows,
                      Family::kMla, Family::kCross, Family::kState, Family::kHybrid});
  layers_.draw(random, family, config_.page_size, !data || long_context);
  config_.layers = layers_.specs().data();
  config_.num_layers = static_cast<int32_t>(layers_.specs().size());
  if (layers_.begin() > 0 || layers_.end() < config_.num_layers) {
    config_.layer_begin = layers_.begin();
    config_.layer_end = layers_.end();
  }
  for (size_t i = 0; i < layers_.naive().size(); ++i) {
    const kvc_rope* rope = layers_.specs()[static_cast<size_t>(layers_.begin()) + i].rope;
    if (rope != nullptr)
      num_sections_ = std::max(num_sections_, static_cast<int>(rope->num_sections));
  }
  draw_limits(random, data, long_context);
  config_.pool_layout = random.chance(0.5) ? KVC_POOL_LAYER_FIRST : KVC_POOL_PAGE_FIRST;
  config_.cpu_isa = isas.empty() || random.chance(0.2) ? KVC_CPU_ISA_AUTO : random.pick(isas);
  config_.storage = KVC_STORAGE_NONE;
  ask_plan(random);

  if (data && !region_bytes_.empty() && random.chance(0.4) && !layers_.has_kept()) {
    config_.storage = KVC_STORAGE_BORROWED;
    borrow_pools(random);
  } else if (data) {
    config_.storage = KVC_STORAGE_OWNED;
    allocator_hooks_ = allocator_.hooks();
    if (random.chance(0.75)) config_.allocator = &allocator_hooks_;
  }
  if (data && random.chance(0.4)) {
    executor_.workers = static_cast<int32_t>(random.range(1, 4));
    executor_hooks_ = executor_.hooks();
    config_.executor = &executor_hooks_;
  } else {
    config_.num_threads = data && random.chance(0.3) ? static_cast<int32_t>(random.range(2, 3)) : 1;
  }
  if (is_on_gpu() && data) {  // which has none of these
    config_.cpu_isa = KVC_CPU_ISA_AUTO;
    config_.executor = nullptr;
    config_.num_threads = 0;
  }
}

void RandomSetup::draw_limits(Random& random, bool data, bool long_context) {
  limits_.page_size = config_.page_size;
  limits_.num_pages = data                 ? random.range(1, 1 + 400 / config_.page_size)
                      : random.chance(0.2) ? random.range(1, 200)
                                           : random.range(1, 40);
  limits_.num_pages = std::min<int64_t>(limits_.num_pages, data ? 60 : 200);
  if (long_context) limits_.num_pages = 1 + 3000 / config_.page_size;
  if (random.chance(0.3))
    limits_.max_seq_len = random.range(1, limits_.num_pages * config_.page_size);
  if (random.chance(0.2)) limits_.max_seqs = random.range(1, 5);
  if (random.chance(0.2)) limits_.max_tokens = random.range(1, 3 * config_.page_size);
  for (const NaiveLayer& layer : layers_.naive()) {
    limits_.has_attention |= layer.has_tokens();
    limits_.has_window |= layer.has_tokens() && layer.window != 0;
    limits_.has_chunk |= layer.has_tokens() && layer.chunk != 0;
    limits_.has_cross |= layer.kind == KVC_LAYER_CROSS;
    limits_.has_states |= layer.kind == KVC_LAYER_STATE;
  }
  if (limits_.has_cross && random.chance(0.5))
    limits_.max_cross_len = random.range(1, 2 * config_.page_size);
  if (limits_.has_states && random.chance(0.5))
    config_.state_stride = random.chance(0.3) ? -1 : config_.page_size * random.range(1, 3);
  limits_.state_stride = config_.state_stride == 0 ? config_.page_size : config_.state_stride;
  if (limits_.has_states && random.chance(0.3))
    limits_.num_state_slots = random.range(2, random.chance(0.5) ? 6 : 25);
  config_.num_state_slots = limits_.num_state_slots;
  config_.max_cross_len = limits_.max_cross_len;
  config_.num_pages = limits_.num_pages;
  config_.max_seqs = static_cast<int32_t>(limits_.max_seqs);
  config_.max_tokens_per_forward = limits_.max_tokens;
  if (random.chance(0.5)) config_.forwards_in_flight = static_cast<int32_t>(random.range(1, 3));
  limits_.window_reserve = config_.forwards_in_flight * limits_.max_tokens;
}

void RandomSetup::ask_plan(Random& random) {
  kvc_plan* plan = nullptr;
  kvc_error error{};
  const int64_t wanted = limits_.max_seq_len;
  config_.max_seq_len = wanted;
  kvc_status status = kvc_plan_create(&config_, &plan, &error);
  if (status == KVC_E_NEVER_FITS && wanted != 0) {
    limits_.max_seq_len = error.detail < 1 ? 0 : random.range(1, error.detail);
    config_.max_seq_len = limits_.max_seq_len;
    status = kvc_plan_create(&config_, &plan, &error);
  }
  // Some models need more pages than were drawn for a single token.
  while (status == KVC_E_NEVER_FITS && limits_.num_pages < 4000) {
    config_.num_pages = limits_.num_pages = 2 * limits_.num_pages;
    status = kvc_plan_create(&config_, &plan, &error);
  }
  settle_ropes();
  if (status != KVC_OK) return;  // the run's own plan fails in the same way
  kvc_plan_info info{};
  info.struct_size = sizeof info;
  (void)kvc_plan_info_get(plan, &info, nullptr);
  page_bytes_ = static_cast<int64_t>(info.page_bytes);
  region_bytes_.assign(static_cast<size_t>(info.num_layer_regions), 0);
  for (int32_t g = 0; g < info.num_groups; ++g) {
    kvc_group_info group{};
    group.struct_size = sizeof group;
    (void)kvc_plan_group_get(plan, g, &group, nullptr);
    // Groups are those of the whole model, whatever the slice.
    limits_.has_cross |= group.is_cross != 0;
    limits_.has_attention |= group.is_cross == 0;
    limits_.has_window |= group.window != 0;
    limits_.has_chunk |= group.chunk != 0;
    limits_.groups.push_back({group.page_size, group.window, group.chunk, group.is_cross != 0,
                              false, false, group.keep_tokens});
  }
  for (size_t i = 0; i < layers_.naive().size(); ++i) {
    NaiveLayer& layer = layers_.naive()[i];
    kvc_layer_info layer_info{};
    layer_info.struct_size = sizeof layer_info;
    (void)kvc_plan_layer_get(plan, global_layer(i), &layer_info, nullptr);
    layer.group = layer_info.group;
    if (!layer.has_pages() || layer.group < 0) continue;
    const auto group = static_cast<size_t>(layer.group);
    limits_.groups.at(group).has_attention |= layer.kind == KVC_LAYER_ATTENTION;
    limits_.groups.at(group).has_mla |= layer.kind == KVC_LAYER_MLA;
    region_bytes_.at(static_cast<size_t>(layer_info.region)) =
        static_cast<int64_t>(layer_info.region_bytes);
    if (layer_info.kept_group < 0) continue;
    layer.kept_group = layer_info.kept_group;
    const auto kept = static_cast<size_t>(layer.kept_group);
    limits_.groups.at(kept).has_attention |= layer.kind == KVC_LAYER_ATTENTION;
    limits_.groups.at(kept).has_mla |= layer.kind == KVC_LAYER_MLA;
  }
  kvc_plan_destroy(plan);
}

// LongRoPE in caches whose sequences never get past its context is stored as it was asked for.
void RandomSetup::settle_ropes() {
  for (NaiveLayer& layer : layers_.naive()) {
    NaiveRope& rope = layer.rope;
    if (rope.original_context != 0 && limits_.max_seq_len != 0 &&
        limits_.max_seq_len <= rope.original_context)
      rope.original_context = 0, rope.mode = rope.asked_mode;
    limits_.has_on_read |= layer.has_tokens() && rope.mode == KVC_ROPE_ON_READ;
  }
}

int64_t RandomSetup::longest_pages() const {
  int64_t pages = 0;
  if (config_.max_seq_len != 0)
    (void)kvc_plan_request_pages(plan_, config_.max_seq_len, &pages, nullptr);
  return pages;
}

RandomSetup::~RandomSetup() {
  destroy_cache();
  kvc_plan_destroy(plan_);
}

void RandomSetup::destroy_cache() {
  kvc_cache_destroy(cache_);
  cache_ = nullptr;
}

void RandomSetup::borrow_pools(Random& random) {
  const bool page_first = config_.pool_layout == KVC_POOL_PAGE_FIRST;
  const size_t count = page_first ? 1 : region_bytes_.size();
  for (size_t i = 0; i < count; ++i) {
    pools_.push_back(std::make_unique<Pool>());
    Pool& pool = *pools_.back();
    pool.page_bytes = page_first ? page_bytes_ : region_bytes_[i];
    pool.stride = pool.page_bytes + (random.chance(0.5) ? 4 * random.range(1, 20) : 0);
    const int64_t offset = 4 * random.range(0, 5);
    pool.memory.assign(static_cast<size_t>(offset + pool.stride * limits_.num_pages),
                       std::byte{0xFF});
    pool.shape[0] = limits_.num_pages;
    pool.shape[1] = pool.page_bytes;
    pool.strides[0] = pool.stride;
    pool.strides[1] = 1;
    pool.tensor = {.data = pool.memory.data(),
                   .device = device(),
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

std::byte* RandomSetup::scale_at(size_t local_layer, kvc_pool_kind half, int64_t page, int64_t head,
                                 int64_t offset) const {
  kvc_layer_info info{};
  info.struct_size = sizeof info;
  (void)kvc_plan_layer_get(plan_, global_layer(local_layer), &info, nullptr);
  DLManagedTensorVersioned* exported = nullptr;
  (void)kvc_export_pool(cache_, global_layer(local_layer), KVC_POOL_BYTES, &exported, nullptr);
  const DLTensor& bytes = exported->dl_tensor;
  const auto bytes_of = [](DLDataType type) { return int64_t{type.bits} / 8; };
  const auto up_to = [](int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; };
  const int64_t codes = up_to(static_cast<int64_t>(info.k_page_bytes), bytes_of(info.v_dtype)) +
                        static_cast<int64_t>(info.v_page_bytes);
  const int64_t behind_k = half == KVC_POOL_K ? 0 : static_cast<int64_t>(info.k_scale_bytes);
  std::byte* at = static_cast<std::byte*>(bytes.data) + bytes.byte_offset +
                  page * bytes.strides[0] + up_to(codes, 4) + behind_k +
                  (head * info.page_size + offset) * 4;
  exported->deleter(exported);
  return at;
}

double RandomSetup::tolerance(const NaiveLayer& layer) const {
  return layer.k_type == Elem::kF32 && layer.v_type == Elem::kF32 ? 2e-6 : 1e-5;
}

double RandomSetup::half_rounding(const NaiveLayer& layer) const {
  const auto is_short = [](const NaiveStorage& storage) {
    return storage.code != Code::kNone || storage.elem == Elem::kBF16;
  };
  const bool is_bf16 = is_short(layer.k_storage()) && is_short(layer.v_storage());
  if (is_on_gpu())
    return is_bf16 ? 1 : layer.k_type == Elem::kF16 && layer.v_type == Elem::kF16 ? 0.125 : 0;
  const kvc_cpu_isa isa = config_.cpu_isa == KVC_CPU_ISA_AUTO ? best_isa_ : config_.cpu_isa;
  if (isa == KVC_CPU_ISA_AVX512_BF16 && is_bf16) return 1;
  // Words of 16 bits.
  const bool may_be_words = layer.k_code != Code::kNone && layer.v_code != Code::kNone;
  return may_be_words && isa >= KVC_CPU_ISA_SCALAR ? 1.0 / 64 : 0;
}

std::string RandomSetup::describe() const {
  return "pages " + std::to_string(limits_.num_pages) + " of " + std::to_string(limits_.page_size) +
         ", storage " + std::to_string(config_.storage) +
         (config_.allocator != nullptr ? " (allocator)" : "") + ", layout " +
         std::to_string(config_.pool_layout) + ", isa " + std::to_string(config_.cpu_isa) +
         ", threads " + std::to_string(config_.num_threads) +
         (config_.executor != nullptr ? " (executor)" : "") + ", limits " +
         std::to_string(limits_.max_seq_len) + "/" + std::to_string(limits_.max_seqs) + "/" +
         std::to_string(limits_.max_tokens) + "/" + std::to_string(limits_.max_cross_len) +
         ", state stride " + std::to_string(config_.state_stride) + " slots " +
         std::to_string(config_.num_state_slots) + ", groups " +
         std::to_string(limits_.groups.size()) + layers_.describe();
}

}  // namespace kvc::test
