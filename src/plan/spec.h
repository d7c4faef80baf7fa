// The validated, defaulted, immutable form of kvc_config: what every layer above reads instead of the C struct.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/params.h"
#include "kvcache.h"

namespace kvc {

struct RopeSpec {
  kvc_rope_mode mode = KVC_ROPE_NONE;
  kvc_rope_style style = KVC_ROPE_HALF;
  int32_t rotary_dim = 0;
  std::vector<double> inverse_frequencies;  // [rotary_dim/2], position scale and frequency factors folded in

  bool operator==(const RopeSpec&) const = default;
};

// One attention layer. `rope` indexes Spec::ropes, -1: none; layers with equal rotations share an entry, so that the angles of a
// forward are computed once.
struct LayerSpec {
  int32_t num_q_heads;
  int32_t num_kv_heads;
  int32_t k_dim;
  int32_t v_dim;
  kernels::DType k_dtype;
  kernels::DType v_dtype;
  int32_t rope;

  int32_t group_size() const { return num_q_heads / num_kv_heads; }
};

// A borrowed pool tensor: the caller's pages.
struct PoolTensor {
  std::byte* data;
  int64_t num_pages;
  int64_t page_stride;  // bytes
  int64_t page_bytes;   // bytes of one page's content, which is compact
};

struct Spec {
  int32_t page_size = 16;
  int32_t num_layers = 0;  // of the model
  int32_t layer_begin = 0, layer_end = 0;
  std::vector<LayerSpec> layers;  // of the slice
  std::vector<RopeSpec> ropes;
  int32_t max_seqs = 0;                // 0: no limit
  int64_t max_tokens_per_forward = 0;  // 0: no limit
  int64_t max_seq_len = 0;             // 0: what the pages hold
  int64_t num_pages = 0;               // 0: from byte_budget, or none
  uint64_t byte_budget = 0;
  kvc_storage storage = KVC_STORAGE_OWNED;
  kvc_pool_layout pool_layout = KVC_POOL_LAYER_FIRST;
  std::vector<PoolTensor> pool_tensors;
  int32_t num_threads = 0;
  kvc_cpu_isa cpu_isa = KVC_CPU_ISA_AUTO;
  bool has_allocator = false;
  kvc_allocator allocator{};
  bool has_executor = false;
  kvc_executor executor{};

  int32_t num_local_layers() const { return layer_end - layer_begin; }
};

// Positions and lengths are int32 in page tables and position tensors.
constexpr int64_t kMaxSequenceLength = INT32_MAX;
constexpr int32_t kMaxPageSize = 65536;
constexpr int32_t kMaxHeadDim = 512;
constexpr int32_t kMaxHeads = 65536;
constexpr int32_t kMaxLayers = 65536;

// Throws INVALID_ARGUMENT, OUT_OF_RANGE, UNSUPPORTED or a tensor status; the message names the field. `config` has been read by the
// sized-struct rules; `layers` and `ropes` likewise, one per layer of the model (ropes[i] is all zero where a layer has none).
Spec make_spec(const kvc_config& config, const std::vector<kvc_layer>& layers,
               const std::vector<kvc_rope>& ropes);

}  // namespace kvc
