// Facts of a kernel in the current context. CUDA and the driver's compiler decide them per context,
// and they are queried once.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvc::cuda {

// Whether a launch may overlap with the previous kernel: only if the code that runs has
// griddepcontrol.wait. Code compiled from PTX below compute_90 has none. A newer device would start
// it early all the same, and it would read data that is not written yet.
cudaError_t waits_for_previous_kernel(const void* kernel, bool* out);

// Raises a kernel's limit of dynamic shared memory and never lowers it, because two threads may
// launch it with different sizes. Calls CUDA only when the limit rises.
cudaError_t raise_shared_limit(const void* kernel, int32_t bytes);

// Max dynamic shared memory per CTA of the current device.
cudaError_t max_shared_bytes(int32_t* out);

}  // namespace kvc::cuda
