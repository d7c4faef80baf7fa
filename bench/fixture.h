// A cache to measure, made and called through the C interface alone.
#pragma once

#include <kvcache.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bench/limits.h"

namespace kvc::bench {

// The last two with a scale per token and head; activations beside them are bfloat16.
enum class Storage { kF32, kF16, kBF16, kInt8, kFp8 };
Storage storage_named(const std::string& name);  // "fp32", "fp16", "bf16", "int8", "fp8"
inline bool is_quantised(Storage storage) { return storage >= Storage::kInt8; }
int64_t storage_bytes(Storage storage);  // Bytes of an element.
DLDataType dl_type(Storage storage);
kvc_cpu_isa isa_named(const std::string& name);  // "auto", "avx2", ...
const char* isa_name(kvc_cpu_isa isa);
kvc_cpu_isa resolve_isa(kvc_cpu_isa isa);  // AUTO: the machine's best.
int machine_threads();
// The arithmetic whose peak bounds many-row attention in this storage type with this instruction
// set.
Arithmetic bounding_arithmetic(kvc_cpu_isa isa, Storage storage);

// Throws std::runtime_error with the library's message.
void check(kvc_status status, const kvc_error& error);

struct CacheShape {
  Storage storage = Storage::kBF16;
  int layers = 1;
  int q_heads = 32;
  int kv_heads = 8;
  int head_dim = 128;
  // > 0: MLA layers, one row of rank + rope elements per token; kv_heads and head_dim do not count.
  int latent_rank = 0;
  int latent_rope_dim = 0;
  int64_t window = 0;  // Window of every layer; 0: none.
  // Windows that the layers take in turn, instead of `window`. Each makes a layer group.
  std::vector<int64_t> windows;
  int page_size = 16;
  int64_t num_pages = 0;
  int64_t num_host_pages = 0;
  bool clear_pages = false;  // KVC_CONFIG_CLEAR_PAGES
  bool page_first = false;   // The pool's layout.
  int threads = 1;
  kvc_cpu_isa isa = KVC_CPU_ISA_AUTO;
  bool rope = false;
  bool tensor_memory = true;  // false: KVC_STORAGE_NONE.

  int latent_dim() const { return latent_rank + latent_rope_dim; }
  int64_t bytes_per_token_layer() const {
    const int64_t scales =
        is_quantised(storage) ? 2 * kv_heads * static_cast<int64_t>(sizeof(float)) : 0;
    return (latent_rank > 0 ? latent_dim() : 2 * int64_t{kv_heads} * head_dim) *
               storage_bytes(storage) +
           scales;
  }
  int64_t page_layer_bytes() const { return page_size * bytes_per_token_layer(); }
};

// Random rows [tokens][heads][dim]; values of magnitude 0.25 to 1 with either sign.
class Activations {
 public:
  Activations(Storage storage, int64_t tokens, int heads, int dim, uint64_t seed);
  DLTensor* tensor() { return &tensor_; }
  // The first `tokens` rows, valid as long as this object.
  DLTensor* rows(int64_t tokens);
  // The largest difference between two elements of the same place, in two objects of one shape and
  // storage type.
  double difference(const Activations& other) const;

 private:
  double element(int64_t index) const;

  Storage storage_;
  Buffer buffer_;
  int64_t shape_[3];
  DLTensor tensor_;
};

class Cache {
 public:
  explicit Cache(const CacheShape& shape);
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;
  ~Cache();

  kvc_cache* get() const { return cache_; }
  const CacheShape& shape() const { return shape_; }

  void add(kvc_seq seq);
  void remove(kvc_seq seq);
  void fork(kvc_seq parent, kvc_seq child);
  void pop(kvc_seq seq, int64_t tokens);
  kvc_forward* begin(const std::vector<kvc_seq>& seqs, const std::vector<int64_t>& lengths,
                     uint64_t flags = 0);
  // A forward that computes no layer: begin and end alone.
  void step_without_layers(const std::vector<kvc_seq>& seqs, const std::vector<int64_t>& lengths) {
    end(begin(seqs, lengths, KVC_FORWARD_PARTIAL));
  }
  // A token tree of one sequence: for each new token its parent's index, -1: a root.
  kvc_forward* begin_tree(kvc_seq seq, const std::vector<int32_t>& parents);
  void commit_tree(kvc_seq seq, int32_t leaf);
  void end(kvc_forward* forward);
  void abort(kvc_forward* forward);
  void attend(kvc_forward* forward, int layer, DLTensor* q, DLTensor* k, DLTensor* v, DLTensor* out,
              uint32_t flags = 0);
  void append_kv(kvc_forward* forward, int layer, DLTensor* k, DLTensor* v);
  // The same for MLA layers.
  void attend_latents(kvc_forward* forward, int layer, DLTensor* q, DLTensor* latents,
                      DLTensor* out);
  void append_latents(kvc_forward* forward, int layer, DLTensor* latents);
  kvc_stats stats() const;
  int num_groups() const { return num_groups_; }

 private:
  CacheShape shape_;
  kvc_cache* cache_ = nullptr;
  int num_groups_ = 0;
};

// Page ids of the open forward's sequences, one after the other.
std::vector<int32_t> page_ids_of(kvc_forward* forward);
// Where each page of a layer begins; page_layer_bytes() long.
std::vector<const std::byte*> page_addresses(const Cache& cache, int layer,
                                             const std::vector<int32_t>& page_ids);
// Share of neighbours in the page tables that are neighbours in the pool.
double adjacent_share(const std::vector<int32_t>& page_ids);

}  // namespace kvc::bench
