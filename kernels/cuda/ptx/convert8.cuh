// Conversion of 8-bit elements to pairs of f16 in registers, and asynchronous copies of single
// scales: the instructions that only kernels on 8-bit storage need. Exact for every code.
#pragma once

#include "kernels/cuda/ptx/elements.h"
#include "kernels/cuda/ptx/ptx.cuh"

namespace kvc::cuda {

#if defined(KVC_CUDA_EMULATION)

// Returns bytes of b:a, chosen by the four low digits of `selector`.
KVC_DEVICE uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i)
    out |= static_cast<uint32_t>(bytes >> (8 * (selector >> (4 * i) & 7u)) & 0xffu) << (8 * i);
  return out;
}
KVC_DEVICE uint32_t multiply_f16x2(uint32_t a, uint32_t b) {
  return float_to_f16(f16_to_float(static_cast<uint16_t>(a)) *
                      f16_to_float(static_cast<uint16_t>(b))) |
         static_cast<uint32_t>(float_to_f16(f16_to_float(static_cast<uint16_t>(a >> 16)) *
                                            f16_to_float(static_cast<uint16_t>(b >> 16))))
             << 16;
}
KVC_DEVICE uint32_t subtract_f16x2(uint32_t a, uint32_t b) {
  return float_to_f16(f16_to_float(static_cast<uint16_t>(a)) -
                      f16_to_float(static_cast<uint16_t>(b))) |
         static_cast<uint32_t>(float_to_f16(f16_to_float(static_cast<uint16_t>(a >> 16)) -
                                            f16_to_float(static_cast<uint16_t>(b >> 16))))
             << 16;
}
constexpr bool kHasE4M3 = false;
KVC_DEVICE uint32_t e4m3x2_to_f16x2(uint32_t) { return 0; }
// Copies 4 bytes like copy_async_16. Here the copy is done at once.
KVC_DEVICE void copy_async_4(void* shared, const void* global, int bytes) {
  uint32_t word = 0;
  if (bytes == 4) __builtin_memcpy(&word, global, 4);
  __builtin_memcpy(shared, &word, 4);
}

#else

KVC_DEVICE uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector) {
  uint32_t out;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(selector));
  return out;
}
KVC_DEVICE uint32_t multiply_f16x2(uint32_t a, uint32_t b) {
  uint32_t out;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}
KVC_DEVICE uint32_t subtract_f16x2(uint32_t a, uint32_t b) {
  uint32_t out;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}
#if __CUDA_ARCH__ >= 890
constexpr bool kHasE4M3 = true;
KVC_DEVICE uint32_t e4m3x2_to_f16x2(uint32_t low_half) {
  uint32_t out;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(out) : "h"(static_cast<uint16_t>(low_half)));
  return out;
}
#else
constexpr bool kHasE4M3 = false;
KVC_DEVICE uint32_t e4m3x2_to_f16x2(uint32_t) { return 0; }
#endif
// Copies 4 bytes, or zeros, from global to shared memory like copy_async_16.
KVC_DEVICE void copy_async_4(void* shared, const void* global, int bytes) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(global), "r"(bytes)
               : "memory");
}

#endif

// Converts four codes: (code 0, code 1) into `first` and (code 2, code 3) into `second`.
template <Stored kType>
KVC_DEVICE void widen_8(uint32_t codes, uint32_t& first, uint32_t& second) {
  static_assert(kType == Stored::kE4M3 || kType == Stored::kE5M2 || kType == Stored::kInt8);
  if constexpr (kType == Stored::kE5M2) {  // The code is the upper half of an f16.
    first = permute_bytes(codes, 0, 0x1404);
    second = permute_bytes(codes, 0, 0x3424);
  } else if constexpr (kType == Stored::kInt8) {  // 0x6400 + n is 1024 + n.
    const uint32_t shifted = codes ^ 0x80808080u;
    first = subtract_f16x2(permute_bytes(shifted, 0x64646464u, 0x4140), 0x64806480u);
    second = subtract_f16x2(permute_bytes(shifted, 0x64646464u, 0x4342), 0x64806480u);
  } else if constexpr (kHasE4M3) {
    first = e4m3x2_to_f16x2(codes);
    second = e4m3x2_to_f16x2(codes >> 16);
  } else {
    // The fields are moved to where f16 has them and multiplied by 2^8, the difference of the
    // biases. Magnitude 0x7f is NaN: all bits of the exponent are set.
    const uint32_t high = permute_bytes(codes, 0, 0x1404), low = permute_bytes(codes, 0, 0x3424);
    const uint32_t nan = ((codes & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u;
    first = multiply_f16x2((high & 0x80008000u) | ((high & 0x7f007f00u) >> 1), 0x5c005c00u) |
            permute_bytes(nan, 0, 0x4140) * 0xf8u;
    second = multiply_f16x2((low & 0x80008000u) | ((low & 0x7f007f00u) >> 1), 0x5c005c00u) |
             permute_bytes(nan, 0, 0x4342) * 0xf8u;
  }
}

}  // namespace kvc::cuda
