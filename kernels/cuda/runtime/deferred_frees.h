// Deferred frees: memory that could not be released because a capture was under way. Releasing
// waits for the device, which a capture forbids. The next call that releases or allocates memory
// tries again.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvc::cuda::runtime {

// Releases `address` with `device` current, and returns the error.
using ReleaseFunction = cudaError_t (*)(void* address);

// Makes `device` current and releases `address`, now or later. Errors other than a capture's are
// final: the context that held the memory is lost.
void release_or_defer(int32_t device, void* address, ReleaseFunction release);
// Tries all deferred frees. Returns true if any memory was released.
bool release_deferred();

}  // namespace kvc::cuda::runtime
