// The validated, defaulted, immutable form of kvc_config. Every layer above reads it instead of the
// C struct.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/params.h"
#include "kvcache.h"
#include "src/base/print.h"
#include "src/plan/groups.h"
#include "src/plan/rope.h"

namespace kvc {

// One recurrent state of a layer. In a state slot it lies compact, row-major.
struct StateSpec {
  std::vector<int64_t> shape;
  kernels::DType dtype = kernels::DType::kF32;
  int64_t num_elements = 0;
  std::vector<std::byte> init;  // Compact, in dtype; empty: zeros.

  int64_t bytes() const { return num_elements * kernels::dtype_bytes(dtype); }
};

// One layer as its rows are stored. MLA: one kv head, k_dim = rank + rope dim, v_dim = rank, V
// inside K. SHARED: heads and dims of the source, own query heads. `rope` indexes Spec::ropes, -1:
// none. Layers with equal rotations share an entry, so that a forward computes cos_sin once.
struct LayerSpec {
  kvc_layer_kind kind = KVC_LAYER_ATTENTION;
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t k_dim = 0;
  int32_t v_dim = 0;
  kernels::DType k_dtype = kernels::DType::kBF16;
  kernels::DType v_dtype = kernels::DType::kBF16;
  // NONE to BLOCK16. Of a quantised half k_type or v_type is the stored type, and k_dtype or
  // v_dtype is set for types of 8 bits only.
  kvc_quant k_quant = KVC_QUANT_NONE;
  kvc_quant v_quant = KVC_QUANT_NONE;  // Where V lies in K: k_quant.
  float k_scale = 1, v_scale = 1;      // PER_TENSOR.
  DLDataType k_type{};
  DLDataType v_type{};
  int32_t rope = -1;
  bool v_in_k = false;  // V is the beginning of the K row: MLA, K = V.
  int64_t window = 0;   // 0: none.
  int64_t chunk = 0;    // 0: none.
  // Local id of the layer whose pages are read: its own id unless it is SHARED.
  int32_t source = -1;
  int32_t latent_rank = 0;      // MLA.
  int32_t latent_rope_dim = 0;  // MLA.
  int32_t self_k_dim = 0;       // MLA: dim of q and k in the ragged form; 0: not available.
  int32_t self_v_dim = 0;
  std::vector<StateSpec> states;
  int32_t keep_tokens = 0;  // Leading tokens whose rows are also stored unquantised.
  // Entry of Spec::layers that stands for the kept rows of this layer; -1: it keeps none. A SHARED
  // layer has that of its source.
  int32_t kept_rows = -1;
  int32_t kept_of = -1;  // The layer whose kept rows the entry stands for; -1: a layer.
  int32_t group = -1;    // Layer group of its pages; -1: none.
  int32_t region = -1;   // Index into Layout::regions; -1: no pages.

  int32_t group_size() const { return num_q_heads / num_kv_heads; }
  // K, V or both.
  bool is_quantised() const { return k_quant != KVC_QUANT_NONE || v_quant != KVC_QUANT_NONE; }
  // The kernels of the CPU read and write its rows.
  bool is_k_served_by_cpu() const { return k_quant == KVC_QUANT_NONE || k_type.bits == 8; }
  bool is_v_served_by_cpu() const { return v_quant == KVC_QUANT_NONE || v_type.bits == 8; }
  bool is_served_by_cpu() const { return is_k_served_by_cpu() && is_v_served_by_cpu(); }
  bool is_mla() const { return latent_rank != 0; }
  bool is_kept_rows() const { return kept_of >= 0; }
  bool keeps_pages() const {
    return kind == KVC_LAYER_ATTENTION || kind == KVC_LAYER_MLA || kind == KVC_LAYER_CROSS;
  }
  // The layer reads pages that grow with the sequence: ATTENTION, MLA, SHARED.
  bool attends_tokens() const {
    return kind == KVC_LAYER_ATTENTION || kind == KVC_LAYER_MLA || kind == KVC_LAYER_SHARED;
  }
  // First rotated element of a stored row; for MLA it follows the latent.
  int32_t rotation_begin() const { return is_mla() ? latent_rank : 0; }
};

// The entry for the kept rows of a layer: in bfloat16 where they are quantised, else as they are.
LayerSpec kept_rows_of(const LayerSpec& layer);

// Name of a kind, such as "ATTENTION".
const char* layer_kind_name(kvc_layer_kind kind);

// A borrowed pool tensor with the caller's pages.
struct PoolTensor {
  std::byte* data;
  int64_t num_pages;
  int64_t page_stride;  // Bytes.
  int64_t page_bytes;   // Bytes of the compact content of one page.
};

struct Spec {
  DLDevice device{kDLCPU, 0};
  int32_t base_page_size = 16;
  int32_t num_layers = 0;  // Layers of the model.
  int32_t layer_begin = 0, layer_end = 0;
  // Layers of the slice. Behind them one entry for each layer with keep_tokens: the unquantised
  // rows of its first tokens. They have a layer group and a part of a page, as layers have, but no
  // id that a caller knows.
  std::vector<LayerSpec> layers;
  std::vector<GroupSpec> groups;
  std::vector<RopeSpec> ropes;
  bool pads_pages = false;     // KVC_CONFIG_PAD_PAGES.
  bool clears_pages = false;   // KVC_CONFIG_CLEAR_PAGES.
  bool has_huge_pages = true;  // Without KVC_CONFIG_NO_HUGE_PAGES.
  int32_t forwards_in_flight = 1;
  uint64_t host_byte_budget = 0;
  int64_t event_capacity = 0;
  int32_t max_seqs = 0;                // 0: no limit.
  int64_t max_tokens_per_forward = 0;  // 0: no limit.
  // Tokens that a layer's window keeps beside the visible range of the next query, so that so many
  // can be popped: forwards_in_flight * max_tokens_per_forward where the caller set both.
  int64_t window_reserve = 0;
  int64_t max_seq_len = 0;    // 0: the pages are the limit.
  int64_t max_cross_len = 0;  // 0: no limit.
  int32_t cp_size = 1;        // Context parallel ranks; more than 1: planned only.
  int64_t num_pages = 0;      // 0: from byte_budget, or none.
  uint64_t byte_budget = 0;
  int64_t state_stride = 0;     // Tokens between automatic checkpoints; 0: none.
  int64_t num_state_slots = 0;  // 0: no limit.
  kvc_storage storage = KVC_STORAGE_OWNED;
  kvc_pool_layout pool_layout = KVC_POOL_LAYER_FIRST;
  std::vector<PoolTensor> pool_tensors;
  int32_t num_threads = 0;
  kvc_cpu_isa cpu_isa = KVC_CPU_ISA_AUTO;
  bool has_allocator = false;
  kvc_allocator allocator{};
  bool has_executor = false;
  kvc_executor executor{};

  bool is_on_gpu() const { return device.device_type == kDLCUDA; }
  int32_t num_local_layers() const { return layer_end - layer_begin; }
  // Tokens that the plan counts beside a window; 0: no limit.
  int64_t tokens_in_flight() const { return max_tokens_per_forward * forwards_in_flight; }
  // The id that callers know of a layer, or of the layer whose kept rows an entry stands for.
  int32_t global_id(int32_t local_layer) const {
    const LayerSpec& layer = layers[local_layer];
    return layer_begin + (layer.is_kept_rows() ? layer.kept_of : local_layer);
  }
  // page_size of its layer group. The layer keeps pages or shares them.
  int32_t layer_page_size(int32_t local_layer) const {
    const LayerSpec& source = layers[layers[local_layer].source];
    return groups[source.group].page_size;
  }
  bool rotates_on_read(int32_t rope) const {
    return rope >= 0 && ropes[rope].mode == KVC_ROPE_ON_READ;
  }
  int32_t num_page_regions() const;  // Regions of a page.
  int32_t longest_group() const;     // Layers of the longest layer group.
  // Least common multiple of page_size over the layer groups, CROSS layers aside.
  int32_t prefix_block() const;
  bool has_kind(kvc_layer_kind kind) const;
  // A layer group counts encoder tokens. It counts them in all slices, because all slices keep the
  // same tables.
  bool has_cross() const;
  bool has_states() const { return has_kind(KVC_LAYER_STATE); }
  bool has_windows() const;           // A layer group has a window or chunk.
  int32_t num_position_rows() const;  // Most rope sections of any layer, at least 1.
  bool has_rope_mode(kvc_rope_mode mode) const;
};

// Positions and lengths are int32 in page tables and position tensors.
constexpr int64_t kMaxSequenceLength = INT32_MAX;
constexpr int32_t kMaxPageSize = 65536;
constexpr int32_t kMaxHeadDim = 512;
constexpr int32_t kMaxLatentDim = 1024;
constexpr int32_t kMaxHeads = 65536;
constexpr int32_t kMaxLayers = 65536;
constexpr int32_t kMaxStates = 16;
constexpr int32_t kMaxStateRank = 8;
constexpr int32_t kMaxForwardsInFlight = 64;
constexpr int32_t kMaxContextRanks = 1024;
constexpr int64_t kSlotsPerRequest = 2;  // State slots: before and after a forward.
constexpr int64_t kMaxEventCapacity = int64_t{1} << 24;

// The C structs of one layer, read by the sized-struct rules.
struct LayerInput {
  kvc_layer layer{};
  kvc_rope rope{};  // All zero when the layer has none.
  bool has_rope = false;
  std::vector<kvc_state_spec> states;
};

// Throws INVALID_ARGUMENT, OUT_OF_RANGE, UNSUPPORTED or a tensor status; the message names the
// field. `config` has been read by the sized-struct rules, and so have `layers`, one per layer of
// the model.
Spec make_spec(const kvc_config& config, const std::vector<LayerInput>& layers);

// Names in a plan, for people and for JSON.

// Element type in the pages, such as "int8".
std::string k_type_name(const LayerSpec& layer);
std::string v_type_name(const LayerSpec& layer);
const char* storage_name(kvc_storage storage);
const char* pool_layout_name(kvc_pool_layout layout);
// "full", "window", "chunk", "cross", "kept"
const char* group_kind_name(const GroupSpec& group);

}  // namespace kvc
