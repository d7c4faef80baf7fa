// Prefill attention in fp32 arithmetic over the vector layer, for storage of any types. Quantised
// rows are multiplied by their scales while a block is packed.
//
// Per block of 64 keys: K transposed and V, both converted to fp32, into scratch, then per 6 rows
//     scores[6][64] = Q K^T                        6 x kTileColumns register tiles over the keys
//     acc[6][v_dim] = acc * correction + P V       6 x kTileColumns register tiles over v_dim
//
// Same bits for a row in any company: every (row, key) score and every (row, dim) accumulator is
// one chain of fused multiply-adds in a fixed order, whatever the tile's height and width. Hidden
// keys contribute P = +0: see tile_bf16-inl.h. Include a vec_<isa>.h first.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/tile_pass-inl.h"

namespace kvc::kernels::cpu {
namespace {

// 6 x 4 of 32 registers, 6 x 2 of 16: the rest holds one row of K or V and one broadcast.
constexpr int kTileColumns = kVectorRegisters >= 32 ? 4 : kVectorRegisters >= 16 ? 2 : 1;
static_assert(kBlockVectors % kTileColumns == 0);

// ----------------------------------------------------------------------------------------------
// packing

template <DType kType>
KVC_VEC_INLINE Vec load_scaled(const BlockRows& block, int key, int64_t d, int n) {
  const std::byte* from = block.rows[key] + d * dtype_bytes(kType);
  const Vec element = n == kLanes ? load_as<kType>(from) : load_as_tail<kType>(from, n);
  if constexpr (is_quantised(kType)) return mul(element, set1(block.scales[key]));
  return element;
}

template <DType kType>
inline void pack_k_f32(const BlockRows& keys, int64_t k_dim,
                       float* packed /* [k_dim][kBlockKeys] */) {
  for (int64_t d = 0; d < k_dim; d += kLanes) {
    const int n = lanes_below(k_dim - d, 0);
    for (int key = 0; key < kBlockKeys; key += kLanes) {
      Vec square[kLanes];
      for (int i = 0; i < kLanes; ++i) square[i] = load_scaled<kType>(keys, key + i, d, n);
      transpose(square);
      for (int i = 0; i < n; ++i) store(packed + (d + i) * kBlockKeys + key, square[i]);
    }
  }
}

// Returns whether every value is finite.
template <DType kType>
inline bool pack_v_f32(const BlockRows& values, int64_t v_dim, int64_t v_padded,
                       float* packed /* [kBlockKeys][v_padded] */) {
  Vec poison = zero();  // x - x is 0 but for Inf and NaN.
  for (int key = 0; key < kBlockKeys; ++key) {
    for (int64_t d = 0; d < v_dim; d += kLanes) {
      const Vec value = load_scaled<kType>(values, key, d, lanes_below(v_dim - d, 0));
      poison = add(poison, sub(value, value));
      store(packed + key * v_padded + d, value);
    }
  }
  return mask_bits(mask_not(equal(poison, zero()))) == 0;
}

// ----------------------------------------------------------------------------------------------
// inner loops

template <int kRows>
inline void score_tile_f32(const float* q /* [kRows][k_dim] */,
                           const float* k_packed /* [k_dim][kBlockKeys] */, int64_t k_dim,
                           float* scores /* [kRows][kBlockKeys] */) {
  Vec acc[kRows][kTileColumns];
  KVC_TILE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    KVC_TILE_UNROLL
    for (int c = 0; c < kTileColumns; ++c) acc[r][c] = zero();
  }
  for (int64_t d = 0; d < k_dim; ++d) {
    Vec key[kTileColumns];
    KVC_TILE_UNROLL
    for (int c = 0; c < kTileColumns; ++c) key[c] = load(k_packed + d * kBlockKeys + c * kLanes);
    KVC_TILE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const Vec query = set1(q[r * k_dim + d]);
      KVC_TILE_UNROLL
      for (int c = 0; c < kTileColumns; ++c) acc[r][c] = fma(query, key[c], acc[r][c]);
    }
  }
  KVC_TILE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    KVC_TILE_UNROLL
    for (int c = 0; c < kTileColumns; ++c) store(scores + r * kBlockKeys + c * kLanes, acc[r][c]);
  }
}

template <int kRows, int kColumns>
inline void value_tile_f32(const float* p /* [kRows][kBlockKeys] */,
                           const float* correction /* [kRows] */,
                           const float* v_packed /* [num_keys][v_padded] */, int num_keys,
                           int64_t v_padded, float* out /* [kRows][v_padded] */) {
  Vec acc[kRows][kColumns];
  KVC_TILE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const Vec scale = set1(correction[r]);
    KVC_TILE_UNROLL
    for (int c = 0; c < kColumns; ++c)
      acc[r][c] = mul(load(out + r * v_padded + c * kLanes), scale);
  }
  for (int key = 0; key < num_keys; ++key) {
    Vec value[kColumns];
    KVC_TILE_UNROLL
    for (int c = 0; c < kColumns; ++c) value[c] = load(v_packed + key * v_padded + c * kLanes);
    KVC_TILE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const Vec weight = set1(p[r * kBlockKeys + key]);
      KVC_TILE_UNROLL
      for (int c = 0; c < kColumns; ++c) acc[r][c] = fma(weight, value[c], acc[r][c]);
    }
  }
  KVC_TILE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    KVC_TILE_UNROLL
    for (int c = 0; c < kColumns; ++c) store(out + r * v_padded + c * kLanes, acc[r][c]);
  }
}

template <int kRows>
inline void value_rows_f32(const float* p, const float* correction, const float* v_packed,
                           int num_keys, int64_t v_padded, float* out) {
  int64_t d = 0;
  for (; d + kTileColumns * kLanes <= v_padded; d += kTileColumns * kLanes)
    value_tile_f32<kRows, kTileColumns>(p, correction, v_packed + d, num_keys, v_padded, out + d);
  switch ((v_padded - d) / kLanes) {
    case 3:
      return value_tile_f32<kRows, 3>(p, correction, v_packed + d, num_keys, v_padded, out + d);
    case 2:
      return value_tile_f32<kRows, 2>(p, correction, v_packed + d, num_keys, v_padded, out + d);
    case 1:
      return value_tile_f32<kRows, 1>(p, correction, v_packed + d, num_keys, v_padded, out + d);
    default: return;
  }
}

// ---------------------------------------------------------------------------------- the arithmetic
// of a pass

struct MathF32 {
  static constexpr int kVectorFloats = kLanes;
  static constexpr DType kRotated = DType::kF32;
  static constexpr bool kScalesRows = true;

  int64_t k_dim, v_dim, v_padded;
  float* q;         // [max_rows][k_dim]
  float* k_packed;  // [k_dim][kBlockKeys]
  float* v_packed;  // [kBlockKeys][v_padded]
  // [kBlockKeys][v_padded] v_packed with zeros for the keys that are masked in one row.
  float* v_visible;
  const float* p;  // [kMaxTileRows][kBlockKeys]

  static int64_t query_bytes(const AttnParams& params) { return int64_t{params.k_dim} * 4; }

  void allocate(const AttnParams& params, int64_t max_rows, int64_t padded, ScratchCursor& cursor) {
    k_dim = params.k_dim;
    v_dim = params.v_dim;
    v_padded = padded;
    k_packed = take_array<float>(cursor, k_dim * kBlockKeys);
    v_packed = take_array<float>(cursor, v_padded * kBlockKeys);
    q = take_array<float>(cursor, max_rows * k_dim);
    v_visible = take_array<float>(cursor, v_padded * kBlockKeys);
  }

  void load_query(const float* query /* [k_dim] */, int64_t row) {
    __builtin_memcpy(q + row * k_dim, query, static_cast<size_t>(k_dim) * sizeof(float));
  }

  bool pack(const BlockRows& keys, const BlockRows& values) {
    bool finite = true;
    with_stored_dtype(
        keys.dtype, [&](auto dtype) { pack_k_f32<decltype(dtype)::value>(keys, k_dim, k_packed); });
    with_stored_dtype(values.dtype, [&](auto dtype) {
      finite = pack_v_f32<decltype(dtype)::value>(values, v_dim, v_padded, v_packed);
    });
    return finite;
  }

  template <int kRows>
  void scores(int64_t row, float* to) {
    for (int key = 0; key < kBlockKeys; key += kTileColumns * kLanes)
      score_tile_f32<kRows>(q + row * k_dim, k_packed + key, k_dim, to + key);
  }

  void weights(const float* from, int) { p = from; }

  template <int kRows>
  void values(const float* correction, int num_keys, float* acc) {
    value_rows_f32<kRows>(p, correction, v_packed, num_keys, v_padded, acc);
  }

  void values_of_visible(int row, uint64_t visible, float correction, int num_keys, float* acc) {
    for (int key = 0; key < num_keys; ++key) {
      float* to = v_visible + key * v_padded;
      const size_t bytes = static_cast<size_t>(v_padded) * sizeof(float);
      if (visible >> key & 1) {
        __builtin_memcpy(to, v_packed + key * v_padded, bytes);
      } else {
        __builtin_memset(to, 0, bytes);
      }
    }
    value_rows_f32<1>(p + row * kBlockKeys, &correction, v_visible, num_keys, v_padded, acc);
  }
};

void attn_tile_f32(const AttnParams& params, const AttnItem& item, void* scratch) {
  attend_item<MathF32>(params, item, scratch);
}

size_t attn_tile_f32_scratch_bytes(const AttnParams& params, int64_t max_rows) {
  return attend_scratch_bytes<MathF32>(params, max_rows);
}

}  // namespace
}  // namespace kvc::kernels::cpu
