// Where things lie inside a page and inside a state slot: bytes, offsets, strides. Pure arithmetic on a Spec.
#pragma once

#include <cstdint>
#include <vector>

#include "src/plan/spec.h"

namespace kvc {

// One layer's part of a page: K [num_kv_heads][page_size][k_dim], then V [num_kv_heads][page_size][v_dim]; V is absent (v_bytes 0,
// v_offset 0) where it is the beginning of K. `v_offset` is k_bytes, rounded up only where V's element needs it.
// Layers that keep no pages: all zero.
struct LayerLayout {
  int64_t k_bytes = 0;
  int64_t v_bytes = 0;
  int64_t v_offset = 0;
  int64_t page_bytes = 0;
  int64_t bytes_per_token = 0;
  int64_t alignment = 1;
  std::vector<int64_t> state_offsets;  // of each state inside a state slot
  int64_t state_bytes = 0;
};

// The k-th layer of every group lies in slot k of a page.
struct SlotLayout {
  int64_t bytes = 0;   // of the largest layer in it
  int64_t offset = 0;  // inside a PAGE_FIRST page
  int64_t alignment = 1;
};

struct Layout {
  std::vector<LayerLayout> layers;
  std::vector<SlotLayout> slots;
  int64_t page_bytes = 0;        // all slots; 0 when no layer keeps pages
  int64_t bytes_per_token = 0;   // all layers of the slice that grow with the sequence
  int64_t state_slot_bytes = 0;  // all STATE layers
};

// Throws OUT_OF_RANGE when a size overflows.
Layout make_layout(const Spec& spec);

}  // namespace kvc
