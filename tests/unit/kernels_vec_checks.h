// Checks of one vector width; include a vec_<isa>.h first. Plain results only: the including file
// may be compiled for an instruction set that the test framework's own code must not be compiled
// for.
#pragma once

#include "kernels_vec_table.h"

namespace kvc::kernels::cpu {
namespace {

using DoubleFunction = double (*)(double);

// Largest error in units of the last place of the result, over a grid that is not a multiple of
// anything.
template <typename F>
double worst_ulps(F vector_function, DoubleFunction exact, double low, double high, int steps,
                  double smallest) {
  double worst = 0;
  for (int i = 0; i + kLanes <= steps; i += kLanes) {
    float x[kLanes], y[kLanes];
    for (int lane = 0; lane < kLanes; ++lane)
      x[lane] = static_cast<float>(low + (high - low) * (i + lane) / steps);
    store(y, vector_function(load(x)));
    for (int lane = 0; lane < kLanes; ++lane) {
      const double want = exact(x[lane]);
      const double size = want < 0 ? -want : want;
      if (size < smallest) continue;
      const double unit = __builtin_ldexp(1.0, __builtin_ilogb(size) - 23);
      const double error = (y[lane] - want) / unit;
      worst = error > worst ? error : -error > worst ? -error : worst;
    }
  }
  return worst;
}

struct Exp2 {
  KVC_VEC_INLINE Vec operator()(Vec x) const { return exp2(x); }
};
struct Tanh {
  KVC_VEC_INLINE Vec operator()(Vec x) const { return tanh(x); }
};

double exp2_worst_ulps(DoubleFunction exact) {
  return worst_ulps(Exp2{}, exact, -126, 1, 2000000, 0);
}
double tanh_worst_ulps(DoubleFunction exact) {
  return worst_ulps(Tanh{}, exact, -12, 12, 2000000, 1e-30);
}
float exp2_at(float x) { return exp2_scalar(x); }
float tanh_at(float x) {
  float lanes[kLanes];
  store(lanes, tanh(set1(x)));
  return lanes[0];
}

// Every code of a 16-bit type, whole vectors and tails: values[code]; returns the first code whose
// way back differs (NaN codes may become quiet), or -1.
template <DType kType>
int convert_all_codes(float* values) {
  for (int code = 0; code < 65536; code += kLanes) {
    uint16_t bits[kLanes], back[kLanes];
    for (int i = 0; i < kLanes; ++i) bits[i] = static_cast<uint16_t>(code + i);
    store(values + code, load_as<kType>(reinterpret_cast<const std::byte*>(bits)));
    store_as<kType>(reinterpret_cast<std::byte*>(back), load(values + code));
    for (int n = 0; n < kLanes; ++n) {
      float tail[kLanes];
      store(tail, load_as_tail<kType>(reinterpret_cast<const std::byte*>(bits), n));
      for (int i = 0; i < kLanes; ++i) {
        const float want = i < n ? values[code + i] : 0.0f;
        if (__builtin_memcmp(&tail[i], &want, 4) != 0) return code + i;
      }
    }
    const int quiet = kType == DType::kF16 ? 0x200 : 0x40;
    for (int i = 0; i < kLanes; ++i) {
      const bool is_nan = values[code + i] != values[code + i];
      if (back[i] != (is_nan ? (code + i) | quiet : code + i)) return code + i;
    }
  }
  return -1;
}

// out[i] = the 16-bit code of in[i]; count is a multiple of kLanes.
template <DType kType>
void round_all(const float* in, uint16_t* out, int count) {
  for (int i = 0; i < count; i += kLanes)
    store_as<kType>(reinterpret_cast<std::byte*>(out + i), load(in + i));
}

template <DType kType>
int read_all_codes(float* values) {
  for (int code = 0; code < 256; code += kLanes) {
    uint8_t bits[kLanes];
    for (int i = 0; i < kLanes; ++i) bits[i] = static_cast<uint8_t>(code + i);
    const auto* from = reinterpret_cast<const std::byte*>(bits);
    store(values + code, load_as<kType>(from));
    for (int n = 0; n < kLanes; ++n) {
      float tail[kLanes];
      store(tail, load_as_tail<kType>(from, n));
      for (int i = 0; i < kLanes; ++i) {
        const float want = i < n ? values[code + i] : 0.0f;
        if (__builtin_memcmp(&tail[i], &want, 4) != 0) return code + i;
      }
    }
  }
  for (int code = 0; code < 256; code += 2 * kLanes) {
    uint8_t bits[2 * kLanes];
    float pair[2 * kLanes];
    for (int i = 0; i < 2 * kLanes; ++i) bits[i] = static_cast<uint8_t>(code + i);
    Vec first, second;
    load_pair_as<kType>(reinterpret_cast<const std::byte*>(bits), first, second);
    store(pair, first), store(pair + kLanes, second);
    if (__builtin_memcmp(pair, values + code, sizeof pair) != 0) return code;
  }
  return -1;
}

// out[i] = the code of in[i], by whole vectors; those at multiples of 7 vectors lane by lane.
template <DType kType>
void round_to_codes(const float* in, uint8_t* out, int count) {
  for (int i = 0; i < count; i += kLanes) {
    auto* to = reinterpret_cast<std::byte*>(out + i);
    if (i / kLanes % 7 != 0) {
      store_as<kType>(to, load(in + i));
    } else {
      for (int n = kLanes; n > 0; --n) store_as_tail<kType>(to, load(in + i), n);
    }
  }
}

// 0, or the number of the first operation that mixed up its lanes.
int wrong_shuffle() {
  float in[kLanes * kLanes], out[kLanes * kLanes];
  for (int i = 0; i < kLanes * kLanes; ++i) in[i] = static_cast<float>(i * i % 1009);
  Vec rows[kLanes];
  for (int i = 0; i < kLanes; ++i) rows[i] = load(in + i * kLanes);
  store(out, sum_lanes(rows));
  for (int i = 0; i < kLanes; ++i) {
    float sum = 0, largest = -1;
    for (int j = 0; j < kLanes; ++j)
      sum += in[i * kLanes + j],
          largest = in[i * kLanes + j] > largest ? in[i * kLanes + j] : largest;
    if (out[i] != sum || horizontal_sum(rows[i]) != sum) return 1;
    if (horizontal_max(rows[i]) != largest) return 2;
  }
  Vec first, second, even, odd;
  deinterleave(rows[0], rows[1], even, odd);
  store(out, even), store(out + kLanes, odd);
  for (int i = 0; i < kLanes; ++i) {
    if (out[i] != in[2 * i] || out[kLanes + i] != in[2 * i + 1]) return 3;
  }
  interleave(even, odd, first, second);
  store(out, first), store(out + kLanes, second);
  if (__builtin_memcmp(out, in, sizeof(float) * 2 * kLanes) != 0) return 4;
  store(out, segment_max<4>(rows[2])), store(out + kLanes, segment_sum<2>(rows[2])),
      store(out + 2 * kLanes, segment_sum<kLanes>(rows[2]));
  for (int i = 0; i < kLanes; ++i) {
    const float* x = in + 2 * kLanes;
    float largest = x[i / 4 * 4];
    for (int j = 1; j < 4; ++j) largest = x[i / 4 * 4 + j] > largest ? x[i / 4 * 4 + j] : largest;
    if (out[i] != largest) return 5;
    if (out[kLanes + i] != x[i] + x[i ^ 1]) return 6;
    if (out[2 * kLanes + i] != horizontal_sum(rows[2])) return 7;
  }
  transpose(rows);
  for (int i = 0; i < kLanes; ++i) store(out + i * kLanes, rows[i]);
  for (int i = 0; i < kLanes * kLanes; ++i) {
    if (out[i] != in[i % kLanes * kLanes + i / kLanes]) return 8;
  }
  store(out, load_repeated<2>(in)), store(out + kLanes, load_repeated<4>(in)),
      store(out + 2 * kLanes, load_repeated<8>(in)),
      store(out + 3 * kLanes, load_repeated<kLanes>(in));
  for (int i = 0; i < kLanes; ++i) {
    if (out[i] != in[i % 2] || out[kLanes + i] != in[i % 4] || out[2 * kLanes + i] != in[i % 8] ||
        out[3 * kLanes + i] != in[i])
      return 12;
  }
  for (int n = 0; n <= kLanes; ++n) {
    for (float& x : out) x = -1;
    store_tail(out, load_tail(in, n), n);
    for (int i = 0; i < kLanes; ++i) {
      if (out[i] != (i < n ? in[i] : -1)) return 9;
    }
    if (mask_bits(first_lanes(n)) != (uint32_t{1} << n) - 1) return 10;
    const uint32_t scattered = 0xb39d >> n & ((uint32_t{1} << kLanes) - 1);
    if (mask_bits(mask_of(scattered)) != scattered) return 11;
  }
  return 0;
}

}  // namespace
}  // namespace kvc::kernels::cpu

#define KVC_VEC_CHECKS                                                                 \
  {                                                                                    \
    cpu::exp2_worst_ulps, cpu::tanh_worst_ulps, cpu::exp2_at, cpu::tanh_at,            \
        cpu::convert_all_codes<DType::kF16>, cpu::convert_all_codes<DType::kBF16>,     \
        cpu::round_all<DType::kF16>, cpu::round_all<DType::kBF16>, cpu::wrong_shuffle, \
        {cpu::read_all_codes<DType::kInt8>, cpu::read_all_codes<DType::kE4M3>,         \
         cpu::read_all_codes<DType::kE5M2>, cpu::read_all_codes<DType::kE4M3Low>},     \
    {                                                                                  \
      cpu::round_to_codes<DType::kInt8>, cpu::round_to_codes<DType::kE4M3>,            \
          cpu::round_to_codes<DType::kE5M2>                                            \
    }                                                                                  \
  }
