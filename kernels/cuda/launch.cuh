// How kernels are started: one function, so that emulation and checks of launches have one place.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <utility>

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

// Once per kernel and device before launches with more than 48 KiB.
template <typename... Params>
cudaError_t allow_shared(void (*kernel)(Params...), uint32_t bytes) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                              cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
}

#endif

}  // namespace kvc::cuda
