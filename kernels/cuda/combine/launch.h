// Launch of the kernel that brings partial results together.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/work.h"

namespace kvc::cuda {

// The merges of launch.plan; behind the attention launch with the same parameters.
cudaError_t combine(const AttnLaunch& launch, cudaStream_t stream);

}  // namespace kvc::cuda
