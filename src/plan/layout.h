// The layout of pages and of state slots: bytes, offsets, strides. Pure arithmetic on a Spec.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/plan/spec.h"

namespace kvc {

// The bytes of one token of one head in a page: elements, and scales when they are quantised.

// In bytes. Rows of 4-bit elements have an even length, so that each begins at a byte.
struct RowBytes {
  int64_t k = 0;
  int64_t v = 0;  // 0 when V lies inside K.
  int64_t k_scale = 0;
  int64_t v_scale = 0;
  int64_t k_alignment = 1;
  int64_t v_alignment = 1;
  int64_t k_scale_alignment = 1;
  int64_t v_scale_alignment = 1;

  int64_t total() const { return k + v + k_scale + v_scale; }
};

// Elements that share a scale with BLOCK16.
constexpr int32_t kScaleBlock = 16;

// For layers that keep pages.
RowBytes row_bytes(const LayerSpec& layer);

// Storage types that a kind of quantisation allows.
bool stores_type(kvc_quant quant, DLDataType type);
// Text for messages: "PER_TENSOR", and the types that it allows.
const char* quant_name(kvc_quant quant);
const char* quant_types(kvc_quant quant);

// One layer's part of a page, with P = page_size of its layer group: K [num_kv_heads][P][k_dim],
// then V [num_kv_heads][P][v_dim]. V is absent (v_bytes 0, v_offset 0) when it is the beginning of
// K. `v_offset` is k_bytes, rounded up only when V's element needs it. Then a quantised K has its
// scales [num_kv_heads][P] (BLOCK16: [num_kv_heads][P][k_dim / 16]) at `k_scale_offset`, and a
// quantised V at `v_scale_offset`, each rounded up likewise. All fields are 0 in layers without
// pages.
struct LayerLayout {
  int64_t k_bytes = 0;
  int64_t v_bytes = 0;
  int64_t v_offset = 0;
  int64_t page_bytes = 0;
  int64_t bytes_per_token = 0;  // Scales included.
  int64_t alignment = 1;
  int32_t region = -1;
  int64_t region_offset = 0;  // Offset of the layer's part in the region.
  int64_t k_scale_bytes = 0;  // Bytes per page.
  int64_t v_scale_bytes = 0;
  int64_t k_scale_offset = 0;  // 0 where there are none.
  int64_t v_scale_offset = 0;
  std::vector<int64_t> state_offsets;  // Offset of each state in a state slot.
  int64_t state_bytes = 0;
};

// A region of a page. A page is cut where every layer group has a boundary between layers, or has
// ended, so that the regions can be stored apart (LAYER_FIRST). With one layer group each layer has
// its own region; groups without a common boundary leave one region, the page.
struct RegionLayout {
  int64_t bytes = 0;
  int64_t offset = 0;  // Offset in a PAGE_FIRST page.
  int64_t alignment = 1;
};

struct Layout {
  std::vector<LayerLayout> layers;
  std::vector<RegionLayout> regions;
  std::vector<int64_t> group_bytes;  // [layer group] Bytes of a page that its layers use.
  int64_t page_bytes = 0;            // Bytes of the largest group; 0: no layer keeps pages.
  int64_t bytes_per_token = 0;       // All layers of the slice that grow with the sequence.
  int64_t state_slot_bytes = 0;      // All STATE layers.
};

// Reads the layer groups, not LayerSpec::region. Throws OUT_OF_RANGE when a size overflows.
Layout make_layout(const Spec& spec);

// Fills LayerSpec::region.
void assign_regions(Spec& spec);

// What the bytes of a plan's pages and states mean, as text: equal exactly where pages can move
// between two caches without a change.

// One field a line, "layers[3].num_kv_heads = 8". It has what gives a byte its place or its
// meaning: layers, dims, element types, rotations, windows, layer groups. It has nothing of amounts
// (pages, limits), of places (device, pool layout) and of query heads.
std::string layout_text(const Spec& spec);

// The same without what pages can be cut anew by: tokens per page, and the heads of each of
// `num_ranks` tensor-parallel ranks, which are counted together. Latents (MLA) count once, because
// each rank keeps all of them.
std::string page_format_text(const Spec& spec, int32_t num_ranks);

// "kvcache-layout-1:" and the SHA-256 of layout_text() in hexadecimal.
std::string layout_fingerprint(std::string_view text);

// Names the first field in which two texts differ and both values, for a message; empty: none.
// `mine` and `theirs` say whose values they are, as in "the cache" and "the file".
std::string layout_difference(std::string_view my_text, const char* mine,
                              std::string_view their_text, const char* theirs);

}  // namespace kvc
