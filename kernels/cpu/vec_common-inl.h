// What every vector width shares, written once over the operations of vec_<isa>.h. Include one
// vec_<isa>.h, not this file.
//
// The layer, for all widths (Vec: kLanes floats, Mask: one flag per lane):
//   zero set1 lane_index | load store load_tail store_tail (n lanes; the rest reads as 0 and is not
// touched)
//   load_as<DType> store_as<DType> and their _tail forms: storage <-> float32, stores round to
// nearest even; elements of 8 bits without their scale, saturated
//   load_pair_as<DType> (2*kLanes elements, bf16 split into even and odd ones)
//   add sub mul div fma fnma(c - a*b) max min abs copy_sign round_even
//   less less_equal equal first_lanes mask_and mask_not mask_bits mask_of (bit i: lane i) select
//   horizontal_sum horizontal_max sum_lanes (kLanes vectors to the vector of their sums) transpose
// interleave deinterleave
//   swap_lanes segment_max segment_sum (over runs of lanes, result in every lane of the run)
//   load_repeated<n> (n floats over and over)
//   exp2 exp2_scalar tanh load_any store_any (run-time DType) with_dtype with_stored_dtype
// prefetch_far
// prefetch_to_write stream_64_bytes stream_fence
// max(a, b) and min(a, b) return b when either is NaN, in every width.
#pragma once

namespace kvc::kernels::cpu {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();
constexpr int64_t kCacheLine = 64;

// Loops marked so have a small constant trip count and index arrays that must live in registers.
#if defined(__clang__)
#define KVC_UNROLL _Pragma("unroll")
#else
#define KVC_UNROLL _Pragma("GCC unroll 16")
#endif

// Not into the first level.
KVC_VEC_INLINE void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }
KVC_VEC_INLINE void prefetch_to_write(const void* p) { __builtin_prefetch(p, 1, 3); }

// 2^x for x <= 127, relative error < 2 ulp down to 2^-126; below that subnormal or 0; exp2(-inf) is
// exactly 0, exp2(0) exactly 1, NaN stays NaN. Polynomial: 2^f = 1 + f*q(f) on |f| <= 1/2, q
// interpolated at Chebyshev nodes.
KVC_VEC_INLINE Vec exp2(Vec x) {
  const Vec clamped = max(set1(kExp2Floor), x);
  const Vec whole = round_even(clamped);
  const Vec f = sub(clamped, whole);
  Vec q = set1(0.00015453163359779865f);
  q = fma(q, f, set1(0.0013390863314270973f));
  q = fma(q, f, set1(0.009618083015084267f));
  q = fma(q, f, set1(0.055503569543361664f));
  q = fma(q, f, set1(0.24022650718688965f));
  q = fma(q, f, set1(0.6931471824645996f));
  return scale_exp2(fma(q, f, set1(1.0f)), whole);
}

// Odd polynomial below 5/8, 1 - 2/(e^2|x| + 1) above: no cancellation on either side. +-inf gives
// +-1.
KVC_VEC_INLINE Vec tanh(Vec x) {
  const Vec magnitude = abs(x);
  const Vec square = mul(x, x);
  Vec p = set1(-0.006096714176237583f);
  p = fma(p, square, set1(0.020997179672122f));
  p = fma(p, square, set1(-0.05385090783238411f));
  p = fma(p, square, set1(0.1333276927471161f));
  p = fma(p, square, set1(-0.333333283662796f));
  const Vec small = fma(mul(p, square), x, x);
  // 2*log2(e)
  const Vec doubled = exp2(mul(min(set1(20.0f), magnitude), set1(2.8853900817779268f)));
  const Vec large = sub(set1(1.0f), div(set1(2.0f), add(doubled, set1(1.0f))));
  return select(less(magnitude, set1(0.625f)), small, copy_sign(large, x));
}

KVC_VEC_INLINE float exp2_scalar(float x) {
  float lanes[kLanes];
  store(lanes, exp2(set1(x)));
  return lanes[0];
}

template <int kSegment>
KVC_VEC_INLINE Vec segment_max(Vec x) {
  if constexpr (kSegment > 1) x = max(x, swap_lanes<1>(x));
  if constexpr (kSegment > 2) x = max(x, swap_lanes<2>(x));
  if constexpr (kSegment > 4) x = max(x, swap_lanes<4>(x));
  if constexpr (kSegment > 8) x = max(x, swap_lanes<8>(x));
  return x;
}
template <int kSegment>
KVC_VEC_INLINE Vec segment_sum(Vec x) {
  if constexpr (kSegment > 8) x = add(x, swap_lanes<8>(x));
  if constexpr (kSegment > 4) x = add(x, swap_lanes<4>(x));
  if constexpr (kSegment > 2) x = add(x, swap_lanes<2>(x));
  if constexpr (kSegment > 1) x = add(x, swap_lanes<1>(x));
  return x;
}

// Loads n lanes of a storage type known only at run time; for code outside the inner loops.
KVC_VEC_INLINE Vec load_any(const std::byte* p, DType dtype, int n) {
  switch (dtype) {
    case DType::kF32:
      return n == kLanes ? load_as<DType::kF32>(p) : load_as_tail<DType::kF32>(p, n);
    case DType::kF16:
      return n == kLanes ? load_as<DType::kF16>(p) : load_as_tail<DType::kF16>(p, n);
    default: return n == kLanes ? load_as<DType::kBF16>(p) : load_as_tail<DType::kBF16>(p, n);
  }
}
KVC_VEC_INLINE void store_any(std::byte* p, DType dtype, Vec x, int n) {
  switch (dtype) {
    case DType::kF32:
      return n == kLanes ? store_as<DType::kF32>(p, x) : store_as_tail<DType::kF32>(p, x, n);
    case DType::kF16:
      return n == kLanes ? store_as<DType::kF16>(p, x) : store_as_tail<DType::kF16>(p, x, n);
    default:
      return n == kLanes ? store_as<DType::kBF16>(p, x) : store_as_tail<DType::kBF16>(p, x, n);
  }
}

// Wraps a run-time storage type into a compile-time one: f(constant<DType>).
template <DType kType>
struct DTypeConstant {
  static constexpr DType value = kType;
};
template <typename F>
KVC_VEC_INLINE void with_dtype(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF32: return f(DTypeConstant<DType::kF32>{});
    case DType::kF16: return f(DTypeConstant<DType::kF16>{});
    default: return f(DTypeConstant<DType::kBF16>{});
  }
}
// The same for rows of the pool, which may be quantised.
template <typename F>
KVC_VEC_INLINE void with_stored_dtype(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kInt8: return f(DTypeConstant<DType::kInt8>{});
    case DType::kE4M3: return f(DTypeConstant<DType::kE4M3>{});
    case DType::kE5M2: return f(DTypeConstant<DType::kE5M2>{});
    default: return with_dtype(dtype, f);
  }
}

}  // namespace
}  // namespace kvc::kernels::cpu
