// Prefill attention for keys and values of bf16 or of 8 bits on AVX512-BF16: both products run on
// vdpbf16ps, with Q (rotated and scaled in fp32) and P rounded to bf16. Everything between the
// products is fp32 and shared with the other arithmetic (tile_pass-inl.h).
//
// Elements of 8 bits are bf16 numbers: a block's rows are copied as such before they are packed.
// The scales of K multiply the scores, those of V multiply P before it is rounded.
//
// Per block of 64 keys: K transposed and V interleaved into scratch that fits L1, then per 6 rows
//     scores[6][64] = Q K^T                        one 6 x 4 register tile
//     acc[6][v_dim] = acc * correction + P V       6 x 4 register tiles over v_dim
//
// Same bits for a row in any company: every (row, key) score and every (row, dim) accumulator is
// one chain of vdpbf16ps in a fixed order, whatever the tile's height; keys that a row does not see
// contribute P = +0, which changes nothing but the sign of a zero, and finishing drops that sign.
// vdpbf16ps flushes denormals, in and out: what it leaves is never denormal, so a later block of
// hidden keys has nothing to flush.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/tile_f32-inl.h"
#include "kernels/cpu/tile_pass-inl.h"
#include "kernels/cpu/vec_avx512.h"

namespace kvc::kernels::cpu {
namespace {

constexpr int kPairLanes = 16;                            // bf16 pairs, or floats, per register.
constexpr int kPairKeyVectors = kBlockKeys / kPairLanes;  // Registers across the keys of a block.
constexpr int kBlockPairs = kBlockKeys / 2;               // Pairs of keys in a block.

// ----------------------------------------------------------------------------------------------
// packing

// Four dims pairs (8 elements) of 64 keys: 4x4 transposes of 32-bit pairs inside the 128-bit lanes;
// lane l holds keys 4l..4l+3.
inline void pack_k_quad(const std::byte* const* rows, int64_t byte_offset, __mmask8 element_mask,
                        int count, uint32_t* packed) {
  for (int c = 0; c < kPairKeyVectors; ++c) {
    __m512i key[4];
    for (int j = 0; j < 4; ++j) {
      const std::byte* const* four = rows + c * kPairLanes + j;
      const auto load = [&](int lane) {
        return _mm_maskz_loadu_epi16(element_mask, four[4 * lane] + byte_offset);
      };
      key[j] = _mm512_castsi128_si512(load(0));
      key[j] = _mm512_inserti32x4(key[j], load(1), 1);
      key[j] = _mm512_inserti32x4(key[j], load(2), 2);
      key[j] = _mm512_inserti32x4(key[j], load(3), 3);
    }
    const __m512i low01 = _mm512_unpacklo_epi32(key[0], key[1]);
    const __m512i low23 = _mm512_unpacklo_epi32(key[2], key[3]);
    const __m512i high01 = _mm512_unpackhi_epi32(key[0], key[1]);
    const __m512i high23 = _mm512_unpackhi_epi32(key[2], key[3]);
    uint32_t* to = packed + c * kPairLanes;
    _mm512_store_si512(to, _mm512_unpacklo_epi64(low01, low23));
    if (count > 1) _mm512_store_si512(to + kBlockKeys, _mm512_unpackhi_epi64(low01, low23));
    if (count > 2) _mm512_store_si512(to + 2 * kBlockKeys, _mm512_unpacklo_epi64(high01, high23));
    if (count > 3) _mm512_store_si512(to + 3 * kBlockKeys, _mm512_unpackhi_epi64(high01, high23));
  }
}

void pack_k_bf16(const std::byte* const* rows, int64_t k_dim, uint32_t* packed) {
  int64_t d = 0;
  for (; d + 8 <= k_dim; d += 8) pack_k_quad(rows, d * 2, 0xff, 4, packed + d / 2 * kBlockKeys);
  if (d < k_dim) {
    const int left = static_cast<int>(k_dim - d);
    pack_k_quad(rows, d * 2, static_cast<__mmask8>((1u << left) - 1), (left + 1) / 2,
                packed + d / 2 * kBlockKeys);
  }
}

// Elements of 8 bits as bf16, exactly.
template <DType kType>
void copy_as_bf16(const std::byte* const* rows, int64_t dim, int64_t stride, uint16_t* to) {
  for (int key = 0; key < kBlockKeys; ++key, to += stride) {
    const std::byte* from = rows[key];
    for (int64_t d = 0; d < dim; d += 2 * kPairLanes) {
      const bool whole = dim - d >= 2 * kPairLanes;
      const Vec low =
          whole ? load_as<kType>(from + d) : load_as_tail<kType>(from + d, lanes_below(dim - d, 0));
      const Vec high = whole ? load_as<kType>(from + d + kPairLanes)
                             : load_as_tail<kType>(from + d + kPairLanes, lanes_below(dim - d, 1));
      _mm512_storeu_si512(to + d, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
    }
  }
}

// Interleaves pairs of keys. Returns whether every value is finite.
bool pack_v_bf16(const std::byte* const* rows, int64_t v_dim, int64_t v_padded, uint32_t* packed) {
  alignas(64) uint16_t low_index[32];
  alignas(64) uint16_t high_index[32];
  for (int i = 0; i < 16; ++i) {
    low_index[2 * i] = static_cast<uint16_t>(i);
    low_index[2 * i + 1] = static_cast<uint16_t>(32 + i);
    high_index[2 * i] = static_cast<uint16_t>(16 + i);
    high_index[2 * i + 1] = static_cast<uint16_t>(48 + i);
  }
  const __m512i low = _mm512_load_si512(low_index);
  const __m512i high = _mm512_load_si512(high_index);
  __m512i largest =
      _mm512_setzero_si512();  // Largest |value| as bit patterns, shifted left by one.
  for (int pair = 0; pair < kBlockPairs; ++pair) {
    const std::byte* even = rows[2 * pair];
    const std::byte* odd = rows[2 * pair + 1];
    uint32_t* to = packed + pair * v_padded;
    for (int64_t d = 0; d < v_dim; d += 32) {
      const int64_t left = v_dim - d;
      const __mmask32 mask = left >= 32 ? 0xffffffffu : (1u << left) - 1;
      const __m512i a = _mm512_maskz_loadu_epi16(mask, even + d * 2);
      const __m512i b = _mm512_maskz_loadu_epi16(mask, odd + d * 2);
      largest = _mm512_max_epu16(largest,
                                 _mm512_max_epu16(_mm512_add_epi16(a, a), _mm512_add_epi16(b, b)));
      _mm512_store_si512(to + d, _mm512_permutex2var_epi16(a, low, b));
      if (left > 16) _mm512_store_si512(to + d + 16, _mm512_permutex2var_epi16(a, high, b));
    }
  }
  return _mm512_cmpge_epu16_mask(largest, _mm512_set1_epi16(static_cast<int16_t>(0xff00))) == 0;
}

// `to` = `packed` with the keys outside `visible` (bit k: key k of the block) set to zero.
void copy_visible_v_bf16(const uint32_t* packed, uint64_t visible, int64_t v_padded, uint32_t* to) {
  for (int pair = 0; pair < kBlockPairs; ++pair) {
    const uint32_t two = static_cast<uint32_t>(visible >> (2 * pair)) & 3;
    const __m512i keep = _mm512_set1_epi32(
        static_cast<int32_t>((two & 1 ? 0xffffu : 0u) | (two & 2 ? 0xffff0000u : 0u)));
    for (int64_t d = 0; d < v_padded; d += kPairLanes) {
      const int64_t at = pair * v_padded + d;
      _mm512_store_si512(to + at, _mm512_and_si512(_mm512_load_si512(packed + at), keep));
    }
  }
}

// ----------------------------------------------------------------------------------------------
// inner loops

inline __m512 dot_pairs(__m512 acc, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

template <int kRows>
inline void score_tile_bf16(const uint32_t* q /* [kRows][k_pairs] */,
                            const uint32_t* k_packed /* [k_pairs][kBlockKeys] */, int64_t k_pairs,
                            float* scores /* [kRows][kBlockKeys] */) {
  __m512 acc[kRows][kPairKeyVectors];
  KVC_TILE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    KVC_TILE_UNROLL
    for (int c = 0; c < kPairKeyVectors; ++c) acc[r][c] = _mm512_setzero_ps();
  }
  for (int64_t d = 0; d < k_pairs; ++d) {
    __m512i key[kPairKeyVectors];
    KVC_TILE_UNROLL
    for (int c = 0; c < kPairKeyVectors; ++c)
      key[c] = _mm512_load_si512(k_packed + d * kBlockKeys + c * kPairLanes);
    KVC_TILE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const __m512i query = _mm512_set1_epi32(static_cast<int32_t>(q[r * k_pairs + d]));
      KVC_TILE_UNROLL
      for (int c = 0; c < kPairKeyVectors; ++c) acc[r][c] = dot_pairs(acc[r][c], query, key[c]);
    }
  }
  KVC_TILE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    KVC_TILE_UNROLL
    for (int c = 0; c < kPairKeyVectors; ++c)
      _mm512_store_ps(scores + r * kBlockKeys + c * kPairLanes, acc[r][c]);
  }
}

template <int kRows, int kColumns>
inline void value_tile_bf16(const uint32_t* weights /* [kRows][kBlockPairs] */,
                            const float* correction /* [kRows] */,
                            const uint32_t* v_packed /* [num_pairs][v_padded] */, int num_pairs,
                            int64_t v_padded, float* out /* [kRows][v_padded] */) {
  __m512 acc[kRows][kColumns];
  KVC_TILE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const __m512 scale = _mm512_set1_ps(correction[r]);
    KVC_TILE_UNROLL
    for (int c = 0; c < kColumns; ++c)
      acc[r][c] = _mm512_mul_ps(_mm512_load_ps(out + r * v_padded + c * kPairLanes), scale);
  }
  for (int pair = 0; pair < num_pairs; ++pair) {
    __m512i value[kColumns];
    KVC_TILE_UNROLL
    for (int c = 0; c < kColumns; ++c)
      value[c] = _mm512_load_si512(v_packed + pair * v_padded + c * kPairLanes);
    KVC_TILE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const __m512i weight =
          _mm512_set1_epi32(static_cast<int32_t>(weights[r * kBlockPairs + pair]));
      KVC_TILE_UNROLL
      for (int c = 0; c < kColumns; ++c) acc[r][c] = dot_pairs(acc[r][c], weight, value[c]);
    }
  }
  KVC_TILE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    KVC_TILE_UNROLL
    for (int c = 0; c < kColumns; ++c)
      _mm512_store_ps(out + r * v_padded + c * kPairLanes, acc[r][c]);
  }
}

template <int kRows>
inline void value_rows_bf16(const uint32_t* weights, const float* correction,
                            const uint32_t* v_packed, int num_pairs, int64_t v_padded, float* out) {
  int64_t d = 0;
  for (; d + 4 * kPairLanes <= v_padded; d += 4 * kPairLanes)
    value_tile_bf16<kRows, 4>(weights, correction, v_packed + d, num_pairs, v_padded, out + d);
  switch ((v_padded - d) / kPairLanes) {
    case 3:
      return value_tile_bf16<kRows, 3>(weights, correction, v_packed + d, num_pairs, v_padded,
                                       out + d);
    case 2:
      return value_tile_bf16<kRows, 2>(weights, correction, v_packed + d, num_pairs, v_padded,
                                       out + d);
    case 1:
      return value_tile_bf16<kRows, 1>(weights, correction, v_packed + d, num_pairs, v_padded,
                                       out + d);
    default: return;
  }
}

// ---------------------------------------------------------------------------------- the arithmetic
// of a pass

struct MathBf16 {
  static constexpr int kVectorFloats = kPairLanes;
  static constexpr DType kRotated = DType::kBF16;
  static constexpr bool kScalesRows = false;

  int64_t k_dim, v_dim, k_pairs, v_padded;
  uint32_t* q;         // [max_rows][k_pairs]             pairs of bf16.
  uint32_t* k_packed;  // [k_pairs][kBlockKeys]           (K[key][2d], K[key][2d+1]).
  uint32_t* v_packed;  // [kBlockPairs][v_padded]         (V[2key][d], V[2key+1][d]).
  // [kBlockPairs][v_padded]         v_packed without the keys that one row does not see.
  uint32_t* v_visible;
  uint32_t* p;  // [kMaxTileRows][kBlockPairs]     P as pairs of bf16.
  // Rows of 8 bits as bf16, of K and then of V: where each is, and the elements.
  const std::byte** copies;  // [kBlockKeys]
  uint16_t* copied;          // [kBlockKeys][copied_stride]
  int64_t copied_stride;

  static int64_t query_bytes(const AttnParams& params) { return (params.k_dim + 1) / 2 * 4; }

  void allocate(const AttnParams& params, int64_t max_rows, int64_t padded, ScratchCursor& cursor) {
    k_dim = params.k_dim;
    v_dim = params.v_dim;
    k_pairs = (k_dim + 1) / 2;
    v_padded = padded;
    k_packed = take_array<uint32_t>(cursor, k_pairs * kBlockKeys);
    v_packed = take_array<uint32_t>(cursor, v_padded * kBlockPairs);
    p = take_array<uint32_t>(cursor, kMaxTileRows * kBlockPairs);
    q = take_array<uint32_t>(cursor, max_rows * k_pairs);
    v_visible = take_array<uint32_t>(cursor, v_padded * kBlockPairs);
    const int64_t longest = k_dim > v_dim ? k_dim : v_dim;
    const bool copies_rows = is_quantised(params.k.dtype) || is_quantised(params.v.dtype);
    copied_stride = (longest + 2 * kPairLanes - 1) / (2 * kPairLanes) * 2 * kPairLanes;
    copies = take_array<const std::byte*>(cursor, copies_rows ? kBlockKeys : 0);
    copied = take_array<uint16_t>(cursor, copies_rows ? kBlockKeys * copied_stride : 0);
  }

  // The rows of a block as bf16: its own, or copies, which the next call replaces.
  const std::byte* const* as_bf16(const BlockRows& block, int64_t dim) {
    if (!is_quantised(block.dtype)) return block.rows;
    with_stored_dtype(block.dtype, [&](auto type) {
      constexpr DType kType = decltype(type)::value;
      if constexpr (is_quantised(kType))
        copy_as_bf16<kType>(block.rows, dim, copied_stride, copied);
    });
    for (int key = 0; key < kBlockKeys; ++key)
      copies[key] = reinterpret_cast<const std::byte*>(copied + key * copied_stride);
    return copies;
  }

  void load_query(const float* query /* [k_dim] */, int64_t row) {
    for (int64_t d = 0; d < k_dim; d += 2 * kPairLanes) {
      const __m512 low = load_tail(query + d, lanes_below(k_dim - d, 0));
      const __m512 high = load_tail(query + d + kPairLanes, lanes_below(k_dim - d, 1));
      const int64_t pairs = k_pairs - d / 2;
      const __mmask16 mask =
          pairs >= kPairLanes ? 0xffff : static_cast<__mmask16>((1u << pairs) - 1);
      _mm512_mask_storeu_epi32(q + row * k_pairs + d / 2, mask,
                               reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
    }
  }

  bool pack(const BlockRows& keys, const BlockRows& values) {
    pack_k_bf16(as_bf16(keys, k_dim), k_dim, k_packed);
    return pack_v_bf16(as_bf16(values, v_dim), v_dim, v_padded, v_packed);
  }

  template <int kRows>
  void scores(int64_t row, float* to) {
    score_tile_bf16<kRows>(q + row * k_pairs, k_packed, k_pairs, to);
  }

  void weights(const float* from /* [num_rows][kBlockKeys] */, int num_rows) {
    for (int i = 0; i < num_rows * kBlockPairs; i += kPairLanes) {
      const __m512bh pairs = _mm512_cvtne2ps_pbh(_mm512_load_ps(from + 2 * i + kPairLanes),
                                                 _mm512_load_ps(from + 2 * i));
      _mm512_store_si512(p + i, reinterpret_cast<__m512i>(pairs));
    }
  }

  template <int kRows>
  void values(const float* correction, int num_keys, float* acc) {
    value_rows_bf16<kRows>(p, correction, v_packed, (num_keys + 1) / 2, v_padded, acc);
  }

  void values_of_visible(int row, uint64_t visible, float correction, int num_keys, float* acc) {
    copy_visible_v_bf16(v_packed, visible, v_padded, v_visible);
    value_rows_bf16<1>(p + row * kBlockPairs, &correction, v_visible, (num_keys + 1) / 2, v_padded,
                       acc);
  }
};

inline bool is_bf16_or_shorter(DType dtype) { return dtype == DType::kBF16 || is_quantised(dtype); }

void attn_tile_bf16(const AttnParams& params, const AttnItem& item, void* scratch) {
  if (!is_bf16_or_shorter(params.k.dtype) || !is_bf16_or_shorter(params.v.dtype))
    return attn_tile_f32(params, item, scratch);
  attend_item<MathBf16>(params, item, scratch);
}

size_t attn_tile_bf16_scratch_bytes(const AttnParams& params, int64_t max_rows) {
  if (!is_bf16_or_shorter(params.k.dtype) || !is_bf16_or_shorter(params.v.dtype))
    return attn_tile_f32_scratch_bytes(params, max_rows);
  return attend_scratch_bytes<MathBf16>(params, max_rows);
}

}  // namespace
}  // namespace kvc::kernels::cpu
