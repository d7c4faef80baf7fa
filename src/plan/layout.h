// Where things lie inside a page and inside a state slot: bytes, offsets, strides. Pure arithmetic
// on a Spec.
#pragma once

#include <cstdint>
#include <vector>

#include "src/plan/spec.h"

namespace kvc {

// One layer's part of a page, P = page_size of its group: K [num_kv_heads][P][k_dim], then V
// [num_kv_heads][P][v_dim]; V is absent (v_bytes 0, v_offset 0) where it is the beginning of K.
// `v_offset` is k_bytes, rounded up only where V's element needs it. Quantised layers then have the
// scales of K [num_kv_heads][P] (BLOCK16: [num_kv_heads][P][k_dim / 16]) at `k_scale_offset`,
// rounded up likewise, and those of V behind them. Layers that keep no pages: all zero.
struct LayerLayout {
  int64_t k_bytes = 0;
  int64_t v_bytes = 0;
  int64_t v_offset = 0;
  int64_t page_bytes = 0;
  int64_t bytes_per_token = 0;  // scales included
  int64_t alignment = 1;
  int32_t region = -1;
  int64_t region_offset = 0;  // of its part inside the region
  int64_t k_scale_bytes = 0;  // of one page; quantised storage
  int64_t v_scale_bytes = 0;
  int64_t k_scale_offset = 0;
  std::vector<int64_t> state_offsets;  // of each state inside a state slot
  int64_t state_bytes = 0;
};

// A page is cut where in every group a layer begins or the group has ended, so that a region's
// pages can be kept apart from the others' (LAYER_FIRST). With one group each layer has a region of
// its own; groups that share no boundary leave one region, the page.
struct RegionLayout {
  int64_t bytes = 0;
  int64_t offset = 0;  // inside a PAGE_FIRST page
  int64_t alignment = 1;
};

struct Layout {
  std::vector<LayerLayout> layers;
  std::vector<RegionLayout> regions;
  std::vector<int64_t> group_bytes;  // of a page, that the layers of each group take
  int64_t page_bytes = 0;            // of the group with most; 0 when no layer keeps pages
  int64_t bytes_per_token = 0;       // all layers of the slice that grow with the sequence
  int64_t state_slot_bytes = 0;      // all STATE layers
};

// Reads the groups, not LayerSpec::region. Throws OUT_OF_RANGE when a size overflows.
Layout make_layout(const Spec& spec);

// Fills LayerSpec::region.
void assign_regions(Spec& spec);

}  // namespace kvc
