// How kernels are started: one function, so that emulation and checks of launches have one place.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/cuda/ptx.cuh"

namespace kvc::cuda {

struct LaunchShape {
  uint32_t grid[3] = {1, 1, 1};
  uint32_t threads = 128;
  uint32_t shared_bytes = 0;  // dynamic; above 48 KiB the kernel must have been allowed to, see allow_shared
  bool may_overlap = false;   // starts while the kernel before it drains; it calls wait_for_previous_kernel()
};

#if defined(KVC_CUDA_EMULATION)

// emulated_cuda.h gives launch and allow_shared with the same meaning.

#else

// Parameters are passed by value (at most 4 KiB together). Returns cudaSuccess or why nothing was started.
template <typename... Params, typename... Args>
cudaError_t launch(void (*kernel)(Params...), const LaunchShape& shape, cudaStream_t stream, Args&&... args) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(shape.grid[0], shape.grid[1], shape.grid[2]);
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = shape.may_overlap ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, Params(std::forward<Args>(args))...);
}

// A kernel's limit on the current device, raised but never lowered: two threads that start it with different sizes must not take the room
// from each other. CUDA is called when the limit rises.
inline cudaError_t raise_shared_limit(const void* kernel, int bytes) {
  struct Limit {
    const void* kernel;
    int device;
    int bytes;
  };
  static std::mutex lock;
  static auto* const limits = new std::vector<Limit>;  // outlives the host's static objects
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  const std::lock_guard guard(lock);
  Limit* known = nullptr;
  for (Limit& limit : *limits) {
    if (limit.kernel == kernel && limit.device == device) known = &limit;
  }
  if (known != nullptr && known->bytes >= bytes) return cudaSuccess;
  const cudaError_t set = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (set != cudaSuccess) return set;
  if (known != nullptr) {
    known->bytes = bytes;
  } else {
    limits->push_back({kernel, device, bytes});
  }
  return cudaSuccess;
}

// Before launches with more than 48 KiB; cheap to repeat.
template <typename... Params>
cudaError_t allow_shared(void (*kernel)(Params...), uint32_t bytes) {
  return raise_shared_limit(reinterpret_cast<const void*>(kernel), static_cast<int>(bytes));
}

#endif

}  // namespace kvc::cuda
