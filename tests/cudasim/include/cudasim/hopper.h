// mbarriers, TMA and wgmma of the emulator. What the hardware does behind the threads' backs
// happens here as late as it may (wgmma: when waited for) or at a random moment (TMA).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace cudasim {

uint32_t shared_address(const void* shared);

void mbarrier_init(uint64_t* barrier, uint32_t count);
void mbarrier_fence_init();
void mbarrier_arrive(uint64_t* barrier, uint32_t expected_bytes);
void mbarrier_wait(uint64_t* barrier, uint32_t parity);

void tma_prefetch(const void* map);
void tma_load(void* shared, const void* map, uint64_t* barrier, const std::array<int32_t, 5>& at,
              int rank);

void change_registers();
void store_matrix(void* shared_row, const uint32_t (&r)[4]);

// One thread's part of an instruction 64 x n x 16.
struct Wgmma {
  float* d;
  const uint32_t* a;  // null: descriptor_a
  uint64_t descriptor_a;
  uint64_t descriptor_b;
  int n;
  bool is_bf16;
  bool is_b_transposed;
  bool accumulates;
};
uint64_t wgmma_descriptor(const void* shared, int leading_bytes, int stride_bytes, int swizzle);
void wgmma(const Wgmma& part);
void wgmma_fence();
void wgmma_commit();
void wgmma_wait(uint32_t pending);

}  // namespace cudasim
