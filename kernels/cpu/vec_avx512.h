// Float vectors of 16 lanes: AVX-512 F/BW/DQ/VL. See vec_common-inl.h for the list of operations.
//
// Everything sits in an anonymous namespace: each ISA translation unit owns its copy and none of it
// reaches the linker, so no AVX-512 code can stand in for another file's function.
#pragma once

// Gcc 12 warns inside its own header: _mm512_undefined_ps() is `x = x` there (gcc bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include "kernels/cpu/small_floats.h"
#include "kernels/params.h"

namespace kvc::kernels::cpu {
namespace {

#define KVC_VEC_INLINE [[gnu::always_inline]] inline

using Vec = __m512;
using Mask = __mmask16;
constexpr int kLanes = 16;
constexpr int kVectorRegisters = 32;

KVC_VEC_INLINE Vec zero() { return _mm512_setzero_ps(); }
KVC_VEC_INLINE Vec set1(float x) { return _mm512_set1_ps(x); }
// 0, 1, 2, ... as floats.
KVC_VEC_INLINE Vec lane_index() {
  return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

KVC_VEC_INLINE Vec load(const float* p) { return _mm512_loadu_ps(p); }
KVC_VEC_INLINE void store(float* p, Vec x) { _mm512_storeu_ps(p, x); }
KVC_VEC_INLINE Mask first_lanes(int n) { return static_cast<Mask>((uint32_t{1} << n) - 1); }
KVC_VEC_INLINE Vec load_tail(const float* p, int n) {
  return _mm512_maskz_loadu_ps(first_lanes(n), p);
}
KVC_VEC_INLINE void store_tail(float* p, Vec x, int n) {
  _mm512_mask_storeu_ps(p, first_lanes(n), x);
}

KVC_VEC_INLINE Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
KVC_VEC_INLINE Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
KVC_VEC_INLINE Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
KVC_VEC_INLINE Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
KVC_VEC_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
KVC_VEC_INLINE Vec fnma(Vec a, Vec b, Vec c) { return _mm512_fnmadd_ps(a, b, c); }
KVC_VEC_INLINE Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
KVC_VEC_INLINE Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
KVC_VEC_INLINE Vec abs(Vec a) { return _mm512_abs_ps(a); }
KVC_VEC_INLINE Vec copy_sign(Vec magnitude, Vec sign) {
  return _mm512_or_ps(magnitude, _mm512_and_ps(sign, _mm512_set1_ps(-0.0f)));
}

KVC_VEC_INLINE Mask less(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
KVC_VEC_INLINE Mask less_equal(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
KVC_VEC_INLINE Mask equal(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
KVC_VEC_INLINE Mask mask_and(Mask a, Mask b) { return static_cast<Mask>(a & b); }
KVC_VEC_INLINE Mask mask_not(Mask a) { return static_cast<Mask>(~a); }
KVC_VEC_INLINE uint32_t mask_bits(Mask a) { return a; }
KVC_VEC_INLINE Mask mask_of(uint32_t bits) { return static_cast<Mask>(bits); }
KVC_VEC_INLINE Vec select(Mask m, Vec if_set, Vec if_clear) {
  return _mm512_mask_blend_ps(m, if_clear, if_set);
}

KVC_VEC_INLINE float horizontal_sum(Vec x) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  const __m128 pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}
KVC_VEC_INLINE float horizontal_max(Vec x) {
  const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  const __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  const __m128 pair = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)));
}

KVC_VEC_INLINE Vec round_even(Vec x) {
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// x * 2^n for integral n in [kExp2Floor, 127]; kExp2Floor gives 0 for x < 2.
constexpr float kExp2Floor = -160.0f;
KVC_VEC_INLINE Vec scale_exp2(Vec x, Vec n) { return _mm512_scalef_ps(x, n); }

// The element alone, without its scale. e4m3 becomes a float16 of 2^-8 the value, but for NaN.
template <DType kType>
KVC_VEC_INLINE Vec from_codes(__m128i codes) {
  if constexpr (kType == DType::kInt8) return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes));
  if constexpr (kType == DType::kE4M3Low) {
    const __m512i shifted = _mm512_slli_epi32(_mm512_cvtepi8_epi32(codes), 20);
    return _mm512_castsi512_ps(
        _mm512_and_si512(shifted, _mm512_set1_epi32(static_cast<int32_t>(0x87f00000))));
  }
  const __m256i wide = _mm256_cvtepi8_epi16(codes);
  if constexpr (kType == DType::kE5M2) return _mm512_cvtph_ps(_mm256_slli_epi16(wide, 8));
  const __m256i bits =
      _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(static_cast<int16_t>(0xbf80)));
  const __m256i magnitude = _mm256_set1_epi16(0x3f80);
  const __mmask16 is_nan = _mm256_cmpeq_epi16_mask(_mm256_and_si256(bits, magnitude), magnitude);
  return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_mask_set1_epi16(bits, is_nan, 0x7e00)),
                       _mm512_set1_ps(256.0f));
}
template <DType kType>
KVC_VEC_INLINE Vec load_as(const std::byte* p) {
  if constexpr (kType == DType::kF32) return _mm512_loadu_ps(p);
  if constexpr (is_quantised(kType))
    return from_codes<kType>(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  if constexpr (kType == DType::kF16) return _mm512_cvtph_ps(bits);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
template <DType kType>
KVC_VEC_INLINE Vec load_as_tail(const std::byte* p, int n) {
  if constexpr (kType == DType::kF32) return _mm512_maskz_loadu_ps(first_lanes(n), p);
  if constexpr (is_quantised(kType))
    return from_codes<kType>(_mm_maskz_loadu_epi8(first_lanes(n), p));
  const __m256i bits = _mm256_maskz_loadu_epi16(first_lanes(n), p);
  if constexpr (kType == DType::kF16) return _mm512_cvtph_ps(bits);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

// 2*kLanes elements. bf16 comes apart as (even elements, odd elements), which spares the widening
// shuffle; the other types as (first half, second half). interleave() restores the order.
template <DType kType>
KVC_VEC_INLINE void load_pair_as(const std::byte* p, Vec& a, Vec& b) {
  if constexpr (kType == DType::kBF16) {
    const __m512i bits = _mm512_loadu_si512(p);
    a = _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
    b = _mm512_castsi512_ps(
        _mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
  } else {
    a = load_as<kType>(p), b = load_as<kType>(p + kLanes * dtype_bytes(kType));
  }
}

// Integer arithmetic instead of vcvtneps2bf16: that one flushes subnormals, and all ISAs shall
// store the same bits.
KVC_VEC_INLINE __m256i to_bf16_bits(Vec x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_srli_epi32(
      _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const __m512i quiet_nan = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
  return _mm512_cvtepi32_epi16(
      _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), rounded, quiet_nan));
}
KVC_VEC_INLINE __m256i to_f16_bits(Vec x) {
  return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// Adding 1.5 * 2^23 units of the last place of the result, and subtracting it, rounds.
template <int kFraction, int kBias>
KVC_VEC_INLINE __m512i to_small_float(Vec x, float largest) {
  const Vec smallest_normal = _mm512_set1_ps(small_float_power(1 - kBias));
  const Vec magnitude = _mm512_min_ps(_mm512_abs_ps(x), _mm512_set1_ps(largest));
  const __m512i exponent =
      _mm512_and_si512(_mm512_castps_si512(magnitude), _mm512_set1_epi32(0x7f800000));
  const Vec shift = _mm512_mul_ps(_mm512_max_ps(_mm512_castsi512_ps(exponent), smallest_normal),
                                  _mm512_set1_ps(1.5f * small_float_power(23 - kFraction)));
  const Vec rounded = _mm512_sub_ps(_mm512_add_ps(magnitude, shift), shift);
  const __m512i normal =
      _mm512_sub_epi32(_mm512_srli_epi32(_mm512_castps_si512(rounded), 23 - kFraction),
                       _mm512_set1_epi32((127 - kBias) << kFraction));
  const __m512i code = _mm512_mask_cvtps_epi32(
      normal, _mm512_cmp_ps_mask(rounded, smallest_normal, _CMP_LT_OQ),
      _mm512_mul_ps(rounded, _mm512_set1_ps(small_float_power(kBias - 1 + kFraction))));
  const __m512i sign =
      _mm512_and_si512(_mm512_srli_epi32(_mm512_castps_si512(x), 24), _mm512_set1_epi32(0x80));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_or_si512(_mm512_mask_set1_epi32(code, is_nan, 0x7f), sign);
}
template <DType kType>
KVC_VEC_INLINE __m128i to_codes(Vec x) {
  if constexpr (kType == DType::kE4M3)
    return _mm512_cvtepi32_epi8(to_small_float<3, 7>(x, largest_element(kType)));
  if constexpr (kType == DType::kE5M2)
    return _mm512_cvtepi32_epi8(to_small_float<2, 15>(x, largest_element(kType)));
  const Vec bounded =
      _mm512_min_ps(_mm512_max_ps(x, _mm512_set1_ps(-128.0f)), _mm512_set1_ps(127.0f));
  const __mmask16 is_number = _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q);
  return _mm512_cvtepi32_epi8(_mm512_maskz_cvtps_epi32(is_number, bounded));
}
template <DType kType>
KVC_VEC_INLINE void store_as(std::byte* p, Vec x) {
  if constexpr (kType == DType::kF32) {
    _mm512_storeu_ps(p, x);
  } else if constexpr (is_quantised(kType)) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_codes<kType>(x));
  } else {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        kType == DType::kF16 ? to_f16_bits(x) : to_bf16_bits(x));
  }
}
template <DType kType>
KVC_VEC_INLINE void store_as_tail(std::byte* p, Vec x, int n) {
  if constexpr (kType == DType::kF32) {
    _mm512_mask_storeu_ps(p, first_lanes(n), x);
  } else if constexpr (is_quantised(kType)) {
    _mm_mask_storeu_epi8(p, first_lanes(n), to_codes<kType>(x));
  } else {
    _mm256_mask_storeu_epi16(p, first_lanes(n),
                             kType == DType::kF16 ? to_f16_bits(x) : to_bf16_bits(x));
  }
}

// 16x16 transpose in place: rows[i][j] <-> rows[j][i].
KVC_VEC_INLINE void transpose(Vec (&rows)[16]) {
  Vec pairs[16];
  for (int i = 0; i < 16; i += 4) {  // 4x4 blocks inside each 128-bit quarter.
    const Vec a = _mm512_unpacklo_ps(rows[i], rows[i + 1]),
              b = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    const Vec c = _mm512_unpacklo_ps(rows[i + 2], rows[i + 3]),
              d = _mm512_unpackhi_ps(rows[i + 2], rows[i + 3]);
    pairs[i] = _mm512_shuffle_ps(a, c, 0x44), pairs[i + 1] = _mm512_shuffle_ps(a, c, 0xee);
    pairs[i + 2] = _mm512_shuffle_ps(b, d, 0x44), pairs[i + 3] = _mm512_shuffle_ps(b, d, 0xee);
  }
  for (int i = 0; i < 4; ++i) {  // 4x4 transpose of the quarters.
    const Vec a = _mm512_shuffle_f32x4(pairs[i], pairs[i + 4], 0x88);
    const Vec b = _mm512_shuffle_f32x4(pairs[i], pairs[i + 4], 0xdd);
    const Vec c = _mm512_shuffle_f32x4(pairs[i + 8], pairs[i + 12], 0x88);
    const Vec d = _mm512_shuffle_f32x4(pairs[i + 8], pairs[i + 12], 0xdd);
    rows[i] = _mm512_shuffle_f32x4(a, c, 0x88), rows[i + 8] = _mm512_shuffle_f32x4(a, c, 0xdd);
    rows[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88), rows[i + 12] = _mm512_shuffle_f32x4(b, d, 0xdd);
  }
}

// Lane i of the result = horizontal sum of rows[i]: an add tree that halves the number of vectors
// per step.
KVC_VEC_INLINE Vec sum_lanes(const Vec (&rows)[16]) {
  Vec half[8], quarter[4];
  for (int i = 0; i < 8; ++i) {
    half[i] = add(_mm512_unpacklo_ps(rows[2 * i], rows[2 * i + 1]),
                  _mm512_unpackhi_ps(rows[2 * i], rows[2 * i + 1]));
  }
  for (int i = 0; i < 4; ++i) {
    quarter[i] = add(_mm512_shuffle_ps(half[2 * i], half[2 * i + 1], 0x44),
                     _mm512_shuffle_ps(half[2 * i], half[2 * i + 1], 0xee));
  }
  const Vec low = add(_mm512_shuffle_f32x4(quarter[0], quarter[1], 0x88),
                      _mm512_shuffle_f32x4(quarter[0], quarter[1], 0xdd));
  const Vec high = add(_mm512_shuffle_f32x4(quarter[2], quarter[3], 0x88),
                       _mm512_shuffle_f32x4(quarter[2], quarter[3], 0xdd));
  return add(_mm512_shuffle_f32x4(low, high, 0x88), _mm512_shuffle_f32x4(low, high, 0xdd));
}

// (a0 b0 a1 b1 ...) in two vectors <-> (a), (b): interleaved rotation.
KVC_VEC_INLINE void deinterleave(Vec first, Vec second, Vec& even, Vec& odd) {
  const __m512i e = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i o = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  even = _mm512_permutex2var_ps(first, e, second);
  odd = _mm512_permutex2var_ps(first, o, second);
}
KVC_VEC_INLINE void interleave(Vec even, Vec odd, Vec& first, Vec& second) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high =
      _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  first = _mm512_permutex2var_ps(even, low, odd);
  second = _mm512_permutex2var_ps(even, high, odd);
}

// Lane i <- lane i ^ kDistance.
template <int kDistance>
KVC_VEC_INLINE Vec swap_lanes(Vec x) {
  if constexpr (kDistance == 1) return _mm512_permute_ps(x, 0xb1);
  if constexpr (kDistance == 2) return _mm512_permute_ps(x, 0x4e);
  if constexpr (kDistance == 4) return _mm512_shuffle_f32x4(x, x, 0xb1);
  return _mm512_shuffle_f32x4(x, x, 0x4e);
}

// p[0], ..., p[kCount - 1] over and over.
template <int kCount>
KVC_VEC_INLINE Vec load_repeated(const float* p) {
  if constexpr (kCount == 16) return load(p);
  if constexpr (kCount == 8) return _mm512_broadcast_f32x8(_mm256_loadu_ps(p));
  if constexpr (kCount == 4) return _mm512_broadcast_f32x4(_mm_loadu_ps(p));
  double pair;
  __builtin_memcpy(&pair, p, sizeof pair);
  return _mm512_castpd_ps(_mm512_set1_pd(pair));
}

// 64 bytes past the caches; `to` is 64-byte aligned.
KVC_VEC_INLINE void stream_64_bytes(std::byte* to, const std::byte* from) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
}
KVC_VEC_INLINE void stream_fence() { _mm_sfence(); }

}  // namespace
}  // namespace kvc::kernels::cpu

#include "kernels/cpu/vec_common-inl.h"
