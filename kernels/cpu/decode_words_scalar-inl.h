// The arithmetic of decode_words-inl.h for any machine: int8 alone, by products of words with
// integer sums. Where there is SSE2, it has the instruction for them.
#pragma once

#include "kernels/cpu/vec_scalar.h"
// The walk, over that vector width.
#include "kernels/cpu/decode-inl.h"
#include "kernels/cpu/decode_words-inl.h"

namespace kvc::kernels::cpu {
namespace {
namespace words {

struct Int8Math : IntegerFactors {
  typedef int16_t Half __attribute__((vector_size(16)));  // A register of SSE2.
  typedef int8_t Bytes __attribute__((vector_size(16)));
  typedef int32_t Dwords __attribute__((vector_size(16)));
  struct Words {
    Half low, high;
  };
  struct Sum {
    Dwords low, high;
  };
  static constexpr int kValueParts = 1;

  KVC_VEC_INLINE static Words load_words(const uint16_t* p) {
    Words words;
    __builtin_memcpy(&words.low, p, sizeof words.low);
    __builtin_memcpy(&words.high, p + 8, sizeof words.high);
    return words;
  }
  KVC_VEC_INLINE static Words load_bytes(const std::byte* p) {
    return load_words(reinterpret_cast<const uint16_t*>(p));
  }
  KVC_VEC_INLINE static Words load_bytes_tail(const std::byte* p, int n) {
    std::byte bytes[kUnit] = {};
    __builtin_memcpy(bytes, p, static_cast<size_t>(n));
    return load_bytes(bytes);
  }
  KVC_VEC_INLINE static Words broadcast_pair(const uint16_t* p) {
    int32_t pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    const Dwords all = {pair, pair, pair, pair};
    return {reinterpret_cast<Half>(all), reinterpret_cast<Half>(all)};
  }
  KVC_VEC_INLINE static Sum no_sum() { return {Dwords{}, Dwords{}}; }
  KVC_VEC_INLINE static Dwords products(Half a, Half b) {
#if defined(__SSE2__)
    return reinterpret_cast<Dwords>(
        _mm_madd_epi16(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
    Dwords sums{};
    for (int i = 0; i < 4; ++i) sums[i] = a[2 * i] * b[2 * i] + a[2 * i + 1] * b[2 * i + 1];
    return sums;
#endif
  }
  KVC_VEC_INLINE static Sum add_products(Sum sum, Words a, Words b) {
    return {sum.low + products(a.low, b.low), sum.high + products(a.high, b.high)};
  }
  KVC_VEC_INLINE static Vec to_float(Sum sum) {
    Mask all;
    __builtin_memcpy(&all, &sum, sizeof all);
    return __builtin_convertvector(all, Vec);
  }
  // Lane i: the sum of the lanes of sums[i].
  KVC_VEC_INLINE static Vec sum_all(const Sum (&sums)[8]) {
    Vec all{};
    for (int i = 0; i < 8; ++i) {
      const Dwords four = sums[i].low + sums[i].high;
      all[i] = static_cast<float>((four[0] + four[2]) + (four[1] + four[3]));
    }
    return all;
  }
  // Bytes to words with their sign.
  KVC_VEC_INLINE static void widen(Half bytes, Words& words) {
#if defined(__SSE2__)
    const auto x = reinterpret_cast<__m128i>(bytes);
    words.low = reinterpret_cast<Half>(_mm_srai_epi16(_mm_unpacklo_epi8(x, x), 8));
    words.high = reinterpret_cast<Half>(_mm_srai_epi16(_mm_unpackhi_epi8(x, x), 8));
#else
    const auto all = reinterpret_cast<Bytes>(bytes);
    for (int i = 0; i < 8; ++i) words.low[i] = all[i], words.high[i] = all[8 + i];
#endif
  }
  KVC_VEC_INLINE static void load_key(const std::byte* p, Words& first, Words& second) {
    const Words bytes = load_bytes(p);
    widen(bytes.low, first), widen(bytes.high, second);
  }
  KVC_VEC_INLINE static void load_key_tail(const std::byte* p, int n, Words& first, Words& second) {
    const Words bytes = load_bytes_tail(p, n);
    widen(bytes.low, first), widen(bytes.high, second);
  }
  // Byte kPart of the dwords of two rows, with its sign: words of a dword.
  template <int kPart>
  KVC_VEC_INLINE static Half pair_bytes(Half a, Half b) {
    const auto x = reinterpret_cast<Dwords>(a) << (8 * (3 - kPart)) >> 24;
    const auto y = reinterpret_cast<Dwords>(b) << (8 * (3 - kPart)) >> 24;
    const Dwords low_word = {0xffff, 0xffff, 0xffff, 0xffff};
    return reinterpret_cast<Half>((x & low_word) | (y << 16));
  }
  template <int kPart>
  KVC_VEC_INLINE static void pair_values(Words a, Words b, Words (&x)[1]) {
    x[0] = {pair_bytes<kPart>(a.low, b.low), pair_bytes<kPart>(a.high, b.high)};
  }
  // Rounded to words, in the order of the lanes.
  KVC_VEC_INLINE static void store_words(uint16_t* to, Vec x) {
    typedef int16_t Eight __attribute__((vector_size(16)));
    const Eight rounded =
        __builtin_convertvector(__builtin_convertvector(round_even(x), Mask), Eight);
    __builtin_memcpy(to, &rounded, sizeof rounded);
  }
};

}  // namespace words

void attn_decode_scalar(const AttnParams& params, const AttnItem& item, void* scratch) {
  if (words::serves<words::Int8Math>(params))
    return attn_decode_words<words::Int8Math>(params, item, scratch);
  attn_decode(params, item, scratch);
}

size_t attn_decode_scalar_scratch_bytes(const AttnParams& params, int64_t max_rows) {
  if (words::serves<words::Int8Math>(params))
    return attn_decode_words_scratch_bytes(params, max_rows);
  return attn_decode_scratch_bytes(params, max_rows);
}

}  // namespace
}  // namespace kvc::kernels::cpu
