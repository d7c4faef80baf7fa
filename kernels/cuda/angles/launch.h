// Launch of the angle kernel.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/step.h"

namespace kvc::cuda {

cudaError_t angles(const AngleParams& params, cudaStream_t stream);

}  // namespace kvc::cuda
