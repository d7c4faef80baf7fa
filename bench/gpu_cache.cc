#include "bench/gpu_cache.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>

#include "bench/fixture.h"

namespace kvc::bench {
namespace {

constexpr kvc_seq kFirstFiller = 1 << 20;
constexpr int64_t kMostFillers = 256;

kvc_error new_error() {
  kvc_error error{};
  error.struct_size = sizeof error;
  return error;
}

kvc_layer new_layer(kvc_layer_kind kind) {
  kvc_layer layer{};
  layer.struct_size = sizeof layer;
  layer.kind = kind;
  return layer;
}

}  // namespace

int64_t pages_for(const GpuShape& shape, int64_t tokens) {
  return (tokens + shape.page_size - 1) / shape.page_size;
}

GpuCache::GpuCache(const Gpu& gpu, const GpuShape& shape, int layers, int64_t num_pages)
    : gpu_(gpu), shape_(shape), layers_(layers) {
  kvc_rope rope{};
  rope.struct_size = sizeof rope;
  rope.mode = KVC_ROPE_ON_APPEND;
  const int64_t state_shape[3] = {shape.q_heads, shape.k_dim, shape.v_dim};
  kvc_state_spec state{};
  state.struct_size = sizeof state;
  state.ndim = 3;
  state.dtype = kF32;
  state.shape = state_shape;

  const bool has_states = shape.op == GpuOp::kLinear;
  kvc_layer layer = new_layer(shape.is_mla() ? KVC_LAYER_MLA : KVC_LAYER_ATTENTION);
  layer.num_q_heads = shape.q_heads;
  if (has_states) {
    layer = new_layer(KVC_LAYER_STATE);
    layer.states = &state;
    layer.num_states = 1;
  } else if (shape.is_mla()) {
    layer.latent_rank = shape.latent_rank;
    layer.latent_rope_dim = shape.latent_rope_dim;
    layer.k_dtype = kBf16;
    if (shape.op == GpuOp::kSelf) layer.k_dim = shape.k_dim, layer.v_dim = shape.v_dim;
  } else {
    layer.num_kv_heads = shape.kv_heads;
    layer.k_dim = shape.k_dim;
    layer.v_dim = shape.v_dim;
    layer.k_dtype = shape.fp8 ? kE4M3 : kBf16;
    layer.quant = shape.fp8 ? KVC_QUANT_PER_TENSOR : KVC_QUANT_NONE;
    layer.window = shape.window;
    if (shape.op == GpuOp::kAppend) layer.rope = &rope;
  }
  std::vector<kvc_layer> all(static_cast<size_t>(layers), layer);
  if (has_states) {
    all.push_back(new_layer(KVC_LAYER_ATTENTION));
    all.back().num_kv_heads = 1;
    all.back().k_dim = 16;
  }

  kvc_error error = new_error();
  kvc_config config{};
  check(kvc_config_init(&config, sizeof config), error);
  config.device = gpu.device();
  config.page_size = shape.page_size;
  config.num_layers = static_cast<int32_t>(all.size());
  config.layers = all.data();
  config.num_pages = num_pages;
  config.num_threads = 1;
  if (has_states) {
    config.state_stride = -1;
    config.num_state_slots = 2 * shape.batch + 2;
    make(config);
    return;
  }
  const int64_t page_bytes = shape.page_size * token_bytes(shape);
  const int64_t pool_shape[2] = {num_pages, page_bytes};
  std::vector<DLTensor> tensors(static_cast<size_t>(layers));
  std::vector<const DLTensor*> pointers;
  for (int i = 0; i < layers; ++i) {
    pool_.push_back(std::make_unique<GpuMemory>(gpu, num_pages * page_bytes));
    fill_random(gpu, *pool_.back(), shape.fp8 ? kE4M3 : kBf16, {}, static_cast<uint64_t>(100 + i));
    DLTensor& tensor = tensors[static_cast<size_t>(i)];
    tensor.data = pool_.back()->data();
    tensor.device = gpu.device();
    tensor.ndim = 2;
    tensor.dtype = {kDLUInt, 8, 1};
    tensor.shape = const_cast<int64_t*>(pool_shape);
    pointers.push_back(&tensor);
  }
  config.storage = KVC_STORAGE_BORROWED;
  config.pool_tensors = pointers.data();
  config.num_pool_tensors = layers;
  make(config);
}

void GpuCache::make(const kvc_config& config) {
  kvc_error error = new_error();
  kvc_plan* plan = nullptr;
  check(kvc_plan_create(&config, &plan, &error), error);
  const kvc_status status = kvc_cache_create(plan, &cache_, &error);
  kvc_plan_destroy(plan);
  check(status, error);
}

GpuCache::~GpuCache() {
  try {
    gpu_.synchronize();
  } catch (const std::exception&) {  // The device is lost: whatever comes next says so.
  }
  kvc_cache_destroy(cache_);
}

void GpuCache::add(kvc_seq seq) {
  kvc_error error = new_error();
  check(kvc_seq_add(cache_, seq, &error), error);
}

void GpuCache::remove(kvc_seq seq) {
  kvc_error error = new_error();
  check(kvc_seq_remove(cache_, seq, &error), error);
}

void GpuCache::fork(kvc_seq parent, kvc_seq child) {
  kvc_error error = new_error();
  check(kvc_seq_fork(cache_, parent, child, -1, &error), error);
}

kvc_forward* GpuCache::begin(const std::vector<kvc_seq>& seqs, const std::vector<int64_t>& lengths,
                             const std::vector<int32_t>& parents) {
  kvc_forward_desc desc{};
  desc.struct_size = sizeof desc;
  desc.stream = gpu_.stream();
  desc.num_seqs = seqs.size();
  desc.seqs = seqs.data();
  desc.append_lengths = lengths.data();
  desc.tree_parents = parents.empty() ? nullptr : parents.data();
  // The layer beside those with states has pages, and nothing is measured on it.
  desc.flags = shape_.op == GpuOp::kLinear ? KVC_FORWARD_PARTIAL : 0;
  kvc_forward* forward = nullptr;
  kvc_error error = new_error();
  check(kvc_forward_begin(cache_, &desc, &forward, &error), error);
  return forward;
}

void GpuCache::end(kvc_forward* forward) {
  kvc_error error = new_error();
  check(kvc_forward_end(forward, &error), error);
}

void GpuCache::abort(kvc_forward* forward) {
  kvc_error error = new_error();
  check(kvc_forward_abort(forward, &error), error);
}

kvc_stats GpuCache::stats() const {
  kvc_stats stats{};
  stats.struct_size = sizeof stats;
  kvc_error error = new_error();
  check(kvc_cache_stats_get(cache_, &stats, &error), error);
  return stats;
}

// Sequences that together hold every free page, each as many as the others or one less, largest
// first.
std::vector<kvc_seq> GpuCache::add_fillers() {
  const int64_t pages = kvc_cache_available_pages(cache_);
  const int64_t count = std::min(kMostFillers, pages);
  std::vector<kvc_seq> fillers;
  for (int64_t i = 0; i < count; ++i) {
    fillers.push_back(kFirstFiller + i);
    add(fillers.back());
    end(begin({fillers.back()},
              {(pages / count + (i < pages % count ? 1 : 0)) * shape_.page_size}));
  }
  return fillers;
}

void GpuCache::grow_shuffled(const std::vector<kvc_seq>& seqs,
                             const std::vector<int64_t>& lengths) {
  if (std::all_of(lengths.begin(), lengths.end(), [](int64_t length) { return length == 0; }))
    return;
  const std::vector<kvc_seq> fillers = shape_.window > 0 ? std::vector<kvc_seq>() : add_fillers();
  std::vector<kvc_seq> filler_of_page;  // One entry per page of a filler.
  for (const kvc_seq filler : fillers) {
    int64_t tokens = 0;
    kvc_error error = new_error();
    check(kvc_seq_length(cache_, filler, &tokens, &error), error);
    filler_of_page.insert(filler_of_page.end(), static_cast<size_t>(tokens / shape_.page_size),
                          filler);
  }
  std::shuffle(filler_of_page.begin(), filler_of_page.end(), random_);

  // A forward brings every sequence a page, in another order each time.
  std::vector<int64_t> missing = lengths;
  std::vector<size_t> order(seqs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  while (true) {
    std::shuffle(order.begin(), order.end(), random_);
    std::vector<kvc_seq> growing;
    std::vector<int64_t> parts;
    for (const size_t i : order) {
      if (missing[i] == 0) continue;
      growing.push_back(seqs[i]);
      parts.push_back(std::min<int64_t>(shape_.page_size, missing[i]));
      missing[i] -= parts.back();
    }
    if (growing.empty()) break;
    for (size_t i = 0; !fillers.empty() && i < growing.size(); ++i) {
      if (filler_of_page.empty())
        throw std::runtime_error("the pool has fewer pages than the sequences need");
      kvc_error error = new_error();
      check(kvc_seq_pop(cache_, filler_of_page.back(), shape_.page_size, &error), error);
      filler_of_page.pop_back();
    }
    end(begin(growing, parts));
  }
  for (const kvc_seq filler : fillers) remove(filler);
  gpu_.synchronize();
}

bool GpuCache::are_equal(int64_t page, int64_t other) const {
  const int64_t bytes = shape_.page_size * token_bytes(shape_);
  const PinnedMemory host(gpu_, 2 * bytes);
  gpu_.copy(host.data(), pool_[0]->data() + page * bytes, bytes);
  gpu_.copy(host.data() + bytes, pool_[0]->data() + other * bytes, bytes);
  gpu_.synchronize();
  return std::memcmp(host.data(), host.data() + bytes, static_cast<size_t>(bytes)) == 0;
}

double GpuCache::adjacent_share(kvc_forward* forward) const {
  DLManagedTensorVersioned* table = nullptr;
  kvc_error error = new_error();
  check(kvc_export_page_table(forward, 0, KVC_TABLE_INDICES, &table, &error), error);
  const DLTensor& tensor = table->dl_tensor;
  const auto* ids = static_cast<const int32_t*>(tensor.data);
  const double share = bench::adjacent_share(std::vector<int32_t>(ids, ids + tensor.shape[0]));
  table->deleter(table);
  return share;
}

}  // namespace kvc::bench
