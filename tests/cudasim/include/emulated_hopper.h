// kernels/cuda/ptx/hopper.cuh for the host; included by it, behind TensorMap.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cudasim/hopper.h"

namespace kvc::cuda {

constexpr bool kHasHopper = true;

inline uint32_t shared_address(const void* shared) { return cudasim::shared_address(shared); }

inline void mbarrier_init(uint64_t* barrier, uint32_t count) {
  cudasim::mbarrier_init(barrier, count);
}
inline void mbarrier_fence_init() { cudasim::mbarrier_fence_init(); }
inline void mbarrier_arrive(uint64_t* barrier) { cudasim::mbarrier_arrive(barrier, 0); }
inline void mbarrier_arrive_expect(uint64_t* barrier, uint32_t bytes) {
  cudasim::mbarrier_arrive(barrier, bytes);
}
inline void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
  cudasim::mbarrier_wait(barrier, parity);
}

inline void tma_prefetch(const TensorMap* map) { cudasim::tma_prefetch(map); }
inline uint64_t cache_evict_first() { return 0; }
inline void tma_load_2d(void* shared, const TensorMap* map, uint64_t* barrier, int32_t c0,
                        int32_t c1) {
  cudasim::tma_load(shared, map, barrier, {c0, c1, 0, 0, 0}, 2);
}
inline void tma_load_3d(void* shared, const TensorMap* map, uint64_t* barrier, int32_t c0,
                        int32_t c1, int32_t c2) {
  cudasim::tma_load(shared, map, barrier, {c0, c1, c2, 0, 0}, 3);
}
inline void tma_load_4d(void* shared, const TensorMap* map, uint64_t* barrier, int32_t c0,
                        int32_t c1, int32_t c2, int32_t c3) {
  cudasim::tma_load(shared, map, barrier, {c0, c1, c2, c3, 0}, 4);
}
inline void tma_load_4d_hint(void* shared, const TensorMap* map, uint64_t* barrier, int32_t c0,
                             int32_t c1, int32_t c2, int32_t c3, uint64_t) {
  cudasim::tma_load(shared, map, barrier, {c0, c1, c2, c3, 0}, 4);
}
inline void tma_load_5d(void* shared, const TensorMap* map, uint64_t* barrier, int32_t c0,
                        int32_t c1, int32_t c2, int32_t c3, int32_t c4) {
  cudasim::tma_load(shared, map, barrier, {c0, c1, c2, c3, c4}, 5);
}
inline void fence_proxy_async() {}

template <int N>
inline void registers_increase() {
  static_assert(N >= 24 && N <= 256 && N % 8 == 0);
  cudasim::change_registers();
}
template <int N>
inline void registers_decrease() {
  static_assert(N >= 24 && N <= 256 && N % 8 == 0);
  cudasim::change_registers();
}

inline void store_matrix_x4(void* shared_row, const uint32_t (&r)[4]) {
  cudasim::store_matrix(shared_row, r);
}

inline uint64_t wgmma_descriptor(const void* shared, int leading_bytes, int stride_bytes,
                                 int swizzle) {
  return cudasim::wgmma_descriptor(shared, leading_bytes, stride_bytes, swizzle);
}
inline uint64_t wgmma_advance(uint64_t descriptor, int bytes) {
  return descriptor + static_cast<uint64_t>(bytes >> 4);
}
inline void wgmma_fence() { cudasim::wgmma_fence(); }
inline void wgmma_commit() { cudasim::wgmma_commit(); }
template <int Pending>
inline void wgmma_wait() {
  static_assert(Pending >= 0 && Pending <= 7);
  cudasim::wgmma_wait(Pending);
}
template <typename T, int Count>
inline void wgmma_pin(T (&)[Count]) {}

template <kernels::DType T, int N, bool TransposedB>
inline void wgmma_ss(float (&d)[N / 2], uint64_t a, uint64_t b, bool accumulate) {
  static_assert(T == kernels::DType::kF16 || T == kernels::DType::kBF16);
  static_assert(N % 8 == 0 && N >= 8 && N <= 256);
  cudasim::wgmma({d, nullptr, a, b, N, T == kernels::DType::kBF16, TransposedB, accumulate});
}
template <kernels::DType T, int N, bool TransposedB>
inline void wgmma_rs(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
  static_assert(T == kernels::DType::kF16 || T == kernels::DType::kBF16);
  static_assert(N % 8 == 0 && N >= 8 && N <= 256);
  cudasim::wgmma({d, a, 0, b, N, T == kernels::DType::kBF16, TransposedB, accumulate});
}

}  // namespace kvc::cuda
