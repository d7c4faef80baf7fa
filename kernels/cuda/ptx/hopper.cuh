// Single instructions of sm_90a under plain names: mbarriers, TMA, wgmma and register budgets.
// ptx.cuh states the rules. The matrix instructions with their long operand lists are in
// hopper_wgmma.cuh.
//
// On other architectures every function is empty: a kernel wraps its body in `if constexpr
// (kHasHopper)`.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/ptx/ptx.cuh"

namespace kvc::cuda {

// CUtensorMap as plain words. The host makes it (attn/tensor_map.h), and kernels get it by value as
// a __grid_constant__.
struct alignas(64) TensorMap {
  uint64_t words[16];
};

}  // namespace kvc::cuda

#if defined(KVC_CUDA_EMULATION)
#include <emulated_hopper.h>
#else

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define KVC_HOPPER(...) asm volatile(__VA_ARGS__)
#else
#define KVC_HOPPER(...) static_cast<void>(0)
#endif

namespace kvc::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr bool kHasHopper = true;
#else
constexpr bool kHasHopper = false;
#endif

KVC_DEVICE uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// ---- mbarriers
// An mbarrier has 8 bytes of shared memory. A phase ends when `count` arrivals and all announced
// bytes have come. The parity of phases alternates, and the first has parity 0. mbarrier_wait
// returns once the phase of `parity` has ended: a wait for parity 1 on a fresh barrier returns at
// once.

KVC_DEVICE void mbarrier_init(uint64_t* barrier, uint32_t count) {
  [[maybe_unused]] const uint32_t at = shared_address(barrier);
  KVC_HOPPER("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
}
// Called by the thread that initialised the barriers, before sync_cta: from then on they are
// visible to TMA.
KVC_DEVICE void mbarrier_fence_init() {
  KVC_HOPPER("fence.mbarrier_init.release.cluster;" ::: "memory");
  KVC_HOPPER("fence.proxy.async.shared::cta;" ::: "memory");
}
KVC_DEVICE void mbarrier_arrive(uint64_t* barrier) {
  [[maybe_unused]] const uint32_t at = shared_address(barrier);
  KVC_HOPPER("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
// One arrival, with `bytes` more to come in this phase.
KVC_DEVICE void mbarrier_arrive_expect(uint64_t* barrier, uint32_t bytes) {
  [[maybe_unused]] const uint32_t at = shared_address(barrier);
  KVC_HOPPER("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes)
             : "memory");
}
KVC_DEVICE void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
  [[maybe_unused]] const uint32_t at = shared_address(barrier);
  uint32_t done;
  do {
    done = 1;
    KVC_HOPPER(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}\n"
        : "=r"(done)
        : "r"(at), "r"(parity)
        : "memory");
  } while (done == 0);
}

// ---- TMA
// Loads a box of the tensor whose first element has coordinates c0 (the innermost), c1 and so on
// into shared memory, and signals its bytes to `barrier`. One thread issues each box. Elements
// outside of the tensor, including negative coordinates, are not read and become zero; they count
// as bytes. The box is dense, with c0 innermost, and 128-byte aligned. With the 128-byte swizzle
// the 16 bytes at address b of shared memory lie at b ^ ((b >> 7 & 7) << 4) instead. This applies
// to addresses, not to offsets into the box.

KVC_DEVICE void tma_prefetch(const TensorMap* map) {
  KVC_HOPPER("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// A cache hint for tma_load_..._hint: bytes that nobody reads again soon leave L2 first.
KVC_DEVICE uint64_t cache_evict_first() {
  uint64_t policy = 0;
  KVC_HOPPER("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

KVC_DEVICE void tma_load_2d(void* shared, const TensorMap* map, uint64_t* barrier, int32_t c0,
                            int32_t c1) {
  [[maybe_unused]] const uint32_t to = shared_address(shared), at = shared_address(barrier);
  KVC_HOPPER(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
      "%4}], "
      "[%2];" ::"r"(to),
      "l"(map), "r"(at), "r"(c0), "r"(c1)
      : "memory");
}
KVC_DEVICE void tma_load_3d(void* shared, const TensorMap* map, uint64_t* barrier, int32_t c0,
                            int32_t c1, int32_t c2) {
  [[maybe_unused]] const uint32_t to = shared_address(shared), at = shared_address(barrier);
  KVC_HOPPER(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
      "%4, %5}], "
      "[%2];" ::"r"(to),
      "l"(map), "r"(at), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}
KVC_DEVICE void tma_load_4d(void* shared, const TensorMap* map, uint64_t* barrier, int32_t c0,
                            int32_t c1, int32_t c2, int32_t c3) {
  [[maybe_unused]] const uint32_t to = shared_address(shared), at = shared_address(barrier);
  KVC_HOPPER(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
      "%4, %5, "
      "%6}], [%2];" ::"r"(to),
      "l"(map), "r"(at), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}
KVC_DEVICE void tma_load_4d_hint(void* shared, const TensorMap* map, uint64_t* barrier, int32_t c0,
                                 int32_t c1, int32_t c2, int32_t c3, uint64_t policy) {
  [[maybe_unused]] const uint32_t to = shared_address(shared), at = shared_address(barrier);
  KVC_HOPPER(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, "
      "{%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(map), "r"(at), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(policy)
      : "memory");
}
KVC_DEVICE void tma_load_5d(void* shared, const TensorMap* map, uint64_t* barrier, int32_t c0,
                            int32_t c1, int32_t c2, int32_t c3, int32_t c4) {
  [[maybe_unused]] const uint32_t to = shared_address(shared), at = shared_address(barrier);
  KVC_HOPPER(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
      "%4, %5, "
      "%6, %7}], [%2];" ::"r"(to),
      "l"(map), "r"(at), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}

// The thread's writes to shared memory become visible to TMA and wgmma that are issued after a
// barrier behind this fence.
KVC_DEVICE void fence_proxy_async() { KVC_HOPPER("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- registers

// Warpgroup. Moves registers of the CTA between its warpgroups. The kernel needs __launch_bounds__.
// N is a multiple of 8 from 24 to 256.
template <int N>
KVC_DEVICE void registers_increase() {
  KVC_HOPPER("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
KVC_DEVICE void registers_decrease() {
  KVC_HOPPER("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

// Warp. The inverse of load_matrix_x4: row r of matrix i (16 bytes) goes to the address that lane
// 8*i + r gives.
KVC_DEVICE void store_matrix_x4(void* shared_row, const uint32_t (&r)[4]) {
  [[maybe_unused]] const uint32_t to = shared_address(shared_row);
  KVC_HOPPER("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
             "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
             : "memory");
}

}  // namespace kvc::cuda

#include "kernels/cuda/ptx/hopper_wgmma.cuh"

#endif  // KVC_CUDA_EMULATION
