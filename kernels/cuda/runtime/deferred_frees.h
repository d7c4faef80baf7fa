// Deferred frees: memory that could not be released because a capture was under way. Releasing
// waits for the device, which a capture forbids. The next call that releases or allocates memory
// tries again.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvc::cuda::runtime {

// Releases `address` with `device` current, and returns the error.
using GiveBack = cudaError_t (*)(void* address);

// Makes `device` current and releases `address`, now or later. Errors other than a capture's are
// final: the context that held the memory is lost.
void give_back(int32_t device, void* address, GiveBack give);
// Tries all deferred frees. Returns true if any memory was released.
bool give_back_leftovers();

}  // namespace kvc::cuda::runtime
