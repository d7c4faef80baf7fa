// How kernels are started: one function, so that emulation and checks of launches have one place.
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
  // Dynamic; above 48 KiB the kernel must have been allowed to, see allow_shared
  uint32_t shared_bytes = 0;
  // Starts while the kernel before it drains, where its code can wait (kernel_facts.h): every
  // thread of it calls wait_for_previous_kernel() before it touches global memory.
  bool may_overlap = false;
};

// Parameters are passed by value (at most 4 KiB together). Returns cudaSuccess or why nothing was
// started.
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
  // Grid, block, dynamic shared memory, stream, attributes: two of the names are taken on the
  // emulator.
  const cudaLaunchConfig_t config{dim3(shape.grid[0], shape.grid[1], shape.grid[2]),
                                  dim3(shape.threads),
                                  shape.shared_bytes,
                                  stream,
                                  &overlap,
                                  overlaps ? 1u : 0u};
  return cudaLaunchKernelEx(&config, kernel, Params(std::forward<Args>(args))...);
}

// Before launches with more than 48 KiB; cheap to repeat.
template <typename... Params>
cudaError_t allow_shared(void (*kernel)(Params...), uint32_t bytes) {
  return raise_shared_limit(reinterpret_cast<const void*>(kernel), static_cast<int32_t>(bytes));
}

// Whether the current device lets a CTA have so much.
inline bool can_have_shared(uint32_t bytes) {
  int32_t most = 0;
  return most_shared_bytes(&most) == cudaSuccess && bytes <= static_cast<uint32_t>(most);
}

}  // namespace kvc::cuda
