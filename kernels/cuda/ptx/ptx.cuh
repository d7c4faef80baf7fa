// Single instructions of sm_80 and later under plain names: lanes, barriers, loads, cp.async,
// ldmatrix, mma.sync and conversions. Instructions of sm_90a alone are in hopper.cuh.
//
// All assembly of the back end is in this folder, so the kernels also compile for the host. With
// KVC_CUDA_EMULATION the test suite's emulated_cuda.h provides every function here (and __global__,
// threadIdx and the rest) on fibers, so that kernels run and are checked without a GPU. Rules for
// kernels follow from this:
// - They have no assembly, no static __shared__ (but cta_shared()), and no CUDA headers.
// - All 32 lanes together reach a function marked "warp".
// - All 128 threads together reach a function marked "warpgroup".
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/params.h"
#include "kernels/target.h"

#if defined(KVC_CUDA_EMULATION)
#include <emulated_cuda.h>
#else

#define KVC_DEVICE __device__ __forceinline__

namespace kvc::cuda {

// ---- threads and lanes

KVC_DEVICE int lane_id() { return static_cast<int>(threadIdx.x & 31u); }
// The same for all lanes, and known to the compiler as such.
KVC_DEVICE int warp_id() { return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x >> 5), 0); }

// Warp. T has 4 or 8 bytes and is arithmetic.
template <typename T>
KVC_DEVICE T shuffle(T value, int source_lane) {
  return __shfl_sync(0xffffffffu, value, source_lane);
}
template <typename T>
KVC_DEVICE T shuffle_xor(T value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}
// The value of lane - delta. The first delta lanes keep their own.
template <typename T>
KVC_DEVICE T shuffle_up(T value, int delta) {
  return __shfl_up_sync(0xffffffffu, value, static_cast<unsigned>(delta));
}
KVC_DEVICE uint32_t ballot(bool predicate) { return __ballot_sync(0xffffffffu, predicate); }
KVC_DEVICE bool any(bool predicate) { return __any_sync(0xffffffffu, predicate) != 0; }
KVC_DEVICE bool all(bool predicate) { return __all_sync(0xffffffffu, predicate) != 0; }
KVC_DEVICE void sync_warp() { __syncwarp(); }

// All threads of the CTA.
KVC_DEVICE void sync_cta() { __syncthreads(); }
// A barrier of `threads` threads, a multiple of 32, with a number from 1 to 15. arrive does not
// wait.
KVC_DEVICE void sync_named(int barrier, int threads) {
  asm volatile("barrier.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
KVC_DEVICE void arrive_named(int barrier, int threads) {
  asm volatile("barrier.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Dynamic shared memory, 1024-byte aligned.
KVC_DEVICE std::byte* cta_shared() {
  extern __shared__ __align__(1024) unsigned char memory[];
  return reinterpret_cast<std::byte*>(memory);
}

// ---- memory

// 16 bytes, 16-byte aligned. `stream` means read once and not kept in L1.
struct alignas(16) Words4 {
  uint32_t x[4];
};
KVC_DEVICE Words4 load_16(const void* global) {
  Words4 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x[0]), "=r"(v.x[1]), "=r"(v.x[2]), "=r"(v.x[3])
               : "l"(global)
               : "memory");
  return v;
}
KVC_DEVICE Words4 load_16_stream(const void* global) {
  Words4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x[0]), "=r"(v.x[1]), "=r"(v.x[2]), "=r"(v.x[3])
               : "l"(global)
               : "memory");
  return v;
}
KVC_DEVICE void store_16(void* global, const Words4& v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(global), "r"(v.x[0]), "r"(v.x[1]),
               "r"(v.x[2]), "r"(v.x[3])
               : "memory");
}
// Pinned host memory that the host may be writing: never read from a cache.
KVC_DEVICE uint32_t load_host_word(const void* pinned) {
  uint32_t v;
  asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(v) : "l"(pinned) : "memory");
  return v;
}
KVC_DEVICE Words4 load_host_16(const void* pinned) {
  Words4 v;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x[0]), "=r"(v.x[1]), "=r"(v.x[2]), "=r"(v.x[3])
               : "l"(pinned)
               : "memory");
  return v;
}
// The word becomes visible to the host after the thread's earlier writes.
KVC_DEVICE void store_host_word(void* pinned, uint32_t value) {
  __threadfence_system();
  asm volatile("st.volatile.global.u32 [%0], %1;" ::"l"(pinned), "r"(value) : "memory");
}
// Returns the old value. Ordered before and after all accesses of this thread, with fences on both
// sides.
KVC_DEVICE uint32_t atomic_add_fenced(uint32_t* global, uint32_t value) {
  __threadfence();
  const uint32_t old = atomicAdd(global, value);
  __threadfence();
  return old;
}

// Copies 16 bytes asynchronously from global to shared memory, both 16-byte aligned. Only the first
// `bytes` (0 to 16) are read; the rest becomes zero. The copy is complete after commit and wait,
// and visible to other lanes after a barrier.
KVC_DEVICE void copy_async_16(void* shared, const void* global, int bytes) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(global),
               "r"(bytes)
               : "memory");
}
KVC_DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `Pending` of the thread's groups are in flight.
template <int Pending>
KVC_DEVICE void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// ---- matrix fragments
// PTX ISA, "Matrix fragments for mma.m16n8k16". With group = lane / 4 and pair = lane % 4:
//   A (16 x 16, row)  a[0] row group,     columns 2*pair, 2*pair + 1
//                     a[1] row group + 8, columns 2*pair, 2*pair + 1
//                     a[2] row group,     columns 2*pair + 8, 2*pair + 9
//                     a[3] row group + 8, columns 2*pair + 8, 2*pair + 9
//   B (16 x 8, col)   b[0] rows 2*pair, 2*pair + 1,     column group
//                     b[1] rows 2*pair + 8, 2*pair + 9, column group
//   C, D (16 x 8)     d[0], d[1] row group,     columns 2*pair, 2*pair + 1
//                     d[2], d[3] row group + 8, columns 2*pair, 2*pair + 1

// Warp. Loads four 8 x 8 matrices of 16-bit elements. Lane 8*i + r gives the address of row r of
// matrix i (16 bytes, 16-byte aligned). r[i] receives the elements (lane / 4, 2 * (lane % 4)) of
// matrix i and the next one. Transposed, it receives (2 * (lane % 4), lane / 4) and the one below.
KVC_DEVICE void load_matrix_x4(uint32_t (&r)[4], const void* shared_row) {
  const auto from = static_cast<uint32_t>(__cvta_generic_to_shared(shared_row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
}
KVC_DEVICE void load_matrix_x4_transposed(uint32_t (&r)[4], const void* shared_row) {
  const auto from = static_cast<uint32_t>(__cvta_generic_to_shared(shared_row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
}

// Warp. d += a * b in float32, with elements of `Type` (kF16 or kBF16).
template <kernels::DType Type>
KVC_DEVICE void mma_16816(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  static_assert(Type == kernels::DType::kF16 || Type == kernels::DType::kBF16);
  if constexpr (Type == kernels::DType::kBF16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// ---- conversions
// These round to nearest even. A pair lies in one word, with the first element in the low half.

KVC_DEVICE float as_float(uint32_t bits) { return __uint_as_float(bits); }
KVC_DEVICE uint32_t as_bits(float value) { return __float_as_uint(value); }

KVC_DEVICE float f16_to_float(uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
KVC_DEVICE uint16_t float_to_f16(float value) {
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
KVC_DEVICE float bf16_to_float(uint16_t bits) {
  return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}
KVC_DEVICE uint16_t float_to_bf16(float value) {
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
template <kernels::DType Type>
KVC_DEVICE uint32_t pack(float first, float second) {
  uint32_t pair;
  if constexpr (Type == kernels::DType::kBF16)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}
template <kernels::DType Type>
KVC_DEVICE void unpack(uint32_t pair, float& first, float& second) {
  if constexpr (Type == kernels::DType::kBF16) {
    first = __uint_as_float(pair << 16);
    second = __uint_as_float(pair & 0xffff0000u);
  } else {
    first = f16_to_float(static_cast<uint16_t>(pair));
    second = f16_to_float(static_cast<uint16_t>(pair >> 16));
  }
}

// ---- math
// ex2.approx and the others have a relative error near 2^-22. exp2_fast(-inf) = 0 and log2_fast(0)
// = -inf.

KVC_DEVICE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
KVC_DEVICE float log2_fast(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
KVC_DEVICE float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// ---- programmatic dependent launch

// After wait_for_previous_kernel the memory of the previous kernel may be read. After
// launch_dependents the next kernel may start. Both are no-ops on sm_80, and without the launch
// attribute (launch.cuh).
KVC_DEVICE void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
KVC_DEVICE void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace kvc::cuda

#endif  // KVC_CUDA_EMULATION
