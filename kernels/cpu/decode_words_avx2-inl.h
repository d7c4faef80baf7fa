// The arithmetic of decode_words-inl.h in vectors of 256 bits: int8 alone, by products of words
// with integer sums.
#pragma once

#include "kernels/cpu/vec_avx2.h"
// The walk, over that vector width.
#include "kernels/cpu/decode-inl.h"
#include "kernels/cpu/decode_words-inl.h"

namespace kvc::kernels::cpu {
namespace {
namespace words {

struct Int8Math : IntegerFactors {
  using Words = __m256i;
  // Not __m256i, as with AVX-512: see there.
  using Sum = int32_t __attribute__((vector_size(32)));
  static constexpr int kValueParts = 2;  // Eight sums in sixteen registers.

  KVC_VEC_INLINE static Words load_words(const uint16_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  KVC_VEC_INLINE static Words load_bytes(const std::byte* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  KVC_VEC_INLINE static Words load_bytes_tail(const std::byte* p, int n) {
    alignas(32) std::byte bytes[kUnit] = {};
    __builtin_memcpy(bytes, p, static_cast<size_t>(n));
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(bytes));
  }
  KVC_VEC_INLINE static Words broadcast_pair(const uint16_t* p) {
    int32_t pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return _mm256_set1_epi32(pair);
  }
  KVC_VEC_INLINE static Sum no_sum() { return Sum{}; }
  KVC_VEC_INLINE static Sum add_products(Sum sum, Words a, Words b) {
    return sum + reinterpret_cast<Sum>(_mm256_madd_epi16(a, b));
  }
  KVC_VEC_INLINE static Vec to_float(Sum sum) {
    return _mm256_cvtepi32_ps(reinterpret_cast<__m256i>(sum));
  }
  // Lane i: the sum of the lanes of sums[i].
  KVC_VEC_INLINE static Vec sum_all(const Sum (&sums)[8]) {
    const auto add_pairs = [&sums](int i) {
      return _mm256_hadd_epi32(reinterpret_cast<__m256i>(sums[i]),
                               reinterpret_cast<__m256i>(sums[i + 1]));
    };
    const __m256i low = _mm256_hadd_epi32(add_pairs(0), add_pairs(2));
    const __m256i high = _mm256_hadd_epi32(add_pairs(4), add_pairs(6));
    return _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_permute2x128_si256(low, high, 0x20),
                                               _mm256_permute2x128_si256(low, high, 0x31)));
  }
  KVC_VEC_INLINE static void load_key(const std::byte* p, Words& first, Words& second) {
    first = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    second = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16)));
  }
  KVC_VEC_INLINE static void load_key_tail(const std::byte* p, int n, Words& first, Words& second) {
    const __m256i bytes = load_bytes_tail(p, n);
    first = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(bytes));
    second = _mm256_cvtepi8_epi16(_mm256_extracti128_si256(bytes, 1));
  }
  // Elements 4l and 4l + 1 lie in the lower words of dwords, the other two in the upper ones.
  template <int kPart>
  KVC_VEC_INLINE static void pair_values(Words a, Words b, Words (&x)[2]) {
    const __m256i both = kPart == 0 ? _mm256_blend_epi16(a, _mm256_slli_epi32(b, 16), 0xaa)
                                    : _mm256_blend_epi16(_mm256_srli_epi32(a, 16), b, 0xaa);
    x[0] = _mm256_srai_epi16(_mm256_slli_epi16(both, 8), 8);
    x[1] = _mm256_srai_epi16(both, 8);
  }
  // Rounded to words, in the order of the lanes.
  KVC_VEC_INLINE static void store_words(uint16_t* to, Vec x) {
    const __m256i integers = _mm256_cvtps_epi32(x);
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(to),
        _mm_packs_epi32(_mm256_castsi256_si128(integers), _mm256_extracti128_si256(integers, 1)));
  }
};

}  // namespace words

void attn_decode_avx2(const AttnParams& params, const AttnItem& item, void* scratch) {
  if (words::serves<words::Int8Math>(params))
    return attn_decode_words<words::Int8Math>(params, item, scratch);
  attn_decode(params, item, scratch);
}

size_t attn_decode_avx2_scratch_bytes(const AttnParams& params, int64_t max_rows) {
  if (words::serves<words::Int8Math>(params))
    return attn_decode_words_scratch_bytes(params, max_rows);
  return attn_decode_scratch_bytes(params, max_rows);
}

}  // namespace
}  // namespace kvc::kernels::cpu
