// Where things lie inside a page: bytes of K and V per layer, offsets, strides. Pure arithmetic on a Spec.
#pragma once

#include <cstdint>
#include <vector>

#include "src/plan/spec.h"

namespace kvc {

// One layer's part of a page: K [num_kv_heads][page_size][k_dim], then V [num_kv_heads][page_size][v_dim].
// `v_offset` is k_bytes, rounded up only where V's element needs it.
struct LayerLayout {
  int64_t k_bytes;
  int64_t v_bytes;
  int64_t v_offset;
  int64_t page_bytes;
  int64_t page_offset;  // of this layer inside a PAGE_FIRST page
  int64_t bytes_per_token;
};

struct Layout {
  std::vector<LayerLayout> layers;
  int64_t page_bytes = 0;       // all layers of the slice
  int64_t bytes_per_token = 0;  // all layers of the slice
};

// Throws OUT_OF_RANGE when a page's size overflows.
Layout make_layout(const Spec& spec);

}  // namespace kvc
