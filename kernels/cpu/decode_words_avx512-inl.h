// The arithmetic of decode_words-inl.h in vectors of 512 bits.
//
// e4m3: products of bfloat16. The byte in the upper half of a word, shifted right by 4 with its
// sign, has the fields of a bfloat16 of 2^-120 the value. q and P are multiplied by 2^100, scores
// and sums by 2^20. Elements below 2^-6 count as 0: the processor takes no subnormal ones. NaN is
// read as 480: rows of the library have none, and where a row is not finite its scale is NaN.
#pragma once

#include "kernels/cpu/vec_avx512.h"
// The walk, over that vector width.
#include "kernels/cpu/decode-inl.h"
#include "kernels/cpu/decode_words-inl.h"

namespace kvc::kernels::cpu {
namespace {
namespace words {

// The bytes of two keys, pairs of a word each: dword l of `front` has elements 4l and 4l + 1 of
// `a`, then of `b`, and dword l of `behind` elements 4l + 2 and 4l + 3.
KVC_VEC_INLINE void pair_bytes(__m512i a, __m512i b, __m512i& front, __m512i& behind) {
  constexpr __mmask32 kUpperWords = 0xaaaaaaaau;
  front = _mm512_mask_blend_epi16(kUpperWords, a, _mm512_slli_epi32(b, 16));
  behind = _mm512_mask_blend_epi16(kUpperWords, _mm512_srli_epi32(a, 16), b);
}

struct Words512 {
  using Words = __m512i;
  static constexpr int kValueParts = 4;
  KVC_VEC_INLINE static Words load_words(const uint16_t* p) { return _mm512_loadu_si512(p); }
  KVC_VEC_INLINE static Words load_bytes(const std::byte* p) { return _mm512_loadu_si512(p); }
  KVC_VEC_INLINE static Words load_bytes_tail(const std::byte* p, int n) {
    return _mm512_maskz_loadu_epi8((uint64_t{1} << n) - 1, p);
  }
  // Two words, in every dword.
  KVC_VEC_INLINE static Words broadcast_pair(const uint16_t* p) {
    int32_t pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return _mm512_set1_epi32(pair);
  }
};

struct Int8Math : Words512, IntegerFactors {
  // Not __m512i: GCC copies a sum of 64-bit lanes to another register and back at every product.
  using Sum = int32_t __attribute__((vector_size(64)));

  KVC_VEC_INLINE static Sum no_sum() { return Sum{}; }
  KVC_VEC_INLINE static Sum add_products(Sum sum, __m512i a, __m512i b) {
#if defined(__AVX512VNNI__)
    return reinterpret_cast<Sum>(_mm512_dpwssd_epi32(reinterpret_cast<__m512i>(sum), a, b));
#else
    return sum + reinterpret_cast<Sum>(_mm512_madd_epi16(a, b));
#endif
  }
  KVC_VEC_INLINE static Vec to_float(Sum sum) {
    return _mm512_cvtepi32_ps(reinterpret_cast<__m512i>(sum));
  }
  // Lane i: the sum of the lanes of sums[i].
  KVC_VEC_INLINE static Vec sum_all(const Sum (&sums)[16]) {
    __m512i half[8], quarter[4];
    KVC_UNROLL
    for (int i = 0; i < 8; ++i) {
      const auto even = reinterpret_cast<__m512i>(sums[2 * i]);
      const auto odd = reinterpret_cast<__m512i>(sums[2 * i + 1]);
      half[i] =
          _mm512_add_epi32(_mm512_unpacklo_epi32(even, odd), _mm512_unpackhi_epi32(even, odd));
    }
    KVC_UNROLL
    for (int i = 0; i < 4; ++i) {
      quarter[i] = _mm512_add_epi32(_mm512_unpacklo_epi64(half[2 * i], half[2 * i + 1]),
                                    _mm512_unpackhi_epi64(half[2 * i], half[2 * i + 1]));
    }
    const __m512i low = _mm512_add_epi32(_mm512_shuffle_i32x4(quarter[0], quarter[1], 0x88),
                                         _mm512_shuffle_i32x4(quarter[0], quarter[1], 0xdd));
    const __m512i high = _mm512_add_epi32(_mm512_shuffle_i32x4(quarter[2], quarter[3], 0x88),
                                          _mm512_shuffle_i32x4(quarter[2], quarter[3], 0xdd));
    return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_shuffle_i32x4(low, high, 0x88),
                                               _mm512_shuffle_i32x4(low, high, 0xdd)));
  }
  // 64 elements of a K row.
  KVC_VEC_INLINE static void load_key(const std::byte* p, __m512i& first, __m512i& second) {
    first = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    second = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32)));
  }
  KVC_VEC_INLINE static void load_key_tail(const std::byte* p, int n, __m512i& first,
                                           __m512i& second) {
    const __m512i bytes = load_bytes_tail(p, n);
    first = _mm512_cvtepi8_epi16(_mm512_castsi512_si256(bytes));
    second = _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64(bytes, 1));
  }
  template <int kPart>
  KVC_VEC_INLINE static void pair_values(__m512i a, __m512i b, __m512i (&x)[4]) {
    __m512i front, behind;
    pair_bytes(a, b, front, behind);
    x[0] = _mm512_srai_epi16(_mm512_slli_epi16(front, 8), 8);
    x[1] = _mm512_srai_epi16(front, 8);
    x[2] = _mm512_srai_epi16(_mm512_slli_epi16(behind, 8), 8);
    x[3] = _mm512_srai_epi16(behind, 8);
  }
  // Rounded to words, in the order of the lanes.
  KVC_VEC_INLINE static void store_words(uint16_t* to, Vec x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                        _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(x)));
  }
};

#if defined(__AVX512BF16__)

struct E4M3Math : Words512 {
  static constexpr DType kType = DType::kE4M3;
  // Elements that count as 0 are small beside the largest of their row where each row has a scale.
  static constexpr bool kLosesSmall = true;
  using Sum = __m512;

  KVC_VEC_INLINE static Sum no_sum() { return _mm512_setzero_ps(); }
  KVC_VEC_INLINE static Sum add_products(Sum sum, __m512i a, __m512i b) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
  KVC_VEC_INLINE static Vec to_float(Sum sum) { return sum; }
  KVC_VEC_INLINE static Vec sum_all(const Sum (&sums)[16]) { return sum_lanes(sums); }
  // Even elements first.
  KVC_VEC_INLINE static void place_query(const uint16_t* natural, uint16_t* to) {
    for (int half = 0; half < 2; ++half) {
      const __m512i pairs = load_words(natural + half * kWords);
      const auto store_half = [&](int first, __m512i words) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + first + half * kLanes),
                            _mm512_cvtepi32_epi16(words));
      };
      store_half(0, pairs), store_half(kWords, _mm512_srli_epi32(pairs, 16));
    }
  }
  KVC_VEC_INLINE static __m512i upper_bytes(__m512i bytes) {
    return _mm512_and_si512(_mm512_srai_epi16(bytes, 4),
                            _mm512_set1_epi16(static_cast<int16_t>(0x87f0)));
  }
  KVC_VEC_INLINE static __m512i lower_bytes(__m512i bytes) {
    return upper_bytes(_mm512_slli_epi16(bytes, 8));
  }
  KVC_VEC_INLINE static void load_key(const std::byte* p, __m512i& first, __m512i& second) {
    const __m512i bytes = load_bytes(p);
    first = lower_bytes(bytes), second = upper_bytes(bytes);
  }
  KVC_VEC_INLINE static void load_key_tail(const std::byte* p, int n, __m512i& first,
                                           __m512i& second) {
    const __m512i bytes = load_bytes_tail(p, n);
    first = lower_bytes(bytes), second = upper_bytes(bytes);
  }
  template <int kPart>
  KVC_VEC_INLINE static void pair_values(__m512i a, __m512i b, __m512i (&x)[4]) {
    __m512i front, behind;
    pair_bytes(a, b, front, behind);
    x[0] = lower_bytes(front), x[1] = upper_bytes(front);
    x[2] = lower_bytes(behind), x[3] = upper_bytes(behind);
  }
  // Powers of two: only the rounding to bfloat16 shows. 2^(100 - e) with the exponent e of the
  // largest magnitude, and 2^(20 + e).
  KVC_VEC_INLINE static Vec exponent_of(Vec largest) {
    const __m512i bits =
        _mm512_and_si512(_mm512_castps_si512(largest), _mm512_set1_epi32(0x7f800000));
    return max(_mm512_castsi512_ps(bits), set1(small_float_power(-20)));
  }
  KVC_VEC_INLINE static Vec word_factor(Vec largest) {
    return div(set1(small_float_power(100)), exponent_of(largest));
  }
  KVC_VEC_INLINE static Vec product_factor(Vec largest) {
    return mul(exponent_of(largest), set1(small_float_power(20)));
  }
  KVC_VEC_INLINE static void store_words(uint16_t* to, Vec x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                        reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
  }
};

#endif

}  // namespace words

void attn_decode_avx512(const AttnParams& params, const AttnItem& item, void* scratch) {
  if (words::serves<words::Int8Math>(params))
    return attn_decode_words<words::Int8Math>(params, item, scratch);
#if defined(__AVX512BF16__)
  if (words::serves<words::E4M3Math>(params))
    return attn_decode_words<words::E4M3Math>(params, item, scratch);
#endif
  attn_decode(params, item, scratch);
}

size_t attn_decode_avx512_scratch_bytes(const AttnParams& params, int64_t max_rows) {
  if (words::serves<words::Int8Math>(params))
    return attn_decode_words_scratch_bytes(params, max_rows);
#if defined(__AVX512BF16__)
  if (words::serves<words::E4M3Math>(params))
    return attn_decode_words_scratch_bytes(params, max_rows);
#endif
  return attn_decode_scratch_bytes(params, max_rows);
}

}  // namespace
}  // namespace kvc::kernels::cpu
