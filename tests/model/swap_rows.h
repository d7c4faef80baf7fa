// What each layer holds for a token in the random swaps: values that follow from the token's name.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvcache.h"
#include "tests/model/host_tensor.h"

namespace kvc::test {

inline uint64_t mixed(uint64_t a, uint64_t b) {
  uint64_t z = (a ^ (b + 0x9E3779B97F4A7C15ull + (a << 6) + (a >> 2))) * 0xBF58476D1CE4E5B9ull;
  return (z ^ (z >> 31)) * 0x94D049BB133111EBull;
}

// Integers that every storage type holds exactly, int8 with the scale 1 too.
inline double element(uint64_t value, size_t layer, int64_t half, int64_t head, int64_t d) {
  const uint64_t place =
      ((layer * 2 + static_cast<uint64_t>(half)) * 64 + static_cast<uint64_t>(head)) * 64 +
      static_cast<uint64_t>(d);
  return static_cast<double>(mixed(value, place) >> 58) + 1;
}

inline bool keeps_rows(const kvc_layer& layer) {
  return layer.kind == KVC_LAYER_ATTENTION || layer.kind == KVC_LAYER_MLA ||
         layer.kind == KVC_LAYER_CROSS;
}

// Rows of K and V of one layer; latents of MLA layers have no V.
struct SwapRows {
  SwapRows(const kvc_layer& layer, int64_t count)
      : has_v(layer.kind != KVC_LAYER_MLA),
        k(Elem::kF32, {count, has_v ? layer.num_kv_heads : 1,
                       has_v ? layer.k_dim : layer.latent_rank + layer.latent_rope_dim}),
        v(Elem::kF32, {count, has_v ? layer.num_kv_heads : 1, has_v ? layer.k_dim : 1}) {}
  void set(size_t layer, int64_t row, uint64_t value) {
    for (HostTensor* half : {&k, &v}) {
      for (int64_t head = 0; head < half->size(1); ++head) {
        for (int64_t d = 0; d < half->size(2); ++d)
          half->set(element(value, layer, half == &v ? 1 : 0, head, d), row, head, d);
      }
    }
  }
  bool holds(size_t layer, int64_t row, uint64_t value) {
    for (HostTensor* half : {&k, &v}) {
      if (half == &v && !has_v) continue;
      for (int64_t head = 0; head < half->size(1); ++head) {
        for (int64_t d = 0; d < half->size(2); ++d) {
          if (half->get(row, head, d) != element(value, layer, half == &v ? 1 : 0, head, d))
            return false;
        }
      }
    }
    return true;
  }
  DLTensor* v_or_null() { return has_v ? v.dl() : nullptr; }
  bool has_v;
  HostTensor k, v;
};

}  // namespace kvc::test
