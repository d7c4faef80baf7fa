// What is known of a kernel in the current context: both CUDA and the driver's compiler decide per
// context, and are asked once.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvc::cuda {

// Whether a launch may overlap with the one before: only where the code that runs here has
// griddepcontrol.wait. Code that was compiled from PTX below compute_90 has none, but newer devices
// would start it early all the same, and it would read what is not written yet.
cudaError_t waits_for_previous_kernel(const void* kernel, bool* out);

// A kernel's limit of dynamic shared memory, raised but never lowered: two threads that start it
// with different sizes must not take the room from each other. CUDA is called when the limit rises.
cudaError_t raise_shared_limit(const void* kernel, int32_t bytes);

// The most that a CTA of the current device can have.
cudaError_t most_shared_bytes(int32_t* out);

}  // namespace kvc::cuda
