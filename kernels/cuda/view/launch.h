// Launch of the view kernel.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/step.h"

namespace kvc::cuda {

// max_sequences: as many sequences as a step can have; the kernel reads how many this one has.
cudaError_t view(const ViewParams& params, int32_t max_sequences, cudaStream_t stream);

}  // namespace kvc::cuda
