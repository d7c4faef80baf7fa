// Float vectors of 8 lanes: AVX2 + FMA + F16C. See vec_common-inl.h for the list of operations.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/small_floats.h"
#include "kernels/params.h"

namespace kvc::kernels::cpu {
namespace {

#define KVC_VEC_INLINE [[gnu::always_inline]] inline

using Vec = __m256;
using Mask = __m256;  // All bits of a lane set or clear.
constexpr int kLanes = 8;
constexpr int kVectorRegisters = 16;

KVC_VEC_INLINE Vec zero() { return _mm256_setzero_ps(); }
KVC_VEC_INLINE Vec set1(float x) { return _mm256_set1_ps(x); }
KVC_VEC_INLINE Vec lane_index() { return _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7); }

KVC_VEC_INLINE Vec load(const float* p) { return _mm256_loadu_ps(p); }
KVC_VEC_INLINE void store(float* p, Vec x) { _mm256_storeu_ps(p, x); }
KVC_VEC_INLINE Mask first_lanes(int n) {
  return _mm256_castsi256_ps(
      _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)));
}
KVC_VEC_INLINE Vec load_tail(const float* p, int n) {
  return _mm256_maskload_ps(p, _mm256_castps_si256(first_lanes(n)));
}
KVC_VEC_INLINE void store_tail(float* p, Vec x, int n) {
  _mm256_maskstore_ps(p, _mm256_castps_si256(first_lanes(n)), x);
}

KVC_VEC_INLINE Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
KVC_VEC_INLINE Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
KVC_VEC_INLINE Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
KVC_VEC_INLINE Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
KVC_VEC_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
KVC_VEC_INLINE Vec fnma(Vec a, Vec b, Vec c) { return _mm256_fnmadd_ps(a, b, c); }
KVC_VEC_INLINE Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
KVC_VEC_INLINE Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
KVC_VEC_INLINE Vec abs(Vec a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
KVC_VEC_INLINE Vec copy_sign(Vec magnitude, Vec sign) {
  return _mm256_or_ps(magnitude, _mm256_and_ps(sign, _mm256_set1_ps(-0.0f)));
}

KVC_VEC_INLINE Mask less(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
KVC_VEC_INLINE Mask less_equal(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_LE_OQ); }
KVC_VEC_INLINE Mask equal(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
KVC_VEC_INLINE Mask mask_and(Mask a, Mask b) { return _mm256_and_ps(a, b); }
KVC_VEC_INLINE Mask mask_not(Mask a) {
  return _mm256_xor_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32(-1)));
}
KVC_VEC_INLINE uint32_t mask_bits(Mask a) { return static_cast<uint32_t>(_mm256_movemask_ps(a)); }
KVC_VEC_INLINE Mask mask_of(uint32_t bits) {
  const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i all = _mm256_set1_epi32(static_cast<int>(bits));
  return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(all, lane), lane));
}
KVC_VEC_INLINE Vec select(Mask m, Vec if_set, Vec if_clear) {
  return _mm256_blendv_ps(if_clear, if_set, m);
}

KVC_VEC_INLINE float horizontal_sum(Vec x) {
  const __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}
KVC_VEC_INLINE float horizontal_max(Vec x) {
  const __m128 half = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 pair = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)));
}

KVC_VEC_INLINE Vec round_even(Vec x) {
  return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// x * 2^n for integral n in [kExp2Floor, 127]; kExp2Floor gives 0.
constexpr float kExp2Floor = -127.0f;
KVC_VEC_INLINE Vec scale_exp2(Vec x, Vec n) {
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}

KVC_VEC_INLINE Vec from_bits_16(__m128i bits, bool is_f16) {
  return is_f16 ? _mm256_cvtph_ps(bits)
                : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
// The low 8 bytes; the element alone, without its scale. e4m3 becomes a float16 of 2^-8 the value,
// but for NaN.
template <DType kType>
KVC_VEC_INLINE Vec from_codes(__m128i codes) {
  if constexpr (kType == DType::kInt8) return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
  if constexpr (kType == DType::kE4M3Low) {
    const __m256i shifted = _mm256_slli_epi32(_mm256_cvtepi8_epi32(codes), 20);
    return _mm256_castsi256_ps(
        _mm256_and_si256(shifted, _mm256_set1_epi32(static_cast<int32_t>(0x87f00000))));
  }
  const __m128i wide = _mm_cvtepi8_epi16(codes);
  if constexpr (kType == DType::kE5M2) return _mm256_cvtph_ps(_mm_slli_epi16(wide, 8));
  const __m128i bits =
      _mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16(static_cast<int16_t>(0xbf80)));
  const __m128i magnitude = _mm_set1_epi16(0x3f80);
  const __m128i is_nan = _mm_cmpeq_epi16(_mm_and_si128(bits, magnitude), magnitude);
  const __m128i halves = _mm_or_si128(bits, _mm_and_si128(is_nan, _mm_set1_epi16(0x7e00)));
  return _mm256_mul_ps(_mm256_cvtph_ps(halves), _mm256_set1_ps(256.0f));
}
template <DType kType>
KVC_VEC_INLINE Vec load_as(const std::byte* p) {
  if constexpr (kType == DType::kF32) return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  if constexpr (is_quantised(kType))
    return from_codes<kType>(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  return from_bits_16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), kType == DType::kF16);
}
template <DType kType>
KVC_VEC_INLINE Vec load_as_tail(const std::byte* p, int n) {
  if constexpr (kType == DType::kF32) return load_tail(reinterpret_cast<const float*>(p), n);
  if constexpr (is_quantised(kType)) {
    uint64_t codes = 0;
    for (int i = 0; i < n; ++i) codes |= static_cast<uint64_t>(p[i]) << (8 * i);
    return from_codes<kType>(_mm_cvtsi64_si128(static_cast<int64_t>(codes)));
  }
  alignas(16) uint16_t bits[8] = {};
  for (int i = 0; i < n; ++i) __builtin_memcpy(&bits[i], p + 2 * i, 2);
  return from_bits_16(_mm_load_si128(reinterpret_cast<const __m128i*>(bits)), kType == DType::kF16);
}

// 2*kLanes elements: bf16 as (even elements, odd elements), the other types as (first half, second
// half).
template <DType kType>
KVC_VEC_INLINE void load_pair_as(const std::byte* p, Vec& a, Vec& b) {
  if constexpr (kType == DType::kBF16) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    a = _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
    b = _mm256_castsi256_ps(
        _mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int>(0xffff0000))));
  } else {
    a = load_as<kType>(p), b = load_as<kType>(p + kLanes * dtype_bytes(kType));
  }
}

KVC_VEC_INLINE __m128i to_bf16_bits(Vec x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(
      _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i quiet_nan = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i result = _mm256_blendv_epi8(rounded, quiet_nan, is_nan);
  return _mm_packus_epi32(_mm256_castsi256_si128(result), _mm256_extracti128_si256(result, 1));
}
KVC_VEC_INLINE __m128i to_f16_bits(Vec x) {
  return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// Adding 1.5 * 2^23 units of the last place of the result, and subtracting it, rounds.
template <int kFraction, int kBias>
KVC_VEC_INLINE __m256i to_small_float(Vec x, float largest) {
  const Vec smallest_normal = _mm256_set1_ps(small_float_power(1 - kBias));
  const Vec magnitude = _mm256_min_ps(abs(x), _mm256_set1_ps(largest));
  const __m256i exponent =
      _mm256_and_si256(_mm256_castps_si256(magnitude), _mm256_set1_epi32(0x7f800000));
  const Vec shift = _mm256_mul_ps(_mm256_max_ps(_mm256_castsi256_ps(exponent), smallest_normal),
                                  _mm256_set1_ps(1.5f * small_float_power(23 - kFraction)));
  const Vec rounded = _mm256_sub_ps(_mm256_add_ps(magnitude, shift), shift);
  const __m256i normal =
      _mm256_sub_epi32(_mm256_srli_epi32(_mm256_castps_si256(rounded), 23 - kFraction),
                       _mm256_set1_epi32((127 - kBias) << kFraction));
  const __m256i subnormal = _mm256_cvtps_epi32(
      _mm256_mul_ps(rounded, _mm256_set1_ps(small_float_power(kBias - 1 + kFraction))));
  const __m256i is_subnormal =
      _mm256_castps_si256(_mm256_cmp_ps(rounded, smallest_normal, _CMP_LT_OQ));
  const __m256i code = _mm256_blendv_epi8(normal, subnormal, is_subnormal);
  const __m256i sign =
      _mm256_and_si256(_mm256_srli_epi32(_mm256_castps_si256(x), 24), _mm256_set1_epi32(0x80));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_or_si256(_mm256_blendv_epi8(code, _mm256_set1_epi32(0x7f), is_nan), sign);
}
// In the low 8 bytes.
template <DType kType>
KVC_VEC_INLINE __m128i to_codes(Vec x) {
  __m256i codes;
  if constexpr (kType == DType::kE4M3) {
    codes = to_small_float<3, 7>(x, largest_element(kType));
  } else if constexpr (kType == DType::kE5M2) {
    codes = to_small_float<2, 15>(x, largest_element(kType));
  } else {
    const Vec bounded =
        _mm256_min_ps(_mm256_max_ps(x, _mm256_set1_ps(-128.0f)), _mm256_set1_ps(127.0f));
    const Vec number = _mm256_and_ps(bounded, _mm256_cmp_ps(x, x, _CMP_ORD_Q));
    codes = _mm256_and_si256(_mm256_cvtps_epi32(number), _mm256_set1_epi32(0xff));
  }
  const __m128i words =
      _mm_packus_epi32(_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1));
  return _mm_packus_epi16(words, words);
}
template <DType kType>
KVC_VEC_INLINE void store_as(std::byte* p, Vec x) {
  if constexpr (kType == DType::kF32) {
    _mm256_storeu_ps(reinterpret_cast<float*>(p), x);
  } else if constexpr (is_quantised(kType)) {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), to_codes<kType>(x));
  } else {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     kType == DType::kF16 ? to_f16_bits(x) : to_bf16_bits(x));
  }
}
template <DType kType>
KVC_VEC_INLINE void store_as_tail(std::byte* p, Vec x, int n) {
  if constexpr (kType == DType::kF32) {
    store_tail(reinterpret_cast<float*>(p), x, n);
  } else if constexpr (is_quantised(kType)) {
    const auto codes = static_cast<uint64_t>(_mm_cvtsi128_si64(to_codes<kType>(x)));
    for (int i = 0; i < n; ++i) p[i] = static_cast<std::byte>(codes >> (8 * i));
  } else {
    alignas(16) uint16_t bits[8];
    _mm_store_si128(reinterpret_cast<__m128i*>(bits),
                    kType == DType::kF16 ? to_f16_bits(x) : to_bf16_bits(x));
    for (int i = 0; i < n; ++i) __builtin_memcpy(p + 2 * i, &bits[i], 2);
  }
}

// 8x8 transpose in place.
KVC_VEC_INLINE void transpose(Vec (&rows)[8]) {
  Vec pairs[8];
  for (int i = 0; i < 8; i += 4) {
    const Vec a = _mm256_unpacklo_ps(rows[i], rows[i + 1]),
              b = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    const Vec c = _mm256_unpacklo_ps(rows[i + 2], rows[i + 3]),
              d = _mm256_unpackhi_ps(rows[i + 2], rows[i + 3]);
    pairs[i] = _mm256_shuffle_ps(a, c, 0x44), pairs[i + 1] = _mm256_shuffle_ps(a, c, 0xee);
    pairs[i + 2] = _mm256_shuffle_ps(b, d, 0x44), pairs[i + 3] = _mm256_shuffle_ps(b, d, 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm256_permute2f128_ps(pairs[i], pairs[i + 4], 0x20);
    rows[i + 4] = _mm256_permute2f128_ps(pairs[i], pairs[i + 4], 0x31);
  }
}

// Lane i of the result = horizontal sum of rows[i].
KVC_VEC_INLINE Vec sum_lanes(const Vec (&rows)[8]) {
  Vec half[4];
  for (int i = 0; i < 4; ++i) {
    half[i] = add(_mm256_unpacklo_ps(rows[2 * i], rows[2 * i + 1]),
                  _mm256_unpackhi_ps(rows[2 * i], rows[2 * i + 1]));
  }
  const Vec low =
      add(_mm256_shuffle_ps(half[0], half[1], 0x44), _mm256_shuffle_ps(half[0], half[1], 0xee));
  const Vec high =
      add(_mm256_shuffle_ps(half[2], half[3], 0x44), _mm256_shuffle_ps(half[2], half[3], 0xee));
  return add(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31));
}

KVC_VEC_INLINE void deinterleave(Vec first, Vec second, Vec& even, Vec& odd) {
  const Vec low = _mm256_permute2f128_ps(first, second, 0x20),
            high = _mm256_permute2f128_ps(first, second, 0x31);
  even = _mm256_shuffle_ps(low, high, 0x88);
  odd = _mm256_shuffle_ps(low, high, 0xdd);
}
KVC_VEC_INLINE void interleave(Vec even, Vec odd, Vec& first, Vec& second) {
  const Vec low = _mm256_unpacklo_ps(even, odd), high = _mm256_unpackhi_ps(even, odd);
  first = _mm256_permute2f128_ps(low, high, 0x20);
  second = _mm256_permute2f128_ps(low, high, 0x31);
}

// Lane i <- lane i ^ kDistance.
template <int kDistance>
KVC_VEC_INLINE Vec swap_lanes(Vec x) {
  if constexpr (kDistance == 1) return _mm256_permute_ps(x, 0xb1);
  if constexpr (kDistance == 2) return _mm256_permute_ps(x, 0x4e);
  return _mm256_permute2f128_ps(x, x, 0x01);
}

// p[0], ..., p[kCount - 1] over and over.
template <int kCount>
KVC_VEC_INLINE Vec load_repeated(const float* p) {
  if constexpr (kCount == 8) return load(p);
  if constexpr (kCount == 4) return _mm256_broadcast_ps(reinterpret_cast<const __m128*>(p));
  double pair;
  __builtin_memcpy(&pair, p, sizeof pair);
  return _mm256_castpd_ps(_mm256_set1_pd(pair));
}

KVC_VEC_INLINE void stream_64_bytes(std::byte* to, const std::byte* from) {
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32));
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), low);
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to + 32), high);
}
KVC_VEC_INLINE void stream_fence() { _mm_sfence(); }

}  // namespace
}  // namespace kvc::kernels::cpu

#include "kernels/cpu/vec_common-inl.h"
