// Launches kernels. There is one function for it, so that emulation and checks of launches have one
// place.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <utility>

#include "kernels/cuda/ptx/ptx.cuh"
#include "kernels/cuda/runtime/kernel_facts.h"

namespace kvc::cuda {

struct LaunchShape {
  uint32_t grid[3] = {1, 1, 1};
  uint32_t threads = 128;
  // Dynamic shared memory. Above 48 KiB call allow_shared first.
  uint32_t shared_bytes = 0;
  // The kernel may start while the previous one drains, if its code can wait (kernel_facts.h).
  // Every thread of it calls wait_for_previous_kernel() before it accesses global memory.
  bool may_overlap = false;
};

// Parameters are passed by value, at most 4 KiB together. Returns cudaSuccess, or why nothing was
// launched.
template <typename... Params, typename... Args>
cudaError_t launch(void (*kernel)(Params...), const LaunchShape& shape, cudaStream_t stream,
                   Args&&... args) {
  bool overlaps = false;
  if (shape.may_overlap) {
    const cudaError_t known =
        waits_for_previous_kernel(reinterpret_cast<const void*>(kernel), &overlaps);
    if (known != cudaSuccess) return known;
  }
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  // Grid, block, dynamic shared memory, stream and attributes. They have no designators, because
  // two of the names are macros on the emulator.
  const cudaLaunchConfig_t config{dim3(shape.grid[0], shape.grid[1], shape.grid[2]),
                                  dim3(shape.threads),
                                  shape.shared_bytes,
                                  stream,
                                  &overlap,
                                  overlaps ? 1u : 0u};
  return cudaLaunchKernelEx(&config, kernel, Params(std::forward<Args>(args))...);
}

// Call this before launches with more than 48 KiB. Repeated calls are cheap.
template <typename... Params>
cudaError_t allow_shared(void (*kernel)(Params...), uint32_t bytes) {
  return raise_shared_limit(reinterpret_cast<const void*>(kernel), static_cast<int32_t>(bytes));
}

// Whether a CTA of the current device may use `bytes` of shared memory.
inline bool can_have_shared(uint32_t bytes) {
  int32_t max_bytes = 0;
  return max_shared_bytes(&max_bytes) == cudaSuccess && bytes <= static_cast<uint32_t>(max_bytes);
}

}  // namespace kvc::cuda
