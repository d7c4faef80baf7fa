#include "tools/demo/paged_store.h"

#include <algorithm>

namespace kvc::demo {
namespace {

constexpr DLDevice kCpu{kDLCPU, 0};

void require(kvc_status status, const kvc_error& error, const char* call) {
  if (status == KVC_OK) return;
  throw LibraryError(std::string(call) + ": " + kvc_status_name(status) + ": " + error.message);
}

// A packed float32 tensor [tokens][heads][dim] that borrows everything; tokens `stride` apart.
struct ActivationTensor {
  ActivationTensor(const float* data, int64_t tokens, int64_t heads, int64_t dim, int64_t stride)
      : shape{tokens, heads, dim}, strides{stride, dim, 1} {
    tensor.data = const_cast<float*>(data);  // DLPack has no const; inputs are only read
    tensor.device = kCpu;
    tensor.ndim = 3;
    tensor.dtype = {kDLFloat, 32, 1};
    tensor.shape = shape;
    tensor.strides = strides;
  }
  ActivationTensor(const ActivationTensor&) = delete;
  ActivationTensor& operator=(const ActivationTensor&) = delete;

  int64_t shape[3], strides[3];
  DLTensor tensor{};
};

}  // namespace

PagedStore::PagedStore(const llm::Shape& shape, const PagedOptions& options, llm::WorkerPool& pool)
    : shape_(shape),
      attention_flags_(options.batch_invariant ? uint64_t{KVC_ATTN_BATCH_INVARIANT} : 0) {
  const std::vector<kvc_layer> layers =
      llm::kv_layers(shape, options.dtype.type, options.dtype.quant, options.dtype.keep_tokens);
  const kvc_executor executor = pool.executor();
  kvc_config config;
  kvc_config_init(&config, sizeof(config));
  config.page_size = options.page_size;
  config.num_layers = static_cast<int32_t>(layers.size());
  config.layers = layers.data();
  config.byte_budget = options.byte_budget;
  config.cpu_isa = options.isa;
  config.executor = &executor;

  kvc_error error{};
  kvc_plan* plan = nullptr;
  require(kvc_plan_create(&config, &plan, &error), error, "kvc_plan_create");
  plan_.reset(plan);
  plan_info_.struct_size = sizeof(plan_info_);
  require(kvc_plan_info_get(plan, &plan_info_, &error), error, "kvc_plan_info_get");
  kvc_cache* cache = nullptr;
  require(kvc_cache_create(plan, &cache, &error), error, "kvc_cache_create");
  cache_.reset(cache);
}

bool PagedStore::add(int sequence) {
  kvc_error error{};
  require(kvc_seq_add(cache_.get(), sequence, &error), error, "kvc_seq_add");
  return true;
}

void PagedStore::fork(int parent, int child, int64_t length) {
  kvc_error error{};
  require(kvc_seq_fork(cache_.get(), parent, child, length, &error), error, "kvc_seq_fork");
}

void PagedStore::remove(int sequence) {
  kvc_error error{};
  require(kvc_seq_remove(cache_.get(), sequence, &error), error, "kvc_seq_remove");
}

bool PagedStore::begin(std::span<const BatchItem> batch) {
  std::vector<kvc_seq> sequences;
  std::vector<int64_t> lengths;
  for (const BatchItem& item : batch) {
    sequences.push_back(item.sequence);
    lengths.push_back(item.count);
  }
  kvc_forward_desc desc{};
  desc.struct_size = sizeof(desc);
  desc.num_seqs = sequences.size();
  desc.seqs = sequences.data();
  desc.append_lengths = lengths.data();
  kvc_error error{};
  const kvc_status status = kvc_forward_begin(cache_.get(), &desc, &forward_, &error);
  if (status == KVC_E_NO_PAGES) return false;
  require(status, error, "kvc_forward_begin");
  return true;
}

void PagedStore::attend(int32_t layer, const float* qkv, int64_t stride, float* out) {
  const int64_t tokens = kvc_forward_num_tokens(forward_);
  const ActivationTensor in(qkv, tokens, shape_.q_heads + 2 * shape_.kv_heads, shape_.head_dim,
                            stride);
  ActivationTensor result(out, tokens, shape_.q_heads, shape_.head_dim, shape_.q_width());
  kvc_attn_opt options{};
  options.struct_size = sizeof(options);
  options.flags = attention_flags_;
  options.scale = static_cast<float>(shape_.attention_scale);
  kvc_error error{};
  require(kvc_attn_fused_qkv(forward_, layer, &options, &in.tensor, &result.tensor, &error), error,
          "kvc_attn_fused_qkv");
}

void PagedStore::end() {
  kvc_error error{};
  require(kvc_forward_end(forward_, &error), error, "kvc_forward_end");
  forward_ = nullptr;
}

uint64_t PagedStore::save(int sequence, const std::string& path) const {
  kvc_save_desc desc{};
  desc.struct_size = sizeof(desc);
  desc.path = path.c_str();
  const kvc_seq id = sequence;
  uint64_t bytes = 0;
  kvc_error error{};
  require(kvc_seq_save(cache_.get(), 1, &id, &desc, nullptr, &bytes, &error), error,
          "kvc_seq_save");
  return bytes;
}

void PagedStore::load(int sequence, const std::string& path, int64_t length) {
  kvc_load_desc desc{};
  desc.struct_size = sizeof(desc);
  desc.path = path.c_str();
  const kvc_seq id = sequence;
  kvc_error error{};
  require(kvc_seq_load(cache_.get(), &desc, 1, &id, nullptr, &error), error, "kvc_seq_load");
  int64_t loaded = 0;
  require(kvc_seq_length(cache_.get(), id, &loaded, &error), error, "kvc_seq_length");
  if (loaded != length)
    throw LibraryError(path + " holds another prompt: " + std::to_string(loaded) + " tokens");
}

kvc_stats PagedStore::stats() const {
  kvc_stats stats{};
  stats.struct_size = sizeof(stats);
  kvc_error error{};
  require(kvc_cache_stats_get(cache_.get(), &stats, &error), error, "kvc_cache_stats_get");
  return stats;
}

void PagedStore::check() const {
  kvc_error error{};
  require(kvc_cache_check(cache_.get(), &error), error, "kvc_cache_check");
}

kvc_group_info PagedStore::group(int32_t index) const {
  kvc_group_info info{};
  info.struct_size = sizeof(info);
  kvc_error error{};
  require(kvc_plan_group_get(plan_.get(), index, &info, &error), error, "kvc_plan_group_get");
  return info;
}

int64_t PagedStore::own_pages(int64_t tokens, int64_t shared) const {
  int64_t pages = 0;
  for (int32_t g = 0; g < plan_info_.num_groups; ++g) {
    const kvc_group_info info = group(g);
    const auto pages_of = [&](int64_t count) {
      return (count + info.page_size - 1) / info.page_size;
    };
    const int64_t whole = pages_of(tokens);
    pages += info.window > 0 ? std::min(whole, pages_of(info.window) + 1)
                             : whole - shared / info.page_size;
  }
  return pages;
}

MemoryUse PagedStore::memory() const {
  MemoryUse use;
  use.reserved_bytes = static_cast<uint64_t>(stats().pages_used) * plan_info_.page_bytes;
  for (const PageUse& page : pages()) use.used_bytes += page.filled_bytes;
  return use;
}

std::vector<PageUse> PagedStore::pages() const {
  std::vector<PageUse> pages(static_cast<size_t>(plan_info_.num_pages));
  kvc_error error{};
  size_t count = 0;
  require(kvc_seq_list(cache_.get(), nullptr, &count, &error), error, "kvc_seq_list");
  std::vector<kvc_seq> sequences(count);
  require(kvc_seq_list(cache_.get(), sequences.data(), &count, &error), error, "kvc_seq_list");
  for (const kvc_seq sequence : sequences) {
    for (int32_t g = 0; g < plan_info_.num_groups; ++g) add_pages(sequence, g, pages);
  }
  return pages;
}

void PagedStore::add_pages(kvc_seq sequence, int32_t index, std::vector<PageUse>& pages) const {
  const kvc_group_info info = group(index);
  kvc_error error{};
  int64_t length = 0;
  require(kvc_seq_length(cache_.get(), sequence, &length, &error), error, "kvc_seq_length");
  DLManagedTensorVersioned* table = nullptr;
  require(kvc_export_seq_pages(cache_.get(), sequence, index, &table, &error), error,
          "kvc_export_seq_pages");
  const auto* ids = reinterpret_cast<const int32_t*>(
      static_cast<const char*>(table->dl_tensor.data) + table->dl_tensor.byte_offset);
  const int64_t count = table->dl_tensor.shape[0];
  // The last page holds what is left of the length, those before it are full.
  const int64_t last = length - (length - 1) / info.page_size * info.page_size;
  for (int64_t i = 0; i < count; ++i) {
    PageUse& page = pages[static_cast<size_t>(ids[i])];
    if (page.refs++ == 0) page.first_sequence = static_cast<int>(sequence);
    const auto filled = static_cast<uint64_t>(i + 1 < count ? info.page_size : last);
    page.filled_bytes = std::max(page.filled_bytes, filled * info.bytes_per_token);
  }
  table->deleter(table);
}

}  // namespace kvc::demo
