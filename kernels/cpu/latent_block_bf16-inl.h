// One block of latent rows against 16 query lanes: the inner loops of latent attention
// (latent_bf16-inl.h).
//
// A lane is one query row: token row x head. Both products run on vdpbf16ps, with Q (rotated and
// scaled in fp32) and P rounded to bf16; K and V are used as they lie in the pages.
//
//   Q.K  lanes along registers. Four elements of a key are one 64-bit broadcast that meets eight
//        lanes per register, so two
//        registers serve all lanes and the broadcast is paid once for both. Nothing of K is packed.
//   P.V  elements along registers. The same 32 elements of two keys, interleaved, meet a pair of
//        weights per lane.
//
// Every (lane, key) score and every (lane, element) accumulator is one chain of vdpbf16ps in the
// order of elements or keys, whatever the other lanes hold: a row has the same bits in any company.
#pragma once

#include "kernels/cpu/tile_scores-inl.h"
#include "kernels/cpu/vec_avx512.h"

namespace kvc::kernels::cpu {
namespace {
namespace latent {

constexpr int kHalfLanes = 8;        // Lanes of a register of Q and of a value tile.
constexpr int kGroupLanes = kLanes;  // Query lanes that one set of registers holds.
constexpr int kBlockKeys = 64;       // Blocks start at absolute keys divisible by it.
constexpr int kBlockPairs = kBlockKeys / 2;
constexpr int kScoreKeys = 8;                // Keys of a score tile: 2 registers of sums each.
constexpr int kQuad = 4;                     // Elements of a broadcast.
constexpr int kQuadWords = 2 * kGroupLanes;  // 32-bit words of Q per quad: two registers.
constexpr int kColumn = 32;                  // Elements of a value tile: one cache line of a key.
constexpr int kColumnFloats = kColumn * kGroupLanes;

constexpr int64_t quads_of(int64_t dim) { return (dim + kQuad - 1) / kQuad; }
constexpr int64_t columns_of(int64_t dim) { return (dim + kColumn - 1) / kColumn; }

// Rows of a later block, brought near while this one is computed. They go to the second level: the
// first is full of state.
struct Ahead {
  const std::byte* const* rows;
  int count;
};

KVC_VEC_INLINE __m512 dot_pairs(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

// `count` < 4 elements with zeros behind.
inline int64_t partial_quad(const std::byte* from, int64_t count) {
  uint64_t bits = 0;
  __builtin_memcpy(&bits, from, static_cast<size_t>(count) * 2);
  return static_cast<int64_t>(bits);
}
KVC_VEC_INLINE int64_t whole_quad(const std::byte* from) {
  int64_t bits;
  __builtin_memcpy(&bits, from, sizeof bits);
  return bits;
}

// Q of kHalfLanes lanes, rounded and padded with zeros, into one register per quad: lane l of 64
// bits holds quad i of row l.
inline void pack_queries(const uint16_t* rows /* [kHalfLanes][row_elements] */,
                         int64_t row_elements, int64_t quads,
                         uint32_t* q /* [quads][kQuadWords], at the register */) {
  for (int64_t quad = 0; quad < quads; quad += kHalfLanes) {
    __m512i x[kHalfLanes], y[kHalfLanes];
    KVC_UNROLL
    for (int l = 0; l < kHalfLanes; ++l)
      x[l] = _mm512_load_si512(rows + l * row_elements + quad * kQuad);
    KVC_UNROLL
    for (int l = 0; l < kHalfLanes; l += 2) {  // 2x2 transposes inside the 128-bit parts.
      y[l] = _mm512_unpacklo_epi64(x[l], x[l + 1]),
      y[l + 1] = _mm512_unpackhi_epi64(x[l], x[l + 1]);
    }
    KVC_UNROLL
    for (int i = 0; i < 2; ++i) {  // 4x4 transposes of the parts.
      const __m512i a = _mm512_shuffle_i64x2(y[i], y[i + 2], 0x88),
                    b = _mm512_shuffle_i64x2(y[i], y[i + 2], 0xdd);
      const __m512i c = _mm512_shuffle_i64x2(y[i + 4], y[i + 6], 0x88),
                    d = _mm512_shuffle_i64x2(y[i + 4], y[i + 6], 0xdd);
      x[i] = _mm512_shuffle_i64x2(a, c, 0x88), x[i + 4] = _mm512_shuffle_i64x2(a, c, 0xdd);
      x[i + 2] = _mm512_shuffle_i64x2(b, d, 0x88), x[i + 6] = _mm512_shuffle_i64x2(b, d, 0xdd);
    }
    KVC_UNROLL
    for (int i = 0; i < kHalfLanes; ++i) {
      if (quad + i < quads) _mm512_store_si512(q + (quad + i) * kQuadWords, x[i]);
    }
  }
}

inline void round_query(const float* query, int64_t k_dim,
                        uint16_t* to /* whole lines, zeros behind k_dim */) {
  for (int64_t d = 0; d < k_dim; d += kColumn) {
    const int64_t left = k_dim - d;
    const int n = left < kLanes ? static_cast<int>(left) : kLanes;
    const int high = left < kColumn ? static_cast<int>(left) - n : kLanes;
    const __m512bh pairs =
        _mm512_cvtne2ps_pbh(load_tail(query + d + n, high), load_tail(query + d, n));
    _mm512_store_si512(to + d, reinterpret_cast<__m512i>(pairs));
  }
}

// scores[key][lane] = dot(Q lane, K key) for kScoreKeys keys; one register of Q: for the first half
// of the lanes, else 0.
template <int kRegisters>
inline void score_tile(const uint32_t* q, const std::byte* const* keys, int64_t k_dim,
                       const Ahead& ahead, float* scores /* [kScoreKeys][kGroupLanes] */) {
  constexpr int kLineQuads = kColumn / kQuad;
  const std::byte* row[kScoreKeys];
  __m512 low[kScoreKeys], high[kScoreKeys];
  KVC_UNROLL
  for (int j = 0; j < kScoreKeys; ++j) {
    row[j] = keys[j];
    low[j] = high[j] = _mm512_setzero_ps();
  }
  const auto step = [&](auto quad_of_key) __attribute__((always_inline)) {
    const __m512i q_low = _mm512_load_si512(q);
    const __m512i q_high = kRegisters == 2 ? _mm512_load_si512(q + kLanes) : q_low;
    KVC_UNROLL
    for (int j = 0; j < kScoreKeys; ++j) {
      const __m512i key = _mm512_set1_epi64(quad_of_key(row[j]));
      low[j] = dot_pairs(low[j], q_low, key);
      if constexpr (kRegisters == 2) high[j] = dot_pairs(high[j], q_high, key);
    }
    q += kQuadWords;
  };
  int64_t byte = 0;
  const int64_t line_bytes = k_dim / kColumn * kColumn * 2, quad_bytes = k_dim / kQuad * kQuad * 2;
  while (byte < line_bytes) {
    for (int i = 0; i < ahead.count; ++i) prefetch_far(ahead.rows[i] + byte);
    for (int quad = 0; quad < kLineQuads; ++quad, byte += kQuad * 2) {
      step([byte](const std::byte* key)
               __attribute__((always_inline)) { return whole_quad(key + byte); });
    }
  }
  if (byte < k_dim * 2) {
    for (int i = 0; i < ahead.count; ++i) prefetch_far(ahead.rows[i] + byte);
  }
  for (; byte < quad_bytes; byte += kQuad * 2) {
    step([byte](const std::byte* key)
             __attribute__((always_inline)) { return whole_quad(key + byte); });
  }
  if (byte < k_dim * 2) {
    step([&](const std::byte* key)
             __attribute__((always_inline)) { return partial_quad(key + byte, k_dim - byte / 2); });
  }
  KVC_UNROLL
  for (int j = 0; j < kScoreKeys; ++j) {
    __m512 even, odd;
    deinterleave(low[j], high[j], even, odd);
    _mm512_store_ps(scores + j * kGroupLanes, _mm512_add_ps(even, odd));
  }
}

// Both per lane.
struct SoftmaxState {
  Vec m;  // The running maximum.
  Vec l;  // The running sum of 2^(s - m).
};

// Scores -> weights as pairs of bf16 [pair of keys][lane]; returns the factors of the old
// accumulators. Keys whose scores are -inf change nothing: their weights are 0, and the sums run
// over the keys in an order that never depends on the lane.
inline Vec softmax(const float* scores /* [2 * num_pairs][kGroupLanes] */, int num_pairs,
                   SoftmaxState& state, uint32_t* weights /* [num_pairs][kGroupLanes] */) {
  Vec largest[2] = {state.m, state.m};
  for (int pair = 0; pair < num_pairs; ++pair) {
    KVC_UNROLL
    for (int i = 0; i < 2; ++i)
      largest[i] = max(load(scores + (2 * pair + i) * kGroupLanes), largest[i]);
  }
  const Vec m = max(largest[0], largest[1]);
  const Vec reference = select(equal(m, set1(kMinusInfinity)), zero(), m);
  const Vec alpha = weight_exp2(sub(state.m, reference));
  alignas(64) static constexpr uint16_t kInterleave[32] = {
      0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i interleave_words = _mm512_load_si512(kInterleave);
  Vec sums[2] = {zero(), zero()};
  for (int pair = 0; pair < num_pairs; ++pair) {
    const Vec first = weight_exp2(sub(load(scores + 2 * pair * kGroupLanes), reference));
    const Vec second = weight_exp2(sub(load(scores + (2 * pair + 1) * kGroupLanes), reference));
    sums[0] = add(sums[0], first), sums[1] = add(sums[1], second);
    const __m512i both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
    _mm512_store_si512(weights + pair * kGroupLanes,
                       _mm512_permutexvar_epi16(interleave_words, both));
  }
  state.m = m;
  state.l = fma(state.l, alpha, add(sums[0], sums[1]));
  return alpha;
}

// The same column of two keys, interleaved inside each 128-bit part; see natural_column.
KVC_VEC_INLINE void load_values(const std::byte* even, const std::byte* odd, __mmask32 mask,
                                bool whole, __m512i& first, __m512i& second) {
  const __m512i a = whole ? _mm512_loadu_si512(even) : _mm512_maskz_loadu_epi16(mask, even);
  const __m512i b = whole ? _mm512_loadu_si512(odd) : _mm512_maskz_loadu_epi16(mask, odd);
  first = _mm512_unpacklo_epi16(a, b), second = _mm512_unpackhi_epi16(a, b);
}

KVC_VEC_INLINE __mmask32 column_mask(int64_t left) {
  return left >= kColumn ? 0xffffffffu : (uint32_t{1} << left) - 1;
}

// What a value tile multiplies.
struct ValueArgs {
  const std::byte* const* keys;  // [2 * num_pairs]
  const uint32_t* weights;       // [num_pairs][kGroupLanes]
  const float* alpha;            // [kGroupLanes]
  int num_pairs;
  int64_t v_dim;
};

// acc[lane][kColumn] = acc * alpha[lane] + P.V for kHalfLanes lanes from `lane` on and one column.
template <bool kWhole>
inline void value_tile(const ValueArgs& args, int lane, int64_t column, const Ahead& ahead,
                       int64_t ahead_bytes, float* acc /* [kHalfLanes][kColumn] */) {
  const __mmask32 mask = column_mask(args.v_dim - column * kColumn);
  const int64_t byte = column * kColumn * 2;
  const uint32_t* weights = args.weights + lane;
  __m512 sums[kHalfLanes][2];
  KVC_UNROLL
  for (int r = 0; r < kHalfLanes; ++r) {
    const __m512 scale = _mm512_set1_ps(args.alpha[lane + r]);
    KVC_UNROLL
    for (int c = 0; c < 2; ++c)
      sums[r][c] = _mm512_mul_ps(_mm512_load_ps(acc + (2 * r + c) * kLanes), scale);
  }
  for (int pair = 0; pair < args.num_pairs; ++pair, weights += kGroupLanes) {
    if (pair * kCacheLine < ahead_bytes) {
      for (int i = 0; i < ahead.count; ++i) prefetch_far(ahead.rows[i] + pair * kCacheLine);
    }
    __m512i value[2];
    load_values(args.keys[2 * pair] + byte, args.keys[2 * pair + 1] + byte, mask, kWhole, value[0],
                value[1]);
    KVC_UNROLL
    for (int r = 0; r < kHalfLanes; ++r) {
      const __m512i weight = _mm512_set1_epi32(static_cast<int32_t>(weights[r]));
      KVC_UNROLL
      for (int c = 0; c < 2; ++c) sums[r][c] = dot_pairs(sums[r][c], weight, value[c]);
    }
  }
  KVC_UNROLL
  for (int r = 0; r < kHalfLanes; ++r) {
    KVC_UNROLL
    for (int c = 0; c < 2; ++c) _mm512_store_ps(acc + (2 * r + c) * kLanes, sums[r][c]);
  }
}

// One lane of a block where it does not see every key and some V is not finite: 0 * NaN must not
// reach its sums, so hidden keys count as zeros. `visible`: bit k, key k of the block. The chains
// are those of value_tile.
inline void value_lane(const ValueArgs& args, int lane, uint64_t visible,
                       float* acc /* of the group */) {
  const Vec scale = set1(args.alpha[lane]);
  for (int64_t column = 0; column < columns_of(args.v_dim); ++column) {
    const __mmask32 mask = column_mask(args.v_dim - column * kColumn);
    float* at = acc + column * kColumnFloats + lane * kColumn;
    __m512 sums[2] = {_mm512_mul_ps(load(at), scale), _mm512_mul_ps(load(at + kLanes), scale)};
    for (int pair = 0; pair < args.num_pairs; ++pair) {
      const uint32_t two = static_cast<uint32_t>(visible >> (2 * pair)) & 3;
      const __m512i keep = _mm512_set1_epi32(
          static_cast<int32_t>((two & 1 ? 0xffffu : 0u) | (two & 2 ? 0xffff0000u : 0u)));
      __m512i value[2];
      load_values(args.keys[2 * pair] + column * kColumn * 2,
                  args.keys[2 * pair + 1] + column * kColumn * 2, mask, false, value[0], value[1]);
      const __m512i weight =
          _mm512_set1_epi32(static_cast<int32_t>(args.weights[pair * kGroupLanes + lane]));
      for (int c = 0; c < 2; ++c)
        sums[c] = dot_pairs(sums[c], weight, _mm512_and_si512(value[c], keep));
    }
    store(at, sums[0]), store(at + kLanes, sums[1]);
  }
}

// Whether the first v_dim elements of all rows are finite.
inline bool values_are_finite(const std::byte* const* rows, int count, int64_t v_dim) {
  __m512i largest =
      _mm512_setzero_si512();  // Largest |value| as bit patterns, shifted left by one.
  for (int key = 0; key < count; ++key) {
    for (int64_t d = 0; d < v_dim; d += kColumn) {
      const __m512i x = _mm512_maskz_loadu_epi16(column_mask(v_dim - d), rows[key] + d * 2);
      largest = _mm512_max_epu16(largest, _mm512_add_epi16(x, x));
    }
  }
  return _mm512_cmpge_epu16_mask(largest, _mm512_set1_epi16(static_cast<int16_t>(0xff00))) == 0;
}

// A column of accumulators in the order of the elements: load_values delivers elements 8i..8i+3 in
// the first register and 8i+4..8i+7 in the second.
inline void natural_column(const float* acc /* [kColumn] */, float* to) {
  const Vec first = load(acc), second = load(acc + kLanes);
  const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i high =
      _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  store(to, _mm512_permutex2var_ps(first, low, second));
  store(to + kLanes, _mm512_permutex2var_ps(first, high, second));
}

}  // namespace latent
}  // namespace
}  // namespace kvc::kernels::cpu
