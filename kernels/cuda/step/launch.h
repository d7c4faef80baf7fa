// Launch of the step kernel.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/step.h"

namespace kvc::cuda {

cudaError_t step(const StepState& state, const StepPages& pages, cudaStream_t stream);

}  // namespace kvc::cuda
