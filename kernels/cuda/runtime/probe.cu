// A kernel that shows whether the library holds code for the current device.
#include <cuda_runtime_api.h>

#include "kernels/cuda/runtime/device_scope.h"

namespace kvc::cuda {

#if defined(KVC_CUDA_EMULATION)

cudaError_t probe_code() { return cudaSuccess; }

#else

namespace {
__global__ void probe() {}
}  // namespace

// All translation units are compiled for the same architectures, so one kernel represents all.
cudaError_t probe_code() {
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(&probe));
}

#endif

}  // namespace kvc::cuda
