// The bytes of one token of one head in a page: elements, and scales when they are quantised.
#pragma once

#include <cstdint>

#include "src/plan/spec.h"

namespace kvc {

// In bytes. Rows of 4-bit elements have an even length, so that each begins at a byte.
struct RowBytes {
  int64_t k = 0;
  int64_t v = 0;  // 0 when V lies inside K.
  int64_t k_scale = 0;
  int64_t v_scale = 0;
  int64_t k_alignment = 1;
  int64_t v_alignment = 1;
  int64_t scale_alignment = 1;

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

}  // namespace kvc
