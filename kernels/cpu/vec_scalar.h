// Float vectors of 8 lanes for any machine, by the compiler's vector extensions: the baseline
// instruction set does what it can (two SSE2 or NEON registers). See vec_common-inl.h for the list
// of operations.
//
// GCC compares vectors wider than a register lane by lane, with a branch or a move for each. So
// floats are compared by halves, and integers by the sign of a difference.
#pragma once

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "kernels/cpu/small_floats.h"
#include "kernels/params.h"

// A 32-byte vector has no register to travel in here; every function below is inlined, so no call
// finds one.
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

namespace kvc::kernels::cpu {
namespace {

#define KVC_VEC_INLINE [[gnu::always_inline]] inline

typedef float Vec __attribute__((vector_size(32), aligned(16)));
typedef int32_t Mask __attribute__((vector_size(32), aligned(16)));  // -1 or 0 per lane.
constexpr int kLanes = 8;
constexpr int kVectorRegisters = 8;

// The halves of a Vec or a Mask.
typedef float HalfVec __attribute__((vector_size(16)));
typedef int32_t HalfMask __attribute__((vector_size(16)));
template <typename Half>
struct Halves {
  Half low, high;
};
KVC_VEC_INLINE Halves<HalfVec> halves(Vec x) {
  Halves<HalfVec> parts;
  __builtin_memcpy(&parts, &x, sizeof parts);
  return parts;
}
KVC_VEC_INLINE Mask whole(Halves<HalfMask> parts) {
  Mask x;
  __builtin_memcpy(&x, &parts, sizeof x);
  return x;
}
// Lanes below 0.
KVC_VEC_INLINE Mask negative(Mask x) { return x >> 31; }

KVC_VEC_INLINE Vec zero() { return Vec{}; }
KVC_VEC_INLINE Vec set1(float x) { return Vec{x, x, x, x, x, x, x, x}; }
KVC_VEC_INLINE Mask set1_bits(int32_t x) { return Mask{x, x, x, x, x, x, x, x}; }
KVC_VEC_INLINE Vec lane_index() { return Vec{0, 1, 2, 3, 4, 5, 6, 7}; }

KVC_VEC_INLINE Vec load(const float* p) {
  Vec x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
KVC_VEC_INLINE void store(float* p, Vec x) { __builtin_memcpy(p, &x, sizeof x); }
KVC_VEC_INLINE Mask first_lanes(int n) {
  return negative(Mask{0, 1, 2, 3, 4, 5, 6, 7} - set1_bits(n));
}
KVC_VEC_INLINE Vec load_tail(const float* p, int n) {
  Vec x{};
  for (int i = 0; i < n; ++i) x[i] = p[i];
  return x;
}
KVC_VEC_INLINE void store_tail(float* p, Vec x, int n) {
  for (int i = 0; i < n; ++i) p[i] = x[i];
}

KVC_VEC_INLINE Vec add(Vec a, Vec b) { return a + b; }
KVC_VEC_INLINE Vec sub(Vec a, Vec b) { return a - b; }
KVC_VEC_INLINE Vec mul(Vec a, Vec b) { return a * b; }
KVC_VEC_INLINE Vec div(Vec a, Vec b) { return a / b; }
KVC_VEC_INLINE Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
KVC_VEC_INLINE Vec fnma(Vec a, Vec b, Vec c) { return c - a * b; }
KVC_VEC_INLINE Vec select(Mask m, Vec if_set, Vec if_clear) {
  return reinterpret_cast<Vec>((m & reinterpret_cast<Mask>(if_set)) |
                               (~m & reinterpret_cast<Mask>(if_clear)));
}
KVC_VEC_INLINE Mask less(Vec a, Vec b) {
  const Halves<HalfVec> x = halves(a), y = halves(b);
  return whole({x.low < y.low, x.high < y.high});
}
KVC_VEC_INLINE Mask less_equal(Vec a, Vec b) {
  const Halves<HalfVec> x = halves(a), y = halves(b);
  return whole({x.low <= y.low, x.high <= y.high});
}
KVC_VEC_INLINE Mask equal(Vec a, Vec b) {
  const Halves<HalfVec> x = halves(a), y = halves(b);
  return whole({x.low == y.low, x.high == y.high});
}
// As x86 has them: the second operand when either is NaN.
KVC_VEC_INLINE Vec max(Vec a, Vec b) { return select(less(b, a), a, b); }
KVC_VEC_INLINE Vec min(Vec a, Vec b) { return select(less(a, b), a, b); }
KVC_VEC_INLINE Vec abs(Vec a) {
  return reinterpret_cast<Vec>(reinterpret_cast<Mask>(a) & set1_bits(0x7fffffff));
}
KVC_VEC_INLINE Vec copy_sign(Vec magnitude, Vec sign) {
  return reinterpret_cast<Vec>(reinterpret_cast<Mask>(magnitude) |
                               (reinterpret_cast<Mask>(sign) & ~set1_bits(0x7fffffff)));
}

KVC_VEC_INLINE Mask mask_and(Mask a, Mask b) { return a & b; }
KVC_VEC_INLINE Mask mask_not(Mask a) { return ~a; }
KVC_VEC_INLINE Mask mask_of(uint32_t bits) {
  const Mask lane = {1, 2, 4, 8, 16, 32, 64, 128};
  return negative(-(set1_bits(static_cast<int32_t>(bits)) & lane));
}
KVC_VEC_INLINE uint32_t mask_bits(Mask a) {
  uint32_t bits = 0;
  for (int i = 0; i < 8; ++i) bits |= static_cast<uint32_t>(a[i] & 1) << i;
  return bits;
}

KVC_VEC_INLINE float horizontal_sum(Vec x) {
  return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}
KVC_VEC_INLINE float horizontal_max(Vec x) {
  float largest = x[0];
  for (int i = 1; i < 8; ++i) largest = largest > x[i] ? largest : x[i];
  return largest;
}

KVC_VEC_INLINE Vec
round_even(Vec x) {  // |x| < 2^22: adding 3 * 2^22 leaves no bits for a fraction.
  const Vec shift = set1(12582912.0f);
  return (x + shift) - shift;
}
// x * 2^n for integral n in [kExp2Floor, 127]; kExp2Floor gives 0.
constexpr float kExp2Floor = -127.0f;
KVC_VEC_INLINE Vec scale_exp2(Vec x, Vec n) {
  const Mask exponent = __builtin_convertvector(n, Mask) + set1_bits(127);
  return x * reinterpret_cast<Vec>(exponent << 23);
}

typedef uint16_t Words __attribute__((vector_size(16)));
KVC_VEC_INLINE Vec from_f16(Words halves) {
  const Mask wide = __builtin_convertvector(halves, Mask);
  const Mask magnitude = wide & set1_bits(0x7fff);
  const Mask normal = (magnitude << 13) + set1_bits(112 << 23);
  // Zero and subnormals: a multiple of 2^-24.
  const Vec subnormal = __builtin_convertvector(magnitude, Vec) * set1(0x1p-24f);
  // Inf, NaN (made quiet as the hardware does).
  const Mask not_finite = set1_bits(0x7f800000) | (magnitude & set1_bits(0x3ff)) << 13 |
                          (negative(set1_bits(0x7c00) - magnitude) & set1_bits(0x400000));
  Vec value =
      select(negative(magnitude - set1_bits(0x400)), subnormal, reinterpret_cast<Vec>(normal));
  value = select(negative(set1_bits(0x7bff) - magnitude), reinterpret_cast<Vec>(not_finite), value);
  return reinterpret_cast<Vec>(reinterpret_cast<Mask>(value) | (wide & set1_bits(0x8000)) << 16);
}
KVC_VEC_INLINE Words to_f16(Vec x) {
  const Mask sign = (reinterpret_cast<Mask>(x) >> 16) & set1_bits(0x8000);
  const Mask magnitude = reinterpret_cast<Mask>(x) & set1_bits(0x7fffffff);
  // 2^-14: normal; a carry moves into the exponent as it should.
  const Mask odd = (magnitude >> 13) & set1_bits(1);
  const Mask normal = (magnitude - set1_bits((112 << 23) - 0xfff) + odd) >> 13;
  // Adding 1/2 leaves 24 fraction bits, and the adder rounds to nearest even.
  const Mask is_subnormal = negative(magnitude - set1_bits(0x38800000));
  const Vec shifted = reinterpret_cast<Vec>(magnitude & is_subnormal) + set1(0.5f);
  const Mask subnormal = reinterpret_cast<Mask>(shifted) - set1_bits(0x3f000000);
  const Mask nan = set1_bits(0x7e00) | ((magnitude >> 13) & set1_bits(0x3ff));
  const Mask is_nan = negative(set1_bits(0x7f800000) - magnitude);
  // 65520 rounds to inf.
  const Mask is_large = negative(set1_bits(0x477fefff) - magnitude);
  Mask half = (subnormal & is_subnormal) | (normal & ~is_subnormal);
  half = (set1_bits(0x7c00) & is_large) | (half & ~is_large);
  half = (nan & is_nan) | (half & ~is_nan);
  return __builtin_convertvector(sign | half, Words);
}
KVC_VEC_INLINE Words to_bf16(Vec x) {
  const Mask bits = reinterpret_cast<Mask>(x);
  const Mask is_nan = negative(set1_bits(0x7f800000) - (bits & set1_bits(0x7fffffff)));
  const Mask rounded = bits + ((set1_bits(0x7fff) + ((bits >> 16) & set1_bits(1))) & ~is_nan);
  return __builtin_convertvector((rounded >> 16) | (set1_bits(0x40) & is_nan), Words);
}

typedef int8_t Codes __attribute__((vector_size(8)));
// The element alone, without its scale. No float here is subnormal: processors are slow with those.
template <DType kType>
KVC_VEC_INLINE Vec from_codes(Codes codes) {
  const Mask wide = __builtin_convertvector(codes, Mask);
  if constexpr (kType == DType::kInt8) return __builtin_convertvector(wide, Vec);
  if constexpr (kType == DType::kE4M3Low)
    return reinterpret_cast<Vec>((wide << 20) & set1_bits(static_cast<int32_t>(0x87f00000)));
  constexpr int kFraction = kType == DType::kE4M3 ? 3 : 2, kBias = kType == DType::kE4M3 ? 7 : 15;
  const Mask magnitude = wide & set1_bits(0x7f);
  // Exponent 0 is read as if it had a leading one.
  const Vec normal =
      reinterpret_cast<Vec>((magnitude << (23 - kFraction)) + set1_bits((127 - kBias) << 23));
  const Vec subnormal = (normal - set1(small_float_power(-kBias))) * set1(2.0f);
  Vec value = select(negative(magnitude - set1_bits(1 << kFraction)), subnormal, normal);
  const Vec not_finite = reinterpret_cast<Vec>(set1_bits(0x7f800000) | (magnitude & 3) << 21);
  const int32_t last_finite = kType == DType::kE4M3 ? 0x7e : 0x7b;
  value = select(negative(set1_bits(last_finite) - magnitude), not_finite, value);
  return reinterpret_cast<Vec>(reinterpret_cast<Mask>(value) | (wide & set1_bits(INT32_MIN)));
}
template <DType kType>
KVC_VEC_INLINE Vec from_words(Words words) {
  if constexpr (kType == DType::kF16) return from_f16(words);
  typedef uint32_t Wide __attribute__((vector_size(32), aligned(16)));
  return reinterpret_cast<Vec>(__builtin_convertvector(words, Wide) << 16);
}
template <DType kType>
KVC_VEC_INLINE Vec load_as_tail(const std::byte* p, int n) {
  if constexpr (kType == DType::kF32) return load_tail(reinterpret_cast<const float*>(p), n);
  if constexpr (is_quantised(kType)) {
    Codes codes{};
    for (int i = 0; i < n; ++i) codes[i] = static_cast<int8_t>(p[i]);
    return from_codes<kType>(codes);
  }
  Words words{};
  __builtin_memcpy(&words, p, 2 * static_cast<size_t>(n));
  return from_words<kType>(words);
}
template <DType kType>
KVC_VEC_INLINE Vec load_as(const std::byte* p) {
  if constexpr (kType == DType::kF32) {
    return load(reinterpret_cast<const float*>(p));
  } else if constexpr (is_quantised(kType)) {
    Codes codes;
    __builtin_memcpy(&codes, p, sizeof codes);
    return from_codes<kType>(codes);
  } else {
    Words words;
    __builtin_memcpy(&words, p, sizeof words);
    return from_words<kType>(words);
  }
}
// 2*kLanes elements: bf16 as (even elements, odd elements), the other types as (first half, second
// half).
template <DType kType>
KVC_VEC_INLINE void load_pair_as(const std::byte* p, Vec& a, Vec& b) {
  if constexpr (kType == DType::kBF16) {
    Mask bits;
    __builtin_memcpy(&bits, p, sizeof bits);
    const Mask high = bits & set1_bits(static_cast<int32_t>(0xffff0000));
    const Mask low = bits << 16;
    const bool little_endian = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__;
    a = reinterpret_cast<Vec>(little_endian ? low : high),
    b = reinterpret_cast<Vec>(little_endian ? high : low);
#if defined(__SSE2__)
  } else if constexpr (kType == DType::kE4M3Low) {
    // Bytes to the upper halves of words, shifted there, to the upper halves of dwords.
    const __m128i none = _mm_setzero_si128();
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m128i mask = _mm_set1_epi16(static_cast<int16_t>(0x87f0));
    const __m128i low = _mm_and_si128(_mm_srai_epi16(_mm_unpacklo_epi8(none, bytes), 4), mask);
    const __m128i high = _mm_and_si128(_mm_srai_epi16(_mm_unpackhi_epi8(none, bytes), 4), mask);
    const __m128i dwords[4] = {_mm_unpacklo_epi16(none, low), _mm_unpackhi_epi16(none, low),
                               _mm_unpacklo_epi16(none, high), _mm_unpackhi_epi16(none, high)};
    __builtin_memcpy(&a, dwords, sizeof a);
    __builtin_memcpy(&b, dwords + 2, sizeof b);
#endif
  } else {
    a = load_as<kType>(p), b = load_as<kType>(p + kLanes * dtype_bytes(kType));
  }
}

// Adding 1.5 * 2^23 units of the last place of the result, and subtracting it, rounds.
template <int kFraction, int kBias>
KVC_VEC_INLINE Mask to_small_float(Vec x, float largest) {
  const Vec smallest_normal = set1(small_float_power(1 - kBias));
  const Vec magnitude = min(abs(x), set1(largest));
  const Mask exponent = reinterpret_cast<Mask>(magnitude) & set1_bits(0x7f800000);
  const Vec shift = max(reinterpret_cast<Vec>(exponent), smallest_normal) *
                    set1(1.5f * small_float_power(23 - kFraction));
  const Vec rounded = (magnitude + shift) - shift;
  const Mask normal =
      (reinterpret_cast<Mask>(rounded) >> (23 - kFraction)) - set1_bits((127 - kBias) << kFraction);
  const Mask subnormal =
      __builtin_convertvector(rounded * set1(small_float_power(kBias - 1 + kFraction)), Mask);
  const Mask is_subnormal = less(rounded, smallest_normal);
  const Mask is_number = equal(x, x);
  const Mask code = (((subnormal & is_subnormal) | (normal & ~is_subnormal)) & is_number) |
                    (set1_bits(0x7f) & ~is_number);
  return code | ((reinterpret_cast<Mask>(x) >> 24) & set1_bits(0x80));
}
template <DType kType>
KVC_VEC_INLINE Codes to_codes(Vec x) {
  Mask codes;
  if constexpr (kType == DType::kE4M3) {
    codes = to_small_float<3, 7>(x, largest_element(kType));
  } else if constexpr (kType == DType::kE5M2) {
    codes = to_small_float<2, 15>(x, largest_element(kType));
  } else {
    const Vec bounded = min(max(x, set1(-128.0f)), set1(127.0f));
    codes = __builtin_convertvector(round_even(bounded), Mask) & equal(x, x);
  }
  return __builtin_convertvector(codes, Codes);
}

template <DType kType>
KVC_VEC_INLINE Words to_words(Vec x) {
  if constexpr (kType == DType::kF16) return to_f16(x);
  return to_bf16(x);
}
template <DType kType>
KVC_VEC_INLINE void store_as_tail(std::byte* p, Vec x, int n) {
  if constexpr (kType == DType::kF32) {
    store_tail(reinterpret_cast<float*>(p), x, n);
  } else if constexpr (is_quantised(kType)) {
    const Codes codes = to_codes<kType>(x);
    for (int i = 0; i < n; ++i) p[i] = static_cast<std::byte>(codes[i]);
  } else {
    const Words words = to_words<kType>(x);
    __builtin_memcpy(p, &words, 2 * static_cast<size_t>(n));
  }
}
template <DType kType>
KVC_VEC_INLINE void store_as(std::byte* p, Vec x) {
  if constexpr (kType == DType::kF32) {
    store(reinterpret_cast<float*>(p), x);
  } else if constexpr (is_quantised(kType)) {
    const Codes codes = to_codes<kType>(x);
    __builtin_memcpy(p, &codes, sizeof codes);
  } else {
    const Words words = to_words<kType>(x);
    __builtin_memcpy(p, &words, sizeof words);
  }
}

#if defined(__SSE2__)
// 8x8 transpose in place.
KVC_VEC_INLINE void transpose(Vec (&rows)[8]) {
  __m128 parts[8][2];
  __builtin_memcpy(&parts, &rows, sizeof parts);
  _MM_TRANSPOSE4_PS(parts[0][0], parts[1][0], parts[2][0], parts[3][0]);
  _MM_TRANSPOSE4_PS(parts[0][1], parts[1][1], parts[2][1], parts[3][1]);
  _MM_TRANSPOSE4_PS(parts[4][0], parts[5][0], parts[6][0], parts[7][0]);
  _MM_TRANSPOSE4_PS(parts[4][1], parts[5][1], parts[6][1], parts[7][1]);
  for (int i = 0; i < 4; ++i) {
    const __m128 upper = parts[i][1];
    parts[i][1] = parts[4 + i][0];
    parts[4 + i][0] = upper;
  }
  __builtin_memcpy(&rows, &parts, sizeof parts);
}
// Lane i of the result = horizontal sum of rows[i].
KVC_VEC_INLINE Vec sum_lanes(const Vec (&rows)[8]) {
  __m128 parts[8][2];
  __builtin_memcpy(&parts, &rows, sizeof parts);
  __m128 sums[8];
  for (int i = 0; i < 8; ++i) sums[i] = _mm_add_ps(parts[i][0], parts[i][1]);
  __m128 halves[2];
  for (int i = 0; i < 2; ++i) {
    __m128* const four = sums + 4 * i;
    _MM_TRANSPOSE4_PS(four[0], four[1], four[2], four[3]);
    halves[i] = _mm_add_ps(_mm_add_ps(four[0], four[2]), _mm_add_ps(four[1], four[3]));
  }
  Vec all;
  __builtin_memcpy(&all, &halves, sizeof all);
  return all;
}
#else
KVC_VEC_INLINE void transpose(Vec (&rows)[8]) {
  for (int i = 0; i < 8; ++i) {
    for (int j = 0; j < i; ++j) {
      const float upper = rows[j][i];
      rows[j][i] = rows[i][j];
      rows[i][j] = upper;
    }
  }
}
KVC_VEC_INLINE Vec sum_lanes(const Vec (&rows)[8]) {
  Vec sums{};
  for (int i = 0; i < 8; ++i) sums[i] = horizontal_sum(rows[i]);
  return sums;
}
#endif

KVC_VEC_INLINE void deinterleave(Vec first, Vec second, Vec& even, Vec& odd) {
  even = Vec{first[0], first[2], first[4], first[6], second[0], second[2], second[4], second[6]};
  odd = Vec{first[1], first[3], first[5], first[7], second[1], second[3], second[5], second[7]};
}
KVC_VEC_INLINE void interleave(Vec even, Vec odd, Vec& first, Vec& second) {
  first = Vec{even[0], odd[0], even[1], odd[1], even[2], odd[2], even[3], odd[3]};
  second = Vec{even[4], odd[4], even[5], odd[5], even[6], odd[6], even[7], odd[7]};
}

// Lane i <- lane i ^ kDistance.
template <int kDistance>
KVC_VEC_INLINE Vec swap_lanes(Vec x) {
  Vec swapped{};
  for (int i = 0; i < 8; ++i) swapped[i] = x[i ^ kDistance];
  return swapped;
}

// p[0], ..., p[kCount - 1] over and over.
template <int kCount>
KVC_VEC_INLINE Vec load_repeated(const float* p) {
  if constexpr (kCount == 8) return load(p);
  Vec x{};
  for (int i = 0; i < 8; ++i) x[i] = p[i % kCount];
  return x;
}

#if defined(__SSE2__)
KVC_VEC_INLINE void stream_64_bytes(std::byte* to, const std::byte* from) {
  for (int i = 0; i < 64; i += 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
  }
}
KVC_VEC_INLINE void stream_fence() { _mm_sfence(); }
#else
KVC_VEC_INLINE void stream_64_bytes(std::byte* to, const std::byte* from) {
  __builtin_memcpy(to, from, 64);
}
KVC_VEC_INLINE void stream_fence() {}
#endif

}  // namespace
}  // namespace kvc::kernels::cpu

#include "kernels/cpu/vec_common-inl.h"
