// Is there code for the current device in this library?
#include <cuda_runtime_api.h>

#include "kernels/cuda/runtime/device_scope.h"

namespace kvc::cuda {

#if defined(KVC_CUDA_EMULATION)

cudaError_t probe_code() { return cudaSuccess; }

#else

namespace {
__global__ void probe() {}
}  // namespace

// Every translation unit is compiled for the same list of architectures, so that one kernel speaks
// for all.
cudaError_t probe_code() {
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(&probe));
}

#endif

}  // namespace kvc::cuda
