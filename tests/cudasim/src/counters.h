#pragma once

#include <atomic>
#include <cstdint>

namespace cudasim {

// Counted by kernels, whose CTAs may run on several threads.
struct KernelCounters {
  std::atomic<uint64_t> host_bytes_by_kernels;
  std::atomic<uint64_t> tma_boxes;
};
KernelCounters& counted();

}  // namespace cudasim
