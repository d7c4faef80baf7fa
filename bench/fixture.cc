#include "bench/fixture.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>
#include <thread>

namespace kvc::bench {
namespace {

struct IsaName {
  const char* name;
  kvc_cpu_isa isa;
};
constexpr IsaName kIsaNames[] = {
    {"auto", KVC_CPU_ISA_AUTO},     {"reference", KVC_CPU_ISA_REFERENCE},
    {"scalar", KVC_CPU_ISA_SCALAR}, {"avx2", KVC_CPU_ISA_AVX2},
    {"avx512", KVC_CPU_ISA_AVX512}, {"avx512bf16", KVC_CPU_ISA_AVX512_BF16},
};

kvc_error new_error() {
  kvc_error error{};
  error.struct_size = sizeof error;
  return error;
}

kvc_device_caps machine() {
  kvc_device_caps caps{};
  caps.struct_size = sizeof caps;
  kvc_error error = new_error();
  check(kvc_device_query(DLDevice{kDLCPU, 0}, &caps, &error), error);
  return caps;
}

// Bit patterns of normal numbers with an exponent of -2 or -1, a random sign and a random mantissa.
void fill_random(std::byte* data, int64_t elements, Storage storage, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (int64_t i = 0; i < elements; ++i) {
    const auto bits = static_cast<uint32_t>(random() >> 32);
    if (storage == Storage::kF32) {
      const uint32_t value = (bits & 0x80ffffffu) | (125u << 23);
      std::memcpy(data + 4 * i, &value, sizeof value);
    } else {
      const uint32_t pattern = storage == Storage::kF16 ? (bits & 0x87ffu) | (13u << 10)
                                                        : (bits & 0x80ffu) | (125u << 7);
      const auto value = static_cast<uint16_t>(pattern);
      std::memcpy(data + 2 * i, &value, sizeof value);
    }
  }
}

}  // namespace

Storage storage_named(const std::string& name) {
  if (name == "fp32") return Storage::kF32;
  if (name == "fp16") return Storage::kF16;
  if (name == "bf16") return Storage::kBF16;
  if (name == "int8") return Storage::kInt8;
  if (name == "fp8") return Storage::kFp8;
  throw std::runtime_error("unknown dtype " + name);
}

int64_t storage_bytes(Storage storage) {
  return storage == Storage::kF32 ? 4 : is_quantised(storage) ? 1 : 2;
}

DLDataType dl_type(Storage storage) {
  switch (storage) {
    case Storage::kF32: return {kDLFloat, 32, 1};
    case Storage::kF16: return {kDLFloat, 16, 1};
    case Storage::kInt8: return {kDLInt, 8, 1};
    case Storage::kFp8: return {kDLFloat8_e4m3fn, 8, 1};
    case Storage::kBF16: break;
  }
  return {kDLBfloat, 16, 1};
}

kvc_cpu_isa isa_named(const std::string& name) {
  for (const IsaName& entry : kIsaNames) {
    if (name == entry.name) return entry.isa;
  }
  throw std::runtime_error("unknown instruction set " + name);
}

const char* isa_name(kvc_cpu_isa isa) {
  for (const IsaName& entry : kIsaNames) {
    if (isa == entry.isa) return entry.name;
  }
  return "unknown";
}

kvc_cpu_isa resolve_isa(kvc_cpu_isa isa) { return isa == KVC_CPU_ISA_AUTO ? machine().arch : isa; }

int machine_threads() { return std::max(1, machine().num_cores); }

Arithmetic bounding_arithmetic(kvc_cpu_isa isa, Storage storage) {
  switch (resolve_isa(isa)) {
    case KVC_CPU_ISA_AVX512_BF16:
      return storage == Storage::kBF16 || is_quantised(storage) ? Arithmetic::kAvx512Bf16
                                                                : Arithmetic::kAvx512;
    case KVC_CPU_ISA_AVX512: return Arithmetic::kAvx512;
    case KVC_CPU_ISA_AVX2: return Arithmetic::kAvx2;
    default: return Arithmetic::kScalar;
  }
}

void check(kvc_status status, const kvc_error& error) {
  if (status != KVC_OK)
    throw std::runtime_error(std::string(kvc_status_name(status)) + ": " + error.message);
}

Activations::Activations(Storage storage, int64_t tokens, int heads, int dim, uint64_t seed)
    : storage_(is_quantised(storage) ? Storage::kBF16 : storage),
      buffer_(static_cast<size_t>(tokens * heads * dim * storage_bytes(storage_))),
      shape_{tokens, heads, dim},
      tensor_{} {
  fill_random(buffer_.data(), tokens * heads * dim, storage_, seed);
  tensor_.data = buffer_.data();
  tensor_.device = {kDLCPU, 0};
  tensor_.ndim = 3;
  tensor_.dtype = dl_type(storage_);
  tensor_.shape = shape_;
}

DLTensor* Activations::rows(int64_t tokens) {
  shape_[0] = tokens;
  return &tensor_;
}

double Activations::element(int64_t index) const {
  if (storage_ == Storage::kF32) {
    float value;
    std::memcpy(&value, buffer_.data() + 4 * index, sizeof value);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, buffer_.data() + 2 * index, sizeof bits);
  if (storage_ == Storage::kBF16) {
    const uint32_t wide = uint32_t{bits} << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
  }
  // float16: sign, 5 bits of exponent, 10 of mantissa; infinities and NaN come out large, which is
  // as good as wrong.
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double size =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits & 0x8000) != 0 ? -size : size;
}

double Activations::difference(const Activations& other) const {
  double largest = 0;
  for (int64_t i = 0; i < shape_[0] * shape_[1] * shape_[2]; ++i) {
    const double difference = std::abs(element(i) - other.element(i));
    if (!(difference <= largest)) largest = difference;  // NaN is kept.
    if (std::isnan(largest)) break;
  }
  return largest;
}

Cache::Cache(const CacheShape& shape) : shape_(shape) {
  kvc_rope rope{};
  rope.struct_size = sizeof rope;
  rope.mode = KVC_ROPE_ON_APPEND;
  kvc_layer layer{};
  layer.struct_size = sizeof layer;
  layer.num_q_heads = shape.q_heads;
  if (shape.latent_rank > 0) {
    layer.kind = KVC_LAYER_MLA;
    layer.latent_rank = shape.latent_rank;
    layer.latent_rope_dim = shape.latent_rope_dim;
  } else {
    layer.num_kv_heads = shape.kv_heads;
    layer.k_dim = shape.head_dim;
  }
  layer.k_dtype = dl_type(shape.storage);
  layer.quant = is_quantised(shape.storage) ? KVC_QUANT_PER_TOKEN_HEAD : KVC_QUANT_NONE;
  layer.rope = shape.rope ? &rope : nullptr;
  layer.window = shape.window;
  std::vector<kvc_layer> layers(static_cast<size_t>(shape.layers), layer);
  for (size_t i = 0; !shape.windows.empty() && i < layers.size(); ++i)
    layers[i].window = shape.windows[i % shape.windows.size()];

  kvc_config config{};
  kvc_error error = new_error();
  check(kvc_config_init(&config, sizeof config), error);
  config.flags = shape.clear_pages ? KVC_CONFIG_CLEAR_PAGES : 0;
  config.page_size = shape.page_size;
  config.num_layers = shape.layers;
  config.layers = layers.data();
  config.num_pages = shape.num_pages;
  config.host_byte_budget =
      static_cast<uint64_t>(shape.num_host_pages * shape.layers * shape.page_layer_bytes());
  config.pool_layout = shape.page_first ? KVC_POOL_PAGE_FIRST : KVC_POOL_LAYER_FIRST;
  config.num_threads = shape.threads;
  config.cpu_isa = shape.isa;
  config.storage = shape.tensor_memory ? KVC_STORAGE_OWNED : KVC_STORAGE_NONE;
  kvc_plan* plan = nullptr;
  check(kvc_plan_create(&config, &plan, &error), error);
  kvc_plan_info info{};
  info.struct_size = sizeof info;
  kvc_status status = kvc_plan_info_get(plan, &info, &error);
  if (status == KVC_OK) status = kvc_cache_create(plan, &cache_, &error);
  kvc_plan_destroy(plan);
  check(status, error);
  num_groups_ = info.num_groups;
}

Cache::~Cache() { kvc_cache_destroy(cache_); }

void Cache::add(kvc_seq seq) {
  kvc_error error = new_error();
  check(kvc_seq_add(cache_, seq, &error), error);
}

void Cache::remove(kvc_seq seq) {
  kvc_error error = new_error();
  check(kvc_seq_remove(cache_, seq, &error), error);
}

void Cache::fork(kvc_seq parent, kvc_seq child) {
  kvc_error error = new_error();
  check(kvc_seq_fork(cache_, parent, child, -1, &error), error);
}

void Cache::pop(kvc_seq seq, int64_t tokens) {
  kvc_error error = new_error();
  check(kvc_seq_pop(cache_, seq, tokens, &error), error);
}

kvc_forward* Cache::begin(const std::vector<kvc_seq>& seqs, const std::vector<int64_t>& lengths,
                          uint64_t flags) {
  kvc_forward_desc desc{};
  desc.struct_size = sizeof desc;
  desc.num_seqs = seqs.size();
  desc.seqs = seqs.data();
  desc.append_lengths = lengths.data();
  desc.flags = flags;
  kvc_forward* forward = nullptr;
  kvc_error error = new_error();
  check(kvc_forward_begin(cache_, &desc, &forward, &error), error);
  return forward;
}

kvc_forward* Cache::begin_tree(kvc_seq seq, const std::vector<int32_t>& parents) {
  const auto num_nodes = static_cast<int64_t>(parents.size());
  kvc_forward_desc desc{};
  desc.struct_size = sizeof desc;
  desc.num_seqs = 1;
  desc.seqs = &seq;
  desc.append_lengths = &num_nodes;
  desc.tree_parents = parents.data();
  kvc_forward* forward = nullptr;
  kvc_error error = new_error();
  check(kvc_forward_begin(cache_, &desc, &forward, &error), error);
  return forward;
}

void Cache::commit_tree(kvc_seq seq, int32_t leaf) {
  kvc_error error = new_error();
  check(kvc_tree_commit(cache_, 1, &seq, &leaf, nullptr, &error), error);
}

void Cache::end(kvc_forward* forward) {
  kvc_error error = new_error();
  check(kvc_forward_end(forward, &error), error);
}

void Cache::abort(kvc_forward* forward) {
  kvc_error error = new_error();
  check(kvc_forward_abort(forward, &error), error);
}

void Cache::attend(kvc_forward* forward, int layer, DLTensor* q, DLTensor* k, DLTensor* v,
                   DLTensor* out, uint32_t flags) {
  kvc_attn_opt opt{};
  opt.struct_size = sizeof opt;
  opt.flags = flags;
  kvc_error error = new_error();
  check(kvc_attn(forward, layer, flags == 0 ? nullptr : &opt, q, k, v, out, nullptr, &error),
        error);
}

void Cache::append_kv(kvc_forward* forward, int layer, DLTensor* k, DLTensor* v) {
  kvc_error error = new_error();
  check(kvc_kv_append(forward, layer, k, v, &error), error);
}

void Cache::attend_latents(kvc_forward* forward, int layer, DLTensor* q, DLTensor* latents,
                           DLTensor* out) {
  kvc_attn_opt opt{};
  opt.struct_size = sizeof opt;
  opt.scale = 1.0f / std::sqrt(static_cast<float>(shape_.latent_dim()));
  kvc_error error = new_error();
  check(kvc_attn(forward, layer, &opt, q, latents, nullptr, out, nullptr, &error), error);
}

void Cache::append_latents(kvc_forward* forward, int layer, DLTensor* latents) {
  kvc_error error = new_error();
  check(kvc_mla_append(forward, layer, latents, &error), error);
}

kvc_stats Cache::stats() const {
  kvc_stats stats{};
  stats.struct_size = sizeof stats;
  kvc_error error = new_error();
  check(kvc_cache_stats_get(cache_, &stats, &error), error);
  return stats;
}

std::vector<int32_t> page_ids_of(kvc_forward* forward) {
  DLManagedTensorVersioned* table = nullptr;
  kvc_error error = new_error();
  check(kvc_export_page_table(forward, 0, KVC_TABLE_INDICES, &table, &error), error);
  const DLTensor& tensor = table->dl_tensor;
  const auto* ids = reinterpret_cast<const int32_t*>(static_cast<const std::byte*>(tensor.data) +
                                                     tensor.byte_offset);
  const std::vector<int32_t> copy(ids, ids + tensor.shape[0]);
  table->deleter(table);
  return copy;
}

std::vector<const std::byte*> page_addresses(const Cache& cache, int layer,
                                             const std::vector<int32_t>& page_ids) {
  DLManagedTensorVersioned* pool = nullptr;
  kvc_error error = new_error();
  check(kvc_export_pool(cache.get(), layer, KVC_POOL_BYTES, &pool, &error), error);
  const DLTensor& tensor = pool->dl_tensor;
  const std::byte* base = static_cast<const std::byte*>(tensor.data) + tensor.byte_offset;
  const int64_t stride = tensor.strides == nullptr ? tensor.shape[1] : tensor.strides[0];
  std::vector<const std::byte*> addresses;
  addresses.reserve(page_ids.size());
  for (const int32_t page : page_ids) addresses.push_back(base + page * stride);
  pool->deleter(pool);  // The cache lives on and with it the memory.
  return addresses;
}

double adjacent_share(const std::vector<int32_t>& page_ids) {
  if (page_ids.size() < 2) return 1;
  int64_t adjacent = 0;
  for (size_t i = 1; i < page_ids.size(); ++i)
    adjacent += page_ids[i] == page_ids[i - 1] + 1 ? 1 : 0;
  return static_cast<double>(adjacent) / static_cast<double>(page_ids.size() - 1);
}

}  // namespace kvc::bench
